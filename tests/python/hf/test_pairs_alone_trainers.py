"""TRL's ORPOTrainer and CPOTrainer over a streamed model: equal to themselves in memory, durable, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pairs
import real_runs
import spillway.hf
import tiny
from durable_trainers import SAVES, expect_resumed_bits
from needs import package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.hf import load
from test_pairs_alone import CASES, ROWS, same_rows

datasets = package("datasets", "TRL needs datasets")
package("trl.experimental.orpo", "TRL has them since 0.26")
EVENTS = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 3}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("trainers"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    return place


def streamed(given: Path, out: Path, case: str, more: dict[str, Any], in_order: bool = True, **keys: Any) -> Any:
    """The trainer of a script with the two lines changed. `in_order`: over rows as `in_memory` takes them."""
    from transformers import AutoTokenizer

    asked = dict(CASES[case])
    objective = asked.pop("objective")

    class Streamed(getattr(spillway.hf, f"{objective.upper()}Trainer")):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return pairs.SameOrder(Order(ROWS, 2, 2, 42)) if in_order else super()._get_train_sampler(*given)

    rows = pairs.texts(ROWS)
    return Streamed(
        model=load(given / "model", profile=str(given / "profile.json"), **keys),
        args=pairs.arguments(out, objective, **asked, **more),
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows[:3]),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )


def logged(trainer: Any, kind: str) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if kind in row]


@pytest.mark.parametrize("case", ["orpo", "simpo", "smoothed"])
def test_equal_to_itself_in_memory(given: Path, tmp_path: Path, case: str) -> None:
    plain = pairs.in_memory(
        given, tmp_path / "plain", pairs.texts(ROWS), Order(ROWS, 2, 2, 42), **CASES[case], **EVENTS
    )
    trainer = streamed(given, tmp_path / "ours", case, EVENTS, dtype="float32")
    trainer.train()
    same_rows(logged(trainer, "loss"), logged(plain, "loss"))
    same_rows(logged(trainer, "eval_loss"), logged(plain, "eval_loss"), "eval_")


def test_durable_steps_go_on_bit_by_bit(given: Path, tmp_path: Path) -> None:
    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return streamed(given, out, "orpo", {**EVENTS, **SAVES}, in_order=False, **keys)

    expect_resumed_bits(tmp_path, open_trainer)


@pytest.mark.parametrize(
    ("case", "more", "said"),
    [
        ("sigmoid", {"alpha": 0.5}, "alpha: 0.5 is not computed over a streamed model"),
        ("orpo", {"generate_during_eval": True}, "generate_during_eval: True is not computed over a streamed model"),
    ],
)
def test_arguments_that_are_not_computed_are_refused(
    given: Path, tmp_path: Path, case: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        streamed(given, tmp_path / "out", case, more, dtype="float32").train()
