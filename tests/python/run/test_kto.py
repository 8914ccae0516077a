"""`objective: kto`: equal to TRL's KTOTrainer in memory, wherever the state lies, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pairs
import real_runs
import spillway
import tiny
from breadth import some
from hf_models import tiny_model
from needs import package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.output.records import rows as rows_of
from test_grpo import same_weights

ROWS = 11  # 3 steps an epoch; the last micro-batch has one row, whose mismatched answer is its own
KTO = ("--objective", "kto", "--compute_dtype", "fp32", "--num_train_epochs", "2")
TOLD = tuple(name for name in pairs.TOLD if name not in ("rewards/accuracies", "mean_token_accuracy")) + ("kl",)
CLOSE = 1e-5
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "weights": {"beta": 0.4, "desirable_weight": 1.33, "undesirable_weight": 0.7},
}


def messages(count: int) -> list[dict[str, Any]]:
    """The same as conversations with short prompts."""
    return [
        {
            "prompt": [{"role": "user", "content": row["prompt"][:20]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
            "label": row["label"],
        }
        for row in pairs.answers(count)
    ]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("kto"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    tiny.jsonl(place / "texts.jsonl", pairs.answers(ROWS))
    tiny.jsonl(place / "messages.jsonl", messages(ROWS))
    return place


def train(given: Path, out: Path, *more: str, data: str = "texts.jsonl") -> int:
    return real_runs.here(given, out, "--dataset", str(given / data), *KTO, *more)


def order() -> Order:
    return Order(ROWS, 2, 2, 42, is_sequential=True)


def close(one: float, other: float, figures: int = 1) -> bool:
    return abs(one - other) <= CLOSE * figures * max(1.0, abs(other))


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]], prefix: str = "", sums: int = 1) -> None:
    """The figures that TRL has, and none that it lacks. `sums`: times the tolerance for differences of rows'
    log-probabilities: TRL rounds each, some 200, to fp32."""
    assert len(found) == len(expected) > 0
    known = {f"{prefix}{name}" for name in TOLD}
    for one, other in zip(found, expected, strict=True):
        assert known & one.keys() == known & other.keys()
        for name in [f"{prefix}loss", *([] if prefix else ["grad_norm"]), *sorted(known & other.keys())]:
            figures = 2 if name.endswith("margins") else 1  # a difference of two
            figures *= sums if "rewards" in name or name.endswith("kl") else 1
            assert close(one[name], other[name], figures), (one["step"], name, one[name], other[name])


def steps_of(out: Path, name: str = "loss") -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if name in row]


@pytest.mark.parametrize("case", some(list(CASES), ["weights"]))
def test_equal_to_trl_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, case: str) -> None:
    """21 steps of texts in file order, with accumulation and remainders."""
    keys = {**CASES[case], **pairs.LONG}
    plain = pairs.in_memory(given, tmp_path / "plain", pairs.answers(ROWS), order(), objective="kto", **keys)
    more = [*pairs.options(keys), *real_runs.on_path(tmp_path / "storage")]
    assert train(given, tmp_path / "ours", *more) == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain), sums=4)
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")
    assert len(pairs.logged(plain)) == 21
    assert any(row["kl"] > 1e-3 for row in pairs.logged(plain))


def test_messages_equal_to_trl_with_adapters(given: Path, tmp_path: Path) -> None:
    """The reference is the frozen base, without a second set of weights. Evaluations as TRL's."""
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    plain = pairs.in_memory(
        given, tmp_path / "plain", messages(ROWS), order(), objective="kto", eval_strategy="epoch",
        model=peft.get_peft_model(model, peft.LoraConfig(**asked)), per_device_eval_batch_size=2, adam_epsilon=1e-4,
    )  # fmt: skip
    tiny.jsonl(tmp_path / "held_out.jsonl", messages(3))
    more = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_dropout", "0.1"]
    more += ["--lora_target_modules", "q_proj", "--lora_target_modules", "up_proj", "--adam_epsilon", "1e-4"]
    more += ["--eval_dataset", str(tmp_path / "held_out.jsonl"), "--per_device_eval_batch_size", "2"]
    assert train(given, tmp_path / "ours", *more, data="messages.jsonl") == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    expected = [row for row in plain.state.log_history if "eval_loss" in row]
    same_rows(steps_of(tmp_path / "ours", "eval_loss"), expected, "eval_")


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2")


@pytest.mark.parametrize("method", some(["log_probabilities", "update", "save_model"], ["update"]))
def test_placement_and_a_kill_change_no_bit(given: Path, tmp_path: Path, method: str) -> None:
    assert train(given, tmp_path / "dram", *DURABLE) == 0
    more = ["--dataset", str(given / "texts.jsonl"), *KTO, *DURABLE, *real_runs.on_path(tmp_path / "storage")]
    real_runs.kill_after(method, real_runs.words(given, tmp_path / "out", *more))
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    for name in ("model.safetensors", "spillway/reference-train.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "dram" / name).read_bytes()


def test_check_compares_with_a_plain_loop(given: Path, tmp_path: Path) -> None:
    more = ["--dataset", str(given / "texts.jsonl"), *KTO[:4], "--max_steps", "2"]
    assert real_runs.here(given, tmp_path / "out", *more, verb="check") == 0


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "completion": "b"}, "wrong.jsonl:1: the column 'label' is missing; found 'prompt'"),
        ({"prompt": "a", "completion": "b", "label": None}, "wrong.jsonl:1: label is null; expects true or false"),
        ({"prompt": "a", "completion": "b", "label": 1}, "wrong.jsonl:1: label is int; expects true or false"),
        ({"prompt": "a", "completion": "", "label": True}, "wrong.jsonl:1: the column 'completion' is empty"),
        (
            {"prompt": "a", "completion": None, "label": True},
            "1: prompt is text, completion is null; expects two texts",
        ),
        ({"prompt": [], "completion": [], "label": True}, "wrong.jsonl:1: the column 'completion' is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "wrong.jsonl:1: the column 'completion' is missing"),
        ({"prompt": "water " * 99, "completion": "b", "label": True}, "every prompt in"),
    ],
)
def test_rows_that_are_no_judged_answers_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], said: str
) -> None:
    tiny.jsonl(tmp_path / "wrong.jsonl", [row])
    code = real_runs.here(given, tmp_path / "out", "--dataset", str(tmp_path / "wrong.jsonl"), *KTO)
    assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--loss_type", "sigmoid"], "loss_type: objective kto has no sigmoid; expects one of kto"),
        (["--label_smoothing", "0.1"], "label_smoothing: it is for objective dpo and cpo, and the objective is kto"),
        (["--objective", "dpo", "--desirable_weight", "2"], "desirable_weight: it is for objective kto, and"),
        (["--packing"], "objective kto joins no rows"),
        (["--per_device_train_batch_size", "1"], "gives each prompt another answer of its micro-batch"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", *more))


def test_a_loop_of_ones_own_is_refused(given: Path) -> None:
    with pytest.raises(InputError, match="objective: kto pairs each prompt with another row's answer"):
        spillway.Session({"model": str(given / "model"), "objective": "kto"})


def test_routers_that_add_a_loss_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import MixtralConfig

    given = real_runs.inputs(tmp_path)
    size = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4}
    tiny_model(MixtralConfig(**size, **heads, output_router_logits=True)).save_pretrained(given / "model")
    tiny.jsonl(given / "texts.jsonl", pairs.answers(4))
    assert "objective: kto adds no loss of routers" in refused(capsys, train(given, tmp_path / "out"))


def test_a_sequential_order_is_that_of_the_file() -> None:
    for epoch in (0, 3):
        assert np.array_equal(order().permutation(epoch), np.arange(ROWS))
