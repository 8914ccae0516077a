"""TRL's RewardTrainer over a streamed model: equal to itself in memory, durable, and what it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import spillway.hf
import tiny
from breadth import some
from durable_trainers import PLACEMENT, SAVES, expect_resumed_bits
from needs import package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.hf import load
from test_reward import DATA, ROWS, in_memory, same_rows, same_weights, save_classifier

datasets = package("datasets", "TRL needs datasets")
package("trl", "TRL is not installed")
EVENTS = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 3}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("trainer"))
    (place / "model").rename(place / "base")
    save_classifier(place / "model", place / "base")
    for name in ("model", "base"):
        tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / name))
    return place


def streamed(
    given: Path, out: Path, data: str, more: dict[str, Any], in_order: bool = True, model: str = "model", **keys: Any
) -> Any:
    """The trainer of a script with the two lines changed. `in_order`: over rows as `in_memory` takes them."""
    from transformers import AutoTokenizer

    class Streamed(spillway.hf.RewardTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return pairs.SameOrder(Order(ROWS, 2, 2, 42)) if in_order else super()._get_train_sampler(*given)

    return Streamed(
        model=load(given / model, num_labels=1, profile=str(given / "profile.json"), **keys),
        args=pairs.arguments(out, "reward", **{"max_length": 256, **more}),
        train_dataset=datasets.Dataset.from_list(DATA[data]),
        eval_dataset=datasets.Dataset.from_list(DATA[data][:3]),
        processing_class=AutoTokenizer.from_pretrained(given / model),
    )


def logged(trainer: Any, kind: str) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if kind in row]


@pytest.mark.parametrize("data", ["margins", "messages"])
def test_equal_to_itself_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, data: str) -> None:
    """Losses, gradient norms, figures and weights; evaluations, too."""
    more = {**EVENTS, "center_rewards_coefficient": 0.1}
    plain = in_memory(given, tmp_path / "plain", DATA[data], **more)
    (tmp_path / "storage").mkdir()
    keys = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": PLACEMENT}
    trainer = streamed(given, tmp_path / "ours", data, more, dtype="float32", **keys)
    trainer.train()
    trainer.save_model()
    same_rows(logged(trainer, "loss"), logged(plain, "loss"))
    same_rows(logged(trainer, "eval_loss"), logged(plain, "eval_loss"), "eval_")
    tokens = [[row["num_tokens"] for row in logged(each, "loss")] for each in (trainer, plain)]
    assert tokens[0] == tokens[1]
    same_weights(tmp_path / "ours", tmp_path / "plain")


def test_durable_steps_of_adapters_and_head_go_on_bit_by_bit(given: Path, tmp_path: Path) -> None:
    package("peft", "LoRA is PEFT's")

    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        adapters = {"method": "lora", "lora_r": 4}
        return streamed(given, out, "texts", {**EVENTS, **SAVES}, in_order=False, model="base", **adapters, **keys)

    expect_resumed_bits(tmp_path, open_trainer, 4, ["adapter_model.safetensors"])


@pytest.mark.parametrize("step", some([1, 4, 5], [5]))
def test_durable_steps_go_on_bit_by_bit(given: Path, tmp_path: Path, step: int) -> None:
    """From a model that has predicted tokens, whose head is a new one."""

    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return streamed(given, out, "texts", {**EVENTS, **SAVES}, in_order=False, model="base", **keys)

    expect_resumed_bits(tmp_path, open_trainer, step)


def test_what_is_saved_loads_as_the_librarys_class(given: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    trainer = streamed(given, tmp_path / "out", "texts", {"max_steps": 1}, model="base", dtype="float32")
    trainer.train()
    trainer.save_model()
    model, told = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert model.config.pad_token_id == trainer.processing_class.pad_token_id
    assert torch.equal(model.score.weight, load_file(tmp_path / "out" / "model.safetensors")["score.weight"])
    with pytest.raises(InputError, match="scores of rows are computed in steps and evaluations alone"):
        trainer.model(torch.tensor([[1, 2]]))


def test_other_models_and_trainers_are_refused(given: Path, tmp_path: Path) -> None:
    def loaded(**keys: Any) -> Any:
        return load(given / "model", profile=str(given / "profile.json"), dtype="float32", **keys)

    with pytest.raises(InputError, match=r"a reward is the score of one label; make it with load\(PATH, num_labels=1"):
        spillway.hf.RewardTrainer(load(given / "base", profile=str(given / "profile.json"), dtype="float32"))
    with pytest.raises(InputError, match="num_labels is for Trainer and RewardTrainer"):
        spillway.hf.SFTTrainer(loaded(num_labels=1))
    with pytest.raises(InputError, match="num_labels=0 is not taken: expects a whole number, 1 or more"):
        loaded(num_labels=0)
    with pytest.raises(ValueError, match="reward models require `num_labels=1`"):
        rows = datasets.Dataset.from_list(DATA["texts"])
        spillway.hf.RewardTrainer(loaded(num_labels=3), pairs.arguments(tmp_path, "reward"), train_dataset=rows)
