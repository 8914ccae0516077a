"""Whole runs through `spillway.cli.main`, with a session that remembers all it was given in a hash."""

import gzip
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_runs
import spillway
import spillway.run.train
import tiny
from fake_runs import Run
from fake_session import FITS, PLAN, FakeSession
from spillway.base.documents import make_document
from spillway.data.loading import load, load_tokenizer
from spillway.output.records import rows


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def run(inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with fake_runs.runs(inputs, out, monkeypatch) as run:
        yield run


def metrics(path: Path) -> list[dict[str, Any]]:
    return list(rows(path / "metrics.jsonl"))


def final(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def names(path: Path) -> list[str]:
    return sorted(item.name for item in path.iterdir())


def test_a_run_leaves_what_it_promises(run: Run, out: Path, inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--eval_dataset", str(inputs / "held_out.jsonl"), "--save_steps", "5") == 0
    model = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert set(names(out)) == {
        *model,
        *("checkpoint-5", "checkpoint-10", "checkpoint-12"),
        *("config.yaml", "plan.json", "metrics.jsonl", "summary.json", "report.html", "timeline.json.gz"),
        "spillway",
    }
    assert names(out / "checkpoint-12") == sorted([*model, "spillway", "trainer_state.json"])
    assert names(out / "checkpoint-12" / "spillway") == ["files.json", "run.json", "session.json", "state.json"]
    assert names(out / "spillway") == ["description.json", "files.json", "run.json", "settings.json"]
    assert final(out) == (out / "checkpoint-12" / "model.safetensors").read_bytes()
    assert json.loads((out / "plan.json").read_text()) == PLAN
    assert json.loads(gzip.decompress((out / "timeline.json.gz").read_bytes())) == {"traceEvents": []}
    shown = capsys.readouterr().out
    for part in ("What lives where", "16.0 GiB", "planned peak", "Predicted step: 1.5 s", "step 12/12", "eval loss",
                 "note: path:0: no O_DIRECT here"):  # fmt: skip
        assert part in shown
    assert "tokens/s" in shown and "left" in shown and "grad norm" in shown


def test_rows_of_metrics(run: Run, out: Path, inputs: Path) -> None:
    assert run("--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_steps", "5", "--learning_rate", "1e-3") == 0
    all_rows = metrics(out)
    assert [row["step"] for row in all_rows] == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 12]
    trained = [row for row in all_rows if "loss" in row]
    fields = ["step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "path_bytes"]
    assert all(list(row) == fields for row in trained)
    assert all(list(row) == ["step", "epoch", "eval_loss", "eval_perplexity"] for row in all_rows if "loss" not in row)
    assert [row["epoch"] for row in trained[:6]] == [2 / 12, 4 / 12, 6 / 12, 8 / 12, 10 / 12, 1]
    assert trained[-1]["epoch"] == 2
    assert [row["learning_rate"] for row in trained] == pytest.approx([1e-3 * (1 - step / 12) for step in range(12)])
    (session,) = FakeSession.opened
    given = [(sum(batch.tokens for batch in batches), rate) for batches, rate in session.steps_here]
    assert given == [(row["tokens"], row["learning_rate"]) for row in trained]
    assert trained[2]["path_bytes"] == {"path:0": {"read": 3000, "written": 500}}


def test_a_logged_loss_is_the_mean_since_the_last_one(run: Run, out: Path, inputs: Path) -> None:
    assert run() == 0
    each = [row["loss"] for row in metrics(out)]
    assert run("--overwrite", "--logging_steps", "5") == 0
    logged = metrics(out)
    assert [row["step"] for row in logged] == [5, 10]
    assert [row["loss"] for row in logged] == [math.fsum(each[:5]) / 5, math.fsum(each[5:10]) / 5]


def test_every_step_gets_its_rows_in_order(run: Run, out: Path, inputs: Path) -> None:
    assert run("--packing", "--max_length", "50", "--data_seed", "9") == 0
    (session,) = FakeSession.opened
    work = spillway.run.train.load_work(session.config, lambda _: None)
    for number, (batches, _) in enumerate(session.steps_here):
        expected = [work.train.batch(part) for part in work.order.step(number)]
        assert len(batches) == len(expected)
        for batch, other in zip(batches, expected, strict=True):
            assert batch.input_ids.equal(other.input_ids) and batch.labels.equal(other.labels)
            assert batch.position_ids is not None and other.position_ids is not None
            assert batch.position_ids.equal(other.position_ids)


def test_an_evaluation_reads_every_held_out_row_once(run: Run, out: Path, inputs: Path) -> None:
    held_out = str(inputs / "held_out.jsonl")
    assert (
        run("--eval_dataset", held_out, "--max_steps", "1", "--per_device_eval_batch_size", "2", "--eval_on_start") == 0
    )
    (session,) = FakeSession.opened
    read = [row for group in session.evaluations for batch in group for row in batch.input_ids]
    assert len(read) == 2 * 7
    assert max(len(group) for group in session.evaluations) == session.shape.micro_batches == 2
    assert [row["step"] for row in metrics(out) if "eval_loss" in row] == [0, 1]
    tokenizer = load_tokenizer(session.config)
    held = load(session.config, tokenizer, "eval_dataset", lambda _: None)
    assert session.shape.eval_length == held.longest and session.shape.eval_batch == 2


MOMENTS = [f"step:{step}" for step in (1, 2, 3, 6, 11)] + ["evaluate:4", "evaluate:6", "save:3", "save:6"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupted_anywhere_and_resumed_nothing_changes(
    run: Run, out: Path, inputs: Path, tmp_path: Path, moment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ["--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_steps", "2", "--logging_steps", "3"]
    keys += ["--save_steps", "3", "--learning_rate", "1e-3", "--lr_scheduler_type", "cosine"]
    step = moment.partition(":")[2]
    assert run(*keys) == 0
    os.rename(out, tmp_path / "whole")
    capsys.readouterr()
    assert run(*keys, fake_signal=f"{moment}:SIGINT") == 130
    error = capsys.readouterr().err
    assert f"step {step} of 12 is saved" in error and f"spillway resume {out}" in error
    assert (out / f"checkpoint-{step}" / "spillway" / "run.json").exists()
    assert not (out / "model.safetensors").exists()
    assert run(verb="resume") == 0
    assert final(out) == final(tmp_path / "whole")
    assert metrics(out) == metrics(tmp_path / "whole")
    states = [path / "checkpoint-12" / "trainer_state.json" for path in (out, tmp_path / "whole")]
    assert states[0].read_text() == states[1].read_text()


def test_a_signal_in_the_last_step_lets_the_run_end(run: Run, out: Path) -> None:
    assert run(fake_signal="step:12:SIGTERM") == 0
    assert (out / "summary.json").exists()


def test_a_signal_in_the_last_evaluation_leaves_it_to_the_resumed_run(run: Run, out: Path, inputs: Path) -> None:
    keys = ["--eval_dataset", str(inputs / "held_out.jsonl"), "--save_only_model"]
    keys += ["--per_device_eval_batch_size", "1"]
    assert run(*keys, fake_signal="evaluate:12:SIGTERM") == 143
    assert metrics(out)[-1]["step"] == 12 and "eval_loss" not in metrics(out)[-1]
    assert run(verb="resume") == 0
    assert metrics(out)[-1]["step"] == 12 and "eval_loss" in metrics(out)[-1]
    assert final(out) == (out / "checkpoint-12" / "model.safetensors").read_bytes()


def test_a_signal_before_the_first_step_leaves_nothing(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(fake_signal="start:0:SIGTERM") == 143
    assert "nothing to save" in capsys.readouterr().err
    assert not out.exists()


def test_steps_that_are_not_finite_are_counted_and_reported(
    run: Run, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Across a resume, too."""
    monkeypatch.setenv("FAKE_SKIP", "2 3 7")
    assert run(fake_signal="step:5:SIGINT") == 130
    assert run(verb="resume") == 0
    counted = {row["step"]: (row.get("skipped"), row.get("skipped_steps")) for row in rows(out / "metrics.jsonl")}
    assert counted[1] == (None, None) and counted[2] == (True, 1) and counted[4] == (None, 2)
    assert counted[7] == (True, 3) and counted[12] == (None, 3)
    assert json.loads((out / "summary.json").read_text())["skipped_steps"] == 3
    text = capsys.readouterr().out
    assert "step 3: the gradient is not finite" in text and "3 steps were skipped" in text


def test_a_finished_run_has_nothing_to_resume(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    (out / "model.safetensors").unlink()
    assert run(verb="resume") == 0
    assert len(FakeSession.opened) == 1
    assert "The run is complete: step 12 of 12" in capsys.readouterr().out
    assert run("--max_steps", "3", verb="resume") == 0
    said = capsys.readouterr().out
    assert f"The run is complete: step 12 of 12 is in {out / 'checkpoint-12'}. The configuration asks for 3." in said
    assert final(out) == (out / "checkpoint-12" / "model.safetensors").read_bytes()


def test_going_back_to_a_checkpoint_by_name(run: Run, out: Path) -> None:
    assert run("--save_steps", "4") == 0
    whole, rows_of_whole = final(out), metrics(out)
    assert run("--resume_from_checkpoint", str(out / "checkpoint-4"), verb="resume") == 0
    assert FakeSession.opened[1].steps == 12 and len(FakeSession.opened[1].steps_here) == 8
    assert (final(out), metrics(out)) == (whole, rows_of_whole)


def test_a_crash_goes_back_to_the_last_checkpoint(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--save_steps", "4") == 0
    whole, rows_of_whole = final(out), metrics(out)
    assert run("--save_steps", "4", "--overwrite", fake_fail="save:8") == 1
    error = capsys.readouterr().err
    assert "No space left on device" in error and "Traceback" not in error
    assert [name for name in names(out) if "checkpoint" in name] == ["checkpoint-4"]
    assert [row["step"] for row in metrics(out)] == list(range(1, 9))
    assert run("--save_steps", "4", "--resume_from_checkpoint", "auto") == 0
    assert (final(out), metrics(out)) == (whole, rows_of_whole)


def test_a_resumed_run_may_go_further(run: Run, out: Path) -> None:
    keys = ["--lr_scheduler_type", "constant"]
    assert run(*keys) == 0
    whole = final(out)
    assert run(*keys, "--overwrite", "--max_steps", "5") == 0
    assert run("--max_steps", "-1", verb="resume") == 0
    assert final(out) == whole


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "1"),
        ("data_seed", "1"),
        ("max_length", "32"),
        ("packing", "true"),
        ("per_device_train_batch_size", "4"),
        ("gradient_accumulation_steps", "1"),
        ("compute_dtype", "fp32"),
    ],
)
def test_what_a_resume_cannot_change(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    assert run("--compute_dtype", "bf16", fake_signal="step:3:SIGINT") == 130
    before = names(out)
    capsys.readouterr()
    assert run(f"--{key}", value, verb="resume") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"spillway: {key}: the run was started with")
    assert value.lower() in error.lower().rpartition("change it to")[2]
    assert names(out) == before


def test_changed_data_or_model_is_refused(
    run: Run, out: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fake_signal="step:3:SIGINT") == 130
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes((inputs / "train.jsonl").read_bytes())
    other = tiny.jsonl(tmp_path / "other.jsonl", tiny.text_rows(24))
    model = tiny.model_directory(tmp_path / "model")
    (model / "config.json").write_text(json.dumps(tiny.CONFIG | {"hidden_size": 32}))
    for key, value in (("dataset", other), ("model", model)):
        assert run(f"--{key}", str(value), verb="resume") == 2
        error = capsys.readouterr().err
        assert f"{key}: the run was started with" in error and str(value) in error
    moved_model = tiny.model_directory(tmp_path / "moved_model")
    assert run("--dataset", str(moved), "--model", str(moved_model), verb="resume") == 0


def test_a_run_is_not_overwritten(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--max_steps", "2") == 0
    before = final(out)
    assert run("--max_steps", "3") == 2
    assert "holds a run already" in capsys.readouterr().err
    assert final(out) == before
    assert run("--max_steps", "3", "--overwrite") == 0
    assert final(out) != before
    assert [name for name in names(out) if "checkpoint" in name] == ["checkpoint-3"]


def test_save_total_limit_and_save_only_model(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--save_steps", "2", "--save_total_limit", "2", "--save_only_model") == 0
    assert [name for name in names(out) if "checkpoint" in name] == ["checkpoint-10", "checkpoint-12"]
    assert names(out / "checkpoint-12" / "spillway") == ["files.json"]
    assert run(verb="resume") == 2
    assert "no checkpoint to resume from" in capsys.readouterr().err


def test_summary_puts_prediction_beside_measurement(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["step_seconds"] == {"predicted": 1.5, "measured": 0.25, "measured_quartiles": [0.25, 0.25]}
    assert [tier["name"] for tier in summary["tiers"]] == ["dram", "path:0"]
    assert all(set(tier) == {"name", "capacity", "planned_peak", "measured_peak"} for tier in summary["tiers"])
    assert {"process_peak", "path_bytes", "stall_seconds", "bottleneck"} <= set(summary)
    assert summary["tokens_seen"] == sum(row["tokens"] for row in metrics(out))
    assert "Predicted and measured" in capsys.readouterr().out


def test_trainer_state_has_the_keys_of_transformers_and_no_others(run: Run, out: Path, inputs: Path) -> None:
    from dataclasses import fields

    from transformers import TrainerState

    assert run("--eval_dataset", str(inputs / "held_out.jsonl")) == 0
    path = out / "checkpoint-12" / "trainer_state.json"
    content = json.loads(path.read_text())
    assert set(content) == {field.name for field in fields(TrainerState)}
    loaded = TrainerState.load_from_json(str(path))
    assert (loaded.global_step, loaded.max_steps, loaded.epoch, loaded.num_train_epochs) == (12, 12, 2.0, 2)
    assert len(loaded.log_history) == 14


def test_the_plan_that_does_not_fit(run: Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("plan", "train"):
        assert run("--dram_budget", "512MiB", verb=verb) == 3
        assert "1 GiB is needed" in capsys.readouterr().err
    assert not out.exists()


def test_plan_draws_a_step(run: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step.dot"
    assert run("--graph", str(file), verb="plan") == 0
    assert file.read_text() == "a step as dot"
    assert run("--graph", str(tmp_path / "step.png"), verb="plan") == 2
    assert "step.png: the file is to end in .svg or .dot" in capsys.readouterr().err
    assert not out.exists()


def test_plan_shows_and_starts_nothing(
    run: Run, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (out.parent / "empty").mkdir()
    monkeypatch.chdir(out.parent / "empty")
    assert run("--output_dir", "none", verb="plan") == 0
    assert not names(Path.cwd())
    shown = capsys.readouterr().out
    assert "What lives where" in shown and "in a pass: 64" in " ".join(shown.split())
    assert run("--json", "--gradient_checkpointing", verb="plan") == 0
    caught = capsys.readouterr()
    assert json.loads(caught.out) == PLAN | make_document(FITS)
    assert "means activation_recompute: all" in caught.err
    assert not out.exists()
    assert not FakeSession.opened[0].steps_here


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["dataset", "holds no rows"]),
        ('{"text": "a"}\nnot json\n', ["bad.jsonl:2", "not valid JSON"]),
        ('{"a": 1}\n', ["bad.jsonl:1", "'a'"]),
        ('{"prompt": "The river", "completion": ""}\n', []),
        ('{"text": ""}\n', ["dataset", "no row", "carries loss"]),
    ],
)
def test_bad_data_is_refused_before_anything_is_written(
    run: Run, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, parts: list[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    assert run("--dataset", str(path)) == (2 if parts else 0)
    error = capsys.readouterr().err
    assert all(part in error for part in parts)
    assert out.exists() is not bool(parts)
    assert error.count("\n") == (1 if parts else 0)


def test_a_tokenizer_too_large_for_the_model(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.model_directory(tmp_path / "model")
    (model / "config.json").write_text(json.dumps(tiny.CONFIG | {"vocab_size": 100}))
    assert run("--model", str(model)) == 2
    assert "knows 100 tokens only" in capsys.readouterr().err


def test_a_directory_without_a_tokenizer(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(tiny.CONFIG))
    assert run("--model", str(tmp_path / "model")) == 2
    assert "model: no tokenizer can be loaded" in capsys.readouterr().err


def test_a_name_that_is_not_in_the_cache_is_refused_where_there_is_no_network(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run("--model", "nobody/nothing") == 2
    assert "hf download nobody/nothing" in capsys.readouterr().err


def test_the_chat_template_goes_with_the_model(run: Run, out: Path, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "He."}]
    data = tiny.jsonl(tmp_path / "talk.jsonl", [{"messages": talk}] * 4)
    template = tmp_path / "template.jinja"
    template.write_text(tiny.MARKED)
    assert run("--dataset", str(data), "--chat_template_path", str(template)) == 0
    assert (out / "chat_template.jinja").read_text() == tiny.MARKED


def test_train_from_python(run: Run, inputs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model": str(inputs / "model"), "dataset": str(inputs / "train.jsonl"), "output_dir": str(out)}
    summary = spillway.train(config, max_steps=2)
    assert summary == json.loads((out / "summary.json").read_text())
    with pytest.raises(spillway.InputError, match="holds a run already"):
        spillway.train(out / "config.yaml")
    with pytest.raises(spillway.InputError, match="max_stps"):
        spillway.train(config, max_stps=2)
    with pytest.raises(spillway.DoesNotFit):
        spillway.train(config, overwrite=True, dram_budget="1MiB")
    monkeypatch.setenv("FAKE_SIGNAL", "step:1:SIGINT")
    with pytest.raises(spillway.Interrupted):
        spillway.train(config, overwrite=True, max_steps=2)
