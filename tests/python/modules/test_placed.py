"""Tensors on NUMA nodes. What needs several nodes is skipped on a machine with one; make numa has three."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch

import spillway
from spillway import _engine as engine
from spillway.errors import DoesNotFit, InputError

MIB = 1 << 20


def usable() -> list[int]:
    """Nodes with memory that this process may have, found in another way than the engine does."""
    has = Path("/sys/devices/system/node/has_memory")
    allowed = [line for line in Path("/proc/self/status").read_text().splitlines() if "Mems_allowed_list" in line]
    mine = numbers(allowed[0].split(":")[1]) if allowed else {0}
    return sorted(numbers(has.read_text()) & mine) if has.exists() else [0]


def numbers(words: str) -> set[int]:
    parts = [part.split("-") for part in words.strip().split(",") if part]
    return {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)}


NODES = usable()
several = pytest.mark.needs("nodes", len(NODES) >= 3, f"this machine has memory on node {NODES} alone; make numa has 3")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_an_empty_tensor_is_an_ordinary_one(dtype: torch.dtype) -> None:
    tensor = spillway.empty((3, 5), dtype=dtype, node=NODES[0])
    assert tensor.shape == (3, 5) and tensor.dtype == dtype and tensor.is_contiguous()
    assert not tensor._is_view() and tensor.is_leaf
    assert torch.equal(tensor, torch.zeros(3, 5, dtype=dtype))
    tensor.fill_(1)
    assert torch.equal(tensor.reshape(-1)[:4].clone(), torch.ones(4, dtype=dtype))


def test_the_default_type_is_pytorchs() -> None:
    assert spillway.empty(7, node=NODES[0]).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("shape", [0, (0,), (3, 0, 2), ()])
def test_sizes_of_nothing_and_of_one(shape: int | tuple[int, ...]) -> None:
    tensor = spillway.empty(shape, node=NODES[0])
    assert tensor.shape == torch.empty(shape).shape
    assert sum(spillway.where(tensor).values()) == tensor.nbytes


def test_where_says_each_byte() -> None:
    for node in NODES:
        tensor = spillway.empty(MIB + 3, dtype=torch.uint8, node=node)
        assert spillway.where(tensor) == {node: MIB + 3}
        assert spillway.where(tensor[100:5100]) == {node: 5000}
        assert spillway.where(tensor[:100:3]) == {node: 100}


def test_memory_nobody_wrote_to_is_nowhere() -> None:
    fresh = mmap.mmap(-1, 64 * MIB)  # an allocator may hand out what was written to before
    assert spillway.where(torch.frombuffer(fresh, dtype=torch.uint8)).get(None, 0) >= 60 * MIB


def test_without_a_node_it_is_in_memory_all_the_same() -> None:
    assert None not in spillway.where(spillway.empty(MIB, dtype=torch.uint8))


def test_gradients_flow() -> None:
    weight = spillway.empty((4, 4), node=NODES[0]).normal_().requires_grad_()
    given = torch.randn(2, 4)
    (given @ weight).square().sum().backward()
    plain = weight.detach().clone().requires_grad_()
    (given @ plain).square().sum().backward()
    assert weight.grad is not None and plain.grad is not None and torch.equal(weight.grad, plain.grad)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    assert spillway.where(weight) == {NODES[0]: weight.nbytes}


def test_safetensors_take_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensor = spillway.empty((8, 3), dtype=torch.bfloat16, node=NODES[0]).normal_()
    save_file({"w": tensor}, tmp_path / "w.safetensors")
    assert torch.equal(load_file(tmp_path / "w.safetensors")["w"], tensor)


def test_a_module_can_live_there() -> None:
    linear = torch.nn.Linear(16, 16, bias=False)
    placed = spillway.empty((16, 16), node=NODES[0])
    placed.copy_(linear.weight.detach())
    expected = linear(torch.ones(1, 16))
    linear.weight = torch.nn.Parameter(placed)
    assert torch.equal(linear(torch.ones(1, 16)), expected)


def test_memory_goes_with_the_last_reference() -> None:
    before = engine.resident()
    tensor = spillway.empty(128 * MIB, dtype=torch.uint8, node=NODES[0])
    view = tensor.view(4, -1)[1:3]
    address = view.data_ptr()
    del tensor
    gc.collect()
    assert engine.resident() >= before + 120 * MIB
    assert view.data_ptr() == address and int(view[-1, -1]) == 0
    del view
    gc.collect()
    assert engine.resident() < before + 32 * MIB


def test_more_than_a_node_has_is_refused_and_nothing_dies() -> None:
    for node in NODES:
        with pytest.raises(DoesNotFit, match=rf"node {node} cannot hold .* What fits now: node"):
            spillway.empty(1 << 45, dtype=torch.uint8, node=node)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"node": 999}, "node 999 does not exist or is offline"),
        ({"node": 0, "nodes": [0]}, "only one of them"),
        ({"nodes": []}, "empty list"),
        ({"nodes": [NODES[0], NODES[0]]}, "named twice"),
        ({"nodes": [NODES[0]], "weights": [1, 2]}, "2 for 1 nodes"),
        ({"nodes": [NODES[0]], "weights": [-1]}, "-1 is no positive number"),
        ({"nodes": [NODES[0]], "weights": [float("nan")]}, "no positive number"),
        ({"weights": [1]}, r"nodes that they are for are missing"),
        ({"nodes": [NODES[0]], "granularity": 1000}, "multiple of 4096"),
        ({"nodes": [NODES[0]], "granularity": "many"}, "granularity: 'many' is no size"),
        ({"node": NODES[0], "pinned": True}, "pinned: "),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        spillway.empty(4, **given)  # type: ignore[arg-type]


@pytest.mark.needs("gpu", torch.cuda.is_available(), "PyTorch has no GPU here")
def test_pinned_memory_is_known_to_the_gpu() -> None:
    tensor = spillway.empty(8 * MIB, dtype=torch.uint8, node=NODES[0], pinned=True)
    assert tensor.is_pinned()
    tensor.fill_(7)
    assert int(tensor.to("cuda", non_blocking=True).sum()) == 7 * 8 * MIB


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InputError, match="negative"):
        spillway.empty((2, -1))


def test_what_is_not_in_the_hosts_memory_is_refused() -> None:
    with pytest.raises(InputError, match="meta"):
        spillway.where(torch.empty(3, device="meta"))
    with pytest.raises(InputError, match="not list"):
        spillway.where([1])  # type: ignore[arg-type]


def test_a_move_needs_a_place() -> None:
    with pytest.raises(InputError, match="where to"):
        spillway.move(torch.zeros(3))
    with pytest.raises(InputError, match="node 999"):
        spillway.move(torch.zeros(3), node=999)


@several
def test_distributed_over_nodes() -> None:
    near, far = NODES[-2:]
    size = 2 * MIB
    given = torch.uint8
    assert spillway.where(spillway.empty(size, dtype=given, nodes=[near, far])) == {near: size // 2, far: size // 2}
    weighted = spillway.empty(size, dtype=given, nodes=[near, far], weights=[3, 1])
    assert spillway.where(weighted) == {near: size // 4 * 3, far: size // 4}
    striped = spillway.empty(size, dtype=given, nodes=[near, far], granularity="64KiB")
    places = [spillway.where(striped[at : at + 65536]) for at in range(0, size, 65536)]
    assert places == [{near: 65536}, {far: 65536}] * (size // 131072)


@several
def test_tensors_move_and_keep_their_values() -> None:
    near, far = NODES[-2:]
    values = torch.randn(MIB // 2)
    for tensor in (spillway.empty(MIB // 2, node=NODES[0]), torch.empty(MIB // 2)):
        tensor.copy_(values)
        view = tensor[10:20]
        spillway.move(tensor, node=far)
        assert spillway.where(tensor) == {far: tensor.nbytes}
        spillway.move(tensor, nodes=[near, far], weights=[3, 1])
        assert abs(spillway.where(tensor)[near] - tensor.nbytes * 3 // 4) <= 8192
        assert torch.equal(tensor, values) and torch.equal(view, values[10:20])


@several
def test_a_move_that_does_not_fit_changes_nothing() -> None:
    tensor = spillway.empty(4 * MIB, dtype=torch.uint8, node=NODES[0])
    with pytest.raises(InputError):
        spillway.move(tensor, nodes=[NODES[-1], 999])
    assert spillway.where(tensor) == {NODES[0]: 4 * MIB}
