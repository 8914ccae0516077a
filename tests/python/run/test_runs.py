"""Whole runs of the real engine: what they leave, and that no interruption changes a bit."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import signal
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import spillway
from breadth import some
from native import file_bytes
from real_runs import apart, here, last_checkpoint, metrics, names, on_path, result, words
from spillway.run.session import EngineSession

MODEL = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
FIELDS = ["step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "path_bytes"]
LIMIT = 300  # seconds that a process of its own may take at most
LONG = ["--max_steps", "60", "--lr_scheduler_type", "cosine", "--warmup_steps", "10"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output_dir of one run, in a process of its own, with state on a path and evaluations."""
    path = tmp_path_factory.mktemp("finished")
    keys = ["--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_steps", "2", "--save_steps", "4"]
    keys += ["--max_steps", "6", "--save_total_limit", "2", *on_path(path / "storage")]
    process = apart("-m", "spillway", *words(inputs, path / "out", *keys), cold=True)
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    (path / "out.txt").write_text(shown)
    (path / "err.txt").write_text(error)
    return path


def test_what_a_person_sees(finished: Path) -> None:
    shown, error = (finished / "out.txt").read_text(), (finished / "err.txt").read_text()
    for part in ("What lives where", "dram", "path:0", "planned peak", "Predicted step", "Predicted and measured"):
        assert part in shown
    for part in ("loss", "grad norm", "eval loss", "tokens/s", "step 6/6", f"The model is in {finished / 'out'}"):
        assert part in shown.replace("\n", " ") or part in shown.replace("\n", "")
    assert "Traceback" not in error + shown and "Warning" not in error + shown


def test_files_of_a_run(finished: Path) -> None:
    out = finished / "out"
    results = ["config.yaml", "plan.json", "metrics.jsonl", "summary.json", "timeline.json.gz", "loss.png"]
    assert names(out) == sorted([*MODEL, *results, "report.html", "spillway", "checkpoint-4", "checkpoint-6"])
    for number in (4, 6):
        assert names(out / f"checkpoint-{number}") == sorted([*MODEL, "spillway", "trainer_state.json"])
    assert (out / "model.safetensors").samefile(out / "checkpoint-6" / "model.safetensors")
    assert names(finished / "storage") == ["spillway.volume"]  # the checkpoints' state lies in it
    state = ["files.json", "manifest.bin", "run.json", "session.json", "wear.json"]
    assert names(out / "checkpoint-4" / "spillway") == state
    png = (out / "loss.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", png[16:24])) > 100


def test_plan_and_summary_agree(finished: Path) -> None:
    out = finished / "out"
    plan, summary = (json.loads((out / name).read_text()) for name in ("plan.json", "summary.json"))
    assert plan["fits"] is True and plan["predicted_step_seconds"] > 0 and plan["bottleneck"]
    assert [tier["name"] for tier in plan["tiers"]] == ["dram", "path:0"]
    for tier, measured in zip(plan["tiers"], summary["tiers"], strict=True):
        held = sum(row["bytes"] for row in plan["bytes"] if row["tier"] == tier["name"])
        assert held == tier["planned_peak"] <= tier["capacity"]
        assert {key: measured[key] for key in tier} == tier
        assert 0 < measured["measured_peak"] <= tier["planned_peak"] * 1.05 + (2 << 20)
    classes = {row["class"] for row in plan["bytes"] if row["tier"] == "path:0"}
    assert classes == {"weight", "state", "grad", "records", "durability"}
    assert plan["durability"] == summary["durability"] == "step"
    assert summary["written"]["path:0"] >= summary["path_bytes"]["path:0"]["written"]
    assert summary["step_seconds"]["predicted"] == plan["predicted_step_seconds"]
    assert summary["step_seconds"]["measured"] > 0 and summary["process_peak"] > 0
    assert summary["steps"] == summary["steps_here"] == 6 and summary["bottleneck"] == plan["bottleneck"]
    assert set(summary["path_bytes"]) == {"path:0"} and isinstance(summary["stall_seconds"], dict)


def test_rows_of_metrics(finished: Path) -> None:
    from spillway.output.records import rows

    all_rows = list(rows(finished / "out" / "metrics.jsonl"))
    assert [row["step"] for row in all_rows] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    trained = [row for row in all_rows if "loss" in row]
    evaluated = [row for row in all_rows if "eval_loss" in row]
    assert all(list(row) == FIELDS for row in trained)
    assert all(list(row) == ["step", "epoch", "eval_loss", "eval_perplexity"] for row in evaluated)
    plan = json.loads((finished / "out" / "plan.json").read_text())
    planned = plan["path_bytes_per_step"]["path:0"]
    for row in trained[2:5:2]:  # the updates of these steps' predecessors are not settled by an evaluation
        assert row["path_bytes"]["path:0"]["read"] > 0 and row["path_bytes"]["path:0"]["written"] > 0
    assert planned["read"] > 0 and planned["written"] > 0
    assert evaluated[-1]["eval_loss"] < evaluated[0]["eval_loss"]
    text = (finished / "out" / "metrics.jsonl").read_text()
    for number in re.findall(r'"(?:loss|grad_norm|eval_loss)": ([^,}]+)', text):
        assert repr(float(number)) == number


def test_the_timeline_opens(finished: Path) -> None:
    content = json.loads(gzip.decompress((finished / "out" / "timeline.json.gz").read_bytes()))
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert len(events) > 10 and all(event["dur"] >= 0 and event["ts"] >= 0 for event in events)
    lanes = {event["args"]["name"] for event in content["traceEvents"] if event["ph"] == "M"}
    assert any("predicted" in lane for lane in lanes) and any("measured" in lane for lane in lanes)


def test_the_checkpoint_loads_and_gives_the_reported_loss(finished: Path, inputs: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    out = finished / "out"
    previous = logging.get_verbosity()
    logging.set_verbosity_warning()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    logging.set_verbosity(previous)
    assert not any(info.values()) and model.dtype == torch.bfloat16
    tokenizer = AutoTokenizer.from_pretrained(out)
    total, count = 0.0, 0
    with torch.no_grad():
        for line in (inputs / "held_out.jsonl").read_text().splitlines():
            ids = torch.tensor([(tokenizer.encode(json.loads(line)["text"]) + [tokenizer.eos_token_id])[:64]])
            total += float(model.eval()(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    reported = metrics(out)[-1]["eval_loss"]
    assert total / count == pytest.approx(reported, rel=3e-3)  # bf16 logits


def test_the_same_run_in_dram_and_elsewhere(
    finished: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command line: a placement key, a budget and a window change no bit."""
    keys = ["--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_steps", "2", "--save_steps", "4"]
    keys += ["--max_steps", "6"]
    expected = result(finished / "out")
    plan = json.loads((finished / "out" / "plan.json").read_text())
    assert plan["kept_logits"] > 0 and "logits" in {part["class"] for part in plan["bytes"]}
    (tmp_path / "storage").mkdir()
    storage = ["--storage", str(tmp_path / "storage")]
    variants = {
        "dram": ["--placement", "dram"],
        "path": ["--placement", "path", "--window", "2", *storage],
        "auto": ["--dram_budget", "6GiB", *storage],
    }
    for name, more in variants.items():
        assert here(inputs, tmp_path / name, *keys, *more) == 0, capsys.readouterr().err
        found = result(tmp_path / name)
        assert found[0] == expected[0] and found[2] == expected[2]
        assert binary_without_run(found[1]) == binary_without_run(expected[1])


def binary_without_run(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if not name.endswith("run.json")}


def test_train_from_python_and_a_plan_that_starts_nothing(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert here(inputs, out, *on_path(tmp_path / "storage"), verb="plan") == 0
    assert not out.exists() and names(tmp_path / "storage") == []
    assert "in a pass; the plan tries no longer ones" in " ".join(capsys.readouterr().out.split())
    assert here(inputs, out, "--dram_budget", "1900MiB", "--json", verb="plan") == 0
    plan = json.loads(capsys.readouterr().out)
    table = plan["fit_table"]
    here_now = table["sequences"][1], table["batches"].index(2), table["dram_budgets"].index(1900 << 20)
    assert here_now[0] <= 64 <= plan["longest_sequence"] <= table["sequences"][-1]
    cell = table["tokens_per_second"][(here_now[2] * len(table["sequences"]) + 1) * len(table["batches"]) + here_now[1]]
    assert cell == pytest.approx(2 * 2 * here_now[0] / plan["predicted_step_seconds"], rel=0.02)
    config = {"model": str(inputs / "model"), "dataset": str(inputs / "train.jsonl"), "output_dir": str(out)}
    summary = spillway.train(config, max_steps=2, max_length=64, per_device_train_batch_size=2, optim="adamw_torch")
    assert summary == json.loads((out / "summary.json").read_text()) and summary["steps"] == 2
    with pytest.raises(spillway.InputError, match="holds a run already"):
        spillway.train(out / "config.yaml")
    capsys.readouterr()


# ---- interruptions ----

SHORT = ["--max_steps", "5", "--logging_steps", "2", "--eval_steps", "2", "--save_steps", "3", "--packing"]


class Signals:
    """Sends signals to this process at a pass of the real engine: `boundary` or `inside` step `step`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, inside: bool, number: int) -> None:
        self.steps = 0
        original = EngineSession.step

        def step_and_signal(session: EngineSession, *given: Any) -> Any:
            self.steps += 1
            if inside and self.steps == step:
                stream = session._stream
                assert stream is not None
                run = stream.gradients

                def run_and_signal(*arguments: Any) -> Any:
                    os.kill(os.getpid(), number)
                    return run(*arguments)

                monkeypatch.setattr(stream, "gradients", run_and_signal)
            found = original(session, *given)
            if not inside and self.steps == step:
                os.kill(os.getpid(), number)
            return found

        monkeypatch.setattr(EngineSession, "step", step_and_signal)


@pytest.fixture(scope="module")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The short run, never interrupted, all in DRAM."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert here(inputs, out, *SHORT, "--eval_dataset", str(inputs / "held_out.jsonl")) == 0
    return out


INTERRUPTIONS = [(step, inside) for step in (1, 2, 3, 4) for inside in (False, True)]


@pytest.mark.parametrize(
    ("step", "inside"), some(INTERRUPTIONS, [(1, False), (2, True), (3, False), (4, True)]),
    ids=[f"{step}-{'inside' if inside else 'after'}" for step, inside in INTERRUPTIONS],
)  # fmt: skip
def test_interrupted_and_resumed_at_every_step(
    inputs: Path, whole: Path, tmp_path: Path, step: int, inside: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a path, resumed on a path or in DRAM: as the uninterrupted run in DRAM."""
    out = tmp_path / "out"
    keys = [*SHORT, "--eval_dataset", str(inputs / "held_out.jsonl"), *on_path(tmp_path / "storage")]
    number = signal.SIGINT if step % 2 else signal.SIGTERM
    with pytest.MonkeyPatch.context() as patch:
        Signals(patch, step, inside, number)
        assert here(inputs, out, *keys) == 128 + number
    error = capsys.readouterr().err
    assert f"step {step} of 5 is saved" in error and f"spillway resume {out}" in error and "Traceback" not in error
    assert not (out / "checkpoint-4").exists() and not list(out.glob(".tmp*"))
    elsewhere = ["--placement", "dram"] if inside else []
    assert spillway.cli.main(["resume", str(out), *elsewhere]) == 0
    assert result(out) == result(whole)


def test_resume_true_auto_and_a_directory(
    inputs: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [*SHORT, "--eval_dataset", str(inputs / "held_out.jsonl")]
    out = tmp_path / "out"
    assert here(inputs, out, *keys, "--resume_from_checkpoint", "true") == 2
    assert "holds no checkpoint to resume from" in capsys.readouterr().err and not out.exists()
    assert here(inputs, out, *keys, "--resume_from_checkpoint", "auto") == 0
    assert result(out) == result(whole)
    before = file_bytes(out)
    assert here(inputs, out, *keys, "--resume_from_checkpoint", "true") == 0
    assert "The run is complete" in capsys.readouterr().out and file_bytes(out) == before
    assert here(inputs, out, *keys, "--resume_from_checkpoint", str(out / "checkpoint-3")) == 0
    assert result(out) == result(whole)
    (out / "checkpoint-5" / "spillway" / "run.json").unlink()
    assert here(inputs, out, *keys, "--resume_from_checkpoint", str(out / "checkpoint-5")) == 2
    assert "cannot be resumed from" in capsys.readouterr().err


def test_a_damaged_state_is_refused_and_left_as_it_is(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        Signals(patch, 2, False, signal.SIGINT)
        assert here(inputs, out, *SHORT, "--eval_dataset", str(inputs / "held_out.jsonl")) == 130
    largest = max((out / "checkpoint-2" / "spillway").iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 8)
    before = file_bytes(out)
    capsys.readouterr()
    assert spillway.cli.main(["resume", str(out)]) == 2
    error = capsys.readouterr().err
    assert largest.name in error and "Traceback" not in error and error.count("\n") == 1
    assert file_bytes(out) == before


def wait_for_row(process: Any, out: Path, step: int) -> None:
    """Until the row of `step` is in metrics.jsonl."""
    ended = os.pidfd_open(process.pid)
    try:
        for _ in range(LIMIT * 200):
            if (out / "metrics.jsonl").exists() and f'{{"step": {step},' in (out / "metrics.jsonl").read_text():
                return
            if select.select([ended], [], [], 0.005)[0]:
                raise AssertionError(process.communicate()[1])
    finally:
        os.close(ended)
    raise AssertionError(f"no step {step} in {LIMIT} s")


@pytest.fixture(scope="module")
def long_whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("long_whole") / "out"
    assert here(inputs, out, *LONG) == 0
    return out


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_a_signal_from_outside(
    inputs: Path, long_whole: Path, tmp_path: Path, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    keys = [*LONG, *on_path(tmp_path / "storage")]
    process = apart("-m", "spillway", *words(inputs, out, *keys))
    wait_for_row(process, out, 3)
    process.send_signal(number)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + number, error
    assert "interrupted: finishing the step in progress" in error and "Traceback" not in error
    found = re.search(r"step (\d+) of 60 is saved", error)
    assert found and 3 <= int(found[1]) < 60
    assert names(out) == ["config.yaml", "metrics.jsonl", "plan.json", "spillway"]
    assert names(tmp_path / "storage") == ["spillway.volume"]
    if number == signal.SIGINT:
        again = apart("-m", "spillway", "resume", str(out))
        _, error = again.communicate(timeout=LIMIT)
        assert again.returncode == 0, error
    else:
        assert spillway.cli.main(["resume", str(out)]) == 0
    assert result(out) == result(long_whole)


TWICE = """
import os, signal, sys
from spillway.run.session import EngineSession
from spillway.cli import main
step, count = EngineSession.step, 0
def step_and_signal(*given):
    global count
    count += 1
    if count == 5:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    return step(*given)
EngineSession.step = step_and_signal
sys.exit(main(sys.argv[1:]))
"""


def test_a_second_signal_stops_at_once(
    inputs: Path, long_whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    keys = [*LONG, "--save_steps", "3", *on_path(tmp_path / "storage")]
    process = apart("-c", TWICE, *words(inputs, out, *keys))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 143, error
    assert "interrupted twice: stopping at once, every finished step, or all but the last, is on the storage" in error
    assert [name for name in names(out) if "checkpoint" in name] == ["checkpoint-3"]
    assert [row["step"] for row in metrics(out)] == [1, 2, 3, 4]
    assert here(inputs, out, *LONG, *on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto") == 0
    found = re.search(r"recovered step (\d+) from the storage paths", capsys.readouterr().out)
    assert found and int(found[1]) in (3, 4)
    assert last_checkpoint(out).name == "checkpoint-60" and result(out) == result(long_whole)


def test_several_paths_change_nothing_and_share_the_bytes(inputs: Path, tmp_path: Path) -> None:
    more = ["--max_steps", "4", "--placement", "path"]
    assert here(inputs, tmp_path / "one", *more, *storages(tmp_path, "a")) == 0
    assert here(inputs, tmp_path / "three", *more, *storages(tmp_path, "b", "c", "d")) == 0
    assert result(tmp_path / "one") == result(tmp_path / "three")
    moved = json.loads((tmp_path / "three" / "summary.json").read_text())["path_bytes"]
    assert list(moved) == ["path:0", "path:1", "path:2"]
    assert all(path["read"] > 0 and path["written"] > 0 for path in moved.values())
    plan = json.loads((tmp_path / "three" / "plan.json").read_text())
    for tier in plan["tiers"][1:]:
        assert sum(row["bytes"] for row in plan["bytes"] if row["tier"] == tier["name"]) == tier["planned_peak"]
    assert all(names(tmp_path / name) == ["spillway.volume"] for name in "abcd")


def storages(parent: Path, *names: str) -> list[str]:
    keys = []
    for name in names:
        (parent / name).mkdir()
        keys += ["--storage", f"{parent / name},capacity=256MiB"]
    return keys


def test_one_directory_twice_is_refused(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    both = ["--storage", str(tmp_path / "a"), "--storage", str(tmp_path / "." / "a")]
    assert here(inputs, tmp_path / "out", *both) == 2
    assert "given twice" in capfd.readouterr().err and not (tmp_path / "out").exists()
