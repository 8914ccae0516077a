"""TRL's KTOTrainer over a streamed model: equal to itself in memory, durable, and what it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pairs
import real_runs
import spillway.hf
import tiny
from breadth import some
from durable_trainers import PLACEMENT, SAVES, expect_resumed_bits
from needs import needs, package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.hf import load
from test_kto import CASES, ROWS, messages, same_rows

datasets = package("datasets", "TRL needs datasets")
trl = package("trl", "TRL is not installed")
OLDER = any(base.__module__.startswith("trl.experimental.") for base in trl.KTOTrainer.__mro__)
needs("trl", not OLDER, "this TRL has its KTOTrainer among its experiments")
EVENTS = {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 2}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("trainer"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    return place


def streamed(given: Path, out: Path, rows: list[dict[str, Any]], more: dict[str, Any], **keys: Any) -> Any:
    """The trainer of a script with the two lines changed."""
    from transformers import AutoTokenizer

    return spillway.hf.KTOTrainer(
        model=load(given / "model", profile=str(given / "profile.json"), **keys),
        args=pairs.arguments(out, "kto", **more),
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows[:3]),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )


def logged(trainer: Any, kind: str) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if kind in row]


def in_memory(given: Path, out: Path, rows: list[dict[str, Any]], model: Any = None, **more: Any) -> Any:
    order = Order(len(rows), 2, 2, 42, is_sequential=True)
    return pairs.in_memory(given, out, rows, order, model, "kto", **more)


BOTH = {"texts": pairs.answers(ROWS), "messages": messages(ROWS)}


@pytest.mark.parametrize("kind", list(BOTH))
def test_equal_to_itself_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, kind: str) -> None:
    """Losses, gradient norms, figures and weights; evaluations have a short last micro-batch."""
    more = {**CASES["weights"], **EVENTS}
    plain = in_memory(given, tmp_path / "plain", BOTH[kind], **more)
    (tmp_path / "storage").mkdir()
    keys = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": PLACEMENT}
    trainer = streamed(given, tmp_path / "ours", BOTH[kind], more, dtype="float32", **keys)
    trainer.train()
    trainer.save_model()
    same_rows(logged(trainer, "loss"), logged(plain, "loss"), sums=4)
    same_rows(logged(trainer, "eval_loss"), logged(plain, "eval_loss"), "eval_", sums=4)
    tokens = [[row["num_tokens"] for row in logged(each, "loss")] for each in (trainer, plain)]
    assert tokens[0] == tokens[1]
    same_weights(tmp_path, "model.safetensors")


def same_weights(place: Path, name: str) -> None:
    from safetensors.torch import load_file

    one, other = (load_file(place / way / name) for way in ("ours", "plain"))
    assert one.keys() == other.keys()
    for tensor in one:
        torch.testing.assert_close(one[tensor], other[tensor], rtol=1e-5, atol=1e-5)


def test_adapters_have_their_base_as_reference(given: Path, tmp_path: Path) -> None:
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, task_type="CAUSAL_LM", **asked))
    more = {"adam_epsilon": 1e-4, "learning_rate": 1e-3}
    plain = in_memory(given, tmp_path / "plain", BOTH["texts"], adapted, **more)
    ours = {"method": "lora", "lora_r": 4} | {f"lora_{name.removeprefix('lora_')}": asked[name] for name in asked}
    trainer = streamed(given, tmp_path / "ours", BOTH["texts"], more, dtype="float32", **ours)
    trainer.train()
    trainer.save_model()
    same_rows(logged(trainer, "loss"), logged(plain, "loss"))
    same_weights(tmp_path, "adapter_model.safetensors")


@pytest.mark.parametrize("step", some([1, 4, 5], [5]))
def test_durable_steps_go_on_bit_by_bit(given: Path, tmp_path: Path, step: int) -> None:
    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return streamed(given, out, BOTH["texts"], {**EVENTS, **SAVES}, **keys)

    references = [f"spillway/reference-{rows}.jsonl" for rows in ("train", "eval")]
    expect_resumed_bits(tmp_path, open_trainer, step, ["model.safetensors", *references])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss_type": "apo_zero_unpaired"}, "loss_type: apo_zero_unpaired is not computed .* expects one of kto"),
        ({"sync_ref_model": True, "precompute_ref_log_probs": False}, "sync_ref_model: True is not computed"),
    ],
)
def test_arguments_that_are_not_computed_are_refused(
    given: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        streamed(given, tmp_path / "out", BOTH["texts"], more, dtype="float32")


def test_the_trainer_of_older_releases_is_refused() -> None:
    older = type("KTOTrainer", (), {"__module__": "trl.experimental.kto.kto_trainer"})
    with pytest.raises(InputError, match="KTOTrainer: the one of trl.experimental is not computed .* a newer TRL"):
        type("Streamed", (spillway.hf.StreamedTraining, older), {})(model=None)


def test_a_second_model_is_refused(given: Path, tmp_path: Path) -> None:
    model = load(given / "model", profile=str(given / "profile.json"), dtype="float32")
    with pytest.raises(InputError, match="ref_model: the reference is the streamed model"):
        spillway.hf.KTOTrainer(model, model, pairs.arguments(tmp_path / "out", "kto"))
