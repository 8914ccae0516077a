"""`objective: reward`: equal to TRL's RewardTrainer in memory, wherever the state lies, killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import spillway
import tiny
from breadth import some
from folders import REPOSITORY
from hf_models import tiny_config, tiny_model
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.output.records import rows as rows_of

ROWS = 10  # 3 steps an epoch; the last has one micro-batch
REWARD = ("--objective", "reward", "--compute_dtype", "fp32", "--num_train_epochs", "2", "--max_length", "256")
TOLD = ("min_reward", "mean_reward", "max_reward", "accuracy", "margin")
CLOSE = 1e-5


def texts(count: int) -> list[dict[str, Any]]:
    """Without a prompt of their own."""
    return pairs.implicit(pairs.texts(count))


def with_margins(count: int) -> list[dict[str, Any]]:
    return [{**row, "margin": number / 4} for number, row in enumerate(pairs.texts(count))]


DATA = {"texts": texts(ROWS), "margins": with_margins(ROWS), "messages": pairs.messages(ROWS)}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": ("texts", {}),
    "margins": ("margins", {}),
    "centered": ("texts", {"center_rewards_coefficient": 0.3}),
    "messages": ("messages", {"center_rewards_coefficient": 0.01}),
}


def save_classifier(place: Path, base: Path) -> None:
    """A model of one label whose head is a drawn one, as transformers saves it."""
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(7)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype="float32")
    torch.nn.init.normal_(model.score.weight, std=0.2)
    model.save_pretrained(place)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("reward"))
    (place / "model").rename(place / "base")
    save_classifier(place / "model", place / "base")
    for name in ("model", "base"):
        tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / name))
    for name, rows in DATA.items():
        tiny.jsonl(place / f"{name}.jsonl", rows)
    return place


def train(given: Path, out: Path, data: str, *more: str) -> int:
    return real_runs.here(given, out, "--dataset", str(given / f"{data}.jsonl"), *REWARD, *more)


def in_memory(given: Path, out: Path, rows: list[dict[str, Any]], **more: Any) -> Any:
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(given / "model", num_labels=1, dtype="float32")
    return pairs.in_memory(given, out, rows, Order(ROWS, 2, 2, 42), model, "reward", max_length=256, **more)


def close(one: float, other: float) -> bool:
    return abs(one - other) <= CLOSE * max(1.0, abs(other))


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]], prefix: str = "") -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        for name in [f"{prefix}{name}" for name in ("loss", *TOLD)] + ["grad_norm"] * (not prefix):
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])


def same_weights(one: Path, other: Path) -> None:
    ours, plain = (load_file(place / "model.safetensors") for place in (one, other))
    assert ours.keys() == plain.keys()
    assert "score.weight" in ours
    for name in plain:
        torch.testing.assert_close(ours[name], plain[name], rtol=CLOSE, atol=CLOSE)


def steps_of(out: Path, name: str = "loss") -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if name in row]


@pytest.mark.parametrize("case", some(list(CASES), ["margins", "messages"]))
def test_equal_to_trl_in_memory_with_state_on_a_path(given: Path, tmp_path: Path, case: str) -> None:
    """Losses, gradient norms, figures and weights of 21 steps, with accumulation and remainders."""
    data, keys = CASES[case]
    keys = {**keys, **pairs.LONG}
    plain = in_memory(given, tmp_path / "plain", DATA[data], **keys)
    assert len(pairs.logged(plain)) == 21
    more = pairs.options(keys)
    assert train(given, tmp_path / "ours", data, *more, *real_runs.on_path(tmp_path / "storage")) == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    same_weights(tmp_path / "ours", tmp_path / "plain")


def test_evaluations_equal_trl(given: Path, tmp_path: Path) -> None:
    plain = in_memory(given, tmp_path / "plain", DATA["texts"], eval_strategy="epoch", per_device_eval_batch_size=3)
    tiny.jsonl(tmp_path / "held_out.jsonl", DATA["texts"][:3])
    more = ["--eval_dataset", str(tmp_path / "held_out.jsonl"), "--per_device_eval_batch_size", "3"]
    assert train(given, tmp_path / "ours", "texts", *more) == 0
    expected = [row for row in plain.state.log_history if "eval_loss" in row]
    same_rows(steps_of(tmp_path / "ours", "eval_loss"), expected, "eval_")


def test_a_saved_model_gives_the_rewards_that_were_logged(given: Path, tmp_path: Path) -> None:
    """It loads as transformers' own class, with the padding token by which that finds the last token of a row."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tiny.jsonl(tmp_path / "held_out.jsonl", DATA["texts"][:4])
    more = ["--eval_dataset", str(tmp_path / "held_out.jsonl"), "--per_device_eval_batch_size", "4"]
    assert train(given, tmp_path / "ours", "texts", *more) == 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours", dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(model).__name__ == "LlamaForSequenceClassification"
    assert model.num_labels == 1
    rows = [row[side] + tokenizer.eos_token for side in ("chosen", "rejected") for row in DATA["texts"][:4]]
    tokenizer.pad_token_id, tokenizer.padding_side = model.config.pad_token_id, "right"
    with torch.no_grad():
        rewards = model(**tokenizer(rows, padding=True, return_tensors="pt")).logits
    told = steps_of(tmp_path / "ours", "eval_loss")[-1]
    assert close(told["eval_mean_reward"], float(rewards.mean()))
    assert close(told["eval_max_reward"], float(rewards.max()))
    names = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert names["architectures"] == ["LlamaForSequenceClassification"]


def test_a_new_head_is_drawn_by_the_seed(given: Path, tmp_path: Path) -> None:
    """As the library draws it; a head that predicts tokens is left out of what is saved."""

    def head(out: str, seed: int) -> Any:
        words = ["--model", str(given / "base"), "--learning_rate", "0", "--max_steps", "1", "--seed", str(seed)]
        assert train(given, tmp_path / out, "texts", *words) == 0
        return load_file(tmp_path / out / "model.safetensors")

    first, again, other = head("first", 1), head("again", 1), head("other", 2)
    assert torch.equal(first["score.weight"], again["score.weight"])
    assert not torch.equal(first["score.weight"], other["score.weight"])
    spread = json.loads((given / "base" / "config.json").read_text())["initializer_range"]
    assert 0.5 * spread < float(first["score.weight"].std()) < 2 * spread
    assert "lm_head.weight" not in first
    assert torch.equal(first["model.norm.weight"], other["model.norm.weight"])


FAMILIES = ["qwen2", "gpt2", "gemma", "mixtral"]  # tied tables, learned positions, scaled rows, experts


@pytest.mark.parametrize("kind", some(FAMILIES, ["qwen2", "gpt2"]))
def test_other_families_begin_as_the_library_does(tmp_path: Path, kind: str) -> None:
    """From a model that predicts tokens: the first loss is that of the library's class with the head that was drawn."""
    from transformers import AutoModelForSequenceClassification

    given = real_runs.inputs(tmp_path)
    tiny_model(tiny_config(kind, vocab_size=320, max_position_embeddings=256)).save_pretrained(given / "model")
    tiny.jsonl(given / "texts.jsonl", texts(4))
    words = ["--max_steps", "1", "--per_device_train_batch_size", "4", "--learning_rate", "0"]
    assert train(given, tmp_path / "out", "texts", *words) == 0
    model, told = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", dtype="float32", output_loading_info=True
    )
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    same_first_step(tmp_path / "out", model.eval())


def same_first_step(out: Path, model: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(out)
    tokenizer.pad_token_id, tokenizer.padding_side = model.config.get_text_config().pad_token_id, "right"
    rows = [row[side] + tokenizer.eos_token for side in ("chosen", "rejected") for row in texts(4)]
    with torch.no_grad():
        rewards = model(**tokenizer(rows, padding=True, return_tensors="pt")).logits[:, 0]
    chosen, rejected = rewards.chunk(2)
    (step,) = steps_of(out)
    assert close(step["loss"], float(-torch.nn.functional.logsigmoid(chosen - rejected).mean()))
    assert close(step["max_reward"], float(rewards.max()))


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2")


@pytest.mark.parametrize("model", ["model", "base"])
def test_placement_and_a_kill_change_no_bit(given: Path, tmp_path: Path, model: str) -> None:
    """With a head that was there, and with a new one."""
    more = [*DURABLE, "--model", str(given / model)]
    assert train(given, tmp_path / "dram", "texts", *more) == 0
    words = ["--dataset", str(given / "texts.jsonl"), *REWARD, *more, *real_runs.on_path(tmp_path / "storage")]
    real_runs.kill_after("update", real_runs.words(given, tmp_path / "out", *words), calls=3)
    assert real_runs.main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]) == 0
    require_whole(tmp_path / "exported")
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "dram")]
    assert weights[0] == weights[1]


def require_whole(place: Path) -> None:
    assert require_loaded(place).num_labels == 1


def require_loaded(place: Path, task: str = "text-classification") -> Any:
    """All that the library's class needs is there, and nothing else."""
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    words = task == "token-classification"
    kind = AutoModelForTokenClassification if words else AutoModelForSequenceClassification
    model, told = kind.from_pretrained(place, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert model.config.pad_token_id is not None
    return model


def test_check_compares_with_a_plain_loop(given: Path, tmp_path: Path) -> None:
    more = ["--dataset", str(given / "margins.jsonl"), *REWARD[:4], "--max_steps", "2"]
    assert real_runs.here(given, tmp_path / "out", *more, verb="check") == 0


def test_check_refuses_a_head_that_is_not_there(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--dataset", str(given / "texts.jsonl"), *REWARD, "--model", str(given / "base")]
    assert "score.weight" in refused(capsys, real_runs.here(given, tmp_path / "out", *more, verb="check"))


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"prompt": "a", "chosen": "b"}], "wrong.jsonl:1: the column 'rejected' is missing"),
        ([{"prompt": "a", "completion": "b", "label": True}], "wrong.jsonl:1: the column 'chosen' is missing"),
        ([{"chosen": "b", "rejected": None}], "wrong.jsonl:1: chosen is text, rejected is null"),
        ([{"chosen": "b", "rejected": "c", "margin": "d"}], "wrong.jsonl:1: margin is text; expects a number"),
        (
            [{"chosen": "b", "rejected": "c", "margin": 1}, {"chosen": "b", "rejected": "c"}],
            "wrong.jsonl:2: margin is there in some rows and not in others",
        ),
        ([{"chosen": "water " * 299, "rejected": "c"}], "has a row longer than max_length"),
    ],
)
def test_rows_that_are_no_pairs_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, Any]], said: str
) -> None:
    tiny.jsonl(tmp_path / "wrong.jsonl", rows)
    code = real_runs.here(given, tmp_path / "out", "--dataset", str(tmp_path / "wrong.jsonl"), *REWARD)
    assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--beta", "0.1"], "beta: it is for objective dpo, orpo, cpo, kto and grpo, and the objective is reward"),
        (["--objective", "dpo", "--center_rewards_coefficient", "0.1"], "it is for objective reward, and"),
        (["--packing"], "objective reward joins no rows"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", "texts", *more))


def test_a_model_without_such_a_class_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import CohereConfig

    given = real_runs.inputs(tmp_path)
    size = {"vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    tiny_model(CohereConfig(**size, num_attention_heads=4)).save_pretrained(given / "model")
    tiny.jsonl(given / "texts.jsonl", texts(4))
    said = "transformers has no model with a head of labels for 'cohere' that streams"
    assert said in refused(capsys, train(given, tmp_path / "out", "texts"))


def test_a_loop_of_ones_own_is_refused(given: Path) -> None:
    with pytest.raises(InputError, match="objective: reward is for `spillway train` alone"):
        spillway.Session({"model": str(given / "model"), "objective": "reward"})


def test_resume_from_a_checkpoint_is_bit_identical(given: Path, tmp_path: Path) -> None:
    words = ["--save_steps", "2", "--virtual_ranks", "2"]
    assert train(given, tmp_path / "whole", "margins", *words) == 0
    begun = ["--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-2")]
    assert train(given, tmp_path / "resumed", "margins", *words, *begun) == 0
    rows = [[row["loss"] for row in steps_of(tmp_path / name)][-4:] for name in ("whole", "resumed")]
    assert rows[0] == rows[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]


def test_virtual_ranks_change_rounding_alone(given: Path, tmp_path: Path) -> None:
    assert train(given, tmp_path / "one", "margins") == 0
    assert train(given, tmp_path / "two", "margins", "--virtual_ranks", "2") == 0
    same_rows(steps_of(tmp_path / "two"), steps_of(tmp_path / "one"))


def test_a_described_machine_has_a_plan(given: Path, tmp_path: Path) -> None:
    machine = next((REPOSITORY / "profiles").glob("*.json"))
    words = ["plan", "--model", str(given / "base"), "--dataset", str(given / "texts.jsonl"), *REWARD]
    assert real_runs.main([*words, "--profile", str(machine), "--output_dir", str(tmp_path / "out")]) == 0
