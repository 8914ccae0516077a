"""Models that keep some parameters in fp32 where the rest computes in bf16 or fp16, as the library loads them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import both_ways
import native
from both_ways import loaded, wide_names
from breadth import some
from small_configs import small_config
from spillway._engine import Form
from spillway.errors import InputError
from spillway.model.meta.building import build

# The library's lists, parameters made so by a constructor, a state-space layer's, several kinds in one model.
KINDS = ["ernie4_5_moe", "hunyuan_v1_moe", "olmo_hybrid", "bailing_hybrid", "deepseek_v4"]
BF16 = torch.bfloat16


def saved(kind: str, directory: Path) -> Path:
    both_ways.save(small_config(kind), directory / "model", seed=7)
    return directory / "model"


def opened(model: Path, **more: Any) -> Any:
    rates = {"weight_decay": both_ways.DECAY, "max_grad_norm": both_ways.CLIP, "adam_epsilon": both_ways.EPSILON}
    return native.opened(model, both_ways.SHAPE, **{"compute_dtype": "bf16", **rates, **more})


@pytest.mark.parametrize("kind", some(KINDS, ("ernie4_5_moe", "olmo_hybrid")))
def test_trains_and_saves_as_the_library_has_it(kind: str, tmp_path: Path) -> None:
    found = both_ways.compare_mixed(small_config(kind), tmp_path)
    assert found.names == wide_names(loaded(tmp_path / "model", BF16))
    assert found.names


def test_no_bit_depends_on_where_they_lie_or_on_an_interruption(tmp_path: Path) -> None:
    model = saved("ernie4_5_moe", tmp_path)
    work = both_ways.steps_of(small_config("ernie4_5_moe").vocab_size)[:4]
    (tmp_path / "paths").mkdir()

    def run(steps: list[Any], save: Path | None = None, resume: Path | None = None, **more: Any) -> Any:
        session = opened(model, resume=resume, **more)
        try:
            for step in steps:
                session.step(step, both_ways.RATE)
            if save is not None:
                save.mkdir()
                session.save_model(save)
                session.save_state(save)
            return session.masters()
        finally:
            session.close()

    expected = run(work)
    on_paths = run(work, storage=tmp_path / "paths", placement="path")
    on_device = run(work, device="simulated", gpu_memory=1 << 28)
    run(work[:2], save=tmp_path / "checkpoint")
    resumed = run(work[2:], resume=tmp_path / "checkpoint")
    for found in (on_paths, on_device, resumed):
        assert all(torch.equal(found[name], values) for name, values in expected.items())


@pytest.mark.parametrize("state_format", ["bf16", "int8"])
def test_moments_in_fewer_bits_change_nothing_of_the_weights_type(state_format: str, tmp_path: Path) -> None:
    model = saved("olmo_hybrid", tmp_path)
    names = wide_names(loaded(model, BF16))
    session = opened(model, state_format=state_format)
    try:
        before = session.masters()
        for step in both_ways.steps_of(small_config("olmo_hybrid").vocab_size)[:2]:
            session.step(step, both_ways.RATE)
        after = session.masters()
    finally:
        session.close()
    for name in names:
        moved = (after[name] - before[name]).abs()
        assert 0 < moved.max() <= 4 * both_ways.RATE


def test_frozen_ones_are_not_rounded(tmp_path: Path) -> None:
    model = saved("hunyuan_v1_moe", tmp_path)
    plain = loaded(model, BF16)
    session = opened(model, frozen=["gate"])
    try:
        session.step(both_ways.steps_of(plain.config.vocab_size)[0], both_ways.RATE)
        masters = session.masters()
    finally:
        session.close()
    found = {name: parameter for name, parameter in plain.named_parameters() if name in wide_names(plain)}
    assert found
    for name, parameter in found.items():
        assert torch.equal(masters[name], parameter)
        assert not torch.equal(parameter, parameter.bfloat16().float()), "else rounding would not show"


def test_fp16_has_its_own_list(tmp_path: Path) -> None:
    model = saved("afmoe", tmp_path)
    names = wide_names(loaded(model, torch.float16))
    assert names
    assert not wide_names(loaded(model, BF16))
    session = opened(model, compute_dtype="fp16")
    try:
        wide = {t.name for block in session.description.blocks for t in block.tensors if t.form is Form.fp32}
        assert wide == names
        before = session.masters()
        result = session.step(both_ways.steps_of(small_config("afmoe").vocab_size)[0], both_ways.RATE)
        after = session.masters()
    finally:
        session.close()
    assert not result.skipped
    assert any(not torch.equal(after[name], before[name]) for name in names)


def test_in_fp32_nothing_is_apart() -> None:
    meta_model = build(copy.deepcopy(small_config("ernie4_5_moe")), torch.float32)
    assert not any(meta_model.is_fp32(parameter) for parameter in meta_model.model.parameters())


def test_what_the_library_itself_cannot_compute_is_refused_by_name(tmp_path: Path) -> None:
    """In fp16 its lists leave a router's hidden states narrow and its matrix wide."""
    model = saved("deepseek_v4", tmp_path)
    with pytest.raises(InputError, match=r"(?s)deepseek_v4.*float16.*compute_dtype: fp32"):
        opened(model, compute_dtype="fp16")


def test_check_compares_with_what_the_library_computes(tmp_path: Path) -> None:
    from spillway.run.comparison import load_plain, narrowed

    model = saved("ernie4_5_moe", tmp_path)
    settings = native.config(model, compute_dtype="bf16")
    made = narrowed(load_plain(model, small_config("ernie4_5_moe"), settings), settings)
    expected = loaded(model, BF16)
    types = {name: tensor.dtype for name, tensor in [*made.named_parameters(), *made.named_buffers()]}
    wanted = {name: tensor.dtype for name, tensor in [*expected.named_parameters(), *expected.named_buffers()]}
    assert types == wanted
    assert json.dumps(sorted(wide_names(made))) == json.dumps(sorted(wide_names(expected)))
