"""`verify` and `export` of runs over the fake engine: what is damaged has a name, what is exported stands alone."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import real_runs
from fake_engine import FakeEngine
from real_runs import here, metrics, names
from spillway.base import calls
from spillway.cli import main

KEYS = ["--max_steps", "5", "--save_steps", "2", "--compute_dtype", "fp32"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "native_engine", lambda: FakeEngine)


@pytest.fixture(scope="module")
def finished(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`out` and `storage` of a durable run of five steps."""
    path = tmp_path_factory.mktemp("finished")
    (path / "storage").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "native_engine", lambda: FakeEngine)
        assert here(inputs, path / "out", *KEYS, "--storage", str(path / "storage")) == 0
    yield path


def exported(finished: Path, to: Path, *words: str) -> int:
    return main(["export", str(finished / "out"), "--to", str(to), *words])


@pytest.mark.parametrize(("words", "step"), [([], 5), (["--checkpoint", "checkpoint-2"], 2),
                                             (["--resume_from_checkpoint", "checkpoint-4"], 4)])  # fmt: skip
def test_what_is_exported_needs_no_path_and_goes_on_as_the_run_did(
    finished: Path, inputs: Path, tmp_path: Path, words: list[str], step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(finished / "out" / word) if word.startswith("checkpoint") else word for word in words]
    assert exported(finished, tmp_path / "alone", *words) == 0, capsys.readouterr().err
    assert f"step {step} of {finished / 'out'} is in {tmp_path / 'alone'}" in capsys.readouterr().out
    source = finished / "out" / f"checkpoint-{step}"
    files = names(tmp_path / "alone")
    assert files == names(source)
    assert names(tmp_path / "alone" / "spillway") == ["fake.pt", "files.json", "run.json", "session.json"]
    for name in files:
        if name != "spillway":
            assert (tmp_path / "alone" / name).read_bytes() == (source / name).read_bytes(), name
    if step < 5:
        words = ["--resume_from_checkpoint", str(tmp_path / "alone")]
        assert here(inputs, tmp_path / "new", *KEYS, *words) == 0
        assert (tmp_path / "new" / "model.safetensors").read_bytes() == (
            finished / "out" / "model.safetensors"
        ).read_bytes()
        assert metrics(tmp_path / "new") == metrics(finished / "out")[step:]
    assert names(tmp_path) == sorted({"alone", "new"} & {path.name for path in tmp_path.iterdir()})


def test_an_exported_checkpoint_is_a_model_of_transformers(finished: Path, tmp_path: Path) -> None:
    assert exported(finished, tmp_path / "alone") == 0
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "alone", output_loading_info=True)
    assert not any(info.values()) and model.dtype == torch.float32
    assert AutoTokenizer.from_pretrained(tmp_path / "alone").eos_token == "<eos>"


def test_a_checkpoint_that_stands_alone_is_copied(
    finished: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert here(inputs, tmp_path / "out", *KEYS) == 0
    assert main(["export", "--output_dir", str(tmp_path / "out"), "--to", str(tmp_path / "alone")]) == 0
    for path in (tmp_path / "out" / "checkpoint-5").rglob("*.*"):
        found = tmp_path / "alone" / path.relative_to(tmp_path / "out" / "checkpoint-5")
        assert found.read_bytes() == path.read_bytes()
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out")]) == 0
    assert "no damage" in capsys.readouterr().out
    for path in (tmp_path / "out").rglob("files.json"):
        path.unlink()
    assert main(["verify", str(tmp_path / "out")]) == 2
    assert "keeps nothing on its storage paths" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "to: export needs the directory"),
        (["--to", "{out}"], "exists already"),
        (["--to", "{new}", "--checkpoint", "{out}"], "no state to export"),
        (["--to"], "the value is missing"),
        (["--into", "{new}"], "unknown key 'into'"),
    ],
)
def test_what_cannot_be_exported(
    finished: Path, tmp_path: Path, words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"out": finished / "out" / "spillway", "new": tmp_path / "new"}
    assert main(["export", str(finished / "out"), *(word.format(**places) for word in words)]) == 2
    assert part in capsys.readouterr().err and names(tmp_path) == []


@pytest.mark.parametrize("verb", ["verify", "export"])
def test_no_run_to_look_at(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--to", str(tmp_path / "to")] if verb == "export" else []
    assert main([verb, str(tmp_path / "none"), *words]) == 2
    assert f"{verb}: {tmp_path / 'none'} holds no run" in capsys.readouterr().err
    assert main([verb, *words]) == 2
    assert "expects the output_dir of a run" in capsys.readouterr().err


class Failing(FakeEngine):
    """Its disk is full when the state is written."""

    def save_state(self, directory: str, step: int) -> None:
        raise OSError(28, "No space left on device", directory)


def test_an_export_is_there_whole_or_not_at_all(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calls, "native_engine", lambda: Failing)
    assert exported(finished, tmp_path / "alone") != 0
    assert "No space left" in capsys.readouterr().err and names(tmp_path) == []


def test_verify_of_what_is_sound(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "storage" / "spillway.volume").read_bytes()
    assert main(["verify", "--output_dir", str(finished / "out")]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert "on 1 path read, durable step 5: no damage." in lines[0]
    assert len(lines) == 5 and all(line.endswith("no damage.") for line in lines)  # three checkpoints, and the root
    assert (finished / "storage" / "spillway.volume").read_bytes() == before


def test_verify_goes_on_behind_a_list_that_cannot_be_read(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("out", "storage"):
        shutil.copytree(finished / name, tmp_path / name)
    damaged = tmp_path / "out" / "checkpoint-2" / "spillway" / "files.json"
    damaged.write_text("[]")
    assert main(["verify", str(tmp_path / "out"), "--storage", str(tmp_path / "storage")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("damaged: ")] == [lines[0]] and str(damaged) in lines[0]
    assert "durable step 5: no damage" in lines[1] and len(lines) == 5


def test_verify_names_checkpoints_whose_volume_is_gone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(finished / "out"), "--storage", str(tmp_path)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "damaged: the state of checkpoint-2, checkpoint-4, checkpoint-5 lies on storage paths" in told
    assert f"and {tmp_path} holds no volume of the run" in told


def test_verify_names_each_damage_in_a_line(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a directory that was moved, with paths that were moved."""
    for name in ("out", "storage"):
        shutil.copytree(finished / name, tmp_path / name)
    volume = tmp_path / "storage" / "spillway.volume"
    held: dict[str, Any] = torch.load(volume, weights_only=False)
    for number in (1, 3):
        held["newest"]["state"]["masters"][number].view(-1)[0] = torch.inf
    torch.save(held, volume)
    assert main(["verify", str(tmp_path / "out"), "--storage", str(tmp_path / "storage")]) == 1
    description = json.loads((tmp_path / "out" / "spillway" / "description.json").read_text())
    tensors = [tensor["name"] for block in description["blocks"] for tensor in block["tensors"]]
    lines = capsys.readouterr().out.splitlines()
    for number, line in zip((1, 3), lines, strict=False):
        assert line.startswith(f"damaged: remainder and moments of {tensors[number]}: 4096 bytes on path:0")
        assert f"{volume} at byte {4096 * number}" in line
    assert "2 damaged places" in lines[2] and all(line.endswith("no damage.") for line in lines[3:])
