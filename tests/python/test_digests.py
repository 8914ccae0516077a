"""Digests of what is saved, as a user meets them: bytes that went bad in any file are named, and never used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import real_runs
import spillway
from needs import package
from real_runs import last_checkpoint, on_path, storage_in
from spillway.cli import main
from spillway.errors import InputError, SpillwayError
from spillway.output import saved
from spillway.run.session import EngineSession

KEYS = ["--max_steps", "2", "--placement", "dram"]
ON_PATH = ["--placement", "weight=path,state=path,grad=path,activation=dram"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("digests"))


@pytest.fixture(scope="module")
def finished(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in DRAM: its checkpoint stands alone."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert real_runs.here(given, out, *KEYS) == 0
    return out


def flip(path: Path, share: float = 0.5) -> None:
    """One bit of a file, which a link to it keeps as it was."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    path.unlink()
    path.write_bytes(content)


def spilled(checkpoint: Path) -> list[Path]:
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name not in saved.NO_STATE]


def copied(finished: Path, place: Path) -> Path:
    """The run in another place."""
    shutil.copytree(finished, place)
    return place


def resume(given: Path, out: Path) -> int:
    return real_runs.here(given, out, "--max_steps", "3", "--placement", "dram", "--resume_from_checkpoint", "true")


def test_every_file_of_a_checkpoint_is_listed(finished: Path) -> None:
    checkpoint = last_checkpoint(finished)
    names = {str(path.relative_to(checkpoint)) for path in spilled(checkpoint)}
    assert set(saved.read_list(checkpoint) or {}) == names and not list(finished.rglob("*.digests"))
    root = saved.read_list(finished) or {}
    assert set(root) == {name for name in names if "/" not in name} - {"trainer_state.json"}
    assert "tensors" in root["model.safetensors"]


@pytest.mark.parametrize(
    "name",
    ["model", "spillway/residual", "spillway/exp_avg", "spillway/exp_avg_sq"],
)
def test_a_flipped_bit_of_a_tensor_is_named_and_never_used(
    given: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = copied(finished, tmp_path / "out")
    damaged = last_checkpoint(out) / f"{name}.safetensors"
    flip(damaged, 0.8)
    assert resume(given, out) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert Path(name).name in error and "tensor " in error and "bytes " in error
    assert not (out / "checkpoint-3").exists() and last_checkpoint(out).name == "checkpoint-2"
    assert main(["verify", str(out)]) == 1
    shown = capsys.readouterr().out
    assert f"damaged: {damaged}" in shown and "tensor " in shown
    assert main(["export", str(out), "--to", str(tmp_path / "exported")]) == 2
    assert not (tmp_path / "exported").exists()


def test_a_flipped_bit_of_any_other_file_is_named_and_never_used(
    given: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(finished, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    small = [path for path in spilled(checkpoint) if path.suffix != ".safetensors"]
    assert {"config.json", "generation_config.json", "tokenizer.json", "trainer_state.json", "run.json"} <= {
        path.name for path in small
    }
    for path in small:
        content = path.read_bytes()
        flip(path)
        assert resume(given, out) == 2, path
        assert path.name in capsys.readouterr().err, path
        assert main(["verify", "--output_dir", str(checkpoint)]) == 1
        assert f"damaged: {path}" in capsys.readouterr().out
        path.write_bytes(content)
    assert main(["verify", str(out)]) == 0


def test_a_file_that_was_edited_on_purpose_is_taken_without_its_entry(
    given: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(finished, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    config = checkpoint / "config.json"
    config.write_text(config.read_text() + "\n")
    assert resume(given, out) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert "config.json" in error and "remove its entry" in error and str(checkpoint / saved.FILES) in error
    content = json.loads((checkpoint / saved.FILES).read_text())
    del content["files"]["config.json"]
    (checkpoint / saved.FILES).write_text(json.dumps(content))
    assert main(["verify", str(checkpoint)]) == 0
    assert resume(given, out) == 0


def test_verify_reads_a_model_at_the_root_and_an_export(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(finished), "--to", str(tmp_path / "exported")]) == 0
    out = copied(finished, tmp_path / "out")
    for place in (tmp_path / "exported", out):
        assert main(["verify", str(place)]) == 0
        assert "no damage" in capsys.readouterr().out
        flip(place / "model.safetensors")
        assert main(["verify", str(place)]) == 1
        shown = capsys.readouterr().out
        assert f"damaged: {place / 'model.safetensors'}" in shown and "tensor " in shown
    (out / "tokenizer.json").unlink()
    assert main(["verify", str(out)]) == 1
    assert "tokenizer.json is missing" in capsys.readouterr().out


def test_verify_says_where_there_is_nothing_to_verify(
    given: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(given / "model")]) == 2
    assert "cannot be verified" in capsys.readouterr().err
    out = copied(finished, tmp_path / "out")
    for path in out.rglob("files.json"):
        path.unlink()
    assert main(["verify", str(out)]) == 2
    assert "nothing to verify" in capsys.readouterr().err.replace("\n", " ")
    assert main(["verify", str(tmp_path / "nowhere")]) == 2


def test_a_finished_model_is_verified_before_it_is_trained_on(
    given: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, share in (("config.json", 0.5), ("model.safetensors", 0.9)):
        model = copied(finished, tmp_path / name)
        keys = [*KEYS, "--max_steps", "1", "--model", str(model)]
        assert real_runs.here(given, tmp_path / f"{name}-good", *keys) == 0
        flip(model / name, share)
        assert real_runs.here(given, tmp_path / f"{name}-bad", *keys) == 2
        assert name in capsys.readouterr().err.replace("\n", "")


def test_a_list_of_an_older_release_goes_on_as_it_did(given: Path, finished: Path, tmp_path: Path) -> None:
    out = copied(finished, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    members = [path for path in spilled(checkpoint) if path.suffix == ".safetensors" or path.parent != checkpoint]
    files = {str(path.relative_to(checkpoint)): saved.sampled_entry(path) for path in members}
    (checkpoint / saved.FILES).write_text(json.dumps({"format": saved.SAMPLED, "files": files}))
    assert main(["verify", str(out)]) == 0
    shutil.copytree(out, tmp_path / "damaged")
    flip(last_checkpoint(tmp_path / "damaged") / "model.safetensors")
    assert main(["verify", str(tmp_path / "damaged")]) == 1
    assert resume(given, tmp_path / "damaged") == 2
    assert resume(given, out) == 0


def test_an_older_export_of_a_run_on_paths_is_verified_with_its_volume(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert real_runs.here(given, out, "--max_steps", "2", *on_path(tmp_path / "storage")) == 0
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0
    assert main(["verify", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "path" in shown and "checkpoint-2" in shown
    assert main(["verify", str(tmp_path / "alone")]) == 0
    flip(last_checkpoint(out) / "model.safetensors")
    assert main(["verify", str(out)]) == 1


def test_a_save_of_a_loop_of_ones_own_has_digests(given: Path, tmp_path: Path) -> None:
    ids = torch.arange(8)[None]
    keys = {"model": str(given / "model"), "profile": str(given / "profile.json"), "max_length": 16, "max_steps": 2}
    with spillway.Session(**keys, per_device_train_batch_size=1, placement="dram") as session:
        session.step({"input_ids": ids, "labels": ids})
        session.save(tmp_path / "kept")
    assert main(["verify", str(tmp_path / "kept")]) == 0
    flip(tmp_path / "kept" / "spillway" / "exp_avg.safetensors")
    assert main(["verify", str(tmp_path / "kept")]) == 1


def test_a_trainers_checkpoints_and_model_have_digests(given: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import loaded, parts

    def trainer() -> Any:
        events = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
        return Trainer(model=loaded(given, dtype="bfloat16"), **parts(given, tmp_path / "out", **events))

    first = trainer()
    first.train()
    first.save_model(str(tmp_path / "model"))
    first.close()
    for place in (tmp_path / "model", tmp_path / "out" / "checkpoint-1", tmp_path / "out" / "checkpoint-2"):
        assert main(["verify", str(place)]) == 0
        names = set(saved.read_list(place) or {})
        assert {"model.safetensors", "config.json", "training_args.bin"} <= names
    assert "trainer_state.json" in names and "scheduler.pt" in names
    flip(tmp_path / "out" / "checkpoint-1" / "spillway" / "exp_avg_sq.safetensors")
    again = trainer()
    with pytest.raises(InputError, match=r"exp_avg_sq.*tensor"):
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    again.close()


def test_adapters_have_digests(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package("peft", "method lora needs peft")
    out = tmp_path / "out"
    lora = [*KEYS, "--method", "lora", "--lora_target_modules", "q_proj", "--lora_r", "2"]
    assert real_runs.here(given, out, *lora) == 0
    checkpoint = last_checkpoint(out)
    listed = saved.read_list(checkpoint) or {}
    assert {"adapter_model.safetensors", "adapter_config.json", "spillway/adapter/model.safetensors"} <= set(listed)
    flip(checkpoint / "spillway" / "adapter" / "model.safetensors", 0.9)
    again = [*lora[2:], "--max_steps", "3", "--resume_from_checkpoint", "true"]
    assert real_runs.here(given, out, *again) == 2
    assert "adapter/model.safetensors" in capsys.readouterr().err.replace("\n", "")


# ---- volumes that lose their file


@pytest.mark.parametrize("durability", ["step", "checkpoint"])
@pytest.mark.parametrize("way", ["unlinked", "renamed", "replaced"])
def test_a_volume_that_loses_its_file_ends_the_run_with_a_checkpoint_that_stands_alone(
    given: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
    durability: str,
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    committed = EngineSession.commit
    steps = 0

    def commit(session: EngineSession, state: dict[str, Any]) -> None:
        nonlocal steps
        committed(session, state)
        steps += 1
        if steps == 4:  # the first is before any step
            displace(storage, way)

    monkeypatch.setattr(EngineSession, "commit", commit)
    keys = ["--max_steps", "6", "--save_steps", "2", "--durability", durability, *storage_in(storage), *ON_PATH]
    assert real_runs.here(given, out, *keys) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert str(storage / "spillway.volume") in error and "removed, renamed or replaced" in error
    alone = last_checkpoint(out)
    assert alone.name == "checkpoint-3" and not (alone / "spillway" / "manifest.bin").exists()
    assert main(["verify", str(alone)]) == 0
    monkeypatch.undo()
    on = ["--max_steps", "6", "--placement", "dram", "--durability", "none", "--resume_from_checkpoint", str(alone)]
    assert real_runs.here(given, tmp_path / "on", *on) == 0
    assert real_runs.here(given, tmp_path / "undisturbed", "--max_steps", "6", "--placement", "dram") == 0
    one, other = (load_file(place / "model.safetensors") for place in (tmp_path / "on", tmp_path / "undisturbed"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def displace(storage: Path, way: str) -> None:
    if way == "unlinked":
        (storage / "spillway.volume").unlink()
        return
    storage.rename(storage.with_name("elsewhere"))
    if way == "replaced":
        shutil.copytree(storage.with_name("elsewhere"), storage)


def test_a_run_without_durable_steps_is_told_of_a_lost_volume_and_ends_well(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    made = EngineSession.step

    def step(session: EngineSession, *given: Any) -> Any:
        result = made(session, *given)
        (storage / "spillway.volume").unlink(missing_ok=True)
        return result

    monkeypatch.setattr(EngineSession, "step", step)
    keys = ["--max_steps", "2", "--durability", "none", *storage_in(storage), *ON_PATH]
    assert real_runs.here(given, out, *keys) == 0
    assert "removed, renamed or replaced" in "".join(capsys.readouterr()).replace("\n", " ")
    assert main(["verify", str(out)]) == 0


# ---- weights that are not finite


def spoiled(given: Path, to: Path, spoil: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copytree(given, to)
    weights = load_file(to / "model" / "model.safetensors")
    spoil(weights)
    save_file(weights, to / "model" / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_weight_that_is_not_finite_is_refused_when_it_is_read(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, dtype: torch.dtype
) -> None:
    name = "model.layers.1.mlp.down_proj.weight"

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        for each in weights:
            weights[each] = weights[each].to(dtype)
        weights[name][3, 5] = float(value)

    bad = spoiled(given, tmp_path / "bad", spoil)
    assert real_runs.here(bad, tmp_path / "out", *KEYS) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert name in error and "[3, 5]" in error and "model.safetensors" in error
    assert not (tmp_path / "out" / "checkpoint-2").exists()


def test_a_frozen_weight_that_is_not_finite_is_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"][7] = float("nan")

    bad = spoiled(given, tmp_path / "bad", spoil)
    assert real_runs.here(bad, tmp_path / "out", *KEYS, "--frozen", "model.norm") == 2
    assert "model.norm.weight" in capsys.readouterr().err


def test_a_run_all_of_whose_steps_were_skipped_does_not_end_as_done(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    made = EngineSession.step
    monkeypatch.setattr(EngineSession, "step", lambda *given: replace(made(*given), skipped=True))
    assert real_runs.here(given, tmp_path / "out", *KEYS) == 1
    shown = capsys.readouterr()
    assert "nothing was trained" in shown.err.replace("\n", " ") and "The model is in" not in shown.out


def test_a_run_one_of_whose_steps_was_skipped_ends_as_done(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    made, calls = EngineSession.step, []

    def step(*given: Any) -> Any:
        calls.append(given)
        result = made(*given)
        return replace(result, skipped=True) if len(calls) == 1 else result

    monkeypatch.setattr(EngineSession, "step", step)
    assert real_runs.here(given, tmp_path / "out", *KEYS) == 0


def test_an_unreadable_list_is_named(given: Path, finished: Path, tmp_path: Path) -> None:
    checkpoint = last_checkpoint(copied(finished, tmp_path / "out"))
    for bad in ("{", "[]", '{"format": 2}', '{"format": 2, "files": {"config.json": 3}}', "[" * 5000):
        (checkpoint / saved.FILES).write_text(bad)
        with pytest.raises(SpillwayError, match=r"files\.json"):
            saved.check_files(checkpoint)
        assert main(["verify", str(checkpoint)]) == 2
