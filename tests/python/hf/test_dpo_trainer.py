"""TRL's DPOTrainer over a streamed model: equal to itself in memory, durable, and what it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import tiny
from breadth import some
from needs import package
from spillway.errors import InputError
from spillway.hf import StreamedTraining, load
from spillway.output import directory
from test_dpo import ROWS, order, same_rows, same_weights
from test_trainer import loaded
from test_trainer_durable import OF_A_PROCESS, Fails

trl = package("trl", "TRL is not installed: its DPOTrainer stays untried")
datasets = package("datasets", "TRL needs datasets")
EVENTS = {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 4}
BIT_BY_BIT = {"durability": "step", "dtype": "bfloat16", "placement": "weight=50%,state=path,grad=path,activation=dram"}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("dpo_trainer"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    return place


class Streamed(StreamedTraining, trl.DPOTrainer):  # type: ignore[misc, name-defined]
    pass


class InOrder(Streamed):
    def _get_train_sampler(self, *_: Any) -> Any:
        return pairs.SameOrder(order())


def parts(given: Path, out: Path, rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return {
        "args": pairs.arguments(out, **more),
        "train_dataset": datasets.Dataset.from_list(rows),
        "eval_dataset": datasets.Dataset.from_list(rows[:3]),
        "processing_class": AutoTokenizer.from_pretrained(given / "model"),
    }


def logged(trainer: Any, kind: str) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if kind in row]


BOTH = {"texts": pairs.texts(ROWS), "messages": pairs.messages(ROWS)}


@pytest.mark.parametrize("kind", some(list(BOTH), ["messages"]))
def test_equal_to_itself_in_memory(given: Path, tmp_path: Path, kind: str) -> None:
    """Every step is logged with what TRL tells, and so are evaluations."""
    rows = BOTH[kind]
    more = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 2}
    plain = pairs.in_memory(given, tmp_path / "plain", rows, order(), **more)
    ours = InOrder(model=loaded(given, tmp_path / "storage"), **parts(given, tmp_path / "ours", rows, **more))
    ours.train()
    ours.save_model()
    same_rows(logged(ours, "loss"), logged(plain, "loss"))
    for one, other in zip(logged(ours, "eval_loss"), logged(plain, "eval_loss"), strict=True):
        for name in ("eval_loss", *(f"eval_{name}" for name in pairs.TOLD)):
            assert abs(one[name] - other[name]) <= 1e-5 * max(1, abs(other[name])), (name, one[name], other[name])
    same_weights(tmp_path / "ours" / "model.safetensors", tmp_path / "plain" / "model.safetensors")


@pytest.mark.nightly
def test_adapters_have_their_base_as_reference(given: Path, tmp_path: Path) -> None:
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "lora_target_modules": ["q_proj"]}
    more = {"adam_epsilon": 1e-4}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    wanted = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj"], task_type="CAUSAL_LM")
    rows = pairs.texts(ROWS)
    plain = pairs.in_memory(given, tmp_path / "plain", rows, order(), peft.get_peft_model(model, wanted), **more)
    ours = InOrder(model=loaded(given, method="lora", **asked), **parts(given, tmp_path / "ours", rows, **more))
    ours.train()
    ours.save_model()
    same_rows(logged(ours, "loss"), logged(plain, "loss"))
    name = "adapter_model.safetensors"
    same_weights(tmp_path / "ours" / name, tmp_path / "plain" / name)


def test_arguments_serve_a_second_trainer(given: Path, tmp_path: Path) -> None:
    """A constructor leaves them as they were: the reference of new adapters stays in the steps."""
    own = parts(given, tmp_path / "out", pairs.texts(ROWS))
    for _ in range(2):
        trainer = Streamed(model=loaded(given, method="lora", lora_r=4), **own)
        assert trainer.args.precompute_ref_log_probs is False
        assert trainer._pairs.precomputes is False
        trainer.close()


def trained(given: Path, place: Path, resume: Any = None, fails: Any = None, **keys: Any) -> Streamed:
    storage = place.with_name(f"{place.name}-storage")
    what = parts(given, place, pairs.texts(ROWS), **EVENTS)
    trainer = Streamed(loaded(given, storage, **keys), None, what.pop("args"), **what)
    if fails is not None:
        trainer.add_callback(fails)
        with pytest.raises(RuntimeError):
            trainer.train(resume_from_checkpoint=resume)
    else:
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model()
    trainer.close()
    return trainer


def history(place: Path) -> list[dict[str, Any]]:
    rows = json.loads((place / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    return [{key: value for key, value in row.items() if key not in OF_A_PROCESS} for row in rows]


@pytest.fixture(scope="module")
def whole(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole") / "out"
    trained(given, place, **BIT_BY_BIT)
    return place


@pytest.mark.parametrize("step", some([1, 3, 4, 5], [5]))
def test_durable_steps_go_on_bit_by_bit(given: Path, whole: Path, tmp_path: Path, step: int) -> None:
    """A failure between two rows of the log: what TRL tells of the steps since the last one is there, too."""
    trained(given, tmp_path / "out", fails=Fails("on_step_end", step), resume="auto", **BIT_BY_BIT)
    trained(given, tmp_path / "out", resume=True, **BIT_BY_BIT)
    assert history(tmp_path / "out") == history(whole)
    one, other = (load_file(place / "model.safetensors") for place in (tmp_path / "out", whole))
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_a_checkpoint_has_the_reference_with_it(given: Path, tmp_path: Path) -> None:
    keys = {"durability": "none", "dtype": "float32"}
    trained(given, tmp_path / "whole", **keys)
    at_four = tmp_path / "whole" / "checkpoint-4"
    trained(given, tmp_path / "again", resume=str(at_four), **keys)
    for one, other in zip(history(tmp_path / "again"), history(tmp_path / "whole"), strict=True):
        of_the_process = {name: one[name] for name in one if name.endswith("num_tokens")}  # as TRL counts them
        assert one == pytest.approx(other | of_the_process, rel=1e-6)
    (at_four / "spillway" / "files.json").unlink()
    (at_four / "spillway" / "reference-eval.jsonl").unlink()
    with pytest.raises(InputError, match="eval_dataset: .*reference-eval.jsonl does not hold"):
        trained(given, tmp_path / "gone", resume=str(at_four), **keys)
    assert not directory.checkpoints(tmp_path / "gone")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"loss_type": ["exo_pair"], "label_smoothing": 0.1}, "loss_type: exo_pair is not computed"),
        ({"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}, "loss_type: sigmoid, sft is not computed"),
        ({"f_divergence_type": "js_divergence"}, "f_divergence_type: .* the reward is the log-ratio"),
        ({"ld_alpha": 0.5}, "ld_alpha: 0.5 is not computed"),
        ({"sync_ref_model": True}, "sync_ref_model: True is not computed"),
    ],
)
def test_arguments_that_are_not_computed_are_refused(
    given: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        Streamed(model=loaded(given), **parts(given, tmp_path, pairs.texts(3), **more))


def test_a_second_model_is_refused(given: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ref_model: the reference is the streamed model"):
        Streamed(loaded(given), loaded(given), **parts(given, tmp_path, pairs.texts(3)))


@pytest.mark.nightly
def test_routers_add_what_trl_adds(given: Path, tmp_path: Path) -> None:
    """By TRL's own default, whatever config.json says, where this version of TRL has it."""
    from transformers import AutoModelForCausalLM, MixtralConfig

    torch.manual_seed(3)
    config = MixtralConfig(
        vocab_size=320, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, router_aux_loss_coef=0.1, max_position_embeddings=128,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(str(tmp_path / "model"))
    rows, more = pairs.texts(ROWS), {"max_steps": 3, "adam_epsilon": 1e-4}
    plain = pairs.in_memory(tmp_path, tmp_path / "plain", rows, order(), **more)
    model = load(tmp_path / "model", dtype="float32", placement="dram", profile=str(given / "profile.json"))
    ours = InOrder(model=model, **parts(tmp_path, tmp_path / "ours", rows, **more))
    ours.train()
    same_rows(logged(ours, "loss"), logged(plain, "loss"))
