"""The stream against the library's own forward and backward pass and torch.optim.AdamW, on tiny models."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from fake_engine import FakeEngine
from hf_models import batch, random_ids, tiny_config, tiny_model
from spillway._engine import EngineSettings, StepUpdate
from spillway.model.batches.microbatch import IGNORED, arrange
from spillway.model.head.head import Scratch
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, decay_names, describe
from spillway.model.stream.stream import Stream

RATE, DECAY, CLIP = 1e-3, 0.1, 1.0
ADAMW = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
UPDATE = StepUpdate(learning_rate=RATE, weight_decay=DECAY, max_grad_norm=CLIP, hyperparameters=ADAMW)
NO_RATE = StepUpdate(weight_decay=DECAY, max_grad_norm=CLIP, hyperparameters=ADAMW)
FAMILIES = [("llama", True, {}), ("llama", False, {}), ("qwen2", True, {}), ("mistral", False, {"sliding_window": 5}),
            ("qwen3", True, {})]  # fmt: skip


def streamed(
    model: PreTrainedModel, dtype: str, batches: list[list[Any]], kept_logits: int = 0
) -> tuple[Stream, FakeEngine]:
    """A fake engine with the weights of `model`."""
    size = WorkSize(max(map(len, batches)), max(sum(b.input_ids.numel() for b in step) for step in batches))
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    meta_model = build(copy.deepcopy(model.config), torch_dtype)
    fake = FakeEngine(describe(meta_model, size, dtype), EngineSettings(dram_budget=1 << 30), chunk_elements=2048)
    weights = dict(model.named_parameters())
    for number, tensor in enumerate(fake.tensors):
        fake.store_tensor(number, 0, weights[tensor.name].detach().float().flatten())
    return Stream(meta_model, fake, 0, kept_logits=kept_logits), fake


def train_streamed(model: PreTrainedModel, batches: list[list[Any]], dtype: str = "fp32") -> list[float]:
    stream, _ = streamed(model, dtype, batches)
    outcomes = [stream.step(arrange(step), UPDATE, number) for number, step in enumerate(batches)]
    return [outcome.loss_sum / outcome.label_tokens for outcome in outcomes]


def loss_of(model: PreTrainedModel, piece: Any) -> torch.Tensor:
    """Summed over label tokens, by the library's forward pass and PyTorch's cross entropy."""
    logits = model(input_ids=piece.input_ids, position_ids=piece.position_ids, use_cache=False).logits
    shifted = torch.full_like(piece.labels, IGNORED)
    shifted[:, :-1] = piece.labels[:, 1:]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), shifted.flatten(), reduction="sum")


def train_plain(model: PreTrainedModel, batches: list[list[Any]]) -> list[float]:
    """The loop a person would write."""
    decaying = set(decay_names(model))
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decaying], "weight_decay": DECAY},
        {"params": [p for n, p in model.named_parameters() if n not in decaying], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    losses = []
    for step in batches:
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        parts = [loss_of(model, piece) for piece in step]
        (sum(parts) / tokens).backward()  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(sum(float(part.detach()) for part in parts) / tokens)
    return losses


def assert_equal_curves(one: list[float], other: list[float], tolerance: float = 1e-6) -> None:
    assert len(one) == len(other) > 0
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert abs(a - b) <= tolerance * abs(b), f"step {number}: {a!r} and {b!r}"


def full_batches(steps: int) -> list[list[Any]]:
    return [[batch(random_ids(2, 12, seed))] for seed in range(steps)]


@pytest.mark.parametrize(
    ("kind", "tied", "more"), FAMILIES, ids=[f"{k}-{'tied' if t else 'untied'}" for k, t, _ in FAMILIES]
)
def test_losses_equal_a_plain_loop(kind: str, tied: bool, more: dict[str, Any]) -> None:
    model = tiny_model(tiny_config(kind, tied, **more))
    batches = full_batches(12)
    assert_equal_curves(train_streamed(model, batches), train_plain(model, batches))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["llama", "granite", "phi"])  # with code after the product; with a bias
def test_rows_that_fill_lines_of_logits_give_nothing(monkeypatch: pytest.MonkeyPatch, kind: str, dtype: str) -> None:
    """As a GPU has them: slices are a multiple of rows there."""
    model = tiny_model(tiny_config(kind, tied=kind != "phi"))
    batches = full_batches(6)
    plain = train_streamed(model, batches, dtype)
    heights, lines = set(), Scratch.lines

    def noted(scratch: Scratch, table: torch.Tensor) -> torch.Tensor:
        scratch.line = 48
        found = lines(scratch, table)
        heights.add((len(table), len(found)))
        return found

    monkeypatch.setattr(Scratch, "lines", noted)
    assert_equal_curves(train_streamed(model, batches, dtype), plain, 1e-6 if dtype == "fp32" else 1e-3)
    assert all(found % 48 == 0 for _, found in heights) and any(table < found for table, found in heights)


def test_uneven_micro_batches_count_tokens_not_batches() -> None:
    model = tiny_model(tiny_config("qwen2"))
    batches = [
        [batch(random_ids(3, 12, 10 * s)), batch(random_ids(1, 7, 10 * s + 1)), batch(random_ids(2, 9, 10 * s + 2))]
        for s in range(10)
    ]
    assert_equal_curves(train_streamed(model, batches), train_plain(model, batches))


def values_of(fake: FakeEngine, number: int) -> torch.Tensor:
    values = torch.empty(math.prod(fake.tensors[number].shape))
    fake.fetch_tensor(number, 0, values)
    return values


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_logits_that_are_kept_change_no_bit(dtype: str) -> None:
    """Of no slice, of some, of more than there are; micro-batches of different lengths in turn, and an evaluation."""
    model = tiny_model(tiny_config("qwen2", tied=False))
    sizes = [(12, 7), (5, 11), (12, 12)]
    batches = [
        [batch(random_ids(2, n, seed)), padded(seed), batch(random_ids(1, m, seed + 9))]
        for seed, (n, m) in enumerate(sizes)
    ]
    found = []
    for kept in (0, 2, 1000):
        stream, fake = streamed(model, dtype, batches, kept)
        losses = [stream.step(arrange(step), UPDATE, number).loss_sum for number, step in enumerate(batches)]
        losses.append(stream.evaluate(arrange(batches[0])).loss_sum)
        buffers = [name for name in stream._scratch._buffers if name.startswith("logits ")]
        assert bool(buffers) == (kept > 0)
        assert kept != 2 or len(buffers) == 2 * 3
        found.append((losses, [values_of(fake, number) for number in range(len(fake.tensors))]))
    for other in found[1:]:
        assert other[0] == found[0][0]
        assert all(torch.equal(one, same) for one, same in zip(other[1], found[0][1], strict=True))


def padded(seed: int) -> Any:
    """Two rows, the second 5 shorter, filled with the padding token."""
    ids = random_ids(2, 12, seed, lowest=1)
    labels = ids.clone()
    ids[1, 7:], labels[1, 7:] = 0, IGNORED
    return batch(ids, labels)


def test_padding_on_the_right_changes_nothing() -> None:
    model = tiny_model(tiny_config("llama"))
    batches = [[padded(seed)] for seed in range(10)]
    alone = [[batch(p.input_ids[:1], p.labels[:1]), batch(p.input_ids[1:, :7], p.labels[1:, :7])] for (p,) in batches]
    curve = train_streamed(model, batches)
    assert_equal_curves(curve, train_streamed(model, alone))
    assert_equal_curves(curve, train_plain(model, batches))


def test_labels_of_the_completion_only() -> None:
    model = tiny_model(tiny_config("qwen2", tied=False))
    batches = []
    for seed in range(10):
        piece = batch(random_ids(3, 12, seed))
        piece.labels[0, :6] = piece.labels[1, :9] = piece.labels[2, 2:5] = IGNORED
        batches.append([piece])
    assert_equal_curves(train_streamed(model, batches), train_plain(model, batches))


def test_a_micro_batch_without_labels_adds_nothing() -> None:
    model = tiny_model(tiny_config("llama"))
    silent = batch(random_ids(1, 8, 50), torch.full((1, 8), IGNORED))
    batches = full_batches(6)
    with_silence = [[silent, *step] for step in batches]
    assert_equal_curves(train_streamed(model, with_silence), train_plain(model, batches))


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_packed_rows_are_kept_apart(kind: str) -> None:
    more = {"sliding_window": 4} if kind == "mistral" else {}
    model = tiny_model(tiny_config(kind, **more))
    packed, alone = [], []
    for seed in range(10):
        rows = [random_ids(1, length, 10 * seed + length) for length in (5, 1, 6)]
        ids = torch.cat(rows, 1)
        labels = ids.clone()
        labels[0, [0, 5, 6]] = IGNORED
        positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
        packed.append([batch(ids, labels, positions)])
        alone.append([batch(row) for row in rows])
    assert_equal_curves(train_streamed(model, packed), train_plain(model, alone))


def test_the_padding_token_as_text_learns_as_in_the_library() -> None:
    """nn.Embedding keeps the gradient of its padding row at zero; a tied head still trains it."""
    for tied in (True, False):
        model = tiny_model(tiny_config("llama", tied))
        batches = full_batches(6)
        for (piece,) in batches:
            piece.input_ids[:, 3] = 0
            piece.labels[:, 3] = 0
        assert_equal_curves(train_streamed(model, batches), train_plain(model, batches))


def test_evaluation_is_the_loss_and_changes_nothing() -> None:
    model = tiny_model(tiny_config("llama"))
    pieces = [batch(random_ids(2, 11, 3)), batch(random_ids(1, 12, 4))]
    stream, fake = streamed(model, "fp32", [pieces])
    before = fake.memory()[: fake._boundary_at(0)].clone()
    outcome = stream.evaluate(arrange(pieces))
    expected = sum(float(loss_of(model.eval(), piece).detach()) for piece in pieces)
    assert abs(outcome.loss_sum - expected) <= 1e-6 * expected and outcome.label_tokens == 20 + 11
    assert torch.equal(before, fake.memory()[: fake._boundary_at(0)])


def test_bf16_stays_near_the_fp32_curve() -> None:
    model = tiny_model(tiny_config("qwen2"), torch.bfloat16)
    batches = [[batch(random_ids(4, 12, seed % 2))] for seed in range(20)]
    fp32 = copy.deepcopy(model).float()
    curve, exact = train_streamed(model, batches, "bf16"), train_plain(fp32, batches)
    assert curve[0] == pytest.approx(float(loss_of(model, batches[0][0]).detach()) / 44, rel=1e-6)
    assert curve[-1] < curve[0] - 0.05
    assert_equal_curves(curve, exact, 5e-3)


def test_dropout_draws_the_same_when_a_layer_is_computed_again() -> None:
    """The gradient of a step with dropout agrees with finite differences of its own loss only if the masks do."""
    model = tiny_model(tiny_config("llama", attention_dropout=0.5))
    piece = [batch(random_ids(2, 12, 1))]
    stream, fake = streamed(model, "fp32", [piece])
    number = next(n for n, t in enumerate(fake.tensors) if t.name == "model.layers.0.self_attn.v_proj.weight")
    state = torch.get_rng_state()
    first = stream.step(arrange(piece), NO_RATE, 5)
    direction = fake.gradients[number]
    assert torch.equal(state, torch.get_rng_state())
    losses = []
    for sign in (1, -1):
        fake.weight(number).add_(direction, alpha=sign * 0.05)
        losses.append(stream.step(arrange(piece), NO_RATE, 5).loss_sum / 22)
        fake.weight(number).copy_(fake.masters[number])
    slope = (losses[0] - losses[1]) / 0.1
    assert slope == pytest.approx(float((direction * direction).sum()), rel=0.02)
    other = stream.step(arrange(piece), NO_RATE, 6)
    assert other.loss_sum != first.loss_sum


def all_kinds() -> list[PreTrainedConfig]:
    return [tiny_config(kind, tied, **more) for kind, tied, more in FAMILIES]


@pytest.mark.parametrize("config", all_kinds(), ids=lambda c: f"{c.model_type}-{c.tie_word_embeddings}")
def test_no_gradient_stays_behind(config: PreTrainedConfig) -> None:
    """A layer's gradients are handed over one by one; what lives on is the arena."""
    model = tiny_model(config)
    batches = full_batches(1)
    stream, _ = streamed(model, "fp32", batches)
    stream.step(arrange(batches[0]), UPDATE, 0)
    for module in stream.meta_model.stack:
        assert all(parameter.grad is None and not parameter.is_meta for parameter in module.parameters())
    stream.close()
    assert all(parameter.is_meta for parameter in stream.meta_model.model.parameters())


def test_nothing_keeps_an_engine_alive() -> None:
    """Layers, leaves and hooks form no cycle that the garbage collector cannot see."""
    model = tiny_model(tiny_config("llama"))
    batches = full_batches(1)
    stream, fake = streamed(model, "fp32", batches)
    stream.step(arrange(batches[0]), UPDATE, 0)
    alive = weakref.ref(fake)
    del stream, fake
    gc.collect()
    assert alive() is None
