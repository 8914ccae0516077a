"""transformers' Trainer over a streamed model beside the stock one: losses, norms, rates, evaluations and weights."""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, TrainingArguments

import real_runs
import tiny
import warm
from breadth import some
from folders import REPOSITORY
from hf_models import tiny_config, tiny_model
from needs import package
from spillway.config import resolve
from spillway.errors import InputError
from spillway.hf import StreamedTraining, Trainer, load
from spillway.integrations.streamed_session import apply_arguments
from spillway.model.measure.dry_run import DryRun
from spillway.run.session import EngineSession

package("accelerate", "transformers' Trainer needs accelerate")
EXAMPLES = REPOSITORY / "examples"
CLOSE = {"rtol": 1e-5, "atol": 1e-7}
SAME_WEIGHTS = {"rtol": 1e-4, "atol": 2e-6}  # Adam divides by the root of what may be near zero
PASSES = ("forward", "backward", "tail_forward", "tail_backward", "head_loss", "head_gradient", "between")
LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("trainer"))


def rows(count: int = 23) -> list[dict[str, Any]]:
    tokenizer = tiny.tokenizer()
    return [dict(tokenizer(row["text"], truncation=True, max_length=48)) for row in tiny.text_rows(count)]


def arguments(out: Path, **more: Any) -> TrainingArguments:
    values = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,  # 12 micro-batches of 23 rows: 4 steps; of 19 rows: the last has one
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "warmup_steps": 2,
        "lr_scheduler_type": "cosine",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "data_seed": 3,
    }
    return TrainingArguments(output_dir=str(out), **{**values, **more})


def parts(given: Path, out: Path, train: int = 23, **more: Any) -> dict[str, Any]:
    data = rows(train + 5)
    return {
        "args": arguments(out, **more),
        "train_dataset": data[:train],
        "eval_dataset": data[train:],
        "data_collator": DataCollatorForLanguageModeling(tiny.tokenizer(), mlm=False),
    }


def loaded(given: Path, storage: Path | str | None = None, **more: Any) -> Any:
    places: dict[str, Any] = {"placement": "dram"}
    if storage is not None:
        if isinstance(storage, Path):  # not one for each process
            storage.mkdir(exist_ok=True)
        places = {"storage": f"{storage},capacity=256MiB", "placement": "path"}
    values = {"dtype": "float32", "profile": str(given / "profile.json"), **places}
    return load(given / "model", **{**values, **more})


def stock(given: Path, out: Path, **more: Any) -> transformers.Trainer:
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    return transformers.Trainer(model=model, **parts(given, out, **more))


def streamed(given: Path, out: Path, storage: Path | None = None, **more: Any) -> Trainer:
    return Trainer(model=loaded(given, storage), **parts(given, out, **more))


def logged(trainer: Any) -> list[dict[str, float]]:
    return [
        {key: row[key] for key in LOGGED if key in row} | {"step": row["step"]} for row in trainer.state.log_history
    ]


def same_rows(ours: Any, plain: Any) -> None:
    one, other = logged(ours), logged(plain)
    assert [row.keys() for row in one] == [row.keys() for row in other]
    for left, right in zip(one, other, strict=True):
        for key, value in right.items():
            torch.testing.assert_close(
                torch.tensor(left[key]), torch.tensor(value), **CLOSE, msg=f"{key}: {left} {right}"
            )


def same_weights(ours: Path, plain: Path) -> None:
    one, other = load_file(ours / "model.safetensors"), load_file(plain / "model.safetensors")
    assert one.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, **SAME_WEIGHTS, msg=name)


@pytest.mark.parametrize("train", some([23, 19], [19]), ids=["two in the last step", "one in the last step"])
@pytest.mark.parametrize("where", ["dram", "path"])
def test_the_same_run_as_the_stock_trainer(given: Path, tmp_path: Path, train: int, where: str) -> None:
    more = {"train": train, "eval_strategy": "steps", "eval_steps": 3}
    plain = stock(given, tmp_path / "plain", **more)
    plain.train()
    plain.save_model()
    ours = streamed(given, tmp_path / "ours", tmp_path / "storage" if where == "path" else None, **more)
    result = ours.train()
    ours.save_model()
    same_rows(ours, plain)
    assert result.global_step == plain.state.global_step and result.training_loss > 0
    same_weights(tmp_path / "ours", tmp_path / "plain")
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-5)
    ours.close()
    assert not list(tmp_path.glob("storage/*"))


def test_a_padding_token_that_is_named_later_learns_where_it_is_a_word(given: Path, tmp_path: Path) -> None:
    """As scripts do with `pad_token_id = eos_token_id`."""
    word = rows()[0]["input_ids"][2]
    more = {"num_train_epochs": 1}
    plain, ours = stock(given, tmp_path / "plain", **more), streamed(given, tmp_path / "ours", **more)
    for trainer in (plain, ours):
        trainer.model.config.pad_token_id = word
        trainer.train()
        trainer.save_model()
    same_rows(ours, plain)
    same_weights(tmp_path / "ours", tmp_path / "plain")


def accuracy(found: transformers.EvalPrediction) -> dict[str, float]:
    """Of the next token, from logits or from what was made of them."""
    guesses, labels = found.predictions, found.label_ids
    guesses = guesses.argmax(-1) if guesses.ndim == 3 else guesses
    known = labels[:, 1:] != -100
    right = (guesses[:, :-1] == labels[:, 1:])[known].mean()
    return {"accuracy": float(right), "guess": float(guesses[:, :-1][known].mean()), "tokens": float(known.sum())}


@pytest.mark.parametrize("reduced", [False, True], ids=["logits", "made less of"])
def test_metrics_of_ones_own(given: Path, tmp_path: Path, reduced: bool) -> None:
    hooks: dict[str, Any] = {"compute_metrics": accuracy}
    if reduced:
        hooks["preprocess_logits_for_metrics"] = lambda logits, labels: logits.argmax(-1)
    more = {"num_train_epochs": 1, "eval_strategy": "epoch", "per_device_eval_batch_size": 2}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    plain = transformers.Trainer(model=model, **parts(given, tmp_path / "plain", **more), **hooks)
    ours = Trainer(model=loaded(given), **parts(given, tmp_path / "ours", **more), **hooks)
    for trainer in (plain, ours):
        trainer.train()
    same_rows(ours, plain)
    found, expected = (trainer.evaluate() for trainer in (ours, plain))
    assert found["eval_tokens"] == expected["eval_tokens"] > 100
    assert found["eval_accuracy"] == expected["eval_accuracy"] and found["eval_guess"] == expected["eval_guess"] > 0
    assert found["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5)
    one, other = (trainer.predict(rows(3)) for trainer in (ours, plain))
    assert one.predictions.shape == other.predictions.shape and one.predictions.ndim == (2 if reduced else 3)
    if not reduced:  # padding, which sees other padding there, apart
        left, right = (torch.tensor(found.predictions[other.label_ids != -100]) for found in (one, other))
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_logits_that_metrics_look_at_are_planned(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = DryRun(1 << 29, 1 << 25, dict.fromkeys(PASSES, 1e-3))
    monkeypatch.setattr("spillway.run.profiled.profile_dry_run", lambda *_: known)
    peaks = []
    for hooks in ({}, {"compute_metrics": accuracy}):
        trainer = Trainer(model=loaded(given), **parts(given, tmp_path / "out"), **hooks)
        (dram,) = (tier for tier in trainer.session.plan["tiers"] if tier["name"] == "dram")
        peaks.append(dram["planned_peak"])
        trainer.close()
    # 5 rows held out, of 48 tokens: a batch of them, and four times all
    assert peaks[1] - peaks[0] == 5 * 5 * 48 * len(tiny.tokenizer()) * 4
    with pytest.raises(InputError, match="predict: .*compute_metrics"):
        streamed(given, tmp_path / "out").predict(rows(3))


def test_experts_with_the_auxiliary_loss_of_their_routers(given: Path, tmp_path: Path) -> None:
    """The collator's masks count: padding is not balanced."""
    place = tmp_path / "given"
    shutil.copytree(given, place, ignore=shutil.ignore_patterns("*.safetensors"))
    config = tiny_config("mixtral", vocab_size=len(tiny.tokenizer()), num_local_experts=4, num_experts_per_tok=2)
    config.output_router_logits, config.router_aux_loss_coef = True, 0.5
    tiny_model(config).save_pretrained(place / "model")
    more = {"num_train_epochs": 1, "eval_strategy": "epoch"}
    plain, ours = stock(place, tmp_path / "plain", **more), streamed(place, tmp_path / "ours", **more)
    for trainer in (plain, ours):
        trainer.train()
        trainer.save_model()
    same_rows(ours, plain)
    same_weights(tmp_path / "ours", tmp_path / "plain")
    assert json.loads((tmp_path / "ours/config.json").read_text())["output_router_logits"] is True


def test_all_that_is_saved_loads_and_has_the_stock_trainers_names(given: Path, tmp_path: Path) -> None:
    more = {"num_train_epochs": 1, "save_strategy": "epoch"}
    for make, name in ((stock, "plain"), (streamed, "ours")):
        trainer = make(given, tmp_path / name, **more)
        trainer.train()
        trainer.save_model()
    one, other = ({path.name for path in (tmp_path / name / "checkpoint-4").iterdir()} for name in ("ours", "plain"))
    assert one - other == {"spillway"} and other - one == {"optimizer.pt"}
    for name in ("config.json", "generation_config.json"):
        ours, plain = (json.loads((tmp_path / each / name).read_text()) for each in ("ours", "plain"))
        assert ours == plain, name
    found = json.loads((tmp_path / "ours/checkpoint-4/trainer_state.json").read_text())
    expected = json.loads((tmp_path / "plain/checkpoint-4/trainer_state.json").read_text())
    assert found.keys() == expected.keys()
    AutoModelForCausalLM.from_pretrained(tmp_path / "ours")


@pytest.mark.parametrize("where", some(["dram", "path"], ["path"]))
def test_resumed_it_goes_on_as_if_nothing_had_happened(given: Path, tmp_path: Path, where: str) -> None:
    storage = tmp_path / "storage" if where == "path" else None
    whole = streamed(given, tmp_path / "whole", storage)
    whole.train()
    whole.save_model()
    whole.close()
    more = {"save_strategy": "steps", "save_steps": 3}
    first = streamed(given, tmp_path / "parts", storage, **more)
    first.add_callback(StopAfter(5))
    first.train()
    first.close()
    second = streamed(given, tmp_path / "parts", storage, **more)
    second.train(resume_from_checkpoint=True)
    second.save_model()
    assert logged(second)[-2:] == logged(whole)[-2:]
    assert [row.get("loss") for row in logged(second)] == [row.get("loss") for row in logged(whole)]
    names = ("whole/model.safetensors", "parts/model.safetensors")
    one, other = ((tmp_path / name).read_bytes() for name in names)
    assert one == other  # bit for bit
    second.close()


class StopAfter(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        control.should_training_stop = state.global_step >= self.step
        return control


def test_the_best_model_comes_back(given: Path, tmp_path: Path) -> None:
    more = {
        "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2,
        "load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True,
    }  # fmt: skip
    plain = stock(given, tmp_path / "plain", **more)
    plain.train()
    ours = streamed(given, tmp_path / "ours", **more)
    ours.train()
    assert ours.state.best_global_step == plain.state.best_global_step < ours.state.global_step
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-4)
    ours.save_model()
    best = tmp_path / "ours" / f"checkpoint-{ours.state.best_global_step}"
    assert (tmp_path / "ours/model.safetensors").read_bytes() == (best / "model.safetensors").read_bytes()
    ours.close()


def test_the_rate_is_what_a_callback_left(given: Path, tmp_path: Path) -> None:
    class Halve(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
            for group in named["optimizer"].param_groups:
                group["lr"] *= 0.5

    weights = []
    for make, name in ((stock, "plain"), (streamed, "ours")):
        trainer = make(given, tmp_path / name, num_train_epochs=1)
        trainer.add_callback(Halve())
        trainer.train()
        trainer.save_model()
        weights.append(tmp_path / name)
    same_weights(*reversed(weights))


def test_bf16_trains_and_saves(given: Path, tmp_path: Path) -> None:
    trainer = Trainer(model=loaded(given, dtype="bfloat16"), **parts(given, tmp_path / "out", num_train_epochs=1))
    trainer.train()
    trainer.save_model()
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert {value.dtype for value in load_file(tmp_path / "out/model.safetensors").values()} == {torch.bfloat16}


def test_what_a_person_should_know_is_told_once(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = ["path:0 was taken out: it fails on writes"]
    monkeypatch.setattr(EngineSession, "notices", lambda _: [left.pop()] if left else [])
    Trainer(model=loaded(given), **parts(given, tmp_path / "out", num_train_epochs=1)).train()
    assert caplog.text.count("path:0 was taken out") == 1


class OwnLoss(Trainer):
    def compute_loss(self, *positional: Any, **named: Any) -> Any:
        raise AssertionError("never called")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"args": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor"),
        ({"args": {"neftune_noise_alpha": 5.0}}, "neftune_noise_alpha"),
        ({"args": {"optim": "adafactor"}}, "adafactor"),
        ({"args": {"optim": "galore_adamw", "optim_target_modules": ["q"]}}, "galore_adamw"),
        ({"args": {"auto_find_batch_size": True}}, "auto_find_batch_size"),
        ({"compute_loss_func": lambda *_, **__: 0}, "compute_loss_func"),
        ({"type": OwnLoss}, "compute_loss"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_when_it_is_made(given: Path, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    change = dict(change)
    made = change.pop("type", Trainer)
    what = parts(given, tmp_path / "out", **change.pop("args", {}))
    with pytest.raises(InputError, match=word):
        made(model=loaded(given), **{**what, **change})


def test_a_model_of_another_making_is_refused_before_anything_is_read(given: Path, tmp_path: Path) -> None:
    for model in (str(given / "model"), AutoModelForCausalLM.from_pretrained(given / "model")):
        with pytest.raises(InputError, match="spillway.hf.load"):
            Trainer(model=model, **parts(given, tmp_path / "out"))


def test_what_load_takes(given: Path) -> None:
    with pytest.raises(InputError, match="learning_rate"):
        load(given / "model", learning_rate=1e-3)
    with pytest.raises(InputError, match="dram_budget"):
        load(given / "model", dram_budgte="1GiB")
    with pytest.raises(InputError, match="durability"):
        load(given / "model", durability="step")
    with pytest.raises(InputError, match="lsp_rank: it is for method lsp"):
        load(given / "model", lsp_rank=8)
    with pytest.raises(InputError, match="dtype"):
        load(given / "model", dtype="float64")
    model = loaded(given)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_changed_meta_model_is_refused(given: Path, tmp_path: Path) -> None:
    frozen = loaded(given).requires_grad_(False)
    resized = loaded(given)
    resized.model.embed_tokens.weight = torch.nn.Parameter(torch.empty(400, 16, device="meta"))
    for model in (frozen, resized):
        trainer = Trainer(model=model, **parts(given, tmp_path / "out"))
        with pytest.raises(InputError, match="model: "):
            trainer.train()


def test_rows_longer_than_planned_are_refused(given: Path, tmp_path: Path) -> None:
    trainer = Trainer(model=loaded(given, max_length=4), **parts(given, tmp_path / "out"))
    with pytest.raises(InputError, match="max_length"):
        trainer.train()


def test_left_padding_is_refused(given: Path, tmp_path: Path) -> None:
    what = parts(given, tmp_path / "out")
    what["data_collator"].tokenizer.padding_side = "left"
    with pytest.raises(InputError, match="right"):
        Trainer(model=loaded(given), **what).train()


def test_the_same_under_trls_sft_trainer(given: Path, tmp_path: Path) -> None:
    trl = package("trl", "TRL is not installed: its SFTTrainer stays untried")
    datasets = package("datasets", "TRL needs datasets")

    class Streamed(StreamedTraining, trl.SFTTrainer):  # type: ignore[misc, name-defined]
        pass

    data = datasets.Dataset.from_list(
        [{"prompt": row["text"][:12], "completion": row["text"][12:]} for row in tiny.text_rows(14)]
    )

    def arguments_of(name: str) -> Any:
        return trl.SFTConfig(
            output_dir=str(tmp_path / name), per_device_train_batch_size=2, gradient_accumulation_steps=2,
            num_train_epochs=1, learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to="none",
            max_length=48, use_cpu=True, bf16=False, disable_tqdm=True, gradient_checkpointing=False, data_seed=3,
        )  # fmt: skip

    plain = trl.SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32"),
        args=arguments_of("plain"), train_dataset=data, processing_class=tiny.tokenizer(),
    )  # fmt: skip
    plain.train()
    plain.save_model()
    ours = Streamed(
        model=loaded(given), args=arguments_of("ours"), train_dataset=data, processing_class=tiny.tokenizer()
    )
    ours.train()
    ours.save_model()
    same_rows(ours, plain)
    same_weights(tmp_path / "ours", tmp_path / "plain")


@pytest.mark.parametrize("name", ["RLOOTrainer"])
def test_other_trainers_of_trl_are_refused_by_name(given: Path, tmp_path: Path, name: str) -> None:
    trl = package("trl", "TRL is not installed: its trainers stay untried")
    kind = type("Streamed", (StreamedTraining, getattr(trl, name)), {})
    others = "SFTTrainer, DPOTrainer, KTOTrainer, RewardTrainer, GRPOTrainer, ORPOTrainer and CPOTrainer are"
    with pytest.raises(InputError, match=f"{name}: its objective .* {others}"):
        kind(model=loaded(given), args=None, train_dataset=None)


def run(script: str, *words: Path) -> str:
    process = warm.python(EXAMPLES / script, *words)
    shown, error = process.communicate(timeout=240)
    assert process.returncode == 0, error[-2000:]
    return str(shown)


def test_the_trainer_example_before_and_after(given: Path, tmp_path: Path) -> None:
    before, after = ((EXAMPLES / "trainer" / name).read_text().splitlines() for name in ("plain.py", "streamed.py"))
    changed = [line for line in difflib.ndiff(before[1:], after[1:]) if line.startswith("+ ")]
    assert len(changed) == 2
    (tmp_path / "storage").mkdir()
    run("trainer/plain.py", given / "model", given / "train.jsonl", tmp_path / "before")
    run("trainer/streamed.py", given / "model", given / "train.jsonl", tmp_path / "after", tmp_path / "storage")
    states = [
        json.loads(
            max((tmp_path / name).glob("checkpoint-*"), key=checkpoint_step).joinpath("trainer_state.json").read_text()
        )
        for name in ("before", "after")
    ]
    losses = [[row[key] for row in each["log_history"] for key in LOGGED if key in row] for each in states]
    assert len(losses[0]) > 10 and losses[1] == pytest.approx(losses[0], rel=1e-5)
    same_weights(tmp_path / "after", tmp_path / "before")


def checkpoint_step(path: Path) -> int:
    return int(path.name.partition("-")[2])


def test_the_loop_example_before_and_after(given: Path, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    before = run("loop/plain.py", given / "model", given / "train.jsonl", tmp_path / "before")
    after = run("loop/streamed.py", given / "model", given / "train.jsonl", tmp_path / "after", tmp_path / "storage")
    losses = [
        [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss")] for text in (before, after)
    ]
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], abs=2e-6)
    same_weights(tmp_path / "after", tmp_path / "before")


def test_what_requires_no_gradient_on_the_meta_model_is_frozen(given: Path, tmp_path: Path) -> None:
    """As the stock Trainer treats it; the head is tied to the embedding."""
    ours = loaded(given, storage=tmp_path, placement="path")
    theirs = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32)
    for model in (ours, theirs):
        model.model.embed_tokens.requires_grad_(False)
        model.model.layers[0].requires_grad_(False)
    logs = []
    for kind, model, out in ((Trainer, ours, "ours"), (transformers.Trainer, theirs, "theirs")):
        trainer = kind(model=model, **parts(given, tmp_path / out))
        trainer.train()
        trainer.save_model(str(tmp_path / out))
        logs.append([row for row in trainer.state.log_history if "loss" in row])
    for one, other in zip(*logs, strict=True):
        for name in ("loss", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), (name, one["step"])
    places = (tmp_path / "ours", tmp_path / "theirs", given / "model")
    found, expected, begun = (load_file(place / "model.safetensors") for place in places)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, **SAME_WEIGHTS)
        assert torch.equal(found[name], begun[name]) == ("embed" in name or "layers.0" in name)


def test_where_the_arguments_of_a_trainer_compute_and_what_carries_bytes(tmp_path: Path) -> None:
    cpus = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    chosen, asked = resolve({}, {}).computing_on("cuda", "an H100"), resolve({"device": "cuda"}, {})
    assert apply_arguments(chosen, cpus).device == "cpu" and apply_arguments(asked, cpus).device == "cuda"
    anything = SimpleNamespace(use_cpu=False, ddp_backend=None)
    assert (
        apply_arguments(chosen, anything).device == "cuda" and apply_arguments(chosen, anything).ddp_backend == "gloo"
    )
    assert apply_arguments(chosen, SimpleNamespace(use_cpu=False, ddp_backend="nccl")).ddp_backend == "nccl"
