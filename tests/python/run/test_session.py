"""A session over the fake engine: what the trainer asks of it, checkpoints that transformers loads, errors as ours."""

from __future__ import annotations

import gzip
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as hf_logging

import native
from fake_engine import FakeEngine
from hf_models import batch, random_ids, tiny_config, tiny_model
from spillway import _engine
from spillway._engine import (
    Description,
    EngineSettings,
    PathSettings,
    PlacementSettings,
    PlannedBytes,
    PlannedTier,
    PlanSummary,
)
from spillway.config.values import StoragePath
from spillway.errors import DoesNotFit, InputError, SpillwayError
from spillway.machine import process_memory
from spillway.machine.profile import profile
from spillway.model import spec
from spillway.model.batches.batch import WorkShape
from spillway.model.checkpoint import initialise
from spillway.model.verify.equivalence import Equivalence
from spillway.run.protocol import Keeping, Recovery, StartPoint, StepResult
from spillway.run.session import EngineSession
from spillway.run.settings import placement_shares, storage
from spillway.run.telemetry import REGROWTH, HeapWatch

SHAPE = WorkShape(micro_batches=2, batch=2, length=12, eval_batch=2, eval_length=12)


def config(model: Path, **more: Any) -> Any:
    planned = {"dram_budget": 1 << 32, "placement": "auto", "durability": None, "output_dir": str(model / "out")}
    return native.config(model, **planned | {"profile": str(native.profile(model.parent))} | more)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_model(tiny_config("qwen2")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def opened(model: Path, resume: Path | None = None, **more: Any) -> EngineSession:
    found = EngineSession(config(model, **more), SHAPE, engine_type=FakeEngine)
    found.start(StartPoint(resume))
    return found


def steps(session: EngineSession, first: int, last: int) -> list[StepResult]:
    return [
        session.step([batch(random_ids(2, 12, seed)), batch(random_ids(1, 9, seed + 50))], 1e-3)
        for seed in range(first, last)
    ]


def test_a_step_reports_what_the_trainer_writes_down(model: Path) -> None:
    session = opened(model)
    assert session.plan["fits"] is True
    results = steps(session, 0, 6)
    assert [result.label_tokens for result in results] == [22 + 8] * 6
    assert all(result.grad_norm > 0 and not result.skipped and result.seconds > 0 for result in results)
    loss, tokens = session.evaluate([batch(random_ids(2, 12, 0))])
    assert tokens == 22 and loss / tokens < results[0].loss_sum / results[0].label_tokens
    measured = session.measured()
    assert measured["process_peak"] >= measured["tiers"]["dram"] > 0
    session.close()


def test_the_plan_counts_what_drawing_weights_takes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialise, "work_bytes", lambda _: 1 << 28)
    assert EngineSession(config(model, init="random"), SHAPE, FakeEngine).settings.work_bytes >= 1 << 28
    assert EngineSession(config(model), SHAPE, FakeEngine).settings.work_bytes < 1 << 28


def test_the_saved_model_loads_without_a_word_and_gives_the_same_loss(model: Path, tmp_path: Path) -> None:
    session = opened(model)
    steps(session, 0, 3)
    session.save_model(tmp_path)
    piece = batch(random_ids(2, 12, 9))
    ours, tokens = session.evaluate([piece])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        previous = hf_logging.get_verbosity()
        hf_logging.set_verbosity_warning()
        loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        hf_logging.set_verbosity(previous)
    assert not caught and not any(info.values())
    assert loaded.dtype == torch.float32 and loaded.config.architectures == ["Qwen2ForCausalLM"]
    assert loaded.config.tie_word_embeddings and (tmp_path / "generation_config.json").exists()
    theirs = loaded(input_ids=piece.input_ids, labels=piece.labels).loss
    assert ours / tokens == pytest.approx(float(theirs.detach()), rel=1e-6)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_resumed_run_goes_on_bit_by_bit(model: Path, tmp_path: Path, dtype: str) -> None:
    """Dropout included: its numbers follow from the step."""
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(content | {"attention_dropout": 0.2}))
    whole = opened(model, compute_dtype=dtype)
    expected = steps(whole, 0, 6)
    half = opened(model, compute_dtype=dtype)
    first = steps(half, 0, 3)
    half.save_model(tmp_path)
    half.save_state(tmp_path)
    half.close()
    rest = steps(opened(model, tmp_path, compute_dtype=dtype), 3, 6)
    assert [r.loss_sum for r in first + rest] == [r.loss_sum for r in expected]
    assert [r.grad_norm for r in first + rest] == [r.grad_norm for r in expected]


def test_random_weights_need_no_checkpoint(model: Path) -> None:
    (model / "model.safetensors").unlink()
    one, other = opened(model, init="random"), opened(model, init="random", seed=6)
    piece = [batch(random_ids(2, 12, 0))]
    assert one.evaluate(piece) == opened(model, init="random").evaluate(piece)
    assert one.evaluate(piece) != other.evaluate(piece)
    with pytest.raises(InputError, match="no model.safetensors"):
        opened(model)
    (model / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(InputError, match="pytorch_model.bin is there: save it as safetensors"):
        opened(model)


def test_the_timeline_is_compressed_json(model: Path, tmp_path: Path) -> None:
    session = opened(model)
    session.write_timeline(tmp_path / "timeline.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes())) == {"traceEvents": []}


DURABLE = Keeping("the run", checkpoints=4, keep=True)


def durable(
    model: Path, storage: Path, start_point: StartPoint | None, **more: Any
) -> tuple[EngineSession, Recovery | None]:
    """A session whose steps are durable in `storage`; not started where `start_point` is None."""
    storage.mkdir(exist_ok=True)
    session = EngineSession(config(model, storage=[StoragePath(str(storage))], **more), SHAPE, FakeEngine, DURABLE)
    return session, session.start(start_point) if start_point else None


def committed(session: EngineSession, first: int, last: int) -> list[StepResult]:
    results = []
    for step in range(first, last):
        results += steps(session, step, step + 1)
        session.commit({"step": step + 1})
    return results


def test_a_durable_step_goes_on_bit_by_bit(model: Path, tmp_path: Path) -> None:
    expected = steps(opened(model), 0, 6)
    killed, recovery = durable(model, tmp_path / "storage", StartPoint())
    assert recovery is None
    killed.commit({"step": 0})
    first = committed(killed, 0, 3)
    steps(killed, 3, 4)  # done, not committed
    session, recovery = durable(model, tmp_path / "storage", StartPoint(durable=True))
    assert recovery is not None and (recovery.step, recovery.state) == (3, {"step": 3})
    assert recovery.words.startswith("recovered step 3 from the storage paths")
    assert session.notices() == ["a bit fell"] and session.notices() == []
    rest = committed(session, 3, 6)
    assert [r.loss_sum for r in first + rest] == [r.loss_sum for r in expected]
    assert first[-1].written == {"path:0": 300} and rest[-1].written == {"path:0": 500}
    session.close()
    assert (tmp_path / "storage" / "spillway.volume").exists()


def test_a_manifest_is_small_and_can_be_gone_back_to(model: Path, tmp_path: Path) -> None:
    session, _ = durable(model, tmp_path / "storage", StartPoint())
    committed(session, 0, 2)
    early = tmp_path / "checkpoint-2"
    early.mkdir()
    session.save_model(early)
    session.save_state(early)
    assert sorted(path.name for path in (early / "spillway").iterdir()) == ["manifest.bin", "session.json", "wear.json"]
    after = committed(session, 2, 5)
    session.close()
    again, recovery = durable(model, tmp_path / "storage", StartPoint(early, pinned=lambda: (early,)))
    assert recovery is not None and recovery.step == 2
    assert [r.loss_sum for r in committed(again, 2, 5)] == [r.loss_sum for r in after]
    again.release((early / "spillway" / "manifest.bin").read_bytes())
    again.close()
    newest, recovery = durable(model, tmp_path / "storage", StartPoint(early, durable=True))
    assert recovery is not None and recovery.step == 5
    assert newest.measured()["written"]["path:0"] >= 400


def test_a_manifest_that_the_run_went_back_behind_is_opened_by_name(model: Path, tmp_path: Path) -> None:
    session, _ = durable(model, tmp_path / "storage", StartPoint())
    places = {}
    for step in (1, 2):
        committed(session, step - 1, step)
        places[step] = tmp_path / f"checkpoint-{step}"
        places[step].mkdir()
        session.save_state(places[step])
    session.close()

    def pinned() -> tuple[Path, ...]:
        return tuple(places.values())

    session, _ = durable(model, tmp_path / "storage", StartPoint(places[1], pinned=pinned))
    session.commit({"step": 1})  # killed here, before what came later was removed
    _, recovery = durable(model, tmp_path / "storage", StartPoint(places[2], durable=True, pinned=pinned))
    assert recovery is not None and recovery.step == 2


def test_a_checkpoint_that_stands_alone_begins_a_durable_run(model: Path, tmp_path: Path) -> None:
    alone = opened(model)
    expected = steps(alone, 0, 2)
    alone.save_state(tmp_path)
    expected += steps(alone, 2, 4)
    session, recovery = durable(model, tmp_path / "storage", StartPoint(tmp_path, durable=True))
    assert recovery is None
    session.commit({"step": 2})
    committed(session, 2, 3)
    session, recovery = durable(model, tmp_path / "storage", StartPoint(tmp_path, durable=True))
    assert recovery is not None and recovery.step == 3
    assert steps(session, 3, 4)[0].loss_sum == expected[3].loss_sum
    _, recovery = durable(model, tmp_path / "storage", StartPoint(tmp_path))
    assert recovery is None  # asked for by name


def test_volumes_without_a_step_go_and_others_stay(model: Path, tmp_path: Path) -> None:
    volume = tmp_path / "storage" / "spillway.volume"
    session, _ = durable(model, tmp_path / "storage", StartPoint())
    session.commit({"step": 0})
    assert volume.exists()
    session.close()
    assert not volume.exists()
    session, _ = durable(model, tmp_path / "storage", StartPoint())
    committed(session, 0, 1)
    session.close()
    assert volume.exists()
    session, _ = durable(model, tmp_path / "storage", None)
    session.close()
    assert volume.exists()
    session, _ = durable(model, tmp_path / "storage", StartPoint(durable=True))
    session.give_up_volumes()
    session.close()
    assert not volume.exists()


def test_nothing_to_go_on_from_is_bad_input(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished step"):
        durable(model, tmp_path / "storage", StartPoint(durable=True, fresh=False))
    session, _ = durable(model, tmp_path / "storage", StartPoint())
    session.commit({"step": 0})
    held = torch.load(tmp_path / "storage" / "spillway.volume", weights_only=False)
    held["newest"]["payload"] = "{}"
    torch.save(held, tmp_path / "storage" / "spillway.volume")
    with pytest.raises(InputError, match="cannot be read"):
        durable(model, tmp_path / "storage", StartPoint(durable=True))


class Refusing(FakeEngine):
    """Fails as the C++ engine does."""

    failure: Exception = MemoryError("dram: 5 GiB asked, 4 GiB there")

    def plan(self) -> PlanSummary:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "ours"),
    [(MemoryError("dram: 5 GiB asked"), DoesNotFit), (ValueError("weight=path: no path"), InputError),
     (OSError(28, "no room"), SpillwayError)],
)  # fmt: skip
def test_the_engines_errors_become_ours(model: Path, failure: Exception, ours: type[Exception]) -> None:
    engine = type("Failing", (Refusing,), {"failure": failure})
    with pytest.raises(ours) as caught:
        EngineSession(config(model), SHAPE, engine_type=engine)
    assert str(failure) == str(caught.value)


def test_weights_that_do_not_match_are_bad_input(model: Path) -> None:
    (model / "model.safetensors").unlink()
    tiny_model(tiny_config("llama")).save_pretrained(model / "other")
    (model / "other" / "model.safetensors").rename(model / "model.safetensors")
    with pytest.raises(InputError, match=r"q_proj\.bias is missing"):
        opened(model)


def test_a_checkpoint_without_state_is_refused(model: Path) -> None:
    with pytest.raises(InputError, match="holds no state"):
        opened(model, model)


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("auto", (None, None, None, None)),
        ("dram", (1.0, 1.0, 1.0, 1.0)),
        ("path", (0.0, 0.0, 0.0, 0.0)),
        ("weight=dram,state=path,grad=50%,activation=dram", (1.0, 0.0, 0.5, 1.0)),
        ("state=12.5%, grad=auto", (None, 0.125, None, None)),
        ("grad=file:0,activation=numa:2", (None, None, "file:0", "numa:2")),
    ],
)
def test_placement_is_a_share_of_each_group_or_a_tier(text: str, shares: tuple[float | str | None, ...]) -> None:
    found = placement_shares(text)
    assert (found.weight, found.state, found.grad, found.activation) == shares


@pytest.mark.parametrize("text", ["disk", "weights=dram", "state=150%", "state=50", "state=", "state=numa:1"])
def test_placement_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="placement"):
        placement_shares(text)


def test_settings_name_every_fact_the_planner_needs(model: Path, tmp_path: Path) -> None:
    told: list[tuple[Description, EngineSettings]] = []

    def engine(description: Description, settings: EngineSettings) -> FakeEngine:
        told.append((description, settings))
        return FakeEngine(description, settings)

    machine = tmp_path / "machine.json"
    measured = _engine.measure([], 0.01)
    measured.cores, measured.update_elements_per_second = 3, 1e9
    machine.write_text(measured.to_json())
    paths = [StoragePath(str(tmp_path), 1 << 30)]
    EngineSession(config(model, storage=paths, placement="state=path", profile=str(machine), window=2), SHAPE, engine)
    description, found = told[-1]
    assert found.dram_budget == 1 << 32 and found.work_bytes > 0 and found.process_bytes > 50 << 20
    assert found.storage == [PathSettings(directory=str(tmp_path), capacity=1 << 30)]
    assert found.profile == measured
    assert found.window == 2
    assert found.placement == PlacementSettings(state=0.0)
    assert description.tokens == 48 and description.micro_batches == 2
    assert EngineSettings.parse(found.to_json()) == found
    with pytest.raises(InputError, match="storage: .*nowhere"):
        storage([StoragePath(str(tmp_path / "nowhere"), None)])
    machine.write_text("[]")
    with pytest.raises(InputError, match="profile: .*object"):
        profile(str(machine))


def test_paths_of_one_file_system_share_what_is_free(tmp_path: Path) -> None:
    directories = [str(tmp_path / name) for name in "abc"]
    for directory in directories:
        Path(directory).mkdir()
    alone = storage([StoragePath(directories[0], None)])[0].capacity
    a, b, c = storage([StoragePath(directories[0], 1 << 20), *(StoragePath(d, None) for d in directories[1:])])
    assert a.capacity == 1 << 20 and b.capacity == c.capacity
    assert b.capacity == pytest.approx((alone - (1 << 20)) / 2, rel=0.05)  # other processes write, too


def test_a_volume_that_is_there_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spillway.run.settings.look_at", lambda _: (1, 1000 << 20))
    one, other = (tmp_path / name for name in ("one", "other"))
    for directory in (one, other):
        directory.mkdir()
    paths = [StoragePath(str(one)), StoragePath(str(other))]
    assert [path.capacity for path in storage(paths)] == [450 << 20] * 2
    (one / "spillway.volume").write_bytes(b"x" * (4 << 20))
    held = (one / "spillway.volume").stat().st_blocks * 512
    assert [path.capacity for path in storage(paths)] == [int((held + (1000 << 20)) * 0.9) // 2] * 2
    monkeypatch.setattr("spillway.run.settings.look_at", lambda _: (1, 0))
    assert [path.capacity for path in storage(paths)] == [held, int(held * 0.9) // 2]


def test_a_block_device_is_named_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "device"
    device.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(Path, "is_block_device", lambda path: path == device)
    assert storage([StoragePath(str(device), 5), StoragePath(str(tmp_path), 7)]) == [
        PathSettings(device=str(device), capacity=5),
        PathSettings(directory=str(tmp_path), capacity=7),
    ]
    assert storage([StoragePath(str(device))]) == [PathSettings(device=str(device), capacity=1 << 20)]


def test_packing_is_proven_before_it_is_used(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def verify_equivalence(config: Any, packing: bool) -> Equivalence:
        asked.append(packing)
        return Equivalence(frozenset())

    monkeypatch.setattr(spec, "verify_equivalence", verify_equivalence)
    for packing, eval_packing in ((False, None), (True, None), (False, True)):
        EngineSession(config(model, packing=packing, eval_packing=eval_packing), SHAPE, engine_type=FakeEngine)
    assert asked == [False, True, True]


def test_room_is_made_in_the_heap_for_what_lies_in_dram(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(process_memory, "reserve", asked.append)
    kinds = (
        ("working set", "dram", 1),
        ("saved activations", "dram", 2),
        ("state", "dram", 4),
        ("working set", "device", 8),
    )
    parts = [PlannedBytes(class_=kind, tier=tier, bytes=count) for kind, tier, count in kinds]
    HeapWatch(PlanSummary(tiers=[PlannedTier(name="dram", planned_peak=7, capacity=7)], bytes=parts), 1).give_back()
    assert asked == [3]


def test_the_heap_is_given_back_once_until_it_has_grown_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened(model)
    # What stays of the heap after loading is in use; only what has grown since then is worth giving back.
    before = max(session.plan["tiers"][0]["planned_peak"], session._heap.in_use) + REGROWTH + 1
    grown = before + REGROWTH + 1
    now, given = before, []
    monkeypatch.setattr(process_memory, "resident", lambda: now)
    monkeypatch.setattr(process_memory, "give_back", lambda: given.append(now))
    steps(session, 0, 2)
    assert given == [before]
    now = grown
    steps(session, 2, 4)
    assert given == [before, grown]
    monkeypatch.setattr(process_memory, "trim", lambda: given.append(0))
    session.close()
    assert given == [before, grown, 0]
