"""`objective: orpo` and `cpo`: equal to TRL's trainers in memory, wherever the state lies, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pairs
import real_runs
import spillway
import tiny
from breadth import some
from spillway.config import resolve
from spillway.data.loading import load, load_tokenizer
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.model.batches.batch import Batch
from spillway.output.records import rows as rows_of
from test_grpo import same_weights

ROWS = 10  # 3 steps an epoch; the last has one micro-batch
KEYS = ("--compute_dtype", "fp32", "--num_train_epochs", "2")
CLOSE = 1e-5
# TRL takes means of logits over prompts and padding, too, which is no property of an answer
TOLD = tuple(name for name in pairs.TOLD if "logits" not in name) + ("nll_loss", "log_odds_ratio", "log_odds_chosen")
CASES: dict[str, dict[str, Any]] = {
    "orpo": {"objective": "orpo"},
    "orpo-beta": {"objective": "orpo", "beta": 0.7},
    "sigmoid": {"objective": "cpo"},
    "hinge": {"objective": "cpo", "loss_type": "hinge", "beta": 0.02},
    "ipo": {"objective": "cpo", "loss_type": "ipo", "cpo_alpha": 0.3},
    "smoothed": {"objective": "cpo", "label_smoothing": 0.1, "beta": 0.3},
    "simpo": {"objective": "cpo", "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.7, "beta": 2.0},
    "simpo-and-likelihood": {"objective": "cpo", "loss_type": "simpo", "label_smoothing": 0.2},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("pairs"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    tiny.jsonl(place / "texts.jsonl", pairs.texts(ROWS))
    return place


def train(given: Path, out: Path, keys: dict[str, Any], *more: str, data: str = "texts.jsonl") -> int:
    asked = pairs.options(keys)
    return real_runs.here(given, out, "--dataset", str(given / data), *KEYS, *asked, *more)


def close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(1.0, abs(other))


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]], prefix: str = "") -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        names = [name for name in ("loss", *TOLD) if f"{prefix}{name}" in other]
        assert "nll_loss" in names and "rewards/margins" in names
        for name in [f"{prefix}{name}" for name in names] + ["grad_norm"] * (not prefix):
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])
        assert {f"{prefix}logits/chosen", f"{prefix}logits/rejected"} <= one.keys()


def steps_of(out: Path, name: str = "loss") -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if name in row]


@pytest.mark.parametrize("case", some(list(CASES), ["orpo", "sigmoid", "simpo"]))
def test_equal_to_trl_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, case: str) -> None:
    """21 steps of pairs of texts, with accumulation and remainders."""
    order, keys = Order(ROWS, 2, 2, 42), {**CASES[case], **pairs.LONG}
    plain = pairs.in_memory(given, tmp_path / "plain", pairs.texts(ROWS), order, **keys)
    assert train(given, tmp_path / "ours", keys, *real_runs.on_path(tmp_path / "storage")) == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")
    assert len(pairs.logged(plain)) == 21


@pytest.mark.parametrize("case", some(["orpo", "simpo"], ["orpo"]))
def test_messages_and_evaluations_equal_trl(given: Path, tmp_path: Path, case: str) -> None:
    """Of messages TRL's trainers put the end token behind what the template writes. Rows are cut at `max_length`. The
    last micro-batch has one pair, by whose number accelerate cuts TRL's figures of the one before, too."""
    rows = pairs.messages(ROWS + 1)
    for row in rows:
        row["prompt"][0]["content"] = row["prompt"][0]["content"][:20]  # TRL keeps pairs without room for an answer
    tiny.jsonl(tmp_path / "rows.jsonl", rows)
    plain = pairs.in_memory(
        given, tmp_path / "plain", rows, Order(ROWS + 1, 2, 2, 42), eval_strategy="epoch", per_device_eval_batch_size=3,
        **CASES[case],
    )  # fmt: skip
    tiny.jsonl(tmp_path / "held_out.jsonl", rows[:3])
    more = ["--eval_dataset", str(tmp_path / "held_out.jsonl"), "--per_device_eval_batch_size", "3"]
    assert train(given, tmp_path / "ours", CASES[case], *more, data=str(tmp_path / "rows.jsonl")) == 0
    for one, other in zip(steps_of(tmp_path / "ours"), pairs.logged(plain), strict=True):
        assert close(one["loss"], other["loss"]) and close(one["grad_norm"], other["grad_norm"]), (one, other)
    expected = [row for row in plain.state.log_history if "eval_loss" in row]
    same_rows(steps_of(tmp_path / "ours", "eval_loss"), expected, "eval_")


@pytest.mark.parametrize("case", ["orpo", "simpo"])
def test_a_loop_of_ones_own_equals_the_command_line(given: Path, tmp_path: Path, case: str) -> None:
    """Micro-batches as TRL's collator for pairs makes them."""
    assert train(given, tmp_path / "line", CASES[case]) == 0
    keys = {
        "model": given / "model", "profile": given / "profile.json", "compute_dtype": "fp32", "max_steps": 6,
        "learning_rate": 1e-3, "max_length": 64, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        **CASES[case],
    }  # fmt: skip
    config = resolve({}, {"model": str(given / "model"), "dataset": str(given / "texts.jsonl"), "objective": "cpo"})
    data = load(config.replaced(max_length=64), load_tokenizer(config), "dataset", lambda _: None)
    order = Order(ROWS, 2, 2, 42)
    with spillway.Session({name: str(value) for name, value in keys.items()}) as session:
        with pytest.raises(InputError, match="reference: it is for objective dpo"):
            session.reference([])
        found = [session.step([collate(data.batch(part)) for part in order.step(step)]) for step in range(6)]
    for one, other in zip(found, steps_of(tmp_path / "line"), strict=True):
        assert all(one[name] == other[name] for name in ("loss", "grad_norm", "nll_loss", "logps/rejected"))


def collate(batch: Batch) -> dict[str, Any]:
    mask = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]).long()  # type: ignore[index]
    completions = (batch.labels != -100).long()
    return {"input_ids": batch.input_ids, "attention_mask": mask, "completion_mask": completions}


@pytest.mark.parametrize("case", some(["orpo", "simpo"], ["orpo"]))
def test_check_compares_with_a_plain_loop(given: Path, tmp_path: Path, case: str) -> None:
    asked = [f"--{name}={value}" for name, value in CASES[case].items()]
    more = ["--dataset", str(given / "texts.jsonl"), *asked, *KEYS[:2], "--max_steps", "2"]
    assert real_runs.here(given, tmp_path / "out", *more, verb="check") == 0


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2")


@pytest.mark.parametrize("case", some(["orpo", "simpo"], ["orpo"]))
def test_placement_and_a_kill_change_no_bit(given: Path, tmp_path: Path, case: str) -> None:
    assert train(given, tmp_path / "dram", CASES[case], *DURABLE) == 0
    asked = [f"--{name}={value}" for name, value in CASES[case].items()]
    more = ["--dataset", str(given / "texts.jsonl"), *KEYS, *asked, *DURABLE]
    more += real_runs.on_path(tmp_path / "storage")
    real_runs.kill_after("update", real_runs.words(given, tmp_path / "out", *more), calls=3)
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "dram")]
    assert weights[0] == weights[1]
    assert not list((tmp_path / "out" / "spillway").glob("reference-*"))  # there is no first pass


def test_a_resume_keeps_the_objective(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(given, tmp_path / "out", CASES["simpo"], "--max_steps", "2", "--save_steps", "1") == 0
    changed = {**CASES["simpo"], "simpo_gamma": 0.9, "resume_from_checkpoint": "true"}
    assert "simpo_gamma: the run was started with 0.7" in refused(capsys, train(given, tmp_path / "out", changed))


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


@pytest.mark.parametrize("objective", ["orpo", "cpo"])
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, "wrong.jsonl:1: the column 'rejected' is missing; found 'prompt', 'chosen'"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "1: prompt is text, chosen is text, rejected is null"),
        ({"prompt": "a", "chosen": "", "rejected": "c"}, "wrong.jsonl:1: the column 'chosen' is empty"),
        ({"prompt": "water " * 99, "chosen": "b", "rejected": "c"}, "every prompt in"),
    ],
)  # fmt: skip
def test_rows_that_are_no_pairs_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str, row: dict[str, Any], said: str
) -> None:
    tiny.jsonl(tmp_path / "wrong.jsonl", [row])
    code = real_runs.here(given, tmp_path / "out", "--dataset", str(tmp_path / "wrong.jsonl"), "--objective", objective)
    assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"objective": "orpo", "loss_type": "sigmoid"}, "it is for objective dpo, cpo, kto, distill and grpo, and"),
        ({"objective": "cpo", "loss_type": "robust"}, "loss_type: objective cpo has no robust; expects one of sigmoid"),
        ({"objective": "cpo", "simpo_gamma": 1}, "simpo_gamma: it is for loss_type simpo, and that is sigmoid"),
        ({"objective": "cpo", "loss_type": "hinge", "label_smoothing": 0.1}, "it is for loss_type sigmoid or simpo"),
        ({"objective": "dpo", "cpo_alpha": 1}, "cpo_alpha: it is for objective cpo, and the objective is dpo"),
    ],
)  # fmt: skip
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], keys: dict[str, Any], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", keys))
