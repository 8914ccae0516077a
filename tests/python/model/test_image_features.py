"""Features of images from forward to backward: the engine has them, in memory or on a path, with the same bits."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import native
import real_runs
from both_ways import RATE, save, tensors
from breadth import some
from image_models import image_batch, image_config, image_directory
from spillway.machine.place import HOST
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.microbatch import arrange
from spillway.model.layers.nested import tensors_in
from spillway.model.measure.image_memory import measure_images
from spillway.model.meta.building import build
from spillway.model.meta.image_tower import Features, ImageTower
from spillway.model.meta.layer_arguments import record
from test_trained_towers import BOTH

FAMILIES = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "idefics3", "smolvlm")
SIZES = ["--max_length", "96", "--max_steps", "4", "--lr_scheduler_type", "constant", "--save_steps", "2"]


def draw_batch(kind: str) -> Batch:
    return image_batch(kind, 2, 24, torch.Generator().manual_seed(3), padded=3)


def make_features(kind: str) -> tuple[Features, Any]:
    """Features, and a call that gives what layers get of them."""
    meta_model = build(image_config(kind), torch.float32)
    meta_model.take_images()
    tower, generator = ImageTower(meta_model), torch.Generator().manual_seed(5)
    for name, each in sorted(meta_model.model.named_parameters()):
        if name in tower.names:
            tower.take(name, torch.randn(each.shape, generator=generator) / 10)
    work = arrange([draw_batch(kind)])
    rows = torch.randn(work.tokens, meta_model.columns, generator=generator)
    features = Features(tower)

    def collect() -> list[torch.Tensor]:
        batch = work.micro_batches[0]
        with torch.no_grad(), meta_model.stand_ins():
            recording = record(meta_model, batch, work.ids_of(batch), rows, features)
        given = [[call.positional, list(call.keywords.values()), call.added] for call in recording.calls]
        return [recording.first, *tensors_in(given)]

    return features, collect


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_come_back_as_they_left(kind: str) -> None:
    """Behind those of another micro-batch, and in a room that lies elsewhere then."""
    features, collect = make_features(kind)
    expected = collect()
    size = features.bytes
    assert size > 0
    room = torch.zeros(128 + size, dtype=torch.uint8)
    assert features.leave(room[:-1], 128) == 0, "the room is too small by a byte"
    assert all(map(torch.equal, collect(), expected))
    assert features.leave(room, 128) == size
    features.come_back(room.clone())
    room.zero_()
    assert all(map(torch.equal, collect(), expected))
    features.come_back(None)
    assert features.bytes == 0


def run_step(place: Path, work: list[Batch], **keys: Any) -> tuple[Any, dict[str, Any]]:
    """A session, which is closed, and its figures after a step."""
    session = native.opened(place / "model", WorkShape(2, 2, 24, 0, 0, largest_images=work[0]), **keys)
    try:
        session.step(work, RATE)
        return session, session.measured()
    finally:
        session.close()


def test_the_plan_counts_features_and_the_seconds_of_the_tower(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    work = [draw_batch("gemma3"), draw_batch("gemma3")]
    session, figures = run_step(tmp_path, work)
    meta_model = build(image_config("gemma3"), torch.float32)
    meta_model.take_images()
    measured = measure_images(meta_model, work[0], HOST)
    assert measured.features == 3 * 4 * 32 * 4, "three images of four tokens"
    assert session.plan["image_features"] == {"bytes": 2 * measured.features, "tier": "dram"}
    assert session.description.feature_bytes == 2 * measured.features
    assert figures["image_features"] == 2 * measured.features
    seconds = session.settings.seconds
    assert min(seconds.entry_forward, seconds.entry_backward) > 0


def test_the_tower_runs_once_for_each_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward asks for the features of the forward pass, also of steps after an evaluation."""
    save(image_config("gemma3"), tmp_path / "model", 7)
    work = [draw_batch("gemma3"), draw_batch("gemma3")]
    compute, calls = ImageTower.compute, []
    monkeypatch.setattr(ImageTower, "compute", lambda *given: calls.append(given[1]) or compute(*given))
    session = native.opened(tmp_path / "model", WorkShape(2, 2, 24, 2, 24, largest_images=work[0]))
    try:
        calls.clear()
        session.evaluate(work)
        assert len(calls) == 2
        session.step(work, RATE)
        assert len(calls) == 4
    finally:
        session.close()


def test_a_trained_tower_makes_its_features_again(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    session, _ = run_step(tmp_path, [draw_batch("gemma3")], **BOTH)
    assert "image_features" not in session.plan and session.description.feature_bytes == 0
    seconds = session.settings.seconds
    assert seconds.entry_forward > 0 and seconds.entry_backward > 0


def test_features_are_let_go_where_no_backward_pass_asks_for_them(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    session, figures = run_step(tmp_path, [draw_batch("gemma3")], trainable=[r"layers\.2\."])
    assert "image_features" not in session.plan and "image_features" not in figures


@pytest.fixture(scope="module", params=some(FAMILIES[:4], ("gemma3", "qwen3_vl")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


@pytest.fixture(scope="module")
def kept(given: Path) -> Path:
    """Four steps without an interruption, whose features stay in memory."""
    assert real_runs.here(given, given / "kept", *SIZES, "--placement", "dram") == 0
    assert read_plan(given / "kept")["tier"] == "dram"
    return given / "kept"


def read_plan(out: Path) -> Any:
    return json.loads((out / "plan.json").read_text())["image_features"]


def spilling(storage: Path) -> list[str]:
    return [*SIZES, *real_runs.storage_in(storage), "--placement", "weight=50%,state=path,grad=path,activation=path"]


def require_same(out: Path, other: Path) -> None:
    ours, theirs = tensors(out), tensors(other)
    assert ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_spilled_features_change_no_bit(
    given: Path, kept: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert real_runs.here(given, out, *spilling(tmp_path / "storage")) == 0
    require_same(out, kept)
    planned, summary = read_plan(out), json.loads((out / "summary.json").read_text())
    assert planned["tier"] == "paths" and 0 < summary["image_features"] <= planned["bytes"]
    assert "are spilled to paths" in " ".join(capfd.readouterr().out.split())
    events = json.loads(gzip.decompress((out / "timeline.json.gz").read_bytes()))
    names = {event["name"] for event in (events["traceEvents"] if isinstance(events, dict) else events)}
    assert {"write vision features", "read vision features"} <= names


def test_a_killed_run_with_spilled_features_goes_on_to_the_same_bits(given: Path, kept: Path, tmp_path: Path) -> None:
    keys = [*spilling(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("commit", real_runs.words(given, tmp_path / "out", *keys), calls=3)
    assert read_plan(tmp_path / "out")["tier"] == "paths"
    assert real_runs.here(given, tmp_path / "out", *keys) == 0
    require_same(tmp_path / "out", kept)


def test_features_leave_a_simulated_device_for_a_path(given: Path, kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ["--device", "simulated", "--fused_kernels", "never"]
    assert real_runs.here(given, out, *spilling(tmp_path / "storage"), *more) == 0
    require_same(out, kept)
    assert read_plan(out)["tier"] == "paths"
