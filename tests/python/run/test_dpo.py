"""`objective: dpo`: equal to TRL's DPOTrainer in memory, wherever the state lies, killed and resumed."""

from __future__ import annotations

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
from needs import package
from spillway.data.columns import without_prompt
from spillway.data.order import Order
from spillway.errors import InputError
from spillway.output.records import rows as rows_of
from spillway.run.reference import Pass, Reference

ROWS = 11  # 3 steps an epoch; the last micro-batch has one pair
DPO = ("--objective", "dpo", "--compute_dtype", "fp32", "--num_train_epochs", "2")
CLOSE = 1e-5


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("dpo"))
    tokenizer = tiny.tokenizer(chat_template=tiny.PLAIN)
    tokenizer.save_pretrained(str(place / "model"))
    tiny.jsonl(place / "texts.jsonl", pairs.texts(ROWS))
    tiny.jsonl(place / "messages.jsonl", pairs.messages(ROWS))
    tiny.jsonl(place / "implicit.jsonl", pairs.implicit(pairs.texts(ROWS)))
    return place


def order() -> Order:
    return Order(ROWS, 2, 2, 42)


def train(given: Path, out: Path, *more: str, data: str = "texts.jsonl") -> int:
    return real_runs.here(given, out, "--dataset", str(given / data), *DPO, *more)


def close(found: float, expected: float, scale: float = 1.0) -> bool:
    return abs(found - expected) <= CLOSE * max(scale, abs(expected))


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "grad_norm", *(name for name in pairs.TOLD if name in other)):
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])


def same_weights(ours: Path, plain: Path) -> None:
    one, other = load_file(ours), load_file(plain)
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert float((one[name] - tensor).abs().max()) <= CLOSE * float(tensor.abs().max()), name


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if "loss" in row]


def test_equal_to_trl_in_memory_with_state_on_a_path(given: Path, tmp_path: Path) -> None:
    """21 steps of pairs of texts, with accumulation and remainders."""
    plain = pairs.in_memory(given, tmp_path / "plain", pairs.texts(ROWS), order(), **pairs.LONG)
    more = [*pairs.options(pairs.LONG), *real_runs.on_path(tmp_path / "storage")]
    assert train(given, tmp_path / "ours", *more) == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    assert len(pairs.logged(plain)) == 21
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")


def test_messages_equal_to_trl_with_adapters(given: Path, tmp_path: Path) -> None:
    """The reference is the base; dropout of the adapters is off, as TRL turns it off. Evaluations as TRL's."""
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "target_modules": ["q_proj", "up_proj"]}
    rows = pairs.messages(ROWS)
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    plain = pairs.in_memory(
        given, tmp_path / "plain", rows, order(), model=peft.get_peft_model(model, peft.LoraConfig(**asked)),
        eval_strategy="epoch", per_device_eval_batch_size=2, adam_epsilon=1e-4,
    )  # fmt: skip
    tiny.jsonl(tmp_path / "held_out.jsonl", rows[:3])
    more = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "8", "--lora_dropout", "0.1"]
    more += ["--lora_target_modules", "q_proj", "--lora_target_modules", "up_proj", "--adam_epsilon", "1e-4"]
    more += ["--eval_dataset", str(tmp_path / "held_out.jsonl"), "--per_device_eval_batch_size", "2"]
    assert train(given, tmp_path / "ours", *more, data="messages.jsonl") == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    same_weights(tmp_path / "ours" / "adapter_model.safetensors", tmp_path / "plain" / "adapter_model.safetensors")
    evaluated = [row for row in rows_of(tmp_path / "ours" / "metrics.jsonl") if "eval_loss" in row]
    expected = [row for row in plain.state.log_history if "eval_loss" in row]
    assert len(evaluated) == len(expected) == 2
    for one, other in zip(evaluated, expected, strict=True):
        for name in ("eval_loss", *(f"eval_{name}" for name in pairs.TOLD)):
            assert close(one[name], other[name]), (name, one[name], other[name])


def test_adapters_drop_only_where_that_is_asked_for(given: Path, tmp_path: Path) -> None:
    package("peft", "LoRA is PEFT's")
    losses = {}
    for name, more in (
        ("none", ["--lora_dropout", "0"]),
        ("off", ["--lora_dropout", "0.5"]),
        ("on", ["--lora_dropout", "0.5", "--disable_dropout", "false"]),
    ):
        assert train(given, tmp_path / name, "--method", "lora", "--learning_rate", "1e-2", *more) == 0
        losses[name] = [row["loss"] for row in steps_of(tmp_path / name)]
    assert losses["off"] == losses["none"]
    assert losses["on"] != losses["none"]


@pytest.mark.nightly
@pytest.mark.parametrize("loss_type", ["hinge", "ipo", "robust", "sigmoid_norm", "apo_zero", "apo_down"])
def test_other_losses_equal_to_trl(given: Path, tmp_path: Path, loss_type: str) -> None:
    smoothed = {"label_smoothing": 0.1} if loss_type == "robust" else {}
    plain = pairs.in_memory(
        given, tmp_path / "plain", pairs.texts(ROWS), order(), loss_type=[loss_type], beta=0.3, **smoothed
    )
    more = ["--loss_type", loss_type, "--beta", "0.3"] + [f"--{key}={value}" for key, value in smoothed.items()]
    assert train(given, tmp_path / "ours", *more) == 0
    same_rows(steps_of(tmp_path / "ours"), pairs.logged(plain))
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")


@pytest.fixture(scope="module")
def whole(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with its state on a path, in bf16."""
    place = tmp_path_factory.mktemp("whole")
    assert train(given, place / "out", *DURABLE, *real_runs.on_path(place / "storage")) == 0
    return place


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2")


def killed(given: Path, place: Path, method: str) -> None:
    """A run that ends by an alarm right after the session's first call of `method`."""
    more = real_runs.words(given, place / "out", "--dataset", str(given / "texts.jsonl"), *DPO, *DURABLE)
    real_runs.kill_after(method, [*more, *real_runs.on_path(place / "storage")])


@pytest.mark.parametrize("method", some(["log_probabilities", "update", "save_model"], ["update"]))
def test_killed_and_resumed_bit_by_bit(given: Path, whole: Path, tmp_path: Path, method: str) -> None:
    killed(given, tmp_path, method)
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(whole / "out")
    for name in ("model.safetensors", "spillway/reference-train.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (whole / "out" / name).read_bytes()


def test_a_first_pass_goes_on_with_the_rows_that_are_there(given: Path, whole: Path, tmp_path: Path) -> None:
    data = encoded(given, "texts.jsonl")
    assert Reference.load(whole / "out", "train", data).whole

    class Computes:
        calls = 0

        def log_probabilities(self, batches: list[Any]) -> list[list[float]]:
            Computes.calls += 1
            if Computes.calls == 3:
                raise InterruptedError
            return [[float(row) for row in range(len(batch.input_ids))] for batch in batches]

    found = Reference.load(tmp_path, "train", data)
    with pytest.raises(InterruptedError):
        found.compute(Computes(), data, Pass(2, 2), lambda _: None)
    again = Reference.load(tmp_path, "train", data)
    assert len(again.values) == 16 and not again.whole
    with open(again.path, "a") as stream:
        stream.write('{"first": 16, "log_prob')  # a line that a kill cut short
    again = Reference.load(tmp_path, "train", data)
    assert len(again.values) == 16
    again.compute(Computes(), data, Pass(2, 2), lambda _: None)
    assert Computes.calls == 4 and Reference.load(tmp_path, "train", data).whole


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    assert code == 2
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


def test_a_resume_wants_the_reference_that_the_run_had(
    given: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a checkpoint that stands alone, which has it; not where it is gone or another one."""
    alone = tmp_path / "alone"
    checkpoint = whole / "out" / "checkpoint-2"
    assert real_runs.main(["export", str(whole / "out"), "--to", str(alone), "--checkpoint", str(checkpoint)]) == 0
    more = ["--resume_from_checkpoint", str(alone), *DURABLE[:4]]
    assert "beta: the run was started with 0.1" in refused(capsys, train(given, tmp_path / "b", *more, "--beta", "1"))
    assert train(given, tmp_path / "out", *more) == 0
    found, expected = (steps_of(out) for out in (tmp_path / "out", whole / "out"))
    assert [row["loss"] for row in found] == [row["loss"] for row in expected[2:]]
    (alone / "spillway" / "files.json").unlink()
    reference = alone / "spillway" / "reference-train.jsonl"
    text = reference.read_text()
    for spoiled in (text.replace(", -", ", -1", 1), text.rpartition('{"sha256"')[0], ""):
        reference.write_text(spoiled)
        words = refused(capsys, train(given, tmp_path / "c", *more))
        assert "reference-train.jsonl does not hold the log-probabilities" in words and "put the file back" in words
        assert not (tmp_path / "c").exists()


WRONG = {
    "no column": [{"prompt": "a", "chosen": "b"}],
    "a number": [{"prompt": "a", "chosen": "b", "rejected": 3}],
    "mixed": [{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"}],
    "too long": [{"prompt": "water " * 99, "chosen": "b", "rejected": "c"}],
}
SAID = {
    "no column": "wrong.jsonl:1: the column 'rejected' is missing; found 'prompt', 'chosen'",
    "a number": "wrong.jsonl:1: prompt is text, chosen is text, rejected is int; prompt, chosen and rejected are texts",
    "mixed": "wrong.jsonl:1: prompt is text, chosen is list, rejected is text",
    "too long": "every prompt in",
}


@pytest.mark.parametrize("name", list(WRONG))
def test_rows_that_are_no_pairs_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    tiny.jsonl(tmp_path / "wrong.jsonl", WRONG[name])
    code = real_runs.here(given, tmp_path / "out", "--dataset", str(tmp_path / "wrong.jsonl"), *DPO)
    assert SAID[name] in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--objective", "ppo"], "objective: got 'ppo', expects one of sft, dpo,"),
        (
            ["--objective", "sft", "--beta", "0.2"],
            "beta: it is for objective dpo, orpo, cpo, kto and grpo, and",
        ),
        (["--packing"], "packing: a pair's rows stand for themselves"),
        (["--prompt_field", "a"], "prompt_field: objective dpo reads the columns prompt, chosen and rejected"),
        (["--loss_type", "exo_pair"], "loss_type: got 'exo_pair', expects one of sigmoid, hinge"),
        (["--label_smoothing", "0.1"], "label_smoothing: it is for loss_type robust, and that is sigmoid"),
        (["--precompute_ref_log_probs", "false"], "without new adapters no step has the reference"),
        (["--precompute_ref_batch_size", "4"], "a first pass takes as many rows as a step"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def encoded(given: Path, file: str) -> Any:
    from spillway.config import resolve
    from spillway.data.loading import load, load_tokenizer

    config = resolve({}, {"model": str(given / "model"), "dataset": str(given / file), "objective": "dpo"})
    return load(config.replaced(max_length=64), load_tokenizer(config), "dataset", lambda _: None)


def test_a_prompt_that_both_begin_with_is_found_as_trl_finds_it(given: Path) -> None:
    trl = package("trl", "TRL is not installed")
    talks = [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in pairs.messages(3)]
    for row in [*pairs.implicit(pairs.texts(ROWS)), *talks, {"chosen": "It is so.", "rejected": "It is"}]:
        assert without_prompt(**row) == trl.extract_prompt(row)
    assert len(encoded(given, "implicit.jsonl")) == ROWS


def session_keys(given: Path, **more: Any) -> dict[str, Any]:
    values = {
        "model": given / "model", "profile": given / "profile.json", "objective": "dpo", "compute_dtype": "fp32",
        "learning_rate": 1e-3, "max_length": 64, "max_steps": 6, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
    }  # fmt: skip
    return {key: str(value) for key, value in {**values, **more}.items()}


def collated(plain: Any) -> list[list[dict[str, Any]]]:
    """The micro-batches of two epochs as TRL's collator makes them."""
    rows, steps = plain.train_dataset, [order().step(step) for step in range(6)]
    return [[plain.data_collator([rows[int(place)] for place in part]) for part in step] for step in steps]


@pytest.fixture(scope="module")
def in_memory(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return pairs.in_memory(given, tmp_path_factory.mktemp("plain"), pairs.texts(ROWS), order())


def test_a_loop_of_ones_own_equals_trl(given: Path, in_memory: Any, tmp_path: Path) -> None:
    steps = collated(in_memory)
    with spillway.Session(session_keys(given, output_dir=tmp_path / "out", logging_steps=2)) as session:
        steps = [session.reference(step) for step in steps]
        found = [session.step(step) for step in steps]
        evaluated = session.evaluate(steps[0])
        session.save(tmp_path / "saved")
    same_rows(found, pairs.logged(in_memory))
    same_weights(tmp_path / "saved" / "model.safetensors", Path(in_memory.args.output_dir) / "model.safetensors")
    assert evaluated["pairs"] == 4 and evaluated["eval_loss"] < 0.69 and evaluated["eval_rewards/margins"] > 0
    logged = [row for row in rows_of(tmp_path / "out" / "metrics.jsonl") if "loss" in row]
    assert [row["step"] for row in logged] == [2, 4, 6]  # each with the means since the one before
    for row, one, other in zip(logged, found[::2], found[1::2], strict=True):
        assert close(row["loss"], (one["loss"] + other["loss"]) / 2)
    assert close(logged[0]["logps/chosen"], (found[0]["logps/chosen"] + found[1]["logps/chosen"]) / 2)


def test_a_loop_goes_on_with_the_reference_it_had(given: Path, in_memory: Any, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    places = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": "path", "output_dir": tmp_path / "out"}
    steps = collated(in_memory)
    with spillway.Session(session_keys(given)) as session:
        steps = [session.reference(step) for step in steps]
        whole = [session.step(step)["loss"] for step in steps]
    with spillway.Session(session_keys(given, **places)) as session:
        first = [session.step(step)["loss"] for step in steps[:4]]
        with pytest.raises(InputError, match="the model before the first step, and this one has made 4"):
            session.reference(steps[4])
    with spillway.Session(session_keys(given, **places, resume_from_checkpoint="true")) as session:
        with pytest.raises(InputError, match="this one has made 4"):
            session.reference(steps[4])
        assert first + [session.step(step)["loss"] for step in steps[4:]] == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ref_chosen_logps": None}, "ref_chosen_logps is missing, what the reference makes of the pairs"),
        ({"ref_rejected_logps": torch.zeros(3)}, r"ref_rejected_logps is \[3\] torch.float32; expects a finite"),
        ({"ref_chosen_logps": torch.tensor([0.0, float("nan")])}, "ref_chosen_logps is .* expects a finite"),
        ({"completion_mask": None}, "completion_mask is missing"),
        ({"completion_mask": torch.ones(4, 9, dtype=torch.int64)}, r"completion_mask is \[4, 9\]"),
        ({name: torch.ones(3, 8, dtype=torch.int64) for name in ("input_ids", "completion_mask")}, "as many rows"),
        ({"labels": torch.ones(4, 8, dtype=torch.int64)}, "labels come from completion_mask"),
    ],
)
def test_batches_that_are_no_pairs_are_refused(given: Path, change: dict[str, Any], said: str) -> None:
    ones = torch.ones(4, 8, dtype=torch.int64)
    whole = {"input_ids": ones, "completion_mask": ones, "ref_chosen_logps": torch.zeros(2),
             "ref_rejected_logps": torch.zeros(2)}  # fmt: skip
    session = spillway.Session(session_keys(given))
    with pytest.raises(InputError, match=said):
        session.step({**whole, **change})
    session.close()


def test_a_loop_over_tokens_has_no_reference(given: Path) -> None:
    session = spillway.Session(session_keys(given, objective="sft"))
    with pytest.raises(InputError, match="reference: it is for objective dpo, and the objective is sft"):
        session.reference([])
    session.close()


def test_the_plan_counts_the_first_pass(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--dataset", str(given / "texts.jsonl"), *DPO]
    assert real_runs.here(given, tmp_path / "out", *more, verb="plan") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "Reference: log-probabilities of 11 pairs, by 3 forward passes before step 1" in words
