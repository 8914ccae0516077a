"""Digests of saved files: damaged bytes in any file are named, and never used."""

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
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("digests"))


@pytest.fixture(scope="module")
def finished_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in DRAM: its checkpoint stands alone."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert real_runs.here(inputs, out, *KEYS) == 0
    return out


def flip_bit(path: Path, share: float = 0.5) -> None:
    """Flips one bit of a file. A link to the file keeps the old content."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 1
    path.unlink()
    path.write_bytes(content)


def list_recorded_files(checkpoint: Path) -> list[Path]:
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name not in saved.NO_STATE]


def copy_run(finished_run: Path, place: Path) -> Path:
    """A copy of the run at `place`."""
    shutil.copytree(finished_run, place)
    return place


def resume(inputs: Path, out: Path) -> int:
    return real_runs.here(inputs, out, "--max_steps", "3", "--placement", "dram", "--resume_from_checkpoint", "true")


def test_every_file_of_a_checkpoint_is_listed(finished_run: Path) -> None:
    checkpoint = last_checkpoint(finished_run)
    names = {str(path.relative_to(checkpoint)) for path in list_recorded_files(checkpoint)}
    assert set(saved.read_list(checkpoint) or {}) == names and not list(finished_run.rglob("*.digests"))
    root = saved.read_list(finished_run) or {}
    assert set(root) == {name for name in names if "/" not in name} - {"trainer_state.json"}
    assert "tensors" in root["model.safetensors"]


@pytest.mark.parametrize(
    "name",
    ["model", "spillway/residual", "spillway/exp_avg", "spillway/exp_avg_sq"],
)
def test_flipped_bit_of_a_tensor_is_named_and_never_used(
    inputs: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = copy_run(finished_run, tmp_path / "out")
    damaged = last_checkpoint(out) / f"{name}.safetensors"
    flip_bit(damaged, 0.8)
    assert resume(inputs, out) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert Path(name).name in error and "tensor " in error and "bytes " in error
    assert not (out / "checkpoint-3").exists() and last_checkpoint(out).name == "checkpoint-2"
    assert main(["verify", str(out)]) == 1
    output = capsys.readouterr().out
    assert f"damaged: {damaged}" in output and "tensor " in output
    assert main(["export", str(out), "--to", str(tmp_path / "exported")]) == 2
    assert not (tmp_path / "exported").exists()


def test_flipped_bit_of_any_other_file_is_named_and_never_used(
    inputs: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_run(finished_run, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    small = [path for path in list_recorded_files(checkpoint) if path.suffix != ".safetensors"]
    assert {"config.json", "generation_config.json", "tokenizer.json", "trainer_state.json", "run.json"} <= {
        path.name for path in small
    }
    for path in small:
        content = path.read_bytes()
        flip_bit(path)
        assert resume(inputs, out) == 2, path
        assert path.name in capsys.readouterr().err, path
        assert main(["verify", "--output_dir", str(checkpoint)]) == 1
        assert f"damaged: {path}" in capsys.readouterr().out
        path.write_bytes(content)
    assert main(["verify", str(out)]) == 0


def test_edited_file_is_accepted_without_its_entry(
    inputs: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copy_run(finished_run, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    config = checkpoint / "config.json"
    config.write_text(config.read_text() + "\n")
    assert resume(inputs, out) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert "config.json" in error and "remove its entry" in error and str(checkpoint / saved.FILES) in error
    content = json.loads((checkpoint / saved.FILES).read_text())
    del content["files"]["config.json"]
    (checkpoint / saved.FILES).write_text(json.dumps(content))
    assert main(["verify", str(checkpoint)]) == 0
    assert resume(inputs, out) == 0


def test_verify_reads_a_model_at_the_root_and_an_export(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(finished_run), "--to", str(tmp_path / "exported")]) == 0
    out = copy_run(finished_run, tmp_path / "out")
    for place in (tmp_path / "exported", out):
        assert main(["verify", str(place)]) == 0
        assert "no damage" in capsys.readouterr().out
        flip_bit(place / "model.safetensors")
        assert main(["verify", str(place)]) == 1
        output = capsys.readouterr().out
        assert f"damaged: {place / 'model.safetensors'}" in output and "tensor " in output
    (out / "tokenizer.json").unlink()
    assert main(["verify", str(out)]) == 1
    assert "tokenizer.json is missing" in capsys.readouterr().out


def test_verify_of_a_place_without_digests_is_refused(
    inputs: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(inputs / "model")]) == 2
    assert "cannot be verified" in capsys.readouterr().err
    out = copy_run(finished_run, tmp_path / "out")
    for path in out.rglob("files.json"):
        path.unlink()
    assert main(["verify", str(out)]) == 2
    assert "nothing to verify" in capsys.readouterr().err.replace("\n", " ")
    assert main(["verify", str(tmp_path / "nowhere")]) == 2


def test_finished_model_is_verified_before_training(
    inputs: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, share in (("config.json", 0.5), ("model.safetensors", 0.9)):
        model = copy_run(finished_run, tmp_path / name)
        keys = [*KEYS, "--max_steps", "1", "--model", str(model)]
        assert real_runs.here(inputs, tmp_path / f"{name}-good", *keys) == 0
        flip_bit(model / name, share)
        assert real_runs.here(inputs, tmp_path / f"{name}-bad", *keys) == 2
        assert name in capsys.readouterr().err.replace("\n", "")


def test_list_of_an_older_release_is_verified_by_samples(inputs: Path, finished_run: Path, tmp_path: Path) -> None:
    out = copy_run(finished_run, tmp_path / "out")
    checkpoint = last_checkpoint(out)
    members = [
        path for path in list_recorded_files(checkpoint) if path.suffix == ".safetensors" or path.parent != checkpoint
    ]
    files = {str(path.relative_to(checkpoint)): saved.sampled_entry(path) for path in members}
    (checkpoint / saved.FILES).write_text(json.dumps({"format": saved.SAMPLED, "files": files}))
    assert main(["verify", str(out)]) == 0
    shutil.copytree(out, tmp_path / "damaged")
    flip_bit(last_checkpoint(tmp_path / "damaged") / "model.safetensors")
    assert main(["verify", str(tmp_path / "damaged")]) == 1
    assert resume(inputs, tmp_path / "damaged") == 2
    assert resume(inputs, out) == 0


def test_older_export_of_a_run_on_paths_is_verified_with_its_volume(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert real_runs.here(inputs, out, "--max_steps", "2", *on_path(tmp_path / "storage")) == 0
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0
    assert main(["verify", str(out)]) == 0
    output = capsys.readouterr().out
    assert "path" in output and "checkpoint-2" in output
    assert main(["verify", str(tmp_path / "alone")]) == 0
    flip_bit(last_checkpoint(out) / "model.safetensors")
    assert main(["verify", str(out)]) == 1


def test_save_of_a_session_has_digests(inputs: Path, tmp_path: Path) -> None:
    ids = torch.arange(8)[None]
    keys = {"model": str(inputs / "model"), "profile": str(inputs / "profile.json"), "max_length": 16, "max_steps": 2}
    with spillway.Session(**keys, per_device_train_batch_size=1, placement="dram") as session:
        session.step({"input_ids": ids, "labels": ids})
        session.save(tmp_path / "kept")
    assert main(["verify", str(tmp_path / "kept")]) == 0
    flip_bit(tmp_path / "kept" / "spillway" / "exp_avg.safetensors")
    assert main(["verify", str(tmp_path / "kept")]) == 1


def test_trainers_checkpoints_and_model_have_digests(inputs: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import loaded, parts

    def make_trainer() -> Any:
        events = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
        return Trainer(model=loaded(inputs, dtype="bfloat16"), **parts(inputs, tmp_path / "out", **events))

    first = make_trainer()
    first.train()
    first.save_model(str(tmp_path / "model"))
    first.close()
    for place in (tmp_path / "model", tmp_path / "out" / "checkpoint-1", tmp_path / "out" / "checkpoint-2"):
        assert main(["verify", str(place)]) == 0
        names = set(saved.read_list(place) or {})
        assert {"model.safetensors", "config.json", "training_args.bin"} <= names
    assert "trainer_state.json" in names and "scheduler.pt" in names
    flip_bit(tmp_path / "out" / "checkpoint-1" / "spillway" / "exp_avg_sq.safetensors")
    again = make_trainer()
    with pytest.raises(InputError, match=r"exp_avg_sq.*tensor"):
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    again.close()


def test_adapters_have_digests(inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package("peft", "method lora needs peft")
    out = tmp_path / "out"
    lora = [*KEYS, "--method", "lora", "--lora_target_modules", "q_proj", "--lora_r", "2"]
    assert real_runs.here(inputs, out, *lora) == 0
    checkpoint = last_checkpoint(out)
    listed = saved.read_list(checkpoint) or {}
    assert {"adapter_model.safetensors", "adapter_config.json", "spillway/adapter/model.safetensors"} <= set(listed)
    flip_bit(checkpoint / "spillway" / "adapter" / "model.safetensors", 0.9)
    again = [*lora[2:], "--max_steps", "3", "--resume_from_checkpoint", "true"]
    assert real_runs.here(inputs, out, *again) == 2
    assert "adapter/model.safetensors" in capsys.readouterr().err.replace("\n", "")


# ---- volumes that lose their file


@pytest.mark.parametrize("durability", ["step", "checkpoint"])
@pytest.mark.parametrize("way", ["unlinked", "renamed", "replaced"])
def test_volume_without_its_file_ends_the_run_with_a_complete_checkpoint(
    inputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
    durability: str,
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    original_commit = EngineSession.commit
    steps = 0

    def commit(session: EngineSession, state: dict[str, Any]) -> None:
        nonlocal steps
        original_commit(session, state)
        steps += 1
        if steps == 4:  # the first commit is before any step
            displace(storage, way)

    monkeypatch.setattr(EngineSession, "commit", commit)
    keys = ["--max_steps", "6", "--save_steps", "2", "--durability", durability, *storage_in(storage), *ON_PATH]
    assert real_runs.here(inputs, out, *keys) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert str(storage / "spillway.volume") in error and "removed, renamed or replaced" in error
    alone = last_checkpoint(out)
    assert alone.name == "checkpoint-3" and not (alone / "spillway" / "manifest.bin").exists()
    assert main(["verify", str(alone)]) == 0
    monkeypatch.undo()
    on = ["--max_steps", "6", "--placement", "dram", "--durability", "none", "--resume_from_checkpoint", str(alone)]
    assert real_runs.here(inputs, tmp_path / "on", *on) == 0
    assert real_runs.here(inputs, tmp_path / "undisturbed", "--max_steps", "6", "--placement", "dram") == 0
    one, other = (load_file(place / "model.safetensors") for place in (tmp_path / "on", tmp_path / "undisturbed"))
    assert all(torch.equal(one[name], other[name]) for name in other)


def displace(storage: Path, way: str) -> None:
    if way == "unlinked":
        (storage / "spillway.volume").unlink()
        return
    storage.rename(storage.with_name("elsewhere"))
    if way == "replaced":
        shutil.copytree(storage.with_name("elsewhere"), storage)


def test_run_without_durable_steps_names_a_lost_volume_and_succeeds(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    original_step = EngineSession.step

    def step(session: EngineSession, *positional: Any) -> Any:
        result = original_step(session, *positional)
        (storage / "spillway.volume").unlink(missing_ok=True)
        return result

    monkeypatch.setattr(EngineSession, "step", step)
    keys = ["--max_steps", "2", "--durability", "none", *storage_in(storage), *ON_PATH]
    assert real_runs.here(inputs, out, *keys) == 0
    assert "removed, renamed or replaced" in "".join(capsys.readouterr()).replace("\n", " ")
    assert main(["verify", str(out)]) == 0


# ---- weights that are not finite


def copy_with_change(inputs: Path, to: Path, spoil: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copytree(inputs, to)
    weights = load_file(to / "model" / "model.safetensors")
    spoil(weights)
    save_file(weights, to / "model" / "model.safetensors", metadata={"format": "pt"})
    return to


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weight_that_is_not_finite_is_refused_at_load(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, dtype: torch.dtype
) -> None:
    name = "model.layers.1.mlp.down_proj.weight"

    def spoil(weights: dict[str, torch.Tensor]) -> None:
        for each in weights:
            weights[each] = weights[each].to(dtype)
        weights[name][3, 5] = float(value)

    bad = copy_with_change(inputs, tmp_path / "bad", spoil)
    assert real_runs.here(bad, tmp_path / "out", *KEYS) == 2
    error = capsys.readouterr().err.replace("\n", " ")
    assert name in error and "[3, 5]" in error and "model.safetensors" in error
    assert not (tmp_path / "out" / "checkpoint-2").exists()


def test_frozen_weight_that_is_not_finite_is_refused(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"][7] = float("nan")

    bad = copy_with_change(inputs, tmp_path / "bad", spoil)
    assert real_runs.here(bad, tmp_path / "out", *KEYS, "--frozen", "model.norm") == 2
    assert "model.norm.weight" in capsys.readouterr().err


def test_run_with_all_steps_skipped_fails(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    original_step = EngineSession.step
    monkeypatch.setattr(EngineSession, "step", lambda *given: replace(original_step(*given), skipped=True))
    assert real_runs.here(inputs, tmp_path / "out", *KEYS) == 1
    output = capsys.readouterr()
    assert "nothing was trained" in output.err.replace("\n", " ") and "The model is in" not in output.out


def test_run_with_one_step_skipped_succeeds(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    original_step, calls = EngineSession.step, []

    def step(*positional: Any) -> Any:
        calls.append(positional)
        result = original_step(*positional)
        return replace(result, skipped=True) if len(calls) == 1 else result

    monkeypatch.setattr(EngineSession, "step", step)
    assert real_runs.here(inputs, tmp_path / "out", *KEYS) == 0


def test_unreadable_list_is_named(inputs: Path, finished_run: Path, tmp_path: Path) -> None:
    checkpoint = last_checkpoint(copy_run(finished_run, tmp_path / "out"))
    for bad in ("{", "[]", '{"format": 2}', '{"format": 2, "files": {"config.json": 3}}', "[" * 5000):
        (checkpoint / saved.FILES).write_text(bad)
        with pytest.raises(SpillwayError, match=r"files\.json"):
            saved.check_files(checkpoint)
        assert main(["verify", str(checkpoint)]) == 2
