"""The C++ engine trains as plain PyTorch does, and bit-identically wherever the state lies."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from breadth import some
from hf_models import batch, random_ids, tiny_config, tiny_model
from native import file_bytes, opened
from spillway._engine import BlockSpec, Description, Engine, EngineSettings, TensorSpec
from spillway.errors import DoesNotFit
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import IGNORED
from spillway.model.meta.describe import decay_names
from spillway.run.session import EngineSession
from test_stream import assert_equal_curves, loss_of

STEPS = 30
RATE, DECAY, CLIP = 1e-3, 0.1, 1.0
SHAPE = WorkShape(micro_batches=3, batch=3, length=12, eval_batch=2, eval_length=12)
Step = list[Any]  # micro-batches


def rate(step: int) -> float:
    """Warm-up, then linear decay."""
    return RATE * min((step + 1) / 5, (STEPS - step) / (STEPS - 5))


def train_plain(model: PreTrainedModel, steps: list[Step]) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the loop a person would write."""
    decaying = set(decay_names(model))
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decaying], "weight_decay": DECAY},
        {"params": [p for n, p in model.named_parameters() if n not in decaying], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE)
    losses, norms = [], []
    for number, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        loss = torch.stack([loss_of(model, piece) for piece in step]).sum() / tokens
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms


def train(session: EngineSession, steps: list[Step]) -> tuple[list[float], list[float]]:
    results = [session.step(step, rate(number)) for number, step in enumerate(steps)]
    return [r.loss_sum / r.label_tokens for r in results], [r.grad_norm for r in results]


def accumulated() -> list[Step]:
    """Three micro-batches of different size."""
    return [
        [batch(random_ids(3, 12, 9 * s)), batch(random_ids(1, 7, 9 * s + 1)), batch(random_ids(2, 9, 9 * s + 2))]
        for s in range(STEPS)
    ]


def single() -> list[Step]:
    return [[batch(random_ids(2, 12, seed))] for seed in range(STEPS)]


def completions() -> list[Step]:
    """Padded rows of which only the end is learnt."""
    found = []
    for seed in range(STEPS):
        piece = batch(random_ids(3, 12, seed, lowest=1))
        piece.labels[0, :6] = piece.labels[1, :9] = IGNORED
        piece.input_ids[2, 8:], piece.labels[2, 8:] = 0, IGNORED
        piece.labels[2, :3] = IGNORED
        found.append([piece])
    return found


DATA = {"single": single, "accumulated": accumulated, "completions": completions}
CASES = [
    ("llama", True, "accumulated"),
    ("llama", False, "single"),
    ("llama", False, "completions"),
    ("qwen2", True, "single"),
    ("qwen2", False, "accumulated"),
]


@pytest.mark.parametrize(
    ("kind", "tied", "data"), some(CASES, [CASES[0], CASES[2], CASES[3]]), ids=[f"{k}-{t}-{d}" for k, t, d in CASES]
)
def test_equal_to_plain_pytorch(tmp_path: Path, kind: str, tied: bool, data: str) -> None:
    model = tiny_model(tiny_config(kind, tied))
    model.save_pretrained(tmp_path / "model")
    steps = DATA[data]()
    session = opened(tmp_path / "model", SHAPE, storage=tmp_path, placement="state=50%,grad=0%")
    losses, norms = train(session, steps)
    expected, expected_norms = train_plain(model, steps)
    assert_equal_curves(losses, expected)
    assert_equal_curves(norms, expected_norms, 2e-5)
    assert max(norms) > CLIP > 0 and losses[-1] != losses[0]
    session.close()


def test_packed_rows_equal_rows_alone(tmp_path: Path) -> None:
    model = tiny_model(tiny_config("llama"))
    model.save_pretrained(tmp_path / "model")
    packed, alone = [], []
    for seed in range(STEPS):
        rows = [random_ids(1, length, 10 * seed + length) for length in (5, 1, 6)]
        ids = torch.cat(rows, 1)
        labels = ids.clone()
        labels[0, [0, 5, 6]] = IGNORED
        positions = torch.cat([torch.arange(row.shape[1]) for row in rows])[None]
        packed.append([batch(ids, labels, positions)])
        alone.append([batch(row) for row in rows])
    session = opened(tmp_path / "model", SHAPE, packing=True)
    losses, _ = train(session, packed)
    assert_equal_curves(losses, train_plain(model, alone)[0])
    session.close()


class Result(NamedTuple):
    """All that a run computes, bit for bit."""

    losses: list[float]
    norms: list[float]
    evaluations: list[float]
    files: dict[str, bytes]


def bits(session: EngineSession, directory: Path, steps: list[Step], disturb: bool = False) -> Result:
    """Trains and saves. `disturb`: evaluates and saves between any two steps."""
    losses, norms, evaluations = [], [], []
    for number, step in enumerate(steps):
        result = session.step(step, rate(number))
        losses.append(result.loss_sum)
        norms.append(result.grad_norm)
        if disturb:
            session.evaluate(steps[0])
            save(session, directory / f"between-{number}")
    evaluations.append(session.evaluate(steps[0])[0])
    save(session, directory / "end")
    evaluations.append(session.evaluate(steps[1])[0])
    session.close()
    return Result(losses, norms, evaluations, file_bytes(directory / "end"))


def save(session: EngineSession, directory: Path) -> None:
    directory.mkdir(parents=True)
    session.save_model(directory)
    session.save_state(directory)


WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "vocab_size": 97}
BIT_STEPS = 4
PLACEMENTS: dict[str, dict[str, Any]] = {
    "path": {"placement": "path"},
    "half": {"placement": "weight=50%,state=50%,grad=50%,activation=50%"},
    "weights on path": {"placement": "weight=path,state=dram,grad=dram,activation=dram"},
    "states on path": {"placement": "weight=dram,state=path,grad=dram,activation=dram"},
    "gradients on path": {"placement": "weight=dram,state=dram,grad=path,activation=dram"},
    "boundaries on path": {"placement": "weight=dram,state=dram,grad=dram,activation=path"},
    "thirds": {"placement": "weight=70%,state=33%,grad=10%,activation=25%"},
    "window 1": {"placement": "path", "window": 1},
    "window 3": {"placement": "path", "window": 3},
    "auto": {"placement": "auto"},
}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Path]:
    """A model whose layers span about 20 chunks and whose table is cut in several slices."""

    def make(tied: bool) -> Path:
        path = tmp_path_factory.getbasetemp() / f"wide-{tied}" / "model"
        if not path.exists():
            tiny_model(tiny_config("qwen2", tied, **WIDE)).save_pretrained(path)
        return path

    return make


REFERENCES = {"bf16-tied": ("bf16", True), "fp32-untied": ("fp32", False)}
EVERYWHERE = [
    *(("bf16-tied", name) for name in ("path", "half", "boundaries on path", "thirds", "window 3", "auto")),
    *(("fp32-untied", name) for name in ("path", "half")),
]


@pytest.fixture(scope="module", params=some(REFERENCES, ["bf16-tied"]))
def reference(
    request: pytest.FixtureRequest, wide: Callable[[bool], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, Result]:
    """The run with everything in DRAM."""
    dtype, tied = REFERENCES[request.param]
    session = opened(wide(tied), SHAPE, compute_dtype=dtype)
    return wide(tied), dtype, bits(session, tmp_path_factory.mktemp("reference"), accumulated()[:BIT_STEPS])


def assert_same_bits(found: Result, expected: Result) -> None:
    assert found.losses == expected.losses and found.norms == expected.norms
    assert found.evaluations == expected.evaluations
    assert found.files.keys() == expected.files.keys()
    different = [name for name, content in found.files.items() if content != expected.files[name]]
    assert not different


@pytest.mark.parametrize(
    ("reference", "placement"), some(product(REFERENCES, PLACEMENTS), EVERYWHERE), indirect=["reference"]
)
def test_placement_changes_no_bit(reference: tuple[Path, str, Result], tmp_path: Path, placement: str) -> None:
    model, dtype, expected = reference
    more = PLACEMENTS[placement]
    session = opened(model, SHAPE, storage=tmp_path, compute_dtype=dtype, **more)
    assert (session.plan["tiers"][1]["planned_peak"] > 0) is (more["placement"] != "auto")
    found = bits(session, tmp_path / "saved", accumulated()[:BIT_STEPS])
    assert_same_bits(found, expected)
    assert len(found.files) >= 4 and len(set(found.losses)) == BIT_STEPS


def test_evaluating_and_saving_between_steps_changes_no_bit(
    reference: tuple[Path, str, Result], tmp_path: Path
) -> None:
    model, dtype, expected = reference
    session = opened(model, SHAPE, storage=tmp_path, compute_dtype=dtype, **PLACEMENTS["thirds"])
    assert_same_bits(bits(session, tmp_path / "saved", accumulated()[:BIT_STEPS], disturb=True), expected)


def test_a_resumed_session_changes_no_bit(reference: tuple[Path, str, Result], tmp_path: Path) -> None:
    """Saved on the path, resumed in DRAM."""
    model, dtype, expected = reference
    steps = accumulated()[:BIT_STEPS]
    first = opened(model, SHAPE, storage=tmp_path, compute_dtype=dtype, placement="path")
    results = [first.step(step, rate(number)) for number, step in enumerate(steps[:2])]
    save(first, tmp_path / "half")
    first.close()
    rest = opened(model, SHAPE, resume=tmp_path / "half", compute_dtype=dtype)
    results += [rest.step(step, rate(number + 2)) for number, step in enumerate(steps[2:])]
    assert [r.loss_sum for r in results] == expected.losses and [r.grad_norm for r in results] == expected.norms
    save(rest, tmp_path / "end")
    rest.close()
    assert file_bytes(tmp_path / "end") == expected.files


RULES = [
    ("bf16", "adamw", "bf16"),
    ("bf16", "adamw", "int8"),
    ("bf16", "adam", "exact"),
    ("bf16", "lion", "int8"),
    ("bf16", "sgd", "bf16"),
    ("fp32", "adamw", "int8"),
    ("fp32", "lion", "bf16"),
    ("fp16", "adamw", "exact"),
    ("fp16", "adamw", "int8"),
]
REPRESENTATIVES = [  # of each type and format
    ("bf16", "adamw", "int8"),
    ("fp32", "lion", "bf16"),
    ("fp16", "adamw", "exact"),
]


@pytest.mark.parametrize(("dtype", "optimizer", "form"), some(RULES, REPRESENTATIVES))
def test_no_placement_or_resume_changes_a_bit_of_any_format(
    wide: Callable[[bool], Path], tmp_path: Path, dtype: str, optimizer: str, form: str
) -> None:
    keys = {"compute_dtype": dtype, "optim": optimizer, "state_format": form, "momentum": 0.9}
    model, steps = wide(True), accumulated()[:BIT_STEPS]
    expected = bits(opened(model, SHAPE, **keys), tmp_path / "dram", steps)
    path = opened(model, SHAPE, storage=tmp_path, **PLACEMENTS["thirds"], **keys)
    assert (path.plan["optimizer"], path.plan["state_format"]) == (optimizer, form)
    assert_same_bits(bits(path, tmp_path / "path", steps), expected)
    first = opened(model, SHAPE, storage=tmp_path, placement="path", **keys)
    losses = [first.step(step, rate(number)).loss_sum for number, step in enumerate(steps[:2])]
    save(first, tmp_path / "half")
    first.close()
    rest = opened(model, SHAPE, resume=tmp_path / "half", **keys)
    losses += [rest.step(step, rate(number + 2)).loss_sum for number, step in enumerate(steps[2:])]
    assert losses == expected.losses and not rest.notices()
    save(rest, tmp_path / "end")
    rest.close()
    assert file_bytes(tmp_path / "end") == expected.files


def test_a_state_of_another_format_is_converted_and_that_is_said(wide: Callable[[bool], Path], tmp_path: Path) -> None:
    model, steps = wide(True), accumulated()[:BIT_STEPS]
    first = opened(model, SHAPE)
    for number, step in enumerate(steps[:3]):
        first.step(step, rate(number))
    save(first, tmp_path / "exact")
    losses = [first.step(steps[3], rate(3)).loss_sum]
    first.close()
    for form in ("bf16", "int8"):
        second = opened(model, SHAPE, resume=tmp_path / "exact", state_format=form)
        (notice,) = second.notices()
        assert f"was exact and is converted to {form}" in notice
        losses.append(second.step(steps[3], rate(3)).loss_sum)
        save(second, tmp_path / form)
        second.close()
        back = opened(model, SHAPE, resume=tmp_path / form)
        assert f"was {form} and is converted to exact" in back.notices()[0]
        back.close()
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)  # masters are exact; slices of the head are others


def test_fp16_follows_fp32_with_a_scaled_loss(wide: Callable[[bool], Path]) -> None:
    steps = accumulated()[:BIT_STEPS]
    curves, norms = [], []
    for dtype in ("fp32", "fp16"):
        session = opened(wide(True), SHAPE, compute_dtype=dtype)
        results = [session.step(step, rate(number)) for number, step in enumerate(steps)]
        assert not any(result.skipped for result in results)
        assert {result.loss_scale for result in results} == ({65536.0} if dtype == "fp16" else {1.0})
        curves.append([result.loss_sum for result in results])
        norms.append([result.grad_norm for result in results])
        session.close()
    assert curves[1] == pytest.approx(curves[0], rel=2e-3) and norms[1] == pytest.approx(norms[0], rel=2e-2)


def test_an_fp16_step_that_overflows_is_skipped_and_the_next_scale_is_half(
    wide: Callable[[bool], Path], tmp_path: Path
) -> None:
    """The scale goes through a checkpoint, too."""
    steps = accumulated()[:BIT_STEPS]
    session = opened(wide(True), SHAPE, compute_dtype="fp16")
    engine = session._engine
    engine.set_loss_scale(2.0**24, 7)
    before = np.empty(97 * 64, dtype=np.float32)
    after = before.copy()
    engine.fetch_tensor(0, 0, before)
    skipped = session.step(steps[0], 1e-3)
    engine.fetch_tensor(0, 0, after)
    assert skipped.skipped and skipped.loss_scale == 2.0**24 and (before == after).all()
    assert tuple(engine.loss_scale()) == (2.0**23, 0)
    save(session, tmp_path / "half")
    session.close()
    rest = opened(wide(True), SHAPE, resume=tmp_path / "half", compute_dtype="fp16")
    assert tuple(rest._engine.loss_scale()) == (2.0**23, 0)
    rest.close()


def smallest_budget(model: Path, dtype: str, storage: Path) -> int:
    """MiB, as the refusal says."""
    with pytest.raises(DoesNotFit, match="does not fit in DRAM") as caught:
        opened(model, SHAPE, storage=storage, compute_dtype=dtype, placement="auto", settings=only(1))
    found = re.search(r"would fit with --dram_budget (\d+)MiB", str(caught.value))
    assert found
    return int(found[1])


def only(mebibytes: float) -> dict[str, int]:
    """The engine's settings for a budget of the arena and the engine alone."""
    return {"process_bytes": 0, "work_bytes": 0, "dram_budget": int(mebibytes * 2**20)}


def test_a_budget_changes_no_bit(reference: tuple[Path, str, Result], tmp_path: Path) -> None:
    model, dtype, expected = reference
    least = smallest_budget(model, dtype, tmp_path)
    paths = []
    for more in (0, 0.5, 1, 2, 8):
        session = opened(
            model, SHAPE, storage=tmp_path, compute_dtype=dtype, placement="auto", settings=only(least + more)
        )
        dram, path = session.plan["tiers"]
        assert dram["planned_peak"] <= dram["capacity"] == int((least + more) * 2**20)
        paths.append(path["planned_peak"])
        found = bits(session, tmp_path / str(more), accumulated()[:BIT_STEPS])
        assert_same_bits(found, expected)
    assert paths == sorted(paths, reverse=True) and paths[0] > paths[-1]


def test_a_model_spans_many_chunks_and_slices(wide: Callable[[bool], Path], tmp_path: Path) -> None:
    """What the tests above rest on: small chunks are really small, so the path holds hundreds of extents."""
    session = opened(wide(False), SHAPE, storage=tmp_path, placement="path")
    parameters = session.plan["parameters"]
    extents = session.plan["tiers"][1]["planned_peak"] >> 20  # one MiB each at least
    assert extents >= 3 * parameters // 2048 > 100
    assert os.stat(tmp_path / "spillway.volume").st_size >= extents << 20
    session.close()
    assert not (tmp_path / "spillway.volume").exists()


def test_an_engine_is_used_after_close_with_an_error_not_a_crash(tmp_path: Path) -> None:
    block = BlockSpec(name="layer", tensors=[TensorSpec(name="w", shape=[8, 8], decay=True)])
    described = Description(compute_dtype="fp32", weight_dtype="fp32", hidden_size=8, tokens=4, blocks=[block])
    engine = Engine(described, EngineSettings(dram_budget=1 << 30))
    for call in (engine.memory, engine.next_pass, engine.flush, lambda: engine.save_weights(str(tmp_path), 1 << 30)):
        with pytest.raises(ValueError, match="not started"):
            call()
    engine.start()
    values = torch.arange(64, dtype=torch.float32)
    engine.store_tensor(0, 0, values)
    engine.flush()
    back = torch.zeros(64)
    engine.fetch_tensor(0, 0, back)
    assert torch.equal(values, back)
    engine.close()
    with pytest.raises(ValueError, match="not started"):
        engine.flush()
