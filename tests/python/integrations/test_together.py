"""Session, transformers' Trainer and preferences in several processes: equal bit by bit to one process over the same
micro-batches; and what verbs make of what several have left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import pairs
import real_runs
import seeds
import tiny
from needs import package
from spillway.cli import main
from spillway.run.world import interleaved
from test_ranks import HOST, free_port, on_paths, under_way, wait_for_rows

package("accelerate", "transformers' Trainer needs accelerate")
LIMIT = 100  # seconds that processes may take at most

BEGINNING = """
import json, os, sys
from pathlib import Path
given, place = Path(sys.argv[1]), Path(sys.argv[2])
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
"""

SESSION = (
    BEGINNING
    + """
import spillway
from hf_models import batch, random_ids

def own(every):
    return every[rank::world]

with spillway.Session(
    model=str(given / "model"), profile=str(given / "profile.json"), output_dir=str(place / f"of-{world}"),
    virtual_ranks=2, gradient_accumulation_steps=4, per_device_train_batch_size=2, max_length=16, max_steps=3,
    learning_rate=0.01, lr_scheduler_type="constant", compute_dtype="fp32",
) as session:
    steps = []
    for step in range(3):
        every = [
            {"input_ids": random_ids(2, 16, 10 * step + n), "labels": random_ids(2, 16, 10 * step + n)}
            for n in range(4 - step % 2)
        ]
        steps.append(session.step(own(every)))
    evaluated = session.evaluate(iter(own(every)))
    logits = session.model(input_ids=random_ids(1, 7, 3)).logits
    session.save()
kept = [{name: row[name] for name in ("loss", "grad_norm", "tokens")} for row in steps]
Path(place, f"told-{world}-{rank}.json").write_text(json.dumps([kept, evaluated, logits.sum().item()]))
try:
    with spillway.Session(model=str(given / "model"), profile=str(given / "profile.json"), max_length=16, max_steps=3,
                          per_device_train_batch_size=2, compute_dtype="fp32") as session:
        ids = random_ids(2, 32 if rank == world - 1 else 16, 5)
        session.step({"input_ids": ids, "labels": ids})
except spillway.InputError as error:
    print(error)
"""
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("together"))


def ranks_begun(script: str, world: int, *words: object, more: Mapping[int, dict[str, str]] | None = None) -> list[Any]:
    """`more`: of the environment of these ranks."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    where |= {"LOCAL_WORLD_SIZE": str(world)}
    environments = [{**where, "RANK": str(rank), "LOCAL_RANK": str(rank)} if world > 1 else {} for rank in range(world)]
    for rank, environment in (more or {}).items():
        environments[rank] |= environment
    return [real_runs.apart("-c", script, *map(str, words), env_more=each) for each in environments]


def ranks(script: str, world: int, *words: object) -> list[tuple[str, str, int]]:
    """What each of so many processes has said, and how it ended; those that do not end say where they are."""
    begun = ranks_begun(script, world, *words)
    try:
        begun[0].wait(LIMIT)
    except subprocess.TimeoutExpired:
        for process in begun:
            process.send_signal(signal.SIGABRT)
    return [(*process.communicate(timeout=LIMIT), process.returncode) for process in begun]


def well(ends: list[tuple[str, str, int]]) -> None:
    assert [code for *_, code in ends] == [0] * len(ends), ends


def told(place: Path, world: int) -> list[Any]:
    every = [json.loads((place / f"told-{world}-{rank}.json").read_text()) for rank in range(world)]
    assert all(each == every[0] for each in every)
    return every[0]


def same_files(one: Path, other: Path) -> None:
    left, right = load_file(one), load_file(other)
    assert left.keys() == right.keys()
    assert all(bool((left[name] == right[name]).all()) for name in left)


def same_saves(one: Path, other: Path) -> None:
    found = sorted(path.relative_to(other) for path in other.rglob("*.safetensors"))
    assert len(found) > 1
    for path in found:
        same_files(one / path, other / path)


def test_the_order_of_what_processes_give() -> None:
    assert interleaved([["a", "b", "c"], [], ["d"]]) == ["a", "d", "b", "c"]


def test_a_session_of_two_makes_what_one_makes(given: Path, tmp_path: Path) -> None:
    """And an error of one of them ends a session in both."""
    for world in (1, 2):
        ends = ranks(SESSION, world, given, tmp_path)
        well(ends)
        whose = f"rank 1 ({HOST}): " if world == 2 else ""
        wrong = f"{whose}max_length: the session was planned for 2 rows of 16 tokens, not 2 of 32"
        assert all(said.startswith(wrong) for said, *_ in ends), ends
    assert told(tmp_path, 1) == told(tmp_path, 2)
    assert real_runs.metrics(tmp_path / "of-1") == real_runs.metrics(tmp_path / "of-2")
    same_saves(tmp_path / "of-2", tmp_path / "of-1")


TRAINER = (
    real_runs.dying("update")
    + BEGINNING
    + """
import test_trainer as tests
import transformers
from spillway.hf import Trainer

class Began(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        Path(place, f"began-{world}-{rank}").write_text(str(state.global_step))

more = json.loads(sys.argv[3])
keys = more.pop("load", {})
resume, dies, out = more.pop("resume", None), more.pop("dies", None), more.pop("out", f"of-{world}")
more["gradient_accumulation_steps"] = more.pop("micro_batches", 4) // world

from transformers import TrainerCallback

class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        if dies == [rank, state.global_step]:
            os.kill(os.getpid(), 9)

events = {"train": 16, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps",
          "save_steps": 2, "per_device_eval_batch_size": 1, **more}
keys = {name: key for name, key in {"virtual_ranks": 2, **keys}.items() if key is not None}
model = tests.loaded(given, **keys)
parts = tests.parts(given, place / out, **events) | {"callbacks": [Dies()]}
trainer = Trainer(model=model, compute_metrics=lambda found: {"mean": float(found.predictions.mean())}, **parts)
trainer.add_callback(Began())
trainer.train(resume_from_checkpoint=resume)
trainer.save_model()
trainer.close()
Path(place, f"told-{world}-{rank}.json").write_text(
    json.dumps([tests.logged(trainer), [row["eval_mean"] for row in trainer.state.log_history if "eval_mean" in row]])
)
"""
)


def trained(given: Path, place: Path, world: int, **more: Any) -> list[Any]:
    well(ranks(TRAINER, world, given, place, json.dumps(more)))
    return told(place, world)


@pytest.fixture(scope="module")
def alone(given: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """What one process makes, and what it has told."""
    place = tmp_path_factory.mktemp("alone")
    found = trained(given, place, 1)
    return place / "of-1", found


def test_a_trainer_of_two_makes_what_one_makes(given: Path, tmp_path: Path, alone: tuple[Path, list[Any]]) -> None:
    assert trained(given, tmp_path, 2) == alone[1] and len(alone[1][1]) == 2
    same_saves(tmp_path / "of-2", alone[0])


DURABLE = {"durability": "step", "placement": "weight=50%,state=path,grad=path,activation=dram"}


def test_a_trainer_goes_on_with_the_steps_of_another_number(
    given: Path, tmp_path: Path, alone: tuple[Path, list[Any]]
) -> None:
    """Of two one is killed in the last step; one process takes over what both had made durable, with the virtual ranks
    that nobody has given."""
    for drive in ("drive0", "drive1"):
        (tmp_path / drive).mkdir()
    load = {**DURABLE, "storage": f"{tmp_path}/drive{{local_rank}}"}
    words = {"load": {**load, "virtual_ranks": None}, "out": "out", "resume": "auto"}
    ends = ranks(TRAINER, 2, given, tmp_path, json.dumps({**words, "dies": [1, 4]}))
    assert [code for *_, code in ends] == [1, -signal.SIGKILL], ends
    ((_, said, code),) = ranks(TRAINER, 1, given, tmp_path, json.dumps(words))
    assert code == 0 and "2 processes had made it" in said, said
    assert told(tmp_path, 1) == alone[1]
    same_files(tmp_path / "out" / "model.safetensors", alone[0] / "model.safetensors")
    assert not [*tmp_path.glob("drive*/*")]  # what no checkpoint needs is gone


@pytest.mark.nightly
def test_a_trainer_of_two_goes_on_from_its_checkpoint(given: Path, tmp_path: Path) -> None:
    together = trained(given, tmp_path, 2)
    last = "checkpoint-4/model.safetensors"
    before = load_file(tmp_path / "of-2" / last)
    for name in ("model.safetensors", "checkpoint-4"):
        path = tmp_path / "of-2" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = trained(given, tmp_path, 2, resume=True)
    assert again == together
    after = load_file(tmp_path / "of-2" / last)
    assert all(bool((before[name] == after[name]).all()) for name in before)
    assert sorted(path.name for path in (tmp_path / "of-2" / "checkpoint-4").glob("rng*")) == [
        "rng_state_0.pth",
        "rng_state_1.pth",
    ]


LATE = """
import os, signal, sys, time
from pathlib import Path
from spillway.cli import command
from spillway.run.run import Run

pid = Path(sys.argv[1])
if os.environ["RANK"] == "1":
    pid.write_text(str(os.getpid()))

def signals(self):
    os.kill(int(pid.read_text()), signal.SIGTERM)
    time.sleep(1)

Run.write_report = signals
sys.exit(command.main(sys.argv[2:]))
"""


def test_preferences_in_two_processes(given: Path, tmp_path: Path) -> None:
    tiny.jsonl(tmp_path / "pairs.jsonl", pairs.texts(11))
    keys = ("--dataset", str(tmp_path / "pairs.jsonl"), "--objective", "dpo", "--virtual_ranks", "2",
            "--eval_dataset", str(tmp_path / "pairs.jsonl"), "--eval_steps", "2", "--per_device_eval_batch_size", "2",
            "--gradient_accumulation_steps", "3", "--max_steps", "3", "--max_length", "96")  # fmt: skip
    assert real_runs.here(given, tmp_path / "one", *keys) == 0
    words = real_runs.words(given, tmp_path / "two", *keys)
    ends = ranks(LATE, 2, tmp_path / "pid", *words)  # a signal after the last step changes nothing
    well(ends)
    assert real_runs.result(tmp_path / "two") == real_runs.result(tmp_path / "one")
    assert ends[0][0].count("reference log-probabilities") == 2 and not ends[1][0]


def killed(given: Path, place: Path, *keys: str) -> Path:
    """A run of two that has ended by kill, with finished steps on the path of each."""
    out = place / "out"
    two = under_way(2, given, out, *keys, *on_paths(place, 2), "--durability", "step")
    wait_for_rows(4, two, out)  # of which one at least is durable
    for process in two:
        process.kill()
        process.communicate(timeout=LIMIT)
    return out


def test_one_process_reads_what_two_have_left(given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = ("--virtual_ranks", "2", "--lr_scheduler_type", "constant")
    out, alone = killed(given, tmp_path, *keys), tmp_path / "alone"
    capfd.readouterr()
    assert main(["verify", str(out)]) == 0
    said = capfd.readouterr().out
    assert [line.split(" (")[0] for line in said.splitlines()] == ["shard 0", "shard 1"]
    assert said.count("no damage") == 2
    assert main(["export", str(out), "--to", str(alone)]) == 0
    step = capfd.readouterr().out.split()[1]
    assert real_runs.here(given, tmp_path / "one", *keys, "--max_steps", step) == 0
    same_saves(alone, real_runs.last_checkpoint(tmp_path / "one"))
    assert main(["report", str(out)]) == 0

    (gone,) = (tmp_path / "drive1").iterdir()
    gone.rename(tmp_path / "elsewhere")
    capfd.readouterr()
    assert main(["verify", str(out)]) == 0
    assert f"not read: shard 1 ({HOST}) has no volume of the run at {gone}" in capfd.readouterr().out
    assert main(["export", str(out), "--to", str(tmp_path / "again")]) == 2
    assert f"shard 1 ({HOST}) has no volume" in capfd.readouterr().err

    new = ("--overwrite", "--placement", "dram", "--durability", "none", "--max_steps", "1")
    storage = ("--storage", f"{tmp_path}/drive0,capacity=512MiB")
    assert real_runs.here(given, out, *keys, *storage, *new) == 0
    assert not list((tmp_path / "drive0").iterdir())


# ---- larger ones


@pytest.mark.nightly
def test_a_trainer_of_two_goes_on_from_durable_steps(given: Path, tmp_path: Path) -> None:
    alone = trained(given, tmp_path, 1)
    for drive in ("drive0", "drive1"):
        (tmp_path / drive).mkdir()
    load = {**DURABLE, "storage": f"{tmp_path}/drive{{local_rank}}"}  # its capacity the script gives
    words = (given, tmp_path, json.dumps({"load": load, "resume": "auto"}))
    instants = seeds.instants("trainer of two")
    began = []  # of each life: after so many steps
    for victim, update in ((0, 3), (1, 2), (0, 1), (0, 0)):  # who is killed in which update of this life; 0: nobody
        dies = {"DIES_IN": str(update), "DIES_AFTER": str(instants.uniform(0.001, 0.1))}
        two = ranks_begun(TRAINER, 2, *words, more={victim: dies})
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in two]
        began.append(int((tmp_path / "began-2-0").read_text()))
        if all(code == 0 for *_, code in ends):
            break
        assert ends[victim][2] == -signal.SIGALRM and ends[1 - victim][2] in (0, 1), (ends, seeds.said())
    well(ends)
    assert len(began) > 1 and began[0] == 0 < began[1] and sorted(began) == began, (began, seeds.said())
    assert told(tmp_path, 2) == alone
    same_files(tmp_path / "of-1" / "model.safetensors", tmp_path / "of-2" / "model.safetensors")


PAIRS = (
    BEGINNING
    + """
import test_dpo_trainer as tests
import pairs
from test_trainer import loaded
trainer = tests.Streamed(model=loaded(given, virtual_ranks=2), **tests.parts(
    given, place / f"of-{world}", pairs.texts(8), gradient_accumulation_steps=4 // world, max_steps=3,
    per_device_train_batch_size=1, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=1, use_cpu=True))
trainer.train()
trainer.save_model()
rows = [{name: row[name] for name in row if "runtime" not in name and "per_second" not in name}
        for row in trainer.state.log_history if "train_runtime" not in row]
Path(place, f"told-{world}-{rank}.json").write_text(json.dumps(rows))
"""
)


@pytest.mark.nightly
def test_preferences_by_trls_trainer_in_two_processes(given: Path, tmp_path: Path) -> None:
    package("trl", "TRL is not installed: its DPOTrainer stays untried")
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(given / "model"))
    for world in (1, 2):
        well(ranks(PAIRS, world, given, tmp_path))
    one, two = told(tmp_path, 1), told(tmp_path, 2)
    assert [row.get("loss") for row in one] == [row.get("loss") for row in two]
    same_files(tmp_path / "of-1" / "model.safetensors", tmp_path / "of-2" / "model.safetensors")
