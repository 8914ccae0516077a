"""Another number of processes goes on with the durable steps of a Session and of transformers' and TRL's trainers, to
the bits of a run that was never interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import real_runs
import seeds
import tiny
from folders import PYTHONPATH
from needs import package
from test_another_world import children, wait_for_port
from test_ranks import LAUNCHER, free_port
from test_together import BEGINNING, DURABLE, LIMIT, TRAINER, ranks, ranks_begun, same_files, told, trained, well

package("accelerate", "transformers' Trainer needs accelerate")
TWELVE = {"micro_batches": 12, "train": 48, "num_train_epochs": 4, "save_steps": 4}  # 2 steps an epoch

OWN = (
    BEGINNING
    + """
import signal
import spillway
from hf_models import random_ids
keys = json.loads(sys.argv[3])
dies, out = keys.pop("dies", None), keys.pop("out", f"of-{world}")
keys["resume_from_checkpoint"] = keys.pop("resume", None)
if "storage" in keys:
    keys["storage"] += ",capacity=256MiB"
with spillway.Session(
    model=str(given / "model"), profile=str(given / "profile.json"), output_dir=str(place / out),
    virtual_ranks=4, gradient_accumulation_steps=12, per_device_train_batch_size=1, max_length=16, max_steps=8,
    learning_rate=0.01, lr_scheduler_type="constant", compute_dtype="fp32", **keys,
) as session:
    for step in range(session.steps, 8):
        every = [
            {"input_ids": random_ids(1, 16, 100 * step + n), "labels": random_ids(1, 16, 100 * step + n)}
            for n in range(12)
        ]
        if dies == [rank, step + 1]:
            os.kill(os.getpid(), signal.SIGKILL)
        session.step(every[rank::world])
    session.save()
"""
)

TRLS = (
    BEGINNING
    + """
import signal
import datasets
import pairs, test_dpo_trainer, test_sft_trainer, tiny
from test_trainer import loaded
from transformers import TrainerCallback
keys = json.loads(sys.argv[3])
kind, dies, out, resume = (keys.pop(name, None) for name in ("kind", "dies", "out", "resume"))

class Dies(TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        if dies == [rank, state.global_step]:
            os.kill(os.getpid(), signal.SIGKILL)

more = dict(gradient_accumulation_steps=4 // world, max_steps=4, per_device_train_batch_size=1, eval_strategy="steps",
            eval_steps=2, per_device_eval_batch_size=1, use_cpu=True, logging_steps=1, save_strategy="no")
if kind == "dpo":
    parts = test_dpo_trainer.parts(given, place / out, pairs.texts(8), **more)
    Trainer = test_dpo_trainer.Streamed
else:
    parts = test_sft_trainer.parts(given, place / out, **more)
    parts["train_dataset"] = datasets.Dataset.from_list(tiny.text_rows(8))
    Trainer = test_sft_trainer.SFTTrainer
trainer = Trainer(model=loaded(given, virtual_ranks=2, **keys), callbacks=[Dies()], **parts)
trainer.train(resume_from_checkpoint=resume)
trainer.save_model()
trainer.close()
rows = [{name: row[name] for name in ("loss", "grad_norm", "eval_loss", "num_tokens", "rewards/margins") if name in row}
        for row in trainer.state.log_history if "train_runtime" not in row]
Path(place, f"told-{world}-{rank}.json").write_text(json.dumps(rows))
"""
)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("taken_over"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    return place


def on_drives(place: Path, most: int) -> dict[str, Any]:
    """The keys of a run that is durable on a path of each process."""
    for rank in range(most):
        (place / f"drive{rank}").mkdir()
    return {**DURABLE, "storage": f"{place}/drive{{local_rank}}"}


def lives(script: str, given: Path, place: Path, worlds: Sequence[int], **words: Any) -> None:
    """So many processes, of which the last is killed in the third step of each world, and the others take over."""
    for number, world in enumerate(worlds):
        last = number == len(worlds) - 1
        dies = {} if last else {"dies": [world - 1, 2 * number + 3]}
        ends = ranks(script, world, given, place, json.dumps({**words, **dies}))
        if last:
            well(ends)
        else:
            assert [code for *_, code in ends] == [1] * (world - 1) + [-signal.SIGKILL], ends
        if number and script is not OWN:
            assert f"{worlds[number - 1]} process{'es' * (worlds[number - 1] > 1)} had made it" in ends[0][1], ends


def killed_meanwhile(run: Callable[[int], list[Any]], drive: Path, name: str) -> None:
    """Processes of random numbers, killed at random instants after their new volumes are there."""
    instants = seeds.instants(name)
    for _ in range(4):
        world = instants.choice([1, 2])
        volume = drive / ("spillway.volume" if world == 1 else f"spillway.shard-0-of-{world}.volume")
        begun = run(world)
        began = time.monotonic()
        while not volume.exists() and all(each.poll() is None for each in begun) and time.monotonic() - began < LIMIT:
            time.sleep(0.005)
        time.sleep(instants.uniform(0, 0.3))
        for process in begun:
            process.kill()
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in begun]
        assert all(code in (0, 1, -signal.SIGKILL) for *_, code in ends), (seeds.said(), ends)


# ---- transformers' Trainer


@pytest.mark.nightly
@pytest.mark.parametrize("worlds", [[1, 2], [4, 3, 1, 2]])
def test_a_trainer_in_another_number(given: Path, tmp_path: Path, worlds: list[int]) -> None:
    keys = {"virtual_ranks": max(worlds)}
    expected = trained(given, tmp_path, 1, load=keys, **TWELVE)
    load = {**on_drives(tmp_path, max(worlds)), **keys}
    lives(TRAINER, given, tmp_path, worlds, load=load, out="out", resume="auto", **TWELVE)
    for rows, others in zip(told(tmp_path, worlds[-1]), expected, strict=True):
        assert rows == [pytest.approx(each, rel=1e-6) for each in others]  # the loss is added in other shares
    same_files(tmp_path / "out" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


@pytest.mark.nightly
def test_a_trainer_that_is_killed_while_it_takes_over(given: Path, tmp_path: Path) -> None:
    expected = trained(given, tmp_path, 1)
    words = {"load": on_drives(tmp_path, 2), "out": "out", "resume": "auto"}
    ends = ranks(TRAINER, 2, given, tmp_path, json.dumps({**words, "dies": [0, 2]}))
    assert all(code for *_, code in ends), ends
    run = lambda world: ranks_begun(TRAINER, world, given, tmp_path, json.dumps(words))  # noqa: E731
    killed_meanwhile(run, tmp_path / "drive0", "a trainer in another number")
    well(ranks(TRAINER, 2, given, tmp_path, json.dumps(words)))
    assert told(tmp_path, 2) == expected
    same_files(tmp_path / "out" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


@pytest.mark.nightly
@pytest.mark.parametrize("worlds", [[2, 1], [1, 2]])
def test_a_trainer_goes_on_from_a_checkpoint_of_another_number(given: Path, tmp_path: Path, worlds: list[int]) -> None:
    """One that stands alone; nobody gives virtual ranks where the first are two."""
    expected = trained(given, tmp_path, 1)
    load = {"virtual_ranks": None if worlds[0] == 2 else 2}
    trained(given, tmp_path, worlds[0], out="out", load=load)
    (tmp_path / "out" / "model.safetensors").unlink()
    trained(given, tmp_path, worlds[1], out="out", load=load, resume=str(tmp_path / "out" / "checkpoint-2"))
    assert told(tmp_path, worlds[1]) == expected
    same_files(tmp_path / "out" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


@pytest.mark.nightly
def test_other_steps_are_refused_with_what_fits(given: Path, tmp_path: Path) -> None:
    words = {"load": on_drives(tmp_path, 2), "out": "out", "resume": "auto"}
    ranks(TRAINER, 2, given, tmp_path, json.dumps({**words, "dies": [0, 2]}))
    ((_, said, code),) = ranks(TRAINER, 1, given, tmp_path, json.dumps({**words, "micro_batches": 2}))
    assert code == 1
    assert "the run was started with 4 micro-batches in a step" in said
    assert "give TrainingArguments gradient_accumulation_steps=4" in said


def on_one_core() -> None:
    """However many processes there are, each computes with one thread."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


@pytest.mark.nightly
def test_an_elastic_trainer_with_fewer_machines(given: Path, tmp_path: Path) -> None:
    """Two agents of torchrun, as on two machines; one is gone, and the other starts its process again, alone."""
    expected = trained(given, tmp_path, 1)
    script, out, port = tmp_path / "script.py", tmp_path / "out", free_port()
    script.write_text(TRAINER)
    rendezvous = ["--nnodes", "1:2", "--nproc_per_node", "1", "--max_restarts", "3", "--rdzv_id", "a"]
    quick = "last_call_timeout=30,keep_alive_interval=1,keep_alive_max_attempt=2"
    rendezvous += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_conf", quick]
    path = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": path}
    for rank in range(2):
        (tmp_path / f"machine{rank}").mkdir()
    words = {"load": {**DURABLE, "storage": f"{tmp_path}/machine{{rank}}"}, "out": "out"}  # begun anew, were it one
    command = [*LAUNCHER[:3], *rendezvous, script, given, tmp_path, json.dumps(words)]
    agents = []
    for _ in range(2):
        agent = subprocess.Popen(
            list(map(str, command)),
            env=environment,
            preexec_fn=on_one_core,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        agents.append(agent)
        wait_for_port(port)  # the first one has the store
    log, began = out / "spillway" / "trainer_log.jsonl", time.monotonic()
    while not (log.exists() and '"step": 2' in log.read_text()) and time.monotonic() - began < LIMIT:
        time.sleep(0.02)
    for pid in [agents[1].pid, *children(agents[1].pid)]:
        os.kill(pid, signal.SIGKILL)
    agents[1].communicate()
    _, error = agents[0].communicate(timeout=3 * LIMIT)
    assert agents[0].returncode == 0, error
    assert "2 processes had made it" in error
    assert told(tmp_path, 1) == expected
    same_files(out / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("worlds", [[2, 1], [1, 2]])
def test_trls_trainers_in_another_number(given: Path, tmp_path: Path, kind: str, worlds: list[int]) -> None:
    package("trl", "TRL is not installed: its trainers stay untried")
    well(ranks(TRLS, 1, given, tmp_path, json.dumps({"kind": kind, "out": "of-1"})))
    expected = told(tmp_path, 1)
    words = {"kind": kind, "out": "out", "resume": "auto", **on_drives(tmp_path, 2)}
    lives(TRLS, given, tmp_path, worlds, **words)
    assert told(tmp_path, worlds[-1]) == expected
    same_files(tmp_path / "out" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")


# ---- a loop of one's own


def same_runs(one: Path, other: Path) -> None:
    assert real_runs.metrics(one) == real_runs.metrics(other)
    same_files(one / "model.safetensors", other / "model.safetensors")


@pytest.mark.nightly
@pytest.mark.parametrize("worlds", [[2, 1, 2], [4, 3, 1, 2]])
def test_a_session_in_another_number(given: Path, tmp_path: Path, worlds: list[int]) -> None:
    well(ranks(OWN, 1, given, tmp_path, json.dumps({})))
    lives(OWN, given, tmp_path, worlds, **on_drives(tmp_path, max(worlds)), out="out", resume="auto")
    same_runs(tmp_path / "out", tmp_path / "of-1")


@pytest.mark.nightly
def test_a_session_that_is_killed_while_it_takes_over(given: Path, tmp_path: Path) -> None:
    well(ranks(OWN, 1, given, tmp_path, json.dumps({})))
    words = {**on_drives(tmp_path, 2), "out": "out", "resume": "auto"}
    ends = ranks(OWN, 2, given, tmp_path, json.dumps({**words, "dies": [0, 3]}))
    assert all(code for *_, code in ends), ends
    run = lambda world: ranks_begun(OWN, world, given, tmp_path, json.dumps(words))  # noqa: E731
    killed_meanwhile(run, tmp_path / "drive0", "a session in another number")
    well(ranks(OWN, 2, given, tmp_path, json.dumps(words)))
    same_runs(tmp_path / "out", tmp_path / "of-1")
