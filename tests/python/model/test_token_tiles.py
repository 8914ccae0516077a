"""What treats each token by itself runs in tiles: the gradients of plain PyTorch, the same bits wherever bytes lie and
whatever is kept, nothing of all tokens but what a layer is given and gives, and no other bits where one tile is all."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import real_runs
import tiny
from breadth import some
from hf_models import batch, random_ids, tiny_config, tiny_model
from needs import package
from real_runs import here, metrics
from small_configs import small_config
from spillway.config import resolve
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import IGNORED, Work, arrange
from spillway.model.layers import token_tiles
from spillway.model.layers.saved import RECOMPUTE_ALL
from spillway.model.layers.token_tiles import ALL_AT_ONCE, Parts, TokenTiles, bounds, tokens_of
from spillway.model.measure import growth, quick_dry_run
from spillway.model.measure.quick_dry_run import Taken
from spillway.model.measure.trace import trace_step
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.factors import choose
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.saved_layers import keep_all
from spillway.model.stream.stream import Stream
from spillway.model.verify import equivalence
from spillway.model.verify.equivalence import verify_equivalence
from spillway.model.verify.saved_equivalence import MovedEngine

TILE = 5  # tokens: divides neither rows nor micro-batches
LLAMA = frozenset({"mlp", "input_layernorm", "post_attention_layernorm"})
IN_TILES = TokenTiles(TILE, LLAMA, frozenset({"mlp"}))
UNNEEDED = frozenset({"mlp.down_proj"})  # of llama


class Numbered(MovedEngine):
    """Notes of which part each gradient was."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.parts: dict[int, list[int]] = defaultdict(list)
        super().__init__(*given, **more)

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        super().gradient(tensor, values, micro_batch)
        self.parts[tensor].append(micro_batch)


def work_of(rows: int = 2, length: int = 12) -> Work:
    """Two micro-batches, some tokens without a label."""
    labels = random_ids(rows, length, 1)
    labels[0, 4] = IGNORED
    return arrange([batch(random_ids(rows, length, 1), labels), batch(random_ids(1, 9, 2))])


def stepped(
    kind: str,
    dtype: str,
    tiles: TokenTiles,
    choice: Any = lambda _: RECOMPUTE_ALL,
    unneeded: frozenset[str] = UNNEEDED,
    **more: Any,
) -> tuple[Numbered, float]:
    """One step of a tiny model: its gradients, and its loss."""
    config = tiny_config(kind, **more)
    weights = dict(tiny_model(copy.deepcopy(config)).named_parameters())
    meta_model = build(copy.deepcopy(config), torch.float32 if dtype == "fp32" else torch.bfloat16)
    work = work_of()
    engine = Numbered(describe(meta_model, WorkSize(2, work.tokens), dtype), chunk_elements=1024)
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(weights[tensor.name].detach())
    stream = Stream(meta_model, engine, 3, unneeded, saved=choice(meta_model), tiles=tiles)
    return engine, stream.step(work).loss_sum


def plain_gradients(kind: str, **more: Any) -> dict[str, torch.Tensor]:
    """Of the mean loss over the same work, by the library's own model in fp32."""
    model = tiny_model(tiny_config(kind, **more))
    work = work_of()
    for each in work.micro_batches:
        ids = work.ids_of(each).view(each.rows, each.length)
        logits = model(input_ids=ids, use_cache=False).logits.flatten(0, 1)[each.labelled]
        (torch.nn.functional.cross_entropy(logits, each.labels, reduction="sum") / work.units).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@cache
def verified(kind: str, *more: tuple[str, Any]) -> tuple[TokenTiles, frozenset[str]]:
    """What runs in tiles, and the linear layers that backward leaves out."""
    found = verify_equivalence(tiny_config(kind, **dict(more)))
    assert found.tiles.modules and not found.tiles.why
    return TokenTiles(TILE, found.tiles.modules, found.tiles.idle), found.unneeded


def assert_same_bits(one: PlainEngine, other: PlainEngine) -> None:
    assert one.gradients.keys() == other.gradients.keys() and len(one.gradients) > 3
    for number, value in one.gradients.items():
        assert bool(value.isfinite().all()) and torch.equal(value, other.gradients[number]), number


# ---- a step, in plain PyTorch

MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_inner": 48, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0}
KINDS = [("llama", {}), ("qwen3", {}), ("olmo2", {}), ("mixtral", MOE), ("gpt2", GPT2)]


@pytest.mark.parametrize(("kind", "more"), KINDS, ids=[kind for kind, _ in KINDS])
def test_tiles_give_the_gradients_of_plain_pytorch(kind: str, more: dict[str, Any]) -> None:
    tiles, unneeded = verified(kind, *more.items())
    engine, _ = stepped(kind, "fp32", tiles, unneeded=unneeded, **more)
    expected = plain_gradients(kind, **more)
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for number, tensor in enumerate(engine.tensors):
        error = float((engine.gradients[number] - expected[tensor.name]).abs().max())
        assert error <= 1e-6 * largest, tensor.name
    mlp = [number for number, tensor in enumerate(engine.tensors) if ".mlp." in tensor.name]
    assert mlp and all(engine.parts[number] == [0, 1, 2, 3, 4, 5, 6] for number in mlp)


def test_each_part_comes_once_and_the_last_comes_last() -> None:
    engine, _ = stepped("llama", "fp32", IN_TILES)
    for number, tensor in enumerate(engine.tensors):
        apart = [4, 6] if "self_attn" in tensor.name else list(range(7))
        if number and "layers" in tensor.name:
            assert engine.parts[number] == apart, tensor.name


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("kind", "more"), [*KINDS[:3], ("llama", {"attention_dropout": 0.3})])
def test_what_is_kept_moves_no_bit(kind: str, more: Any, dtype: str) -> None:
    tiles, unneeded = verified(kind, *more.items())
    ways = (lambda _: RECOMPUTE_ALL, keep_all)
    recomputed, kept = (stepped(kind, dtype, tiles, choice, unneeded, **more) for choice in ways)
    assert_same_bits(recomputed[0], kept[0])
    assert recomputed[1] == kept[1]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_tile_is_no_tile(dtype: str) -> None:
    whole, one = (stepped("llama", dtype, tiles) for tiles in (ALL_AT_ONCE, TokenTiles(24, LLAMA, frozenset({"mlp"}))))
    assert_same_bits(whole[0], one[0])
    assert whole[1] == one[1] and one[0].parts == whole[0].parts
    several, _ = stepped("llama", dtype, IN_TILES)
    assert several.parts != whole[0].parts


def test_a_module_that_draws_random_numbers_runs_whole() -> None:
    keys: Any = {"n_inner": 48, "resid_pdrop": 0.2}
    engine, _ = stepped("gpt2", "fp32", TokenTiles(TILE, frozenset({"mlp"})), **keys)
    mlp = [number for number, tensor in enumerate(engine.tensors) if ".mlp." in tensor.name]
    assert mlp and all(engine.parts[number] == [4, 6] for number in mlp)


class Largest(TorchDispatchMode):
    """The most bytes that one tensor had which an operation gave, but for those that lie in the arena."""

    def __init__(self, arena: torch.Tensor) -> None:
        super().__init__()
        self.bytes, self._arena = 0, arena.untyped_storage().data_ptr()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, list | tuple) else [found]:
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                self.bytes = max(self.bytes, storage.nbytes() if storage.data_ptr() != self._arena else 0)
        return found


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_is_made_of_all_tokens_but_hidden_states(kept: bool) -> None:
    """No inner state of an MLP, and no logits."""
    tokens, inner = 2048, 512
    config = tiny_config("llama", num_hidden_layers=2, max_position_embeddings=tokens, intermediate_size=inner)
    found = []
    for tiles in (ALL_AT_ONCE, TokenTiles(128, LLAMA, frozenset({"mlp"}))):
        meta_model = build(copy.deepcopy(config), torch.float32)
        engine = PlainEngine(describe(meta_model, WorkSize(1, tokens), "fp32"), chunk_elements=1 << 20)
        for number in range(len(engine.tensors)):
            engine.weight(number).fill_(0.01)
        saved = keep_all(meta_model) if kept else RECOMPUTE_ALL
        stream = Stream(meta_model, engine, 0, UNNEEDED, saved=saved, tiles=tiles)
        with Largest(engine.memory()) as largest:
            stream.step(arrange([batch(random_ids(1, tokens, 5))]))
        stream.close()
        found.append(largest.bytes)
    hidden = tokens * 32 * 4
    assert found[0] >= tokens * inner * 4 and found[1] <= 2 * hidden


def test_what_a_norm_gives_is_not_kept_for_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again: of the two of a layer, one is there at most."""
    tokens = 2048
    config = tiny_config("llama", num_hidden_layers=1, max_position_embeddings=tokens)
    tiles = TokenTiles(128, LLAMA, frozenset({"mlp"}))

    def most() -> int:
        meta_model = build(copy.deepcopy(config), torch.float32)
        return trace_step(meta_model, "fp32", WorkShape(1, 1, tokens, 0, 0), UNNEEDED, "nobody asks", tiles).whole.bytes

    found = most()
    monkeypatch.setattr(token_tiles.Remaking, "note", lambda *_: None)
    assert found + tokens * 32 * 4 <= most()


def test_what_several_saved_it_is_made_again_once() -> None:
    """As the products of queries, keys and values save what their norm gave; and it is let go after the last."""
    remaking, norm, parts = token_tiles.Remaking(), torch.nn.LayerNorm(4), Parts(TokenTiles(2))
    parts.tokens, parts.count = 6, 3
    given = token_tiles.Call.split((torch.randn(6, 4, generator=torch.Generator().manual_seed(1)),), {})
    assert given is not None
    runs = []

    class Counted(token_tiles.Tile):
        def run(self, hidden: torch.Tensor, call: token_tiles.Call) -> torch.Tensor:
            runs.append(hidden)
            return super().run(hidden, call)

    made = token_tiles.Made(Counted(norm, parts), *given)
    out = norm(given[0]).detach()
    remaking.note(out, made)
    factors = [torch.ones(4, requires_grad=True) for _ in range(3)]
    with remaking.hooks():
        loss = sum((out * factor).sum() for factor in factors)
    for found in torch.autograd.grad(loss, factors):
        torch.testing.assert_close(found, out.sum(0))
    assert len(runs) == 1 and made.out is None


@pytest.mark.parametrize("changed", [False, True])
def test_what_was_changed_in_place_is_not_made_again(changed: bool) -> None:
    remaking, norm, parts = token_tiles.Remaking(), torch.nn.LayerNorm(4), Parts(TokenTiles(2))
    parts.tokens, parts.count = 6, 3
    hidden = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    given = token_tiles.Call.split((hidden,), {})
    assert given is not None
    out, factor = norm(hidden).detach(), torch.ones(4, requires_grad=True)
    remaking.note(out, token_tiles.Made(token_tiles.Tile(norm, parts), *given))
    if changed:
        out.mul_(3.0)
    with remaking.hooks():
        loss = (out * factor).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, factor)[0], out.sum(0))


# ---- subspaces


class Projecting(PlainEngine):
    """Notes of which part each gradient was, of which tensors whole ones are taken, and whether these are zero."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.parts: dict[int, list[int]] = defaultdict(list)
        self.taken: dict[int, bool] = {}
        super().__init__(*given, **more)

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        super().gradient(tensor, values, micro_batch)
        self.parts[tensor].append(micro_batch)

    def whole_gradient(self, tensor: int, gradient: torch.Tensor) -> None:
        super().whole_gradient(tensor, gradient)
        assert tensor not in self.taken
        self.taken[tensor] = bool(gradient.any())


@contextmanager
def projecting(
    kind: str, tiles: TokenTiles, unneeded: frozenset[str], saved: bool = False, dtype: str = "fp32", **more: Any
) -> Iterator[tuple[Projecting, Stream]]:
    config = tiny_config(kind, **more)
    weights = dict(tiny_model(copy.deepcopy(config)).named_parameters())
    meta_model = build(copy.deepcopy(config), torch.float32 if dtype == "fp32" else torch.bfloat16)
    choose(meta_model, resolve({}, {"method": "lsp", "lsp_rank": 8}))
    engine = Projecting(describe(meta_model, WorkSize(2, work_of().tokens), dtype), chunk_elements=1024)
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(weights[tensor.name].detach())
    choice = keep_all(meta_model) if saved else RECOMPUTE_ALL
    stream = Stream(meta_model, engine, 3, unneeded, saved=choice, tiles=tiles)
    yield engine, stream
    stream.close()


@pytest.mark.parametrize(("kind", "more"), [KINDS[0], KINDS[2], KINDS[4]], ids=["llama", "olmo2", "gpt2"])
def test_gradients_of_subspaces_add_up_over_tiles(kind: str, more: dict[str, Any]) -> None:
    """Through the projectors that a step of whole micro-batches has refitted."""
    tiles, unneeded = verified(kind, *more.items())
    whole = replace(tiles, tokens=1000)
    with projecting(kind, whole, unneeded, **more) as (engine, stream):
        steps = []
        for each in (whole, whole, tiles):
            stream.tiles = each
            engine.parts.clear()
            stream.step(work_of())
            steps.append(engine.gradients)
        inside = [number for number, tensor in enumerate(engine.tensors) if tensor.rank]
        mlp = [number for number in inside if ".mlp." in engine.tensors[number].name]
        assert set(engine.taken) == set(inside) and mlp
        assert not torch.equal(steps[1][mlp[0]], steps[2][mlp[0]])
        for number, gradient in steps[1].items():
            assert float((steps[2][number] - gradient).abs().max()) <= 1e-6 * float(gradient.abs().max() + 1)


def test_gradients_of_subspaces_in_tiles_are_parts_of_a_step() -> None:
    with projecting("llama", IN_TILES, UNNEEDED) as (engine, stream):
        stream.step(work_of())
        inside = [(number, tensor) for number, tensor in enumerate(engine.tensors) if tensor.rank]
        for number, tensor in inside:
            assert engine.parts[number] == ([4, 6] if "self_attn" in tensor.name else list(range(7))), tensor.name
        assert inside


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_kept_moves_no_bit_of_subspaces_in_tiles(dtype: str) -> None:
    steps = []
    for saved in (False, True):
        with projecting("llama", IN_TILES, UNNEEDED, saved, dtype) as (engine, stream):
            steps.append((stream.step(work_of()).loss_sum, engine))
    assert steps[0][0] == steps[1][0]
    assert_same_bits(steps[0][1], steps[1][1])


def test_no_projector_is_refitted_from_a_tile_without_a_gradient() -> None:
    """The last layer's MLP has none in the first tiles, where no token has a label."""
    ids = random_ids(1, 16, 4)
    labels = torch.full_like(ids, IGNORED)
    labels[0, 12:] = ids[0, 12:]
    with projecting("llama", IN_TILES, UNNEEDED) as (engine, stream):
        stream.step(arrange([batch(ids, labels)]))
        assert engine.taken and all(engine.taken.values())
        assert all(bool(engine.gradients[number].any()) for number in engine.taken)


def test_the_working_set_of_subspaces_follows_the_tile() -> None:
    tokens, inner = 2048, 512
    config = tiny_config("llama", num_hidden_layers=1, max_position_embeddings=tokens, intermediate_size=inner)

    def most(tiles: TokenTiles) -> int:
        meta_model = build(copy.deepcopy(config), torch.float32)
        choose(meta_model, resolve({}, {"method": "lsp"}))
        return trace_step(meta_model, "fp32", WorkShape(1, 1, tokens, 0, 0), UNNEEDED, "nobody asks", tiles).whole.bytes

    whole, tiled, smaller = (
        most(TokenTiles(tile, LLAMA, frozenset({"mlp"})) if tile else ALL_AT_ONCE) for tile in (None, 512, 128)
    )
    assert tiled + tokens * inner * 4 <= whole
    assert smaller + (512 - 128) * inner * 4 <= tiled


# ---- which modules these are


def test_modules_that_treat_tokens_by_themselves_are_found() -> None:
    llama = verify_equivalence(small_config("llama")).tiles
    assert (llama.modules, llama.idle) == (LLAMA, {"mlp"})
    qwen = verify_equivalence(small_config("qwen3")).tiles
    assert {"self_attn.q_norm", "self_attn.k_norm", *LLAMA} == qwen.modules
    gemma = verify_equivalence(small_config("gemma2")).tiles
    assert "mlp" in gemma.modules - gemma.idle and "post_feedforward_layernorm" in gemma.idle
    for kind in ("mixtral", "gpt_oss"):  # the second gives its router's scores, too
        assert "mlp" in verify_equivalence(small_config(kind)).tiles.idle
    assert verify_equivalence(small_config("gpt2")).tiles.modules == {"mlp"}
    mamba = verify_equivalence(small_config("mamba")).tiles
    assert not any("mixer" == name or "conv" in name for name in mamba.modules)


def test_what_looks_at_other_tokens_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    own = modeling_llama.LlamaMLP.forward

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        before = torch.nn.functional.pad(hidden[:, :-1], (0, 0, 1, 0))
        return own(self, hidden + before)  # type: ignore[no-any-return]

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", forward)
    assert verify_equivalence(small_config("llama")).tiles.modules == LLAMA - {"mlp"}


def test_a_loss_of_routers_is_of_all_tokens() -> None:
    routed = small_config("mixtral", output_router_logits=True, router_jitter_noise=0.0)
    assert verify_equivalence(routed).tiles.why == equivalence.ROUTERS


def test_gradients_that_are_others_in_tiles_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = token_tiles.Tile.differentiate
    monkeypatch.setattr(token_tiles.Tile, "differentiate", lambda *given: own(*given) * 1.01)
    found = verify_equivalence(small_config("gpt2", num_hidden_layers=3)).tiles
    assert not found.modules and found.why


# ---- sizes


def test_how_many_tokens_a_tile_has() -> None:
    assert tokens_of("all", 4096) is None and tokens_of(7, 4096) == 7
    assert tokens_of("auto", 64) == token_tiles.LEAST and tokens_of("auto", 4096) == 8192
    assert tokens_of("auto", 1024, on_gpu=True) == 1 << 15 and tokens_of("auto", 8192, on_gpu=True) == 1 << 16
    assert [after - first for first, after in bounds(11, 3)] == [3, 4, 4]
    parts = Parts(TokenTiles(4))
    parts.begin(work_of().micro_batches)
    assert parts.sizes == [4] * 6 + [3] * 3 and (parts.now, parts.count) == (5, 6)
    parts.open(work_of().micro_batches[1])
    assert parts.last and parts.number(work_of().micro_batches[0], 0, 2) == 4
    with parts.tile(0, 3):
        assert parts.now == 6 and not parts.last


def bent(tokens: int) -> int:
    """Bytes of what runs in tiles of 4096 tokens."""
    return 1000 * min(tokens, 4096) + 100 * tokens


def test_what_shorter_rows_say_of_longer_ones_ends_at_a_tile() -> None:
    taken: list[int] = []

    def measure(at: int) -> int:
        taken.append(at)
        return bent(at)

    assert growth.climb(measure, lambda _: 8_500_000, 512, 32768, 4096).there and max(taken) == 16384
    assert not growth.climb(measure, lambda _: 8_500_000, 512, 32768).there, "as if it went on as it began"
    short = growth.climb(measure, lambda _: 6_000_000, 512, 131072, 4096)
    assert not short.there and growth.predicted(short.points, 131072) > 6_000_000
    briefly = [Taken(tokens, bent(tokens), {}) for tokens in (64, 128, 8192, 16384)]
    assert quick_dry_run.bytes_of(briefly, 32768, True, 4096) == int(bent(32768) * (1 + growth.MARGIN))


def test_what_few_tokens_say_of_many_tiles_is_said_by_smaller_tiles() -> None:
    briefly = [Taken(tokens, bent(tokens), {}) for tokens in (64, 128, 256)]
    tried: list[tuple[int, int, int]] = []

    def measure(rows: int, length: int, tile: int) -> Taken:
        tried.append((rows, length, tile))
        return Taken(rows * length, 1000 * tile + 100 * rows * length, {})

    def beyond() -> float | None:
        return quick_dry_run.slope_in_tiles(quick_dry_run.shapes(2, 16384), briefly[-1], measure)

    found = quick_dry_run.bytes_of(briefly, 32768, True, 4096, beyond)
    assert found == pytest.approx(bent(32768) * (1 + growth.MARGIN), rel=1e-6)
    assert tried == [(1, 128, 32), (1, 256, 32)]


# ---- runs


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("tiles"))


def run(given: Path, out: Path, *more: str) -> Any:
    assert here(given, out, "--max_steps", "3", *more) == 0
    weights = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert weights
    return metrics(out), weights


def plan_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "plan.json").read_text()))


LORA = ["--method", "lora", "--lora_r", "4"]
LSP = ["--method", "lsp", "--lsp_rank", "8", "--lsp_rotate_every", "2"]
WAYS = {"fp32": ["--compute_dtype", "fp32"], "bf16": ["--compute_dtype", "bf16"], "lora": LORA, "lsp": LSP,
        "packed": ["--packing", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"],
        "dropout": [*LORA, "--lora_dropout", "0.2"], "4bit": [*LORA, "--load_in_4bit"]}  # fmt: skip


@pytest.mark.parametrize("way", some(WAYS, set(WAYS) - {"lora", "dropout"}))
def test_runs_in_tiles_have_the_same_bits_wherever_bytes_lie(given: Path, tmp_path: Path, way: str) -> None:
    if "lora" in WAYS[way]:
        package("peft", "LoRA is PEFT's")
    tiled, again = ["--token_tile", "24"], ["--activation_recompute", "all"]
    expected = run(given, tmp_path / "dram", *WAYS[way], *tiled, *again)
    (tmp_path / "storage").mkdir()
    path = ["--storage", str(tmp_path / "storage"), "--placement", "path"]
    assert run(given, tmp_path / "path", *WAYS[way], *tiled, *again, *path) == expected
    assert run(given, tmp_path / "kept", *WAYS[way], *tiled, "--activation_recompute", "none") == expected
    assert plan_of(tmp_path / "path")["token_tile"]["modules"] == sorted(LLAMA)
    rows, weights = run(given, tmp_path / "whole", *WAYS[way], *again, "--token_tile", "all")
    assert "token_tile" not in plan_of(tmp_path / "whole")
    assert way != "fp32" or weights != expected[1]
    for one, other in zip(rows, expected[0], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-6 if way == "fp32" else 1e-2)


def test_subspaces_in_one_tile_have_the_bits_of_none(given: Path, tmp_path: Path) -> None:
    whole, one = (run(given, tmp_path / tile, *LSP, "--token_tile", tile) for tile in ("all", "4096"))
    assert whole == one and "token_tile" not in plan_of(tmp_path / "4096")


def test_a_resume_keeps_the_tile(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(given, out, "--token_tile", "24", "--save_steps", "1")
    keys = ["--max_steps", "4", "--resume_from_checkpoint", str(out / "checkpoint-1")]
    assert here(given, out, *keys, "--token_tile", "32") == 2
    assert "token_tile: the run was started with 24" in capsys.readouterr().err


LONG, ROW = 131_072, 4096  # tokens of a packed sequence, and of a row in it
LLAMA_11M = {
    "hidden_size": 320, "intermediate_size": 896, "num_hidden_layers": 8, "num_attention_heads": 5, "head_dim": 64,
    "vocab_size": 4096, "tie_word_embeddings": True, "max_position_embeddings": LONG,
}  # fmt: skip


@pytest.mark.nightly
def test_a_sequence_of_128_ki_tokens_has_the_same_bits_in_memory_and_on_a_path(tmp_path: Path) -> None:
    """One step of a model of 11 million parameters, whose weights are drawn, over one sequence of joined rows."""
    given = real_runs.inputs(tmp_path)
    (given / "model" / "config.json").write_text(json.dumps(tiny.CONFIG | LLAMA_11M))
    (given / "model" / "model.safetensors").unlink()
    line = " ".join(tiny.SENTENCES)
    often = (ROW - 16) // (1 + len(tiny.tokenizer().encode(line)))
    tiny.jsonl(given / "long.jsonl", [{"text": f"{n}: " + " ".join([line] * often)} for n in range(LONG // ROW)])
    keys = ["--dataset", str(given / "long.jsonl"), "--init", "random", "--max_length", str(LONG), "--packing",
            "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1", "--max_steps", "1",
            "--save_only_model"]  # fmt: skip
    assert here(given, tmp_path / "dram", *keys, "--placement", "dram") == 0
    (tmp_path / "storage").mkdir()
    assert here(given, tmp_path / "path", *keys, "--placement", "path", "--storage", str(tmp_path / "storage")) == 0
    (row,) = metrics(tmp_path / "dram")
    assert LONG * 0.9 < row["tokens"] <= LONG and metrics(tmp_path / "path") == [row]
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("dram", "path"))
    assert one == other and plan_of(tmp_path / "path")["token_tile"]["modules"] == sorted(LLAMA)


@pytest.mark.parametrize("value", ["0", "some", "1.5"])
def test_what_is_no_tile_is_refused(given: Path, tmp_path: Path, value: str) -> None:
    assert here(given, tmp_path / "out", "--token_tile", value) == 2
