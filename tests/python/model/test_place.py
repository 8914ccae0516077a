"""Passes on a device that the host does not read: every tensor that an operation takes lies there, and nothing asks for
a value before the step ends. The device is torch's `meta`, which has shapes and no values, so this holds for a GPU
where there is none; what the values are is shown by the simulated device and on real GPUs (scripts/gpu_check.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from breadth import some
from hf_models import batch, random_ids, tiny_config
from spillway._engine import Description, DeviceSettings, GpuProfile, PlannedBytes, PlannedTier, PlanSummary, Profile
from spillway.config import resolve
from spillway.errors import DoesNotFit, InputError
from spillway.machine import device
from spillway.machine.place import HOST, Place
from spillway.model.batches.microbatch import arrange, consecutive
from spillway.model.head.head import Stats
from spillway.model.meta.building import build
from spillway.model.meta.describe import WorkSize, describe
from spillway.model.meta.factors import choose
from spillway.model.stream.plain_engine import PlainEngine
from spillway.model.stream.stream import Stream
from spillway.model.whole import hold_model
from spillway.run.engine_spec import name_free_memory

ELSEWHERE = Place(torch.device("meta"))
CROSSING = {"aten::_to_copy", "aten::copy_"}  # the two that bring bytes from one memory to the other


class OneDevice(TorchDispatchMode):
    """Refuses an operation on tensors of more than one device, numbers aside. Values that are asked for are counted,
    and are `answer`: the library's code for masks asks once whether rows are packed, where a micro-batch enters the
    model.
    """

    def __init__(self, answer: bool) -> None:
        super().__init__()
        self.asked = 0
        self._answer = answer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        name = func._schema.name
        if name == "aten::_local_scalar_dense":
            self.asked += 1
            return self._answer
        places = {tensor.device.type for tensor in given}
        assert len(places) < 2 or name in CROSSING, f"{name} of tensors on {sorted(places)}"
        return func(*args, **(kwargs or {}))


def test_an_operation_without_one_order_is_let_through_and_named() -> None:
    gpu = Place(torch.device("cuda", 0))
    refused = RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set ...")
    assert gpu.without(refused).any_order == "cumsum_cuda_kernel"
    for place, other in ((gpu, RuntimeError("out of memory")), (gpu.without(refused), refused)):
        with pytest.raises(RuntimeError) as raised:
            place.without(other)
        assert raised.value is other


class Loss:
    """Stands for the loss's kernels: what they are given lies where passes compute."""

    def __call__(self, logits: torch.Tensor, _first: int, *others: Any) -> None:
        for tensor in (logits, *(other for other in others if isinstance(other, torch.Tensor))):
            assert tensor.device == ELSEWHERE.device


class There(PlainEngine):
    """Gradients are given where passes compute."""

    def __init__(self, description: Description) -> None:
        super().__init__(description, keep=False, device=ELSEWHERE.device)
        self.given = 0
        self.loss_stats = self.loss_gradient = Loss()  # type: ignore[method-assign]

    def memory(self) -> torch.Tensor:
        """The host's, where the embedding's passes are."""
        return torch.zeros(self._arena.numel(), dtype=torch.uint8)

    def embedding_forward(self, output: torch.Tensor | None = None) -> None:
        """The host's, too."""

    def embedding_backward(self, values: torch.Tensor) -> None:
        assert values.device.type == "cpu"

    def gradient(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        super().gradient(tensor, values, micro_batch)
        assert values.device == ELSEWHERE.device and values.is_contiguous()
        self.given += 1

    def whole_gradient(self, tensor: int, gradient: torch.Tensor) -> None:
        assert gradient.device == ELSEWHERE.device and gradient.dtype == torch.float32

    def sample(self, tensor: int, values: torch.Tensor, micro_batch: int) -> None:
        assert values.device == ELSEWHERE.device and values.dtype == torch.float32

    def head_gradient(self, values: torch.Tensor, micro_batch: int) -> None:
        assert values.device == ELSEWHERE.device
        self.given += 1


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2, tied": ("qwen2", {"tied": True}),
    "qwen3": ("qwen3", {}),
    "gemma2, scaled rows and capped logits": ("gemma2", {}),
    "mistral, sliding window": ("mistral", {"sliding_window": 5}),
    "gpt2, positions of its own": ("gpt2", {}),
    "phi, a bias of the head": ("phi", {}),
    "qwen2 in subspaces": ("qwen2", {"lsp": True}),
    "gpt2 in subspaces, whose weights are turned": ("gpt2", {"lsp": True}),
    "mixtral, routers": ("mixtral", {"output_router_logits": True, "num_local_experts": 4}),
}


KINDS = ["whole", "padded", "packed"]
EACH = [
    ("whole", "llama"),
    *(("padded", name) for name in ("llama", "gpt2, positions of its own", "mixtral, routers")),
    *(("packed", name) for name in MODELS),
]


@pytest.mark.parametrize(("kind", "name"), some(product(KINDS, MODELS), EACH))
def test_every_operation_of_a_step_is_on_one_device(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, more = MODELS[name]
    inside = more.get("lsp", False)
    meta_model = build(
        tiny_config(family, **{"tied": False} | {key: value for key, value in more.items() if key != "lsp"}),
        torch.bfloat16,
    )
    choose(meta_model, resolve({}, {"method": "lsp"} if inside else {}))
    assert bool(meta_model.spaces) == inside
    ids = [random_ids(2, 12, seed, lowest=3) for seed in (1, 2)]
    positions = torch.cat([torch.arange(5), torch.arange(7)]).expand(2, 12) if kind == "packed" else None
    lengths = torch.tensor([12, 9]) if kind == "padded" else None
    labels = [each.clone() for each in ids]
    labels[1][:, 4:6] = -100  # tokens with a label that are not consecutive
    work = arrange([batch(i, n, positions, lengths) for i, n in zip(ids, labels, strict=True)])
    engine = There(describe(meta_model, WorkSize(2, work.tokens), "bf16"))
    stream = Stream(meta_model, engine, 0, place=ELSEWHERE)
    monkeypatch.setattr(Stats, "loss", lambda self: 0.0)  # the one value that is asked for, at the end of the step
    monkeypatch.setattr("spillway.model.layers.router.Balance.loss", lambda self: 0.0)
    with OneDevice(answer=kind != "packed") as mode:
        stream.step(work)
        stream.evaluate(work)
    assert engine.given > 4
    often = 3 if meta_model.plain else 12  # code of its own before or after the layers is entered each time
    assert mode.asked <= often * len(work.micro_batches), "something waits for the device inside a step"


def test_a_whole_model_computes_on_its_device_for_tokens_of_the_host() -> None:
    """The logits come back to the host, and `meta` has none to give."""
    meta_model = build(tiny_config("llama"), torch.bfloat16)
    description = describe(meta_model, WorkSize(2, 24), "bf16")
    with hold_model(meta_model, description, lambda tensor, first, values: None, ELSEWHERE) as model:
        assert {each.device for each in (*model.parameters(), *model.buffers())} == {ELSEWHERE.device}
        ids = random_ids(2, 12, 1)
        with OneDevice(answer=True), pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)


def test_the_mode_sees_what_lies_elsewhere() -> None:
    with OneDevice(answer=True), pytest.raises(AssertionError, match="cpu"):
        torch.ones(3) + torch.ones(3, device="meta")


def test_what_the_host_asks_is_asked_before() -> None:
    (whole,) = arrange([batch(random_ids(2, 6, 1))]).micro_batches
    assert whole.run is None and consecutive(torch.tensor([3, 4, 5])) == slice(3, 6)
    assert consecutive(torch.tensor([3, 5])) is None and consecutive(torch.tensor([], dtype=torch.int64)) is None
    (padded,) = arrange([batch(random_ids(2, 6, 1), lengths=torch.tensor([6, 4]))]).micro_batches
    assert padded.real_tokens == 10.0


def answer(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.place(resolve({}, {})) is HOST and device.place(resolve({"device": "simulated"}, {})) is HOST
    monkeypatch.setattr(torch.cuda, "is_available", answer(False))
    with pytest.raises(InputError, match="device: cuda:0: PyTorch .*; use --device cpu"):
        device.place(resolve({"device": "cuda:0"}, {}))


def test_the_rank_chooses_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", answer(True))
    monkeypatch.setattr(torch.cuda, "device_count", answer(2))
    monkeypatch.setattr(torch.cuda, "current_stream", answer(None))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert device.place(resolve({"device": "cuda"}, {})).device == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.place(resolve({"device": "cuda"}, {})).device == torch.device("cuda", 1)
    assert device.place(resolve({"device": "cuda:0"}, {})).device == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="LOCAL_RANK asks for GPU 2, and this process sees 2, cuda:0 to cuda:1"):
        device.place(resolve({"device": "cuda"}, {}))


def test_a_gpu_leaves_pytorch_what_the_engine_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Place(torch.device("cuda", 1))
    monkeypatch.setattr(Place, "stream", answer(77))
    monkeypatch.setattr(Place, "free", answer(80 << 30))
    profile = Profile(
        gpus=[
            GpuProfile(name="0", to_gpu_bytes_per_second=9e10, from_gpu_bytes_per_second=9e10),
            GpuProfile(name="1", to_gpu_bytes_per_second=3e10, from_gpu_bytes_per_second=2e10),
        ]
    )
    asked = device.settings(resolve({"device": "cuda:1", "gpu_memory": "8GiB"}, {}), 1 << 40, profile, gpu, 123)
    assert asked == DeviceSettings(name="cuda:1", stream=77, memory=8 << 30, work=123, to_device=3e10, from_device=2e10)
    tier = PlannedTier(name="device", capacity=1000, planned_peak=700)
    work = PlannedBytes(class_="working set", tier="device", bytes=200)
    assert device.count_torch_bytes(PlanSummary(tiers=[tier], bytes=[work])) == 500


def test_only_full_determinism_asks_for_one_order() -> None:
    gpu = Place(torch.device("cuda", 0))
    assert gpu.is_deterministic and HOST.is_deterministic
    assert not replace(gpu, full_determinism=False).is_deterministic
    assert not replace(gpu, any_order="cumsum_cuda_kernel").is_deterministic


@pytest.mark.parametrize(("free", "taken"), [(80, 24 << 30), (16, (16 << 30) - (256 << 20)), (1, 31 << 25)])
def test_a_limit_above_the_free_memory_is_lowered(monkeypatch: pytest.MonkeyPatch, free: int, taken: int) -> None:
    monkeypatch.setattr(Place, "free", answer(free << 30))
    config = resolve({"device": "cuda:0", "gpu_memory": "24GiB"}, {})
    assert device.gpu_memory(config, Place(torch.device("cuda", 0))) == taken
    words = device.describe_gpu_memory(config, DeviceSettings(memory=taken))
    assert words == "" if free == 80 else words.startswith("gpu_memory: 24.0 GiB were asked, and the plan takes ")


def test_a_refusal_says_what_is_free() -> None:
    config = resolve({"device": "cuda:0", "gpu_memory": "24GiB"}, {})
    with pytest.raises(DoesNotFit, match="has no room. gpu_memory: 24.0 GiB were asked, and the plan takes 8.00 GiB"):
        with name_free_memory(config, DeviceSettings(memory=8 << 30)):
            raise MemoryError("the plan has no room")
    with (
        pytest.raises(MemoryError, match="^the plan has no room$"),
        name_free_memory(config, DeviceSettings(memory=24 << 30)),
    ):
        raise MemoryError("the plan has no room")
