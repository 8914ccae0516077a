"""`objective: grpo`: equal to TRL's GRPOTrainer in memory over the same records, wherever the state lies, killed and
resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import rollouts
import spillway
import tiny
from breadth import some
from needs import package
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.output.records import rows as rows_of

GROUPS = 10  # 5 steps an epoch
GRPO = (
    "--objective", "grpo", "--compute_dtype", "fp32", "--max_length", "64", "--adam_epsilon", "1e-4",
    "--per_device_train_batch_size", str(rollouts.MICRO_BATCH), "--max_steps", "20",
)  # fmt: skip
TOLD = (
    "reward", "reward_std", "frac_reward_zero_std", "kl", "entropy",
    *(f"clip_ratio/{name}" for name in ("low_mean", "low_min", "high_mean", "high_max", "region_mean")),
    *(f"completions/{kind}_{name}" for kind in ("mean", "min", "max") for name in ("length", "terminated_length")),
    "completions/clipped_ratio",
)  # fmt: skip
CLOSE = 1e-5
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "grpo": {"loss_type": "grpo", "beta": 0.04, "temperature": 1.3},
    "bnpo": {"loss_type": "bnpo", "epsilon_high": 0.1, "mask_truncated_completions": True},
    "dr_grpo": {
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "max_completion_length": 40,
        "beta": 0.1,
        "use_bias_correction_kl": False,
    },
    "dapo": {
        "temperature": 0.7,
        "beta": 0.04,
        "epsilon": 0.1,
        "epsilon_high": 0.28,
        "scale_rewards": "batch",
        "num_iterations": 2,
    },
    "sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01},
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    place = real_runs.inputs(tmp_path_factory.mktemp("grpo"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    model = AutoModelForCausalLM.from_pretrained(place / "model", dtype="float32")
    tiny.jsonl(place / "rollouts.jsonl", rollouts.ids(GROUPS, model))
    return place


def records(given: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (given / "rollouts.jsonl").read_text().splitlines()]


def train(given: Path, out: Path, *more: str) -> int:
    return real_runs.here(given, out, "--dataset", str(given / "rollouts.jsonl"), *GRPO, *more)


def close(one: float, other: float, figures: int = 1) -> bool:
    return abs(one - other) <= CLOSE * figures * max(1.0, abs(other))


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if "loss" in row]


def same_steps(found: list[dict[str, Any]], expected: list[dict[str, Any]], steps: int) -> None:
    """The figures that TRL has. It logs those of completions in steps that take new ones alone."""
    assert len(found) == len(expected) == steps
    for one, other in zip(found, expected, strict=True):
        assert set(TOLD) & other.keys() <= one.keys()
        assert ("kl" in one) == ("kl" in other)
        for name in ["loss", "grad_norm", *sorted(set(TOLD) & other.keys())]:
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])


def same_weights(ours: Path, plain: Path) -> None:
    found, expected = load_file(ours), load_file(plain)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=CLOSE, atol=CLOSE), name


@pytest.mark.parametrize("case", some(list(CASES), ["grpo", "dapo"]))
def test_twenty_updates_equal_trl_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, case: str) -> None:
    keys = CASES[case]
    plain = rollouts.in_memory(given, tmp_path / "plain", records(given), **keys)
    more = [f"--{name}={value}" for name, value in keys.items()]
    assert train(given, tmp_path / "ours", *more, *real_runs.on_path(tmp_path / "storage")) == 0
    expected = pairs.logged(plain)
    same_steps(steps_of(tmp_path / "ours"), expected, steps=20)
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")
    assert any(row["clip_ratio/region_mean"] > 0 for row in expected)
    assert any(row.get("kl", 0.0) > 1e-4 for row in expected) == bool(keys.get("beta"))


def test_adapters_equal_trl_with_their_base_as_reference(given: Path, tmp_path: Path) -> None:
    """No second set of weights: each step leaves adapters out for the reference."""
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **asked))
    plain = rollouts.in_memory(given, tmp_path / "plain", records(given), model=adapted, beta=0.1, loss_type="grpo")
    more = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_dropout", "0", "--loss_type", "grpo"]
    more += ["--beta", "0.1", "--lora_target_modules", "q_proj", "--lora_target_modules", "up_proj"]
    assert train(given, tmp_path / "ours", *more, *real_runs.storage_in(tmp_path / "storage")) == 0
    same_steps(steps_of(tmp_path / "ours"), pairs.logged(plain), steps=20)
    same_weights(*(tmp_path / way / "adapter_model.safetensors" for way in ("ours", "plain")))


DURABLE = (
    "--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "4", "--max_steps", "8",
    "--num_iterations", "2", "--beta", "0.04",
)  # fmt: skip


@pytest.mark.parametrize("method", some(["log_probabilities", "update", "save_model"], ["update"]))
def test_placement_and_a_kill_change_no_bit(given: Path, tmp_path: Path, method: str) -> None:
    assert train(given, tmp_path / "dram", *DURABLE) == 0
    more = ["--dataset", str(given / "rollouts.jsonl"), *GRPO, *DURABLE, *real_runs.on_path(tmp_path / "storage")]
    real_runs.kill_after(method, real_runs.words(given, tmp_path / "out", *more))
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    for name in ("model.safetensors", "spillway/reference-train.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "dram" / name).read_bytes()


def texts(given: Path) -> list[dict[str, Any]]:
    """Groups of texts, with log-probabilities of the tokens that they are encoded as."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    encode, end = tiny.tokenizer(), tiny.tokenizer().eos_token_id
    rows = []
    for number in range(2):
        prompt, completions = f"{number}:", [f" {word} 1, 2" for word in ("one", "two", "a boat", "no")]
        tokens = [encode(prompt + each)["input_ids"] + [end] for each in completions]
        start = len(encode(prompt)["input_ids"])
        old = [rollouts.log_probabilities(model, each[:start], each[start:]) for each in tokens]
        rows.append({"prompt": prompt, "completions": completions, "rewards": [0, 1, 0.5, 2], "old_logprobs": old})
    return rows


def test_texts_and_messages_train_as_their_tokens(given: Path, tmp_path: Path) -> None:
    rows = texts(given)
    encode, end = tiny.tokenizer(), tiny.tokenizer().eos_token_id
    tokens = []
    for row in rows:
        ids = [encode(row["prompt"] + each)["input_ids"] + [end] for each in row["completions"]]
        start = len(encode(row["prompt"])["input_ids"])
        kept = {name: row[name] for name in ("rewards", "old_logprobs")}
        tokens.append({"prompt_ids": ids[0][:start], "completion_ids": [each[start:] for each in ids], **kept})
    for name, given_rows in (("texts", rows), ("tokens", tokens)):
        tiny.jsonl(tmp_path / f"{name}.jsonl", given_rows)
        words = ["--dataset", str(tmp_path / f"{name}.jsonl"), *GRPO[:-1], "2"]
        assert real_runs.here(given, tmp_path / name, *words) == 0
    assert real_runs.metrics(tmp_path / "texts") == real_runs.metrics(tmp_path / "tokens")
    assert all(row["completions/clipped_ratio"] == 0 for row in steps_of(tmp_path / "texts"))


def test_check_compares_with_a_plain_loop(given: Path, tmp_path: Path) -> None:
    more = ["--dataset", str(given / "rollouts.jsonl"), *GRPO[:-1], "2", "--beta", "0.1", "--temperature", "1.25"]
    assert real_runs.here(given, tmp_path / "out", *more, verb="check") == 0


def test_groups_that_fill_no_step_are_left_out(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.jsonl(tmp_path / "nine.jsonl", records(given)[:3])
    words = ["--dataset", str(tmp_path / "nine.jsonl"), *GRPO[:-2], "--num_train_epochs", "1"]
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    shown = capsys.readouterr()
    said = " ".join((shown.out + shown.err).split())
    assert "4 completions of nine.jsonl, which fill no whole step, are left out" in said
    assert len(steps_of(tmp_path / "out")) == 1


def test_each_step_s_completions_are_taken_as_often_as_num_iterations_says() -> None:
    order = Order(2 * 8, 2, 2, 0, is_sequential=True, iterations=2)
    steps = [[row for part in order.step(step) for row in part.tolist()] for step in range(order.steps_per_epoch)]
    assert steps == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


ROW = {"prompt": "a", "completions": ["b", "c"], "rewards": [0, 1], "old_logprobs": [[-1, -1], [-1, -1]]}
TOKENS = {"prompt_ids": [1], "completion_ids": [[2], [3]], "rewards": [0, 1], "old_logprobs": [[-1], [-1]]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"rewards": ...}, "wrong.jsonl:1: the column 'rewards' is missing; found 'prompt'"),
        ({"rewards": [1.0]}, "wrong.jsonl:1: rewards has 1 items, completions has 2; expects one for each completion"),
        ({"rewards": [1.0, None]}, "wrong.jsonl:1: rewards holds null; expects finite numbers"),
        ({"old_logprobs": ...}, "wrong.jsonl:1: the column 'old_logprobs' is missing"),
        ({"old_logprobs": [[-1]]}, "wrong.jsonl:1: old_logprobs has 1 items, completions has 2"),
        ({"old_logprobs": [[-1], [-1]]}, "old_logprobs of completion 1 holds 1 numbers, the completion has 2 tokens"),
        ({"old_logprobs": [-1, -1]}, "old_logprobs of completion 1 is int; expects a list"),
        ({"completions": "b"}, "the column 'completions' is str; expects a list"),
        ({"prompt": ...}, "wrong.jsonl:1: the column 'prompt' is missing"),
        ({"prompt": ""}, "wrong.jsonl:1: the prompt has no token, so nothing predicts the first one"),
        ({"prompt": []}, "wrong.jsonl:1: prompt and completions are of different kinds"),
        (
            {"completions": ["b"], "rewards": [1], "old_logprobs": [[-1, -1]]},
            "wrong.jsonl:1: completions holds one completion, and an advantage compares those of a group",
        ),
        ({"prompt_ids": [1]}, "wrong.jsonl:1: the column 'completion_ids' is missing"),
        ({**TOKENS, "completion_ids": [[2], "c"]}, "completion_ids holds something else than lists of tokens"),
        ({**TOKENS, "prompt_ids": [400]}, "gives dataset the token 400, but the model knows 320 tokens only"),
        ({**TOKENS, "prompt_ids": [1] * 64}, "have 65 tokens, and max_length is 64; raise it"),
        ({**TOKENS, "old_logprobs": [[-1], [-1, -2]]}, "completion 2 holds 2 numbers, the completion has 1 tokens"),
    ],
)
def test_rows_that_are_no_groups_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, Any], said: str
) -> None:
    wrong = {name: value for name, value in {**ROW, **row}.items() if value is not ...}
    tiny.jsonl(tmp_path / "wrong.jsonl", [wrong] * 4)
    code = real_runs.here(given, tmp_path / "out", "--dataset", str(tmp_path / "wrong.jsonl"), *GRPO)
    assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--loss_type", "sigmoid"], "loss_type: objective grpo has no sigmoid; expects one of dapo, grpo, bnpo"),
        (["--objective", "dpo", "--epsilon", "0.1"], "epsilon: it is for objective grpo, and the objective is dpo"),
        (["--objective", "dpo", "--beta", "0"], "beta: 0 leaves nothing of the loss of objective dpo"),
        (["--packing"], "objective grpo joins no rows"),
        (["--gradient_accumulation_steps", "3", "--per_device_train_batch_size", "2"], "a group lies in one step"),
        (["--gradient_accumulation_steps", "32"], "holds 40 completions, and a step takes 128"),
        (["--scale_rewards", "both"], "scale_rewards: got 'both', expects one of group, batch, none, true, false"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", *more))


def test_an_evaluation_is_refused(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = train(given, tmp_path / "out", "--eval_dataset", str(given / "rollouts.jsonl"))
    assert "eval_dataset: objective grpo has no loss of completions that another policy" in refused(capsys, code)


def test_a_loop_of_ones_own_is_refused(given: Path) -> None:
    with pytest.raises(InputError, match="objective: grpo is for `spillway train` alone"):
        spillway.Session({"model": str(given / "model"), "objective": "grpo"})


def test_a_step_whose_completions_are_all_masked_has_no_loss(given: Path, tmp_path: Path) -> None:
    tiny.jsonl(tmp_path / "cut.jsonl", [{**TOKENS, "completion_ids": [[7], [8]]}] * 4)
    words = ["--dataset", str(tmp_path / "cut.jsonl"), *GRPO[:-1], "1", "--mask_truncated_completions", "--beta", "0.1"]
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    (row,) = steps_of(tmp_path / "out")
    assert row["loss"] == row["grad_norm"] == row["kl"] == 0
    assert row["completions/clipped_ratio"] == 1
