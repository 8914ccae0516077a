"""Rows with images where layers compute elsewhere than in host memory, and in several processes: the bits of a run of
one process on the CPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import native
import real_runs
from both_ways import save
from breadth import some
from elsewhere import PLACE, There, two_memories
from fake_gpu import FakeGpu, build_driver
from image_models import image_batch, image_config, image_directory
from needs import lacks
from spillway import _engine
from spillway.machine.place import HOST, Place
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.microbatch import arrange
from spillway.model.layers.nested import tensors_in
from spillway.model.measure.image_memory import ImageMemory, measure_images
from spillway.model.measure.slack import DEVICE_SLACK
from spillway.model.meta.building import build
from spillway.model.meta.image_tower import Features, ImageTower
from spillway.model.meta.layer_arguments import Recording, record
from spillway.model.meta.meta_model import MetaModel
from spillway.output.records import rows
from test_ranks import LIMIT, processes

KEYS = ("--max_length", "96", "--max_steps", "4", "--save_steps", "4", "--lr_scheduler_type", "constant",
        "--placement", "dram", "--virtual_ranks", "2", "--fused_kernels", "never",
        "--compute_dtype", "bf16")  # fmt: skip
FAMILIES = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "idefics3", "smolvlm")
KINDS = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=some(KINDS, ("gemma3", "qwen2_vl")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


@pytest.fixture(scope="module")
def plain(given: Path) -> Path:
    """Four steps on the CPUs."""
    assert real_runs.here(given, given / "plain", *KEYS) == 0
    return given / "plain"


@pytest.fixture(scope="module")
def gpu() -> Iterator[FakeGpu]:
    if not _engine.gpu_kernels():
        lacks("nvcc", f"there are no kernels to run: {_engine.load_gpu_kernels(0)[1]}")
    if refusal := build_driver():
        lacks("compiler", refusal)
    process = FakeGpu()
    yield process
    process.close()


def require_same(run: Path, other: Path) -> None:
    """Weights, states, losses and gradient norms."""
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    files = [native.file_bytes(each / "checkpoint-4" / "spillway") for each in (run, other)]
    assert files[0] == files[1]
    for one, another in zip(rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True):
        assert one["loss"] == another["loss"] and one["grad_norm"] == another["grad_norm"]


def read_plan(run: Path) -> Any:
    return json.loads((run / "plan.json").read_text())


def test_a_simulated_device_changes_no_bit(given: Path, plain: Path) -> None:
    out = given / "simulated"
    assert real_runs.here(given, out, *KEYS, "--device", "simulated") == 0
    require_same(out, plain)
    assert read_plan(out)["device_bytes_per_step"]["to_device"] > 0


def test_a_gpu_changes_no_bit(given: Path, plain: Path, gpu: FakeGpu) -> None:
    """On the driver of a fake one. The plan counts the tower on the GPU."""
    out = given / "gpu"
    words = real_runs.words(given, out, *KEYS, "--device", "cuda:0", "--gpu_memory", "96MiB")
    said = gpu.run(words)
    assert said.code == 0, said.err
    require_same(out, plain)
    assert "are frozen and stay on the GPU" in " ".join((said.out + said.err).split())


def test_micro_batches_with_images_have_passes_of_their_own(tmp_path: Path) -> None:
    """Whatever `pass_tokens` says, which a GPU has a default of."""
    generator = torch.Generator().manual_seed(3)
    step = [image_batch("gemma3", 2, 24, generator) for _ in range(2)]
    save(image_config("gemma3"), tmp_path / "model", 7)
    results = []
    for tokens in (0, 4096):
        shape = WorkShape(2, 2, 24, 0, 0, largest_images=step[0])
        session = native.opened(tmp_path / "model", shape, pass_tokens=tokens)
        try:
            result = session.step(step, 1e-3)
            results.append((result.loss_sum, result.grad_norm))
        finally:
            session.close()
    assert results[0] == results[1]


def test_a_gpu_without_room_for_the_tower_is_refused(given: Path, gpu: FakeGpu, tmp_path: Path) -> None:
    keys = (*KEYS, "--device", "cuda:0")
    planned = gpu.run(real_runs.words(given, tmp_path / "out", *keys, verb="plan"))
    assert planned.code == 0, planned.err  # its check of a small model is kept; the fake would refuse it, too
    words = real_runs.words(given, tmp_path / "out", *keys)
    said = gpu.run(words, FAKE_GPU_TOKENS="2")
    assert said.code == 3, said.err
    assert "does not fit on cuda:0: the features of images take more than the 256.0 MiB that are free" in said.err
    assert not (tmp_path / "out").exists()


def test_two_processes_make_what_one_makes(given: Path, plain: Path) -> None:
    """Each has the tower, and computes the features of its own micro-batches."""
    ranks = processes(2, given, given / "two", *KEYS)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    require_same(given / "two", plain)


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_made_where_layers_compute(kind: str) -> None:
    """Every operation of the tower and of the model's way to its layers has its tensors there."""
    batch = image_batch(kind, 2, 24, torch.Generator().manual_seed(3), padded=3)

    def measure(place: Place) -> tuple[ImageMemory, Recording]:
        meta_model = build(image_config(kind), torch.float32)
        meta_model.take_images()
        return measure_images(meta_model, batch, place), record_once(meta_model, batch, place)

    here, expected = measure(HOST)
    with two_memories():
        there, recording = measure(PLACE)
    made, wanted = (list_tensors(each) for each in (recording, expected))
    assert all(isinstance(each, There) for each in made)
    values = [each.values for each in made]
    torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-4)  # attention is of another kernel there
    counted = [(each.tower, each.kept, each.pixels, each.features) for each in (there, here)]
    assert counted[0] == counted[1] and here.features > 0


def record_once(meta_model: MetaModel, batch: Batch, place: Place) -> Recording:
    tower = ImageTower(meta_model, place.device)
    generator = torch.Generator().manual_seed(5)
    for name, shape in sorted(shapes_of(meta_model, tower).items()):
        tower.take(name, torch.randn(shape, generator=generator) / 10)
    work = arrange([batch]).to(place.device)
    rows = torch.randn(batch.input_ids.numel(), meta_model.columns, generator=generator).to(place.device)
    with torch.no_grad(), meta_model.stand_ins(device=place.device):
        return record(meta_model, work.micro_batches[0], work.ids_of(work.micro_batches[0]), rows, Features(tower))


def shapes_of(meta_model: MetaModel, tower: ImageTower) -> dict[str, torch.Size]:
    return {name: each.shape for name, each in meta_model.model.named_parameters() if name in tower.names}


def list_tensors(recording: Recording) -> list[Any]:
    """The first layer's input, and what each layer is given besides."""
    given = [[call.positional, list(call.keywords.values()), call.added] for call in recording.calls]
    return [recording.first, *tensors_in(given)]


def test_a_tensor_of_another_memory_is_an_error() -> None:
    with two_memories():
        there = torch.ones(3, device=PLACE.device)
        assert there.device == PLACE.device and (there + 1).sum().item() == 6.0
        with pytest.raises(AssertionError, match="two memories"):
            there + torch.ones(3)


def test_the_plan_counts_pixels_on_both_sides_of_a_gpu() -> None:
    place = Place(torch.device("cuda", 0))
    counted = {"tower": 1000, "computing": 100, "kept": 10, "pixels": 5}
    host, gpu = ImageMemory(**counted), ImageMemory(**counted, place=place)
    assert (host.host_bytes(4, 2), host.device_bytes(2)) == (1000 + 100 + 2 * 10 + 4 * 5, 0)
    assert gpu.host_bytes(4, 2) == 4 * 5
    assert gpu.device_bytes(2) == 1000 + int((100 + 2 * 15) * (1 + DEVICE_SLACK))
