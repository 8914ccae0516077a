"""What autograd saves of layers, kept from forward to backward or spilled to a path instead of computed again: the same
bits, in the memory that was planned, and computed again where keeping is not known to be so."""

from __future__ import annotations

import copy
import gc
import gzip
import json
import re
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import tiny
from breadth import some
from hf_models import batch, random_ids, tiny_config, tiny_model
from needs import package
from real_runs import apart, here, metrics, words
from small_configs import small_config
from spillway.model.batches.microbatch import arrange
from spillway.model.layers.saved import OF_GRAPH, RECOMPUTE_ALL, Packing, Saved, SavedChoice
from spillway.model.measure.slack import SAVED_SLACK
from spillway.model.meta.building import build
from spillway.model.stream.plain_engine import PlainEngine, PlainPass, mapped
from spillway.model.stream.saved_layers import NOT_ALONE, SHARING, able, keep_all
from spillway.model.stream.stream import Stream
from spillway.model.verify import saved_equivalence
from spillway.model.verify.equivalence import verify_equivalence
from spillway.model.verify.saved_equivalence import SPOILT, MovedEngine

LIMIT = 300  # seconds that a process of its own may take at most
MEBIBYTE = 1 << 20


# ---- one step, in plain PyTorch


def gradients(
    kind: str,
    dtype: str,
    choice: Any,
    unneeded: tuple[str, ...] = ("mlp.down_proj",),
    engine_type: type[MovedEngine] = MovedEngine,
    **more: Any,
) -> tuple[dict[int, torch.Tensor], Stream]:
    """Of a step of two micro-batches, between whose passes the engine's memory moves. `choice`: of a meta model."""
    from spillway.model.meta.describe import WorkSize, describe

    config = tiny_config(kind, **more)
    weights = dict(tiny_model(copy.deepcopy(config)).named_parameters())
    meta_model = build(copy.deepcopy(config), torch.float32 if dtype == "fp32" else torch.bfloat16)
    work = arrange([batch(random_ids(2, 12, 1)), batch(random_ids(1, 9, 2))])
    engine = engine_type(describe(meta_model, WorkSize(2, work.tokens), dtype))
    for number, tensor in enumerate(engine.tensors):
        engine.weight(number).copy_(weights[tensor.name].detach())
    stream = Stream(meta_model, engine, 3, unneeded, saved=choice(meta_model))
    stream.step(work)
    return engine.gradients, stream


def assert_same_bits(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> None:
    assert one.keys() == other.keys() and len(one) > 3
    assert all(bool(value.isfinite().all()) and torch.equal(value, other[number]) for number, value in one.items())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("llama", {}), ("qwen2", {}), ("mistral", {"sliding_window": 5}), ("llama", {"attention_dropout": 0.3})],
)
def test_a_kept_layer_gives_the_bits_of_a_recomputed_one(kind: str, more: dict[str, Any], dtype: str) -> None:
    expected, nothing = gradients(kind, dtype, lambda _: RECOMPUTE_ALL, **more)
    found, stream = gradients(kind, dtype, keep_all, **more)
    assert_same_bits(expected, found)
    assert nothing.last_saved.kept == {} and nothing.most.saved == 0
    kept = stream.last_saved.kept
    assert kept.keys() == {(place, number) for place in range(3) for number in range(2)}
    assert stream.most.saved == sum(kept.values())
    for (_, number), held in kept.items():  # less than the weights: of these there are references
        tokens, element = (24, 9)[number], 4 if dtype == "fp32" else 2
        assert 4 * 48 * tokens * element < held < 40 * 48 * tokens * element + 80 * OF_GRAPH


def test_as_many_are_kept_as_there_may_be() -> None:
    expected, everything = gradients("llama", "fp32", keep_all)
    most = sum(everything.last_saved.kept.values()) - 1

    def bounded(meta_model: Any) -> SavedChoice:
        return SavedChoice(keep_all(meta_model).stages, most)

    found, stream = gradients("llama", "fp32", bounded)
    assert_same_bits(expected, found)
    assert len(stream.last_saved.kept) == 5 and stream.most.saved <= most
    found, stream = gradients("llama", "fp32", lambda _: SavedChoice({2: Saved.KEEP}))
    assert_same_bits(expected, found)
    assert {place for place, _ in stream.last_saved.kept} == {2}


def test_a_view_of_the_engines_memory_that_is_nobodys_is_not_kept() -> None:
    memory = torch.arange(64.0)
    weight, hidden = memory[:16].view(4, 4), memory[16:32].view(4, 4)
    leaf = hidden.detach().requires_grad_()
    for other, complete in ((memory[40:56].view(4, 4), False), (torch.ones(4, 4), True)):
        packing = Packing(memory, [weight, leaf], [])
        with packing.hooks():
            (leaf @ weight.t() * other).sum()
        assert packing.complete is complete
    assert packing.bytes % OF_GRAPH == 64  # what the product was multiplied with; the others are references


def test_nothing_is_held_when_a_step_has_failed_or_none_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    one = Packing.__init__

    def noted(self: Any, *given: Any) -> None:
        made.append(weakref.ref(self))
        one(self, *given)

    monkeypatch.setattr(Packing, "__init__", noted)
    _, stream = gradients("llama", "fp32", keep_all)
    assert made and not any(packing() for packing in made)
    stream.evaluate(arrange([batch(random_ids(2, 12, 1))]))
    count = len(made)
    assert count == 6, "an evaluation keeps nothing"

    def fails(self: Any, *_: Any) -> None:
        raise OSError

    monkeypatch.setattr(PlainEngine, "head_gradient", fails)
    with pytest.raises(OSError):
        gradients("llama", "fp32", keep_all)
    gc.collect()
    assert len(made) == count + 6 and not any(packing() for packing in made)


# ---- a layer that spills


class SpillEngine(MovedEngine):
    """Has a room for each layer that spills, which is another one in backward, and spoils the one that it left."""

    stride = 1 << 20
    room = stride

    def next_pass(self) -> PlainPass:
        found = super().next_pass()
        if found.kind in ("forward", "backward"):
            number = self._layers.index(found.block) + (len(self._layers) if found.kind == "backward" else 0)
            found.spilled, found.spilled_bytes = self._rooms + number * self.stride, self.room
        return found

    def end_pass(self) -> None:
        if self._pass.kind == "forward":
            away = self._arena[self._pass.spilled :][: self.stride]
            self._arena[self._pass.spilled + len(self._layers) * self.stride :][: self.stride].copy_(away)
            away.fill_(SPOILT)
        super().end_pass()

    def _lay_out(self) -> None:
        super()._lay_out()
        self._rooms = self._arena.numel()
        self._arena = mapped(self._rooms + 2 * len(self._layers) * self.stride)
        self._typed = self._arena.view(self.dtype)


def spill_all(meta_model: Any) -> SavedChoice:
    return SavedChoice(dict.fromkeys(able(meta_model), Saved.SPILL))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "more"),
    [("llama", {}), ("qwen2", {}), ("mistral", {"sliding_window": 5}), ("llama", {"attention_dropout": 0.3})],
)
def test_a_layer_that_spills_gives_the_bits_of_a_recomputed_one(kind: str, more: dict[str, Any], dtype: str) -> None:
    expected, _ = gradients(kind, dtype, lambda _: RECOMPUTE_ALL, **more)
    found, stream = gradients(kind, dtype, spill_all, engine_type=SpillEngine, **more)
    assert_same_bits(expected, found)
    saved = stream.last_saved
    assert saved.spilled.keys() == {(place, number) for place in range(3) for number in range(2)}
    assert stream.most.spilled == sum(saved.spilled.values()) > 0
    assert saved.spilled == saved.rooms, "what is measured of a layer is what it takes"
    assert saved.kept == saved.graphs, "of what PyTorch holds the graphs alone are left"


def test_what_has_no_room_where_it_leaves_from_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, whole = gradients("llama", "fp32", spill_all, engine_type=SpillEngine)
    taken = whole.last_saved.spilled
    monkeypatch.setattr(SpillEngine, "room", taken[0, 0] + taken[0, 1] - 1)
    found, stream = gradients("llama", "fp32", spill_all, engine_type=SpillEngine)
    assert_same_bits(expected, found)
    assert stream.last_saved.spilled == {key: value for key, value in taken.items() if key[1] == 0}


def test_what_is_spilled_leaves_pytorchs_memory() -> None:
    memory = torch.arange(64.0)
    weight, hidden = memory[:16].view(4, 4), memory[16:32].view(4, 4)
    leaf, factor = hidden.detach().requires_grad_(), torch.full((4, 4), 3.0)
    packing = Packing(memory, [weight, leaf], [], spills=True)
    with packing.hooks():
        result = (leaf @ weight.t() * factor[1:3].repeat(2, 1)).sum()
    assert packing.room_bytes == 64
    room = torch.zeros(256, dtype=torch.uint8)
    assert packing.spill(room[:63]) is None and packing.room_bytes == 64
    assert packing.spill(room) == 64 and packing.room_bytes == 0
    assert room.view(torch.float32)[:16].tolist() == [3.0] * 16
    packing.room = (room.view(torch.float32) * 2).view(torch.uint8)
    result.backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.full((4, 4), 6.0) @ weight)


# ---- types of models


@pytest.mark.parametrize("kind", some(["llama", "qwen3", "gpt2", "mixtral", "gemma2", "olmo2"], ["mixtral", "gemma2"]))
def test_types_whose_layers_may_keep(kind: str) -> None:
    assert verify_equivalence(small_config(kind)).not_kept == ""


def test_types_whose_layers_recompute_say_why() -> None:
    assert verify_equivalence(small_config("gemma3n_text")).not_kept in (
        SHARING,
        NOT_ALONE,
    )
    routed = small_config("mixtral", output_router_logits=True, router_jitter_noise=0.0)
    assert verify_equivalence(routed).not_kept == saved_equivalence.ROUTERS


class Holds(torch.autograd.Function):
    """Keeps its weight where hooks do not look, as code of somebody's own might."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.weight = weight
        return hidden * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.weight, None


def test_what_hooks_do_not_see_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        held = Holds.apply(hidden, self.down_proj.weight.detach()[0, :1])
        return torch.nn.functional.linear(held, self.gate_proj.weight[:32])

    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", forward)
    config = tiny_config("llama", num_hidden_layers=2)
    found = saved_equivalence.why_not_kept(
        build(copy.deepcopy(config), torch.float32),
        dict(tiny_model(config).named_parameters()),
        arrange([batch(random_ids(2, 12, 1))]),
        (),
    )
    assert found == saved_equivalence.OTHER_BITS


# ---- runs


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("saved"))


def run(given: Path, out: Path, recompute: str, *more: str) -> Any:
    """What a run of two micro-batches a step leaves bit for bit."""
    assert here(given, out, "--max_steps", "4", "--activation_recompute", recompute, *more) == 0
    return bits(out)


def bits(out: Path) -> Any:
    """Losses and norms, and the files of weights, or of adapters."""
    weights = {path.name: path.read_bytes() for path in out.glob("*.safetensors")}
    assert weights
    return metrics(out), weights


def plan_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "plan.json").read_text())["saved_activations"])


LSP = ["--method", "lsp", "--lsp_rank", "8"]
LORA = ["--method", "lora", "--lora_r", "4", "--lora_dropout", "0.2"]


@pytest.mark.parametrize("method", [[], LORA, LSP], ids=["full", "lora", "lsp"])
def test_runs_that_keep_and_runs_that_recompute(given: Path, tmp_path: Path, method: list[str]) -> None:
    if method == LORA:
        package("peft", "LoRA is PEFT's")
    (tmp_path / "storage").mkdir()
    path = ["--storage", str(tmp_path / "storage"), "--placement", "path"]
    expected = run(given, tmp_path / "all", "all", *method)
    assert plan_of(tmp_path / "all")["keep"] == 0
    for name, recompute, places, keep in (("none", "none", [], 2), ("one", "1", path, 1), ("auto", "auto", [], None)):
        assert run(given, tmp_path / name, recompute, *places, *method) == expected, name
        planned = plan_of(tmp_path / name)
        assert keep is None or planned["keep"] == keep
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        most = summary["saved_activations"]["most"]
        assert most <= planned["bytes"] and (most > planned["bytes"] / 4 or not planned["keep"])


def test_dropout_drops_alike(given: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    real_runs.inputs(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.3}))
    without = run(given, tmp_path / "without", "all")
    expected = run(tmp_path, tmp_path / "all", "all")
    assert run(tmp_path, tmp_path / "none", "none") == expected != without


KILLED = """
import os, signal, sys
from spillway.cli import main
from spillway.run.loop import Loop
step = Loop.step
def step_or_die(trainer):
    if trainer.state.step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    step(trainer)
Loop.step = step_or_die
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_run_goes_on_with_another_value(given: Path, tmp_path: Path) -> None:
    expected = run(given, tmp_path / "expected", "all")
    out = tmp_path / "out"
    keys = ["--max_steps", "4", *real_runs.on_path(tmp_path / "storage")]
    killed = apart("-c", KILLED, *words(given, out, *keys, "--activation_recompute", "none"))
    assert killed.wait(LIMIT) == -signal.SIGKILL
    assert plan_of(out)["keep"] == 2
    assert here(given, out, *keys, "--activation_recompute", "1", "--resume_from_checkpoint", "true") == 0
    assert plan_of(out)["keep"] == 1 and bits(out) == expected


def test_a_run_that_is_gone_back_with_goes_on_with_another_value(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    expected = run(given, out, "all", "--save_steps", "2")
    assert here(given, out, "--max_steps", "4", "--save_steps", "2", "--activation_recompute", "none",
                "--resume_from_checkpoint", str(out / "checkpoint-2")) == 0  # fmt: skip
    assert plan_of(out)["keep"] == 2 and bits(out) == expected


SPILL = ["--activation_recompute", "none", "--activation_spill", "all"]


def test_a_run_that_spills_is_that_of_one_that_recomputes(given: Path, tmp_path: Path) -> None:
    expected = run(given, tmp_path / "all", "all")
    path, device = real_runs.on_path(tmp_path / "storage"), ["--device", "simulated"]
    for out, keys, tier, ways in (
        (tmp_path / "path", path, "paths", ("write", "read")),
        (tmp_path / "device", device, "dram", ("download", "upload")),
    ):
        assert here(given, out, "--max_steps", "4", *keys, *SPILL) == 0
        assert bits(out) == expected
        planned, summary = plan_of(out), json.loads((out / "summary.json").read_text())
        assert planned["spill"] == 2 and planned["keep"] == 0 and planned["spilled_bytes"] > 0
        assert planned["spill_tier"] == tier
        assert planned["spilled_bytes"] * 0.25 < summary["saved_activations"]["spilled"] <= planned["spilled_bytes"]
        assert summary["saved_activations"]["most"] <= planned["bytes"]
        events = json.loads(gzip.decompress((out / "timeline.json.gz").read_bytes()))
        names = {event["name"] for event in (events["traceEvents"] if isinstance(events, dict) else events)}
        assert {f"{way} saved activations {layer}" for way in ways for layer in range(2)} <= names


def test_a_killed_run_that_spills_goes_on(given: Path, tmp_path: Path) -> None:
    expected = run(given, tmp_path / "expected", "all")
    out = tmp_path / "out"
    keys = ["--max_steps", "4", *real_runs.on_path(tmp_path / "storage"), *SPILL]
    killed = apart("-c", KILLED, *words(given, out, *keys))
    assert killed.wait(LIMIT) == -signal.SIGKILL
    assert plan_of(out)["spill"] == 2
    assert here(given, out, *keys, "--resume_from_checkpoint", "true") == 0
    assert plan_of(out)["spill"] == 2 and bits(out) == expected


def test_the_plan_says_what_spilling_takes(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = real_runs.on_path(tmp_path / "storage")
    assert here(given, tmp_path / "out", *storage, verb="plan") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Spilling: of a layer it takes \S+ s of the paths and \S+ s of compute, where computing", shown)
    assert here(given, tmp_path / "out", *storage, "--activation_spill", "never", verb="plan") == 0
    assert "Spilling" not in capsys.readouterr().out
    assert here(given, tmp_path / "out", *storage, *SPILL, verb="plan") == 0
    assert "2 send them to paths and have them back" in " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def many(given: Path) -> list[str]:
    """So many micro-batches of a step that what layers keep of them is far more than what a process differs by."""
    tiny.jsonl(given / "many.jsonl", tiny.text_rows(1024))
    return ["--dataset", str(given / "many.jsonl"), "--gradient_accumulation_steps", "512", "--max_steps", "1"]


def planned(given: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert here(given, given / "none", "--json", *more, verb="plan") == 0
    return dict(json.loads(capsys.readouterr().out))


def peak(plan: dict[str, Any]) -> int:
    return int(plan["tiers"][0]["planned_peak"])


def of_class(plan: dict[str, Any], *classes: str) -> int:
    return sum(int(part["bytes"]) for part in plan["bytes"] if part["class"] in classes)


def test_what_does_not_fit_is_refused(
    given: Path, many: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    less, more = (planned(given, capsys, *many, "--activation_recompute", value) for value in ("all", "none"))
    held = more["saved_activations"]["bytes"]
    measured = "interpreter and libraries", "working set"  # of a process that has done more each time
    beside = [peak(plan) - of_class(plan, *measured) for plan in (less, more)]
    assert held > 32 * MEBIBYTE and abs(beside[1] - beside[0] - held) < held / 64
    budget = f"{peak(more) - of_class(more, 'logits') - held // 4}"  # logits are kept where there is room
    assert here(given, tmp_path / "out", *many, "--dram_budget", budget, "--activation_recompute", "none") == 3
    error = capsys.readouterr().err
    assert re.search(r"--activation_recompute 1\b", error) and "--dram_budget" in error
    assert not (tmp_path / "out").exists()
    found = planned(given, capsys, *many, "--dram_budget", budget)
    assert found["saved_activations"]["keep"] <= 1 and found["a_gib_more"]["keep"] >= found["saved_activations"]["keep"]
    assert here(given, given / "none", *many, "--dram_budget", budget, verb="plan") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Saved activations:" in shown and "One more GiB of dram: " in shown


def test_what_is_kept_is_in_memory_as_planned(given: Path, many: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = apart("-m", "spillway", *words(given, out, *many, "--activation_recompute", "none"), cold=True)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    plan, summary = (json.loads((out / name).read_text()) for name in ("plan.json", "summary.json"))
    most = summary["saved_activations"]["most"]
    assert 16 * MEBIBYTE < most <= plan["saved_activations"]["bytes"] / (1 + SAVED_SLACK) + 2
    assert summary["tiers"][0]["measured_peak"] <= plan["tiers"][0]["planned_peak"] * 1.05 + 2 * MEBIBYTE
    assert summary["tiers"][0]["measured_peak"] > summary["rehearsed"]["work_bytes"] + most


@pytest.mark.nightly
def test_what_spills_is_in_memory_as_planned(given: Path, many: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    storage = real_runs.on_path(tmp_path / "storage")
    process = apart("-m", "spillway", *words(given, out, *many, *storage, *SPILL), cold=True)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    plan, summary = (json.loads((out / name).read_text()) for name in ("plan.json", "summary.json"))
    assert summary["saved_activations"]["spilled"] > 16 * MEBIBYTE
    assert summary["tiers"][0]["measured_peak"] <= plan["tiers"][0]["planned_peak"] * 1.05 + 2 * MEBIBYTE
