"""What PyTorch reaches on the CPUs by class of operation, for the `compute` of a profile: the three products of a
linear layer by type and size, causal attention, and operations on each element. The time of any layer follows from
these and its shapes (the engine's plan/derived.h)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spillway import _engine
from spillway._engine import AttentionRate, ComputeProfile, ProductRate
from spillway.base.calls import loss_kernels, native_engine
from spillway.machine import operation_rates, process_memory
from spillway.machine.call_seconds import typical

if TYPE_CHECKING:
    from torch import Tensor

TYPES = {"fp32": "float32", "bf16": "bfloat16"}
# Inner and outer size of weights: of attention and of the feed-forward, of models of 0.1 to 7 billion parameters. Rows
# of a power of two lie on each other in caches, which takes up to a tenth of the rate. The last two are slices of a
# vocabulary, of whose rows no whole number of cache lines is made, which takes up to a fifth.
SHAPES = (
    (256, 256), (896, 128), (896, 896), (896, 4864), (4864, 896), (1024, 1024), (1024, 4096), (4096, 1024),
    (1536, 1536), (1536, 8960), (8960, 1536), (896, 4605), (1536, 2714),
)  # fmt: skip
TOKENS = (64, 256, 1024, 4096)
# Tokens of a row of attention, which PyTorch cuts into other blocks from 192 and from 768 on.
ROWS = (128, 256, 512, 1024, 2048)
HEADS, SIZES = 14, (64, 128)
HIDDEN, INNER, OF_ELEMENTS = 896, 4864, 1024  # and tokens: of the operations on each element
FEW = 256  # tokens of the products that stand for a layer's
NORM_PASSES, GATE_PASSES, BACKWARD = 7, 5, 3  # as plan/derived.cc counts what they read and write
# Tokens, inner and outer size:
OF_A_LAYER = ((FEW, HIDDEN, HIDDEN), (FEW, HIDDEN, 128), (FEW, HIDDEN, INNER), (FEW, INNER, HIDDEN))
HEAP = 1 << 29  # bytes that it has grown to before anything is measured
SECONDS = 0.12  # of each
PATIENCE = 1.0  # seconds that one call may take; larger ones are left out


def compute_rates() -> list[ComputeProfile]:
    """In memory as a run has it: a heap that keeps what it was given, on huge pages."""
    process_memory.settle()
    found = [rates(name, dtype, SHAPES, TOKENS, ROWS) for name, dtype in TYPES.items()]
    process_memory.give_back()
    return found


def rates(
    name: str, dtype: str, shapes: Sequence[tuple[int, int]], tokens: Sequence[int], rows: Sequence[int]
) -> ComputeProfile:
    """`shapes`, `tokens`: of the products that are measured; `rows`: of attention."""
    libraries = libraries_bytes(dtype)
    made(HEAP // (4 * HIDDEN), HIDDEN, TYPES["fp32"])
    process_memory.use_huge_pages()
    with loss_kernels(native_engine(), name) as kernels:
        operations = operation_rates.operations(dtype, kernels)
    inputs, weights = made(FEW, HIDDEN, dtype), made(HIDDEN, INNER, dtype)
    return ComputeProfile(
        dtype=name,
        products=products(dtype, shapes, tokens),
        attention=[attention(count, size, dtype) for count in rows for size in SIZES],
        elementwise_bytes_per_second=elementwise(dtype),
        operations=operations,
        call_seconds=operation_rates.call_seconds(dtype, before=lambda: inputs @ weights),
        libraries_bytes=libraries,
    )


def libraries_bytes(dtype: str) -> int:
    """What the process holds more once products of a layer's shapes and attention have run, beside their tensors: what
    libraries keep for each shape."""
    once_products(*OF_A_LAYER[0], dtype)
    process_memory.give_back()
    before = process_memory.resident()
    for shape in OF_A_LAYER:
        once_products(*shape, dtype)
    attention(ROWS[0], SIZES[0], dtype)
    process_memory.give_back()
    return max(0, process_memory.resident() - before)


def products(dtype: str, shapes: Sequence[tuple[int, int]], tokens: Sequence[int]) -> list[ProductRate]:
    found: list[ProductRate] = []
    slowest = 0.0
    for inner, outer in shapes:
        for several in tokens:
            if slowest and 2.0 * several * inner * outer / slowest > PATIENCE:
                continue
            found.append(product(several, inner, outer, dtype))
            slowest = min(
                found[-1].forward_flops_per_second,
                found[-1].input_flops_per_second,
                found[-1].weight_flops_per_second,
            )
    return found


def once_products(tokens: int, inner: int, outer: int, dtype: str) -> None:
    """The three products, without a measurement."""
    given, weight, gradient = made(tokens, inner, dtype), made(outer, inner, dtype), made(tokens, outer, dtype)
    held = [given @ weight.t(), gradient @ weight, gradient.t() @ given]
    del held


def product(tokens: int, inner: int, outer: int, dtype: str) -> ProductRate:
    """Weights come from memory, as the first micro-batch of a pass finds them."""
    given, weight, gradient = made(tokens, inner, dtype), made(outer, inner, dtype), made(tokens, outer, dtype)
    operations = 2.0 * tokens * inner * outer

    def forget() -> None:
        _engine.drop_from_caches(weight.data_ptr(), weight.nbytes)

    return ProductRate(
        tokens=tokens,
        inner=inner,
        outer=outer,
        forward_flops_per_second=operations / seconds(lambda: given @ weight.t(), before=forget),
        input_flops_per_second=operations / seconds(lambda: gradient @ weight, before=forget),
        weight_flops_per_second=operations / seconds(lambda: gradient.t() @ given),
    )


def attention(rows: int, size: int, dtype: str) -> AttentionRate:
    """Operations of the pairs that the mask leaves: half of all."""
    import torch

    parts = [
        made(HEADS * rows, size, dtype).view(1, HEADS, rows, size).requires_grad_() for _ in ("query", "key", "value")
    ]
    call = torch.nn.functional.scaled_dot_product_attention
    gradient = torch.ones_like(parts[0])
    forward = seconds(lambda: call(*parts, is_causal=True))
    both = seconds(lambda: torch.autograd.grad(call(*parts, is_causal=True), parts, gradient), grad=True)
    operations = 2.0 * HEADS * size * rows * rows
    return AttentionRate(
        tokens=rows,
        head_size=size,
        forward_flops_per_second=operations / forward,
        backward_flops_per_second=2 * operations / max(both - forward, forward / 2),
    )


def elementwise(dtype: str, device: str = "cpu") -> float:
    """Bytes a second that a norm and a gate read and write, forward and backward."""
    import torch

    tokens = OF_ELEMENTS
    hidden, gate, up = (made(tokens, width, dtype, device).requires_grad_() for width in (HIDDEN, INNER, INNER))
    scale = made(1, HIDDEN, dtype, device).requires_grad_()
    gradients = [torch.ones_like(hidden), torch.ones_like(gate)]

    def call() -> None:
        normed = operation_rates.norm(hidden, scale)
        gated = torch.nn.functional.silu(gate) * up
        found = torch.autograd.grad([normed, gated], [hidden, scale, gate, up], gradients)
        if found[0].device.type == "cuda":
            torch.cuda.synchronize(found[0].device)

    bytes = BACKWARD * tokens * hidden.element_size() * (NORM_PASSES * HIDDEN + GATE_PASSES * INNER)
    return bytes / seconds(call, grad=True)


def made(rows: int, columns: int, dtype: str, device: str = "cpu") -> Tensor:
    import torch

    return torch.randn(rows, columns, device=device).to(getattr(torch, dtype))


def seconds(call: Callable[[], object], grad: bool = False, before: Callable[[], object] = lambda: None) -> float:
    """Of a call, once it is warm. `before`: what comes before each, and is not counted."""
    import torch

    with torch.set_grad_enabled(grad):
        call()
        return typical(call, SECONDS, before)
