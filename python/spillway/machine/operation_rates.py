"""How fast PyTorch's operations that are bound by memory are on the CPUs, one by one and by size, for the
`compute` of a profile. They are named as ATen's, those of one speed by one of them
(`spillway.model.measure.recorder`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from spillway._engine import OperationRate
from spillway.machine.call_seconds import typical

if TYPE_CHECKING:
    from torch import Tensor

COLUMNS, HEAD = 1024, 64
SIZES = (1 << 20, 1 << 23, 1 << 26)  # bytes of a tensor
SPREAD = 1 << 25  # bytes of results that are held, so that the next ones lie elsewhere, as a layer's do
SECONDS = 0.03  # of each


class Call(NamedTuple):
    operation: str
    strided: bool
    call: Callable[[], Any]
    given: tuple[Tensor, ...]  # what it reads or writes beside what it makes


def operations(dtype: str, kernels: Any = None) -> list[OperationRate]:
    """`dtype`: as PyTorch names it. `kernels`: the engine's for the loss."""
    import torch

    found = []
    with torch.no_grad():
        for size in SIZES:
            for it in calls(size, getattr(torch, dtype), kernels):
                made = [tensor for tensor in listed(it.call()) if isinstance(tensor, torch.Tensor)]
                bytes = sum({tensor.data_ptr(): tensor.nbytes for tensor in (*it.given, *made)}.values())
                rate = bytes / seconds(it.call, sum(tensor.nbytes for tensor in made))
                found.append(
                    OperationRate(operation=it.operation, strided=it.strided, bytes=bytes, bytes_per_second=rate)
                )
    return found


def calls(size: int, dtype: Any, kernels: Any) -> Iterator[Call]:
    """Every operation on tensors of so many bytes."""
    import torch

    aten = torch.ops.aten
    rows = max(1, size // (COLUMNS * dtype.itemsize))
    x, y = (torch.randn(rows, COLUMNS).to(dtype) for _ in range(2))
    scale, shift = torch.ones(COLUMNS, dtype=dtype), torch.zeros(COLUMNS, dtype=dtype)
    heads, others = (each.view(1, rows, COLUMNS // HEAD, HEAD).transpose(1, 2) for each in (x, y))
    halves = (heads[..., : HEAD // 2], others[..., HEAD // 2 :])
    wide = torch.empty(rows, COLUMNS)
    narrow = x.bfloat16()
    numbers = torch.randperm(rows)
    mean, deviation = aten.native_layer_norm(x, [COLUMNS], scale, shift, 1e-5)[1:]
    yield Call("add", False, lambda: x + y, (x, y))
    yield Call("mul", False, lambda: x * y, (x, y))
    yield Call("pow", False, lambda: x.pow(2), (x,))
    yield Call("fill", False, lambda: torch.zeros_like(x), ())
    yield Call("copy", False, lambda: x.clone(), (x,))
    yield Call("convert", False, lambda: wide.copy_(narrow), (narrow, wide))
    yield Call("sum", False, lambda: x.sum(-1), (x,))
    yield Call("cat", False, lambda: torch.cat([x, y]), (x, y))
    yield Call("index_select", False, lambda: x.index_select(0, numbers), (x,))
    yield Call("index_add", False, lambda: y.index_add_(0, numbers, x), (x, y))
    yield Call("add", True, lambda: heads + others, (heads, others))
    yield Call("mul", True, lambda: heads * others, (heads, others))
    yield Call("copy", True, lambda: heads.contiguous(), (heads,))
    yield Call("cat", True, lambda: torch.cat(halves, -1), halves)
    yield Call("silu", False, lambda: torch.nn.functional.silu(x), (x,))
    yield Call("silu_backward", False, lambda: aten.silu_backward(y, x), (y, x))
    yield Call("gelu", False, lambda: torch.nn.functional.gelu(x), (x,))
    yield Call("gelu_backward", False, lambda: aten.gelu_backward(y, x), (y, x))
    yield Call("tanh", False, lambda: x.tanh(), (x,))
    yield Call("exp", False, lambda: x.exp(), (x,))
    yield Call("_softmax", False, lambda: x.softmax(-1), (x,))
    yield Call("native_layer_norm", False, lambda: aten.native_layer_norm(x, [COLUMNS], scale, shift, 1e-5), (x,))
    yield Call(
        "native_layer_norm_backward",
        False,
        lambda: aten.native_layer_norm_backward(y, x, [COLUMNS], mean, deviation, scale, shift, [True] * 3),
        (y, x),
    )
    if kernels is not None:
        yield from loss_calls(kernels, x)


def loss_calls(kernels: Any, logits: Tensor) -> Iterator[Call]:
    """`logits` stay as they are in size, though not in value."""
    import torch

    rows = len(logits)
    labels = torch.zeros(rows, dtype=torch.int64)
    maximum, log_sum = torch.full((rows,), 8.0), torch.full((rows,), 8.0)
    sums, gold = torch.zeros(rows), torch.zeros(rows)
    made = logits.clone()
    yield Call("loss_stats", False, lambda: kernels.loss_stats(logits, 0, labels, maximum, sums, gold), (logits,))
    yield Call("loss_gradient", False, lambda: kernels.loss_gradient(made, 0, labels, maximum, log_sum, 1.0), (made,))


def call_seconds(dtype: str, before: Callable[[], object]) -> float:
    """The seconds of an operation on next to nothing: the mean of a small layer's, forward and backward. `before`: what
    comes before each layer and is not counted, such as a product that leaves neither code nor tensors of the others in
    caches. Called again and again it would take a quarter of that."""
    layer = small_layer(dtype)
    return typical(layer, SECONDS, before) / calls_of(layer)


def small_layer(dtype: str) -> Callable[[], tuple[Tensor, ...]]:
    """A norm, a rotation, a gate and sums, forward and backward, on some tokens."""
    import torch

    kind, tokens, heads, size = getattr(torch, dtype), 8, 4, 16
    hidden = torch.randn(1, tokens, heads * size, dtype=kind, requires_grad=True)
    scale = torch.ones(heads * size, dtype=kind, requires_grad=True)
    cosine, sine = (torch.randn(1, tokens, size, dtype=kind) for _ in range(2))

    def layer() -> tuple[Tensor, ...]:
        query = norm(hidden, scale).view(1, tokens, heads, size).transpose(1, 2)
        turned = torch.cat((-query[..., size // 2 :], query[..., : size // 2]), -1)
        summed = hidden + (query * cosine + turned * sine).transpose(1, 2).reshape(hidden.shape)
        found = summed + torch.nn.functional.silu(norm(summed, scale)) * summed
        return torch.autograd.grad(found, (hidden, scale), torch.ones_like(found))

    return layer


def norm(hidden: Tensor, scale: Tensor) -> Tensor:
    """By the root of the mean square, as models of the Llama family have it."""
    import torch

    in_fp32 = hidden.float()
    return scale * (in_fp32 * torch.rsqrt(in_fp32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(hidden.dtype)


def calls_of(call: Callable[[], object]) -> int:
    """How many operations it asks of PyTorch."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    with Counting() as counting:
        call()
    return counting.count


def seconds(call: Callable[[], Any], made: int) -> float:
    """Of a call, once it is warm. `made`: bytes of its results."""
    held: deque[Any] = deque(maxlen=max(1, SPREAD // made) if made else 1)
    for _ in range(min(held.maxlen or 1, 1 << 10)):
        held.append(call())
    return typical(lambda: held.append(call()), SECONDS)


def listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
