"""Damaged logs. A log holds no state, so a run goes on without the damaged lines, and the page shows the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import real_runs
from real_runs import apart, here, metrics, on_path, result, words
from spillway.cli import main
from spillway.output.records import DamagedLine, read_damaged_lines, rows

KEYS = ["--max_steps", "6", "--save_steps", "2", "--packing"]
LIMIT = 300  # seconds that a process of its own may take at most
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def undisturbed_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output_dir of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert here(inputs, out, *KEYS) == 0
    return out


@pytest.fixture(scope="module")
def killed_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `out` and `storage` of a run that was killed in its fifth step."""
    path = tmp_path_factory.mktemp("killed")
    keys = [*KEYS, *on_path(path / "storage")]
    process = apart(
        "-c", KILLED, *words(inputs, path / "out", *keys), env_more={"DIES_AFTER": "0.000001", "DIES_IN": "5"}
    )
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -14, error
    return path


@pytest.fixture
def run_copy(killed_run: Path, tmp_path: Path) -> Path:
    for name in ("out", "storage"):
        shutil.copytree(killed_run / name, tmp_path / name)
    return tmp_path


def change_second_line(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        lines = content.splitlines(keepends=True)
        return b"".join([lines[0], change(lines[1]), *lines[2:]])

    return damage


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a bit in a key": (change_second_line(lambda line: line.replace(b'"step"', b'"stdp"')), "no `step`"),
    "a byte that is no UTF-8": (change_second_line(lambda line: line.replace(b'"loss"', b'"l\xffss"')), "no UTF-8"),
    "a row without step": (change_second_line(lambda line: b'{"loss": 1.0}\n'), "no `step`"),
    "half a line": (change_second_line(lambda line: line[: len(line) // 2] + b"\n"), "no JSON"),
    "a list": (change_second_line(lambda line: b"[1, 2]\n"), "no JSON object"),
    "a word": (change_second_line(lambda line: b'"step"\n'), "no JSON object"),
    "an empty line": (change_second_line(lambda line: b"\n"), "an empty line"),
    "zeros at the end": (lambda content: content + bytes(700), "zeros"),
    "zeros inside": (change_second_line(lambda line: bytes(len(line) - 1) + b"\n"), "zeros"),
    "a step that is text": (change_second_line(lambda line: line.replace(b'"step": 2', b'"step": "2"')), "no count"),
    "a loss that is text": (change_second_line(lambda line: b'{"step": 2, "loss": "low"}\n'), "no number"),
    "a nested line": (change_second_line(lambda line: b"[" * 100_000 + b"\n"), "no JSON"),
    "a number of 5,000 digits": (change_second_line(lambda line: b'{"step": ' + b"9" * 5000 + b"}\n"), "no JSON"),
    "bytes that are no text": (lambda content: bytes(range(128, 256)) * 9 + b"\n" + content, "no UTF-8"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_run_resumes_without_damaged_lines_of_its_metrics(
    kind: str, run_copy: Path, undisturbed_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, (damage, words) = run_copy / "out", DAMAGES[kind]
    log = out / "metrics.jsonl"
    log.write_bytes(damage(log.read_bytes()))
    (line,) = read_damaged_lines(log)
    assert words in line.why
    kept_steps = [row["step"] for row in rows(log)]
    assert main(["resume", str(out), "--storage", str(run_copy / "storage")]) == 0, capfd.readouterr().err
    output = " ".join(capfd.readouterr().out.split())
    assert f"metrics.jsonl: damaged line {line.number} ({line.why}); set aside in metrics.jsonl.damaged" in output
    assert (out / "metrics.jsonl.damaged").read_bytes() == line.content.rstrip(b"\n") + b"\n"
    assert [row["step"] for row in metrics(out)] == sorted({*kept_steps, 5, 6})
    expected, resumed = result(undisturbed_run), result(out)
    assert resumed[1] == expected[1]
    assert [row for row in expected[0] if row["step"] in {row["step"] for row in resumed[0]}] == resumed[0]


def test_truncated_last_line_is_no_damage(
    run_copy: Path, undisturbed_run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = run_copy / "out"
    with open(out / "metrics.jsonl", "ab") as stream:
        stream.write(b'{"step": 5, "los')
    assert main(["resume", str(out), "--storage", str(run_copy / "storage")]) == 0
    assert "damaged" not in capfd.readouterr().out and not (out / "metrics.jsonl.damaged").exists()
    assert result(out) == result(undisturbed_run)


def test_overwrite_removes_damaged_lines(run_copy: Path, inputs: Path) -> None:
    out = run_copy / "out"
    (out / "metrics.jsonl.damaged").write_bytes(b"{\n")
    assert here(inputs, out, *KEYS, "--overwrite") == 0
    assert not (out / "metrics.jsonl.damaged").exists()


RESULTS = ["metrics.jsonl", "summary.json", "timeline.json.gz", "config.yaml", "plan.json", "spillway/settings.json"]
UNCHECKED = ("config.yaml", "spillway/settings.json")  # the page shows none of their entries alone
SPOILT = [b"", b"[]", b"{", b"\xff\xfe\x00", b"null", b'{"tiers": 4, "steps": "x", "traceEvents": [4]}', b"[" * 100_000]


@pytest.mark.parametrize("name", RESULTS)
def test_page_names_a_damaged_file_and_shows_the_rest(
    name: str, undisturbed_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed_run, out)
    for content in SPOILT:
        (out / name).write_bytes(content + b"\n")
        assert main(["report", str(out)]) == 0, (content[:20], capfd.readouterr().err)
        page, error = (out / "report.html").read_text(), capfd.readouterr().err
        is_named = not (name in UNCHECKED and content == SPOILT[5])
        assert (f"note: {out / name}" in error) is is_named, (content[:20], error)
        assert ('id="damaged"' in page) is is_named and "Traceback" not in error
        if name != "metrics.jsonl":
            assert f"{list(rows(out / 'metrics.jsonl'))[-1]['loss']:.4f}" in page


EXPERTS = {"mean": 0.5, "layers": {"0": 0.25, "1": 0.75}, "resident": 0.125, "planned": {}}


@pytest.mark.parametrize(
    ("change", "is_named"),
    [({}, False), ({"planned": {"share": 0.5, "source": "even"}}, False), ({"resident": None}, True),
     ({"planned": {"share": "half", "source": "even"}}, True), ({"planned": [1]}, True)],
)  # fmt: skip
def test_page_names_damaged_entries_of_experts(
    change: dict[str, object], is_named: bool, undisturbed_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed_run, out)
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"experts_met": EXPERTS | change}))
    assert main(["report", str(out)]) == 0
    error = capfd.readouterr().err
    assert (f"{out / 'summary.json'} has `experts_met` as no run writes them" in error) is is_named, error


def test_flipped_bit_in_a_compressed_timeline_is_named(
    undisturbed_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed_run, out)
    content = bytearray((out / "timeline.json.gz").read_bytes())
    content[len(content) // 2] ^= 4
    (out / "timeline.json.gz").write_bytes(content)
    assert main(["report", str(out)]) == 0
    assert f"{out / 'timeline.json.gz'} cannot be read" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["so_far.json", "late.json", "timeline.json.gz"])
def test_damaged_status_files_of_a_running_run_are_skipped(
    name: str, undisturbed_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed_run, out)
    for file, content in {"so_far.json": b"{}", "late.json": b'{"at": 0}'}.items():
        (out / "spillway" / file).write_bytes(content)
    for content in SPOILT:
        (out / "spillway" / name).write_bytes(content)
        for verb in ("report", "doctor"):
            assert main([verb, str(out)]) == 0, (content[:20], capfd.readouterr().err)
    capfd.readouterr()


def test_finished_run_with_a_damaged_summary_stays_finished(
    undisturbed_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed_run, out)
    for content in SPOILT:
        (out / "summary.json").write_bytes(content)
        assert main(["resume", str(out)]) == 0, (content[:20], capfd.readouterr().err)
        assert "The run is complete" in capfd.readouterr().out


def test_damaged_lines_are_listed_by_number(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_bytes(b'{"step": 1}\nx\n{"step": 2}\n[]\n{"step": 3, "loss": NaN}\n{"step": 4')
    assert read_damaged_lines(log) == [DamagedLine(2, "no JSON", b"x\n"), DamagedLine(4, "no JSON object", b"[]\n")]
    assert [row["step"] for row in rows(log)] == [1, 2, 3]


def test_session_resumes_without_damaged_lines(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import spillway
    from hf_models import random_ids

    (tmp_path / "storage").mkdir()
    keys = {
        "model": str(inputs / "model"), "profile": str(inputs / "profile.json"), "output_dir": str(tmp_path / "out"),
        "max_length": 16, "max_steps": 4, "per_device_train_batch_size": 1, "placement": "path",
        "storage": [f"{tmp_path / 'storage'},capacity=256MiB"], "resume_from_checkpoint": "auto",
    }  # fmt: skip
    for steps in (2, 4):
        with spillway.Session(**keys) as session:
            for step in range(session.steps, steps):
                session.step({"input_ids": random_ids(1, 16, step), "labels": random_ids(1, 16, step)})
        if steps == 2:
            log = tmp_path / "out" / "metrics.jsonl"
            first, second = log.read_text().splitlines()
            log.write_text(f"{first.replace('step', 'stop', 1)}\n{second}\n")
    assert "metrics.jsonl: damaged line 1 (no `step`); set aside" in " ".join(capfd.readouterr().err.split())
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [2, 3, 4]


EVENTS = {"max_steps": 8, "logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "no"}
TRAINER_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit in a key": change_second_line(lambda line: line.replace(b'"loss"', b'"loss')),
    "bytes that are no UTF-8": change_second_line(lambda line: b"\xff\xfe" + line),
    "a list": change_second_line(lambda line: b"[]\n"),
    "half a line and zeros": lambda content: content + b'{"loss": 1' + bytes(100),
    "all of it": lambda content: b"",
}


def test_trainer_resumes_without_damaged_lines_of_its_log(
    inputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("accelerate")
    import test_trainer_durable as tests

    undisturbed_run = tests.trainer(inputs, tmp_path / "whole", tmp_path / "storage_of_whole", EVENTS)
    undisturbed_run.train()
    undisturbed_run.save_model()
    undisturbed_run.close()
    (tmp_path / "first").mkdir()
    first = tests.trainer(inputs, tmp_path / "first" / "out", tmp_path / "first" / "storage", EVENTS)
    first.add_callback(tests.Fails("on_evaluate", 6))
    with pytest.raises(RuntimeError, match="as a test asked"):
        first.train()
    first.close()
    for kind, damage in TRAINER_DAMAGES.items():
        place = tmp_path / kind.replace(" ", "-")
        shutil.copytree(tmp_path / "first", place)
        log = place / "out" / "spillway" / "trainer_log.jsonl"
        log.write_bytes(damage(log.read_bytes()))
        caplog.clear()
        again = tests.trainer(inputs, place / "out", place / "storage", EVENTS)
        assert again.train(resume_from_checkpoint=True).global_step == 8
        again.save_model()
        again.close()
        assert f"{log}: " in caplog.text and "the training goes on with a log of" in caplog.text
        assert (log.with_name("trainer_log.jsonl.damaged").exists()) is (kind != "all of it")
        steps = [row["step"] for row in again.state.log_history if "loss" in row]
        expected = {"all of it": [7, 8], "half a line and zeros": list(range(1, 9))}
        assert steps == expected.get(kind, [1, *range(3, 9)]), kind
        assert (place / "out" / "model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
