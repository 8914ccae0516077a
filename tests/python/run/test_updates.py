"""When parameters are updated: the keys, what is refused, what a person is told, and that no bit depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hf_models import tiny_config, tiny_model
from native import config, file_bytes, profile
from spillway._engine import Description, Engine, EngineSettings, StepResult, StepUpdate
from spillway.config import resolve
from spillway.config.checks import check_updates
from spillway.config.values import StoragePath
from spillway.errors import InputError
from spillway.model.batches.batch import WorkShape
from spillway.report.tables import updates
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession
from test_engine import SHAPE, accumulated, rate

STEPS = 6
SEEN: list[StepResult] = []


class Watched(Engine):
    """Notes what became of early updates."""

    def end_step(self, update: StepUpdate) -> StepResult:
        SEEN.append(super().end_step(update))
        return SEEN[-1]


def engine(description: Description, settings: EngineSettings) -> Watched:
    description.chunk_elements = 2048
    return Watched(description, settings)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("updates") / "model"
    tiny_model(tiny_config("qwen2", True)).save_pretrained(path)
    return path


def trained(model: Path, directory: Path, shape: WorkShape = SHAPE, **more: Any) -> tuple[Any, ...]:
    """Losses, norms and every saved byte."""
    storage = directory / "storage"
    storage.mkdir(parents=True)
    keys = {"compute_dtype": "bf16", "placement": "weight=dram,state=dram,grad=50%,activation=path"} | more
    keys |= {"storage": [StoragePath(str(storage), 1 << 30)], "profile": str(profile(model.parent))}
    session = EngineSession(config(model, **keys), shape, engine)
    session.start(StartPoint())
    SEEN.clear()
    steps = [accumulated()[number % 3] for number in range(STEPS)]
    found = [session.step(step, rate(number)) for number, step in enumerate(steps)]
    (directory / "saved").mkdir()
    session.save_model(directory / "saved")
    session.save_state(directory / "saved")
    plan = session.plan
    session.close()
    return plan, [it.loss_sum for it in found], [it.grad_norm for it in found], file_bytes(directory / "saved")


@pytest.mark.parametrize("norm", [0.0, 1e4])
def test_early_updates_change_no_bit(model: Path, tmp_path: Path, norm: float) -> None:
    plan, *expected = trained(model, tmp_path / "deferred", update_schedule="deferred", max_grad_norm=norm)
    assert plan["updates"]["early_chunks"] == 0 and not any(step.early for step in SEEN)
    early = {"update_schedule": "early", "speculative_updates": True, "max_grad_norm": norm}
    plan, *found = trained(model, tmp_path / "early", **early)
    assert plan["updates"]["early_chunks"] > 0 and plan["updates"]["undo_bytes"] > 0
    assert plan["updates"]["speculative"] is (norm > 0)
    assert sum(step.early for step in SEEN) > 0 and not any(step.undone for step in SEEN)
    assert found == expected


def test_without_clipping_or_speculation_auto_plans_deferred_on_shared_cores(model: Path, tmp_path: Path) -> None:
    plan, *_ = trained(model, tmp_path)
    assert plan["updates"]["schedule"] == "deferred"


def keys(**more: Any) -> Any:
    return resolve({"model": "m", "dataset": "d.txt", "output_dir": "o"} | more, {}, "test")


def test_early_with_clipping_needs_speculation() -> None:
    with pytest.raises(InputError, match=r"update_schedule: .*max_grad_norm 1 .*--speculative_updates.*deferred"):
        check_updates(keys(update_schedule="early"))
    for more in ({"max_grad_norm": 0}, {"speculative_updates": True}, {"update_schedule": "auto"}):
        check_updates(keys(**{"update_schedule": "early"} | more))


def test_a_schedule_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="update_schedule.*auto, deferred, early"):
        keys(update_schedule="late")


def test_what_a_person_is_told() -> None:
    plan = {"updates": {"early_chunks": 3, "chunks": 7, "undo_bytes": 3 << 20, "seconds_saved": 0.5}}
    plan["updates"]["speculative"] = True
    for part in ("3 of 7 chunks during backward", "predicted clip factor", "3.00 MiB", "save 500 ms"):
        assert part in updates(plan)
    plan["updates"] |= {"speculative": False, "seconds_saved": -0.5}
    assert "cost 500 ms" in updates(plan) and "predicted clip" not in updates(plan)
    assert "none during backward" in updates({"updates": {"early_chunks": 0, "asked": "early"}})
    assert updates({"updates": {"early_chunks": 0, "asked": "auto"}}) == updates({}) == ""
