"""`optim: muon`: equal to torch.optim.Muon, on paths and in DRAM the same bits, killed and resumed, refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import real_runs
import seeds
from breadth import some
from hf_models import tiny_config, tiny_model
from native import opened
from real_runs import apart, here, on_path, result, words
from spillway.config import checks, resolve
from spillway.errors import InputError
from spillway.model.meta.describe import decay_names
from test_engine import (
    BIT_STEPS,
    CLIP,
    DECAY,
    SHAPE,
    STEPS,
    accumulated,
    assert_same_bits,
    bits,
    loss_of,
    rate,
    save,
    train,
)
from test_recovery import KILLED, LIMIT
from test_stream import assert_equal_curves

MUON = {"optim": "muon"}
ADJUSTMENTS = ["original", "match_rms_adamw"]
NUDGE = 1e-7  # of weights: Newton and Schulz compute in bf16, where the last bit of a sum may be 2^-8 of an element
WAYS = [
    {"placement": "path"},
    {"placement": "weight=70%,state=33%,grad=10%,activation=25%"},
    {"placement": "weight=dram,state=path,grad=dram,activation=dram", "update_schedule": "early", "max_grad_norm": 0.0},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("muon") / "model"
    tiny_model(tiny_config("llama", tied=False)).save_pretrained(path)
    return path


def whole_matrices(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2}


def far(one: dict[str, Any], other: dict[str, Any], start: dict[str, Any]) -> float:
    """The largest distance of a matrix, relative to how far it has come."""
    return max(float((one[name] - it).norm() / (it - start[name]).norm()) for name, it in other.items())


def matrices_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in whole_matrices(model).items()}


def train_plain(model: Any, steps: list[Any], adjust: str) -> list[float]:
    """Matrices of layers by torch.optim.Muon, the others by AdamW."""
    matrices, decaying = whole_matrices(model), set(decay_names(model))
    assert matrices.keys() <= decaying
    others = [(name, p) for name, p in model.named_parameters() if name not in matrices]
    groups = [
        {"params": [p for name, p in others if (name in decaying) == decays], "weight_decay": decay}
        for decays, decay in ((True, DECAY), (False, 0.0))
    ]
    optimizers = [
        torch.optim.Muon(list(matrices.values()), lr=0.0, weight_decay=DECAY, adjust_lr_fn=adjust),
        torch.optim.AdamW(groups, lr=0.0),
    ]
    losses = []
    for number, step in enumerate(steps):
        tokens = sum(int((piece.labels[:, 1:] != -100).sum()) for piece in step)
        loss = torch.stack([loss_of(model, piece) for piece in step]).sum() / tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate(number)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("adjust", ADJUSTMENTS)
def test_equal_to_torch(model: Path, tmp_path: Path, adjust: str) -> None:
    """As near as PyTorch's own run is to one whose weights began a rounding away."""
    plain, nudged = (tiny_model(tiny_config("llama", tied=False)) for _ in range(2))
    start, steps = matrices_of(plain), accumulated()
    with torch.no_grad():
        for p in nudged.parameters():
            p.mul_(1 + NUDGE * torch.randn_like(p))
    train_plain(nudged, steps, adjust)
    session = opened(model, SHAPE, storage=tmp_path, placement="state=50%,grad=0%", muon_adjust_lr=adjust, **MUON)
    losses, _ = train(session, steps)
    expected = train_plain(plain, steps, adjust)
    assert len(steps) == STEPS
    assert_equal_curves(losses, expected, 1e-4)
    save(session, tmp_path / "end")
    session.close()
    found, there = load_file(tmp_path / "end" / "model.safetensors"), matrices_of(plain)
    assert 0 < far(found, there, start) <= 1.5 * far(matrices_of(nudged), there, start) < 0.05


@pytest.mark.parametrize("way", some(WAYS, WAYS[:2]), ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_no_placement_or_resume_changes_a_bit(model: Path, tmp_path: Path, dtype: str, way: dict[str, Any]) -> None:
    keys, steps = {"compute_dtype": dtype, **MUON}, accumulated()[:BIT_STEPS]
    clip = {key: value for key, value in way.items() if key == "max_grad_norm"}
    expected = bits(opened(model, SHAPE, **keys, **clip), tmp_path / "dram", steps)
    path = opened(model, SHAPE, storage=tmp_path, **way, **keys)
    assert path.plan["optimizer"] == "muon"
    assert_same_bits(bits(path, tmp_path / "path", steps), expected)
    assert {"momentum_buffer.safetensors", "exp_avg.safetensors"} <= {Path(name).name for name in expected.files}


def test_keeps_what_each_tensor_needs(model: Path, tmp_path: Path) -> None:
    session = opened(model, SHAPE, **MUON)
    session.step(accumulated()[0], 1e-3)
    save(session, tmp_path / "saved")
    session.close()
    plain = tiny_model(tiny_config("llama", tied=False))
    matrices = set(whole_matrices(plain))
    files = {path.name: load_file(path) for path in (tmp_path / "saved").rglob("*.safetensors")}
    assert files["momentum_buffer.safetensors"].keys() == matrices
    assert files["exp_avg.safetensors"].keys() == {name for name, _ in plain.named_parameters()} - matrices


def test_killed_and_resumed_from_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = real_runs.inputs(tmp_path / "given")
    keys = ["--optim", "muon", "--muon_learning_rate", "2e-3", "--max_steps", "12", "--save_steps", "5"]
    assert here(given, tmp_path / "whole", *keys) == 0
    instants = seeds.instants("muon")
    durable = [*keys, *on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    for _ in range(2):
        monkeypatch.setenv("DIES_AFTER", str(instants.uniform(0.005, 0.3)))
        process = apart("-c", KILLED, *words(given, tmp_path / "out", *durable))
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode in (0, -14), (error, seeds.said())  # 0: it was done before
    monkeypatch.delenv("DIES_AFTER")
    assert here(given, tmp_path / "out", *durable) == 0, capfd.readouterr().err
    assert result(tmp_path / "out") == result(tmp_path / "whole"), seeds.said()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"optim": "muon", "state_format": "bf16"}, ["state_format", "bf16", "muon", "exact"]),
        ({"optim": "muon", "method": "lsp"}, ["optim", "muon", "whole matrices", "adamw"]),
        ({"optim": "adamw", "muon_momentum": 0.9}, ["muon_momentum", "it is for optim muon", "adamw"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(model: Path, tmp_path: Path, keys: dict[str, Any], said: list[str]) -> None:
    config = resolve({}, {"model": str(model), "output_dir": str(tmp_path), **keys})
    with pytest.raises(InputError) as refusal:
        checks.check(config, ())
    assert all(word in str(refusal.value) for word in said), str(refusal.value)
