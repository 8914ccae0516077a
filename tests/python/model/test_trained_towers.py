"""The vision tower and its projector trained with the text, as plain transformers trains them in the same class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import native
import real_runs
import test_image_devices
from both_ways import CLIP, DECAY, EPSILON, RATE, TOLERANCE, compare_files, save, tensors
from breadth import some
from fake_gpu import FakeGpu
from image_models import PROCESSORS, image_batch, image_config, image_directory
from image_training import train_with_images
from spillway.config import resolve
from spillway.errors import InputError
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.batches.microbatch import arrange
from spillway.model.meta.building import build
from spillway.model.meta.layer_arguments import record
from spillway.model.meta.streamed_tower import StreamedTower, stream_tower
from spillway.model.spec import ModelSpec, model_spec
from test_ranks import LIMIT, processes

gpu = test_image_devices.gpu  # a fixture

FAMILIES = ("gemma3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "idefics3", "smolvlm")
STEPS = 10
BOTH = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}
PROJECTOR = {"freeze_multi_modal_projector": False}
TOWER = {"freeze_vision_tower": False}
WORDS = ["--freeze_vision_tower", "false", "--freeze_multi_modal_projector", "false"]
SIZES = ["--max_length", "96", "--max_steps", "4", "--lr_scheduler_type", "constant", "--save_steps", "2"]
DTYPES = {"compute_dtype": "fp32", "weight_dtype": "fp32"}
NAMES = ("projector", "merger", "connector")  # of projectors in these families


def is_projector(name: str) -> bool:
    return any(part in name for part in NAMES)


def learns(name: str, keys: dict[str, bool]) -> bool:
    key = "freeze_multi_modal_projector" if is_projector(name) else "freeze_vision_tower"
    return not keys.get(key, True)


def train_streamed(
    place: Path, work: list[list[Batch]], keys: dict[str, bool], **more: Any
) -> tuple[list[float], list[float], list[str]]:
    """Losses and gradient norms of the steps, and what the plan says. The model is saved in `saved`."""
    shape = WorkShape(2, 2, 24, 0, 0, largest_images=work[0][0])
    settings = {"weight_decay": DECAY, "max_grad_norm": CLIP, "adam_epsilon": EPSILON}
    session = native.opened(place / "model", shape, **settings, **keys, **more)
    try:
        notices = [words for words in session.list_plan_notices() if words.startswith("images:")]
        results = [session.step(step, RATE) for step in work]
        (place / "saved").mkdir()
        session.save_model(place / "saved")
    finally:
        session.close()
    return [each.loss_sum / each.label_tokens for each in results], [each.grad_norm for each in results], notices


def draw_steps(kind: str, steps: int = STEPS) -> list[list[Batch]]:
    """A row has two images, another is padded."""
    generator = torch.Generator().manual_seed(3)
    return [[image_batch(kind, 2, 24, generator, padded=3), image_batch(kind, 1, 20, generator)] for _ in range(steps)]


SAID = {
    "both": (BOTH, "the vision tower and its projector are trained"),
    "projector": (PROJECTOR, "its projector is trained"),
    "tower": (TOWER, "the vision tower is trained"),
}


@pytest.mark.parametrize("part", SAID)
@pytest.mark.parametrize("kind", some(FAMILIES, ("gemma3", "qwen2_5_vl", "qwen3_vl")))
def test_ten_steps_equal_plain_transformers(kind: str, part: str, tmp_path: Path) -> None:
    """Losses, gradient norms and weights. What is frozen stays bit-identical, and what is trained moves."""
    keys, words = SAID[part]
    save(image_config(kind), tmp_path / "model", 7)
    work = draw_steps(kind)
    losses, norms, notices = train_streamed(tmp_path, work, keys)
    assert words in notices[0]
    expected, expected_norms, plain = train_with_images(tmp_path / "model", work, lambda name: learns(name, keys))
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert norms == pytest.approx(expected_norms, rel=10 * TOLERANCE)
    plain.save_pretrained(tmp_path / "expected")
    compare_files(tmp_path / "saved", tmp_path / "expected")
    before, after = tensors(tmp_path / "model"), tensors(tmp_path / "saved")
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    apart = [name for name in before if "vision" in name or "visual" in name or is_projector(name)]
    frozen = {name for name in apart if not learns(name, keys)}
    assert not moved & frozen and moved & (set(apart) - frozen)


def test_rows_of_text_alone_leave_the_gradient_of_the_tower_zero(tmp_path: Path) -> None:
    """A micro-batch without images beside one with images adds nothing."""
    save(image_config("qwen2_5_vl"), tmp_path / "model", 7)
    generator = torch.Generator().manual_seed(3)
    work = []
    for step in draw_steps("qwen2_5_vl", 4):
        ids = torch.randint(3, 300, (1, 18), generator=generator)
        work.append([step[0], Batch(ids, ids.clone(), None, 18, torch.tensor([18]))])
    losses, norms, _ = train_streamed(tmp_path, work, BOTH)
    expected, expected_norms, plain = train_with_images(tmp_path / "model", work, lambda name: True)
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert norms == pytest.approx(expected_norms, rel=10 * TOLERANCE)
    plain.save_pretrained(tmp_path / "expected")
    compare_files(tmp_path / "saved", tmp_path / "expected")


def test_subspaces_are_refused(tmp_path: Path) -> None:
    from spillway.config import checks, resolve

    values = {"model": str(tmp_path), "dataset": "rows.jsonl", "device": "cpu", "method": "lsp", **PROJECTOR}
    with pytest.raises(InputError, match="freeze_multi_modal_projector: with method .* it has to stay true"):
        checks.check_method(resolve({}, values, "test"))


def test_a_model_of_text_alone_is_refused(tmp_path: Path) -> None:
    given = real_runs.inputs(tmp_path)
    with pytest.raises(InputError, match="freeze_vision_tower: a model of type .* has no vision tower"):
        native.opened(given / "model", WorkShape(1, 2, 24, 0, 0), **TOWER)


def test_rows_without_images_are_refused(tmp_path: Path) -> None:
    save(image_config("gemma3"), tmp_path / "model", 7)
    with pytest.raises(InputError, match="freeze_vision_tower, .*: no row has images, which alone train these parts"):
        native.opened(tmp_path / "model", WorkShape(1, 2, 24, 0, 0), **TOWER)


def specify(place: Path, kind: str, **keys: Any) -> ModelSpec:
    """The spec of a run on a saved model of this kind."""
    save(image_config(kind), place / "model", 7)
    values = {"model": str(place / "model"), "dataset": "rows.jsonl", "device": "cpu", **DTYPES, **keys}
    return model_spec(resolve({}, values, "test"))


@pytest.mark.parametrize("keys", [{}, PROJECTOR, TOWER], ids=str)
def test_random_weights_are_refused_while_a_part_is_frozen(keys: dict[str, bool], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="init: random draws the tower of text alone"):
        specify(tmp_path, "gemma3", init="random", **keys)


def test_random_weights_are_drawn_for_parts_that_are_trained(tmp_path: Path) -> None:
    assert all(
        parameter.requires_grad for parameter in specify(tmp_path, "gemma3", init="random", **BOTH).meta_model.tower
    )


PATTERNS = {"gemma3": (r"^language_model\.model\.layers", "^vision_tower", "^multi_modal_projector"),
            "qwen2_5_vl": (r"^model\.layers", r"^visual\.")}  # fmt: skip


@pytest.mark.parametrize("kind", PATTERNS)
def test_patterns_match_the_names_in_the_checkpoint(kind: str, tmp_path: Path) -> None:
    meta_model = specify(tmp_path, kind, trainable=list(PATTERNS[kind]), **BOTH).meta_model
    assert all(parameter.requires_grad for parameter in [*meta_model.tower, *meta_model.layers[0].parameters()])
    assert not meta_model.embedding.weight.requires_grad


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ({"frozen": ["visual"]}, "frozen: with 'visual' nothing is left to train of what `freeze_"),
        ({"frozen": ["merger"]}, "of what `freeze_multi_modal_projector: false` trains"),
        ({"trainable": [r"^model\.layers"]}, r"trainable: with .* nothing is left to train of what `freeze_"),
    ],
    ids=str,
)
def test_patterns_that_freeze_a_trained_part_are_refused(
    patterns: dict[str, list[str]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        specify(tmp_path, "qwen2_5_vl", **patterns, **BOTH)


# ---- by the command line


@pytest.fixture(scope="module", params=some(tuple(PROCESSORS), ("gemma3", "qwen3_vl")))
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = image_directory(tmp_path_factory.mktemp(request.param), request.param)
    native.profile(place)
    return place


@pytest.fixture(scope="module")
def whole(given: Path) -> Path:
    """Four steps without an interruption, in DRAM."""
    assert real_runs.here(given, given / "whole", *SIZES, *WORDS, "--placement", "dram") == 0
    return given / "whole"


def test_checked_against_plain_pytorch_by_the_command_line(given: Path, tmp_path: Path) -> None:
    words = ["--compute_dtype", "fp32", "--weight_dtype", "fp32", "--placement", "dram"]
    assert real_runs.here(given, tmp_path / "out", *SIZES, *WORDS, *words, verb="check") == 0


def test_killed_and_resumed_to_the_same_bits(given: Path, whole: Path, tmp_path: Path) -> None:
    """State, gradients and half of the weights lie on a path, those of the tower among them."""
    keys = [*SIZES, *WORDS, *real_runs.on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    real_runs.kill_after("commit", real_runs.words(given, tmp_path / "out", *keys), calls=3)
    assert real_runs.here(given, tmp_path / "out", *keys) == 0
    ours, other = tensors(tmp_path / "out"), tensors(whole)
    assert ours.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in ours.items())
    began = tensors(given / "model")
    moved = [name for name, value in ours.items() if not torch.equal(value, began[name])]
    assert any("vision" in name or "visual" in name for name in moved) and any(map(is_projector, moved))
    exported = tmp_path / "exported"
    assert real_runs.main(["export", str(tmp_path / "out"), "--to", str(exported)]) == 0
    found = tensors(exported)
    assert found.keys() == ours.keys() and all(torch.equal(value, found[name]) for name, value in ours.items())


# ---- elsewhere


EXACT = ["--max_length", "96", "--max_steps", "4", "--save_steps", "4", "--lr_scheduler_type", "constant",
         "--placement", "dram", "--virtual_ranks", "2", "--fused_kernels", "never", "--compute_dtype", "bf16",
         *WORDS]  # fmt: skip


@pytest.fixture(scope="module")
def on_cpus(given: Path) -> Path:
    assert real_runs.here(given, given / "cpus", *EXACT) == 0
    return given / "cpus"


def test_a_simulated_device_changes_no_bit(given: Path, on_cpus: Path) -> None:
    assert real_runs.here(given, given / "simulated", *EXACT, "--device", "simulated") == 0
    test_image_devices.require_same(given / "simulated", on_cpus)


def test_a_gpu_computes_the_same(given: Path, gpu: FakeGpu) -> None:
    """On the driver of a fake one: losses and norms of all steps, within rounding."""
    keys = [*SIZES, *WORDS, "--placement", "dram", "--compute_dtype", "fp32", "--weight_dtype", "fp32"]
    assert real_runs.here(given, given / "fp32", *keys) == 0
    said = gpu.run(real_runs.words(given, given / "gpu", *keys, "--device", "cuda:0", "--gpu_memory", "96MiB"))
    assert said.code == 0, said.err
    assert "the vision tower and its projector are trained" in " ".join((said.out + said.err).split())
    ours, expected = (real_runs.metrics(given / name) for name in ("gpu", "fp32"))
    for name in ("loss", "grad_norm"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in expected], rel=1e-4)


def test_two_processes_make_what_one_makes(given: Path, on_cpus: Path) -> None:
    ranks = processes(2, given, given / "two", *EXACT)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    test_image_devices.require_same(given / "two", on_cpus)


PATCHES = {"gemma3": 16, "qwen2_vl": 24, "qwen2_5_vl": 24, "qwen3_vl": 24}  # of an image


@pytest.mark.parametrize("kind", some(PATCHES, ("gemma3", "qwen2_5_vl")))
def test_autograd_saves_the_input_of_each_layer_of_the_tower(kind: str) -> None:
    """And nothing else of a layer: backward recomputes it."""
    batch = image_batch(kind, 2, 24, torch.Generator().manual_seed(3))
    images, columns, fp32 = 3, 32, 4
    each = images * PATCHES[kind] * columns * fp32
    assert count_saved(kind, 6, batch) - count_saved(kind, 2, batch) == 4 * each


def count_saved(kind: str, depth: int, batch: Batch) -> int:
    """Bytes that autograd saves on the way in, but for what it saves inside of recomputed layers."""
    config = image_config(kind)
    name = "depth" if hasattr(config.vision_config, "depth") else "num_hidden_layers"
    setattr(config.vision_config, name, depth)
    meta_model = build(config, torch.float32)
    stream_tower(meta_model, True, True)
    meta_model.take_images()
    micro_batch = arrange([batch]).micro_batches[0]
    saved: dict[int, int] = {}

    def save_tensor(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    rows = torch.zeros(batch.input_ids.numel(), meta_model.columns)
    hooks = torch.autograd.graph.saved_tensors_hooks(save_tensor, lambda tensor: tensor)
    with meta_model.stand_ins(), hooks:
        record(meta_model, micro_batch, batch.input_ids.view(-1), rows, StreamedTower(meta_model, torch.device("cpu")))
    return sum(saved.values())
