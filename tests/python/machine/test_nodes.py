"""NUMA nodes: the key, what is refused, what a person is told, and that no bit depends on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from breadth import some
from native import opened
from spillway import _engine
from spillway._engine import NodeProfile, NodeSettings, PathSettings, Profile
from spillway.config import resolve
from spillway.config.values import NodeShare, parse_node
from spillway.errors import DoesNotFit, InputError
from spillway.machine import nodes
from test_engine import SHAPE, accumulated, assert_same_bits, bits, rate, wide  # noqa: F401

GIB = 1 << 30


def fake_nodes(count: int, capacity: int = 4 * GIB) -> list[NodeSettings]:
    """Nodes that lie anywhere, each with more than a process of many tests has."""
    return [
        NodeSettings(id=2 * n, capacity=capacity, anywhere=True, update=1e8, update_thread=1e8) for n in range(count)
    ]


def test_key() -> None:
    assert parse_node("0=100GiB") == NodeShare(0, 100 * GIB)
    assert str(parse_node(" 2 = 512MiB")) == f"2={512 << 20}"
    assert parse_node(NodeShare(1, 5)) == NodeShare(1, 5)
    given = {"model": "m", "dataset": "d", "output_dir": "o", "node": ["0=1GiB", "2=3GiB"]}
    config = resolve({}, given)
    assert config.node == [NodeShare(0, GIB), NodeShare(2, 3 * GIB)]
    assert resolve(json.loads(json.dumps({"node": [str(node) for node in config.node]})), given).node == config.node


@pytest.mark.parametrize("value", ["0", "0=", "=1GiB", "-1=1GiB", "0=lots", "a=1GiB", 3, None, "0=0"])
def test_not_a_node(value: object) -> None:
    with pytest.raises(ValueError):
        parse_node(value)


def test_a_node_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="4095"):
        nodes.node_settings([NodeShare(4095, GIB)], 0, GIB, {}, Profile())
    with pytest.raises(InputError, match="twice"):
        nodes.node_settings([NodeShare(0, GIB), NodeShare(0, GIB)], 0, GIB, {}, Profile())


def test_a_node_is_never_more_than_the_budget() -> None:
    found, _ = nodes.node_settings([NodeShare(0, 1 << 20)], 0, GIB, {}, Profile())
    assert found.nodes or found.dram_budget == 1 << 20


def test_a_profile_says_how_fast_nodes_are() -> None:
    measured = NodeProfile(id=0, update_elements_per_second=2e9, update_elements_per_second_thread=1e9)
    measured.read_bytes_per_second = 3e10
    profile = Profile(nodes=[measured, NodeProfile(id=1)])
    found = [nodes.profile_node(profile, _engine.NodeShare(id=number, capacity=5), 2) for number in range(3)]
    assert found == [
        NodeSettings(id=0, capacity=5, update=1e9, update_thread=1e9, read=1.5e10),
        NodeSettings(id=1, capacity=5),
        NodeSettings(id=2, capacity=5),
    ]


@pytest.mark.parametrize("count", some([2, 3], [3]))
def test_no_node_changes_a_bit(wide: Callable[[bool], Path], tmp_path: Path, count: int) -> None:  # noqa: F811
    model, steps = wide(True), accumulated()[:3]
    expected = bits(opened(model, SHAPE), tmp_path / "one", steps)
    session = opened(model, SHAPE, settings={"nodes": fake_nodes(count)})
    names = [f"numa:{2 * n}" for n in range(count)]
    assert [tier["name"] for tier in session.plan["tiers"]] == names
    for tier in session.plan["tiers"]:
        assert 0 < tier["planned_peak"] <= tier["capacity"]
        parts = [it["bytes"] for it in session.plan["bytes"] if it["tier"] == tier["name"]]
        assert sum(parts) == tier["planned_peak"]
    session.step(steps[0], 1e-3)
    moved = session.step(steps[0], 1e-3).node_updates
    session.settle()
    assert list(moved) == names and all(done["elements"] > 0 and done["seconds"] > 0 for done in moved.values())
    session.close()
    session = opened(model, SHAPE, settings={"nodes": fake_nodes(count)})
    peaks = session.measured()["tiers"]
    assert list(peaks) == names and all(peaks[name] > 0 for name in names)
    assert nodes.memory_peak(session.planned) == sum(tier["planned_peak"] for tier in session.plan["tiers"])
    assert_same_bits(bits(session, tmp_path / "several", steps), expected)


def test_nodes_that_are_too_small_name_what_would_fit(wide: Callable[[bool], Path]) -> None:  # noqa: F811
    small = fake_nodes(2, 1 << 20)
    with pytest.raises(DoesNotFit, match="numa:0 with.*numa:2 with.*--node 0="):
        opened(wide(True), SHAPE, settings={"nodes": small})


def test_what_comes_and_goes_lies_by_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(asked: list[Any], held: int, near: int | None = None) -> _engine.NodeChoice:
        return _engine.NodeChoice(notice=f"first is {near}")

    monkeypatch.setattr(_engine, "choose_nodes", chosen)
    monkeypatch.setattr(_engine, "near_gpu", lambda gpu, places: (gpu + 1, {places[1]: (9, "it is far")}))
    paths = [PathSettings(directory="/near", capacity=GIB), PathSettings(device="/dev/far", capacity=GIB)]
    found, news = nodes.node_settings([], 0, GIB, {}, Profile(), 3, paths)
    assert [(path.remote, path.node) for path in paths] == [(False, None), (True, 9)]
    assert found.near == 4
    assert news == ["it is far", "NUMA nodes are not told apart: first is 4"]
    _, news = nodes.node_settings([], 0, GIB, {}, Profile())
    assert news == ["NUMA nodes are not told apart: first is None"]
