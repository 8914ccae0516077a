"""TRL's GRPOTrainer over a streamed model: equal to itself in memory, completions included, killed and resumed, and the
arguments that are refused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import rollouts
import spillway.hf
import tiny
from breadth import some
from durable_trainers import PLACEMENT, SAVES, expect_resumed_bits
from needs import package
from spillway.base.documents import read_json
from spillway.errors import DoesNotFit, InputError
from spillway.hf import load
from spillway.machine import process_memory
from test_grpo import TOLD, close, same_weights
from test_trainer_durable import LIMIT, told

datasets = package("datasets", "TRL needs datasets")
trl = package("trl", "TRL is not installed")
STEPS = 6
MORE = {
    "max_steps": STEPS,
    "max_completion_length": 12,
    "learning_rate": 2e-2,
    "shuffle_dataset": True,
    "mask_truncated_completions": False,
}
CASES: dict[str, dict[str, Any]] = {
    "dapo": {},
    "grpo": {
        "loss_type": "grpo",
        "scale_rewards": "batch",
        "top_k": 50,
        "temperature": 0.7,
        "mask_truncated_completions": True,
    },
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", "importance_sampling_level": "sequence"},
}
Reward = Callable[..., list[float]]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("grpo_trainer"))
    tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / "model"))
    ends = {"eos_token_id": [2, *range(300, 320)], "bos_token_id": 1}  # so that some completions end
    (place / "model" / "generation_config.json").write_text(json.dumps(ends))
    return place


def prompts(kind: str = "texts") -> Any:
    texts = [f"{number}: {' '.join(tiny.SENTENCES[number % 8].split()[: number % 4 + 1])}" for number in range(10)]
    rows: list[Any] = [[{"role": "user", "content": text}] for text in texts] if kind == "messages" else texts
    return datasets.Dataset.from_list([{"prompt": row} for row in rows])


class Watched:
    """A reward function that keeps the completions of all steps."""

    __name__ = "vowels"

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def __call__(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        self.tokens += completion_ids
        return [sum(token % 5 == 0 for token in ids) / 4 - len(ids) / 30 for ids in completion_ids]


def streamed(given: Path, out: Path, more: dict[str, Any], reward: Any = None, kind: str = "texts", **keys: Any) -> Any:
    """The trainer of a script with the two lines changed."""
    from transformers import AutoTokenizer

    return spillway.hf.GRPOTrainer(
        model=load(given / "model", profile=str(given / "profile.json"), **{"device": "cpu", **keys}),
        reward_funcs=reward or Watched(),
        args=rollouts.arguments(out, **{**MORE, **more}),
        train_dataset=prompts(kind),
        eval_dataset=held_out(more),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )


def held_out(more: dict[str, Any]) -> Any:
    return prompts().select(range(6, 9)) if "eval_strategy" in more else None


def in_memory(given: Path, out: Path, more: dict[str, Any], reward: Any, kind: str = "texts", model: Any = None) -> Any:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = trl.GRPOTrainer(
        model=model or AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32"),
        reward_funcs=reward,
        args=rollouts.arguments(out, **{**MORE, **more}),
        train_dataset=prompts(kind),
        eval_dataset=held_out(more),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )
    trainer.train()
    trainer.save_model()
    return trainer


def same_rows(ours: Any, plain: Any) -> None:
    """All figures that TRL logs, but for those of time."""
    found, expected = pairs.logged(ours), pairs.logged(plain)
    assert len(found) == len(expected) == STEPS
    for one, row in zip(found, expected, strict=True):
        other = {name: value for name, value in row.items() if value is not None}  # TRL's words for no figure
        assert one.keys() == other.keys()
        assert {*TOLD} - {"kl"} <= row.keys()
        for name in other.keys() - {"step_time"}:
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])


def storage_keys(place: Path) -> dict[str, Any]:
    place.mkdir()
    return {"storage": f"{place},capacity=256MiB", "placement": PLACEMENT}


KINDS = [("dapo", "texts"), ("grpo", "messages"), ("dr_grpo", "texts")]


@pytest.mark.parametrize(("case", "kind"), some(KINDS, KINDS[:2]))
def test_completions_and_figures_equal_trl_in_memory_with_state_on_a_path(
    given: Path, tmp_path: Path, case: str, kind: str
) -> None:
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", CASES[case], theirs, kind)
    keys = storage_keys(tmp_path / "storage")
    trainer = streamed(given, tmp_path / "ours", CASES[case], ours, kind, dtype="float32", **keys)
    trainer.train()
    trainer.save_model()
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == STEPS * rollouts.STEP
    same_rows(trainer, plain)
    same_weights(*(tmp_path / way / "model.safetensors" for way in ("ours", "plain")))
    names = ("config.json", "generation_config.json")
    saved = [[read_json(tmp_path / way / name) for name in names] for way in ("ours", "plain")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_adapters_sample_and_train_as_peft_s_in_memory(given: Path, tmp_path: Path, beta: float) -> None:
    """With `beta` the reference is the base: both leave the adapters out."""
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **asked))
    ours, theirs = Watched(), Watched()
    more = {"beta": beta, "temperature": 0.8} if beta else {}
    plain = in_memory(given, tmp_path / "plain", more, theirs, model=adapted)
    keys = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": asked["target_modules"]}
    trainer = streamed(given, tmp_path / "ours", more, ours, dtype="float32", lora_dropout=0.0, **keys)
    trainer.train()
    trainer.save_model()
    assert ours.tokens == theirs.tokens
    same_rows(trainer, plain)
    same_weights(*(tmp_path / way / "adapter_model.safetensors" for way in ("ours", "plain")))
    assert any(row.get("kl", 0.0) > 1e-4 for row in pairs.logged(plain)) == bool(beta)
    assert trainer.args.beta == beta


@pytest.mark.parametrize("types", [{"weight_dtype": "bf16"}, {"dtype": "bfloat16"}], ids=["fp32 products", "bf16"])
def test_the_model_that_samples_has_the_weights_of_passes(given: Path, tmp_path: Path, types: dict[str, Any]) -> None:
    """Weights of bf16 with a remainder, rounded as the engine rounds them."""
    keys = storage_keys(tmp_path / "storage")
    types = {"dtype": "float32", **types}
    trainer = streamed(given, tmp_path / "out", {"max_steps": 3}, **types, **keys)
    trainer.train()
    ids = torch.arange(5, 17).view(2, 6)
    streamed_logits = trainer.model(ids).logits
    with trainer.whole_model() as whole:
        assert {parameter.dtype for parameter in whole.parameters()} == {getattr(torch, types["dtype"])}
        logits = whole(ids).logits
    assert all(parameter.is_meta for parameter in whole.parameters())
    close_enough = {"rtol": 1e-5, "atol": 1e-6} if types["dtype"] == "float32" else {"rtol": 2e-2, "atol": 2e-3}
    torch.testing.assert_close(logits, streamed_logits, **close_enough)
    trainer.save_model()
    saved = load_file(tmp_path / "out" / "model.safetensors")
    with trainer.whole_model() as whole:
        for name, parameter in whole.named_parameters():
            assert torch.equal(parameter, saved[name].to(parameter.dtype)), name


KILLED = """
from pathlib import Path
import test_grpo_trainer as tests
tests.train_durably(*map(Path, sys.argv[1:]))
"""


def train_durably(given: Path, out: Path, storage: Path) -> None:
    storage.mkdir(exist_ok=True)
    keys = {"storage": f"{storage},capacity=256MiB", "placement": PLACEMENT, "durability": "step"}
    more = {**SAVES, "logging_steps": 2, "max_steps": 7}
    trainer = streamed(given, out, more, dtype="bfloat16", **keys)
    trainer.train(resume_from_checkpoint="auto")
    trainer.save_model()
    trainer.close()


@pytest.mark.parametrize("method", some(["hold_whole_model", "gradients", "update"], ["hold_whole_model", "update"]))
def test_a_kill_in_generation_or_update_changes_no_bit(given: Path, tmp_path: Path, method: str) -> None:
    train_durably(given, tmp_path / "whole", tmp_path / "storage_whole")
    words = [real_runs.dying(method) + KILLED, str(given), str(tmp_path / "out"), str(tmp_path / "storage")]
    killed = real_runs.apart("-c", *words, env_more={"DIES_AFTER": "1e-6", "DIES_IN": "5"})
    _, error = killed.communicate(timeout=LIMIT)
    assert killed.returncode == -14, error[-3000:]
    assert not (tmp_path / "out" / "model.safetensors").exists()
    resumed = real_runs.apart("-c", *words)
    _, error = resumed.communicate(timeout=LIMIT)
    assert resumed.returncode == 0, error[-3000:]
    expected, found = told(tmp_path / "whole"), told(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


@pytest.mark.parametrize("step", some([1, 4, 5], [5]))
def test_durable_steps_go_on_bit_by_bit(given: Path, tmp_path: Path, step: int) -> None:
    def open_trainer(out: Path, keys: dict[str, Any]) -> Any:
        return streamed(given, out, {**SAVES, "logging_steps": 2, "max_steps": 7}, **keys)

    expect_resumed_bits(tmp_path, open_trainer, step)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"use_vllm": True}, "use_vllm: True is not computed .* `objective: grpo` of `spillway train`"),
        ({"beta": 0.04}, "beta: 0.04 is not computed .* method=.lora.*`objective: grpo` of `spillway train`"),
        ({"loss_type": "cispo"}, "loss_type: cispo is not computed .* expects one of dapo, grpo, bnpo, dr_grpo"),
        ({"steps_per_generation": 3}, "steps_per_generation: it is 3, and gradient_accumulation_steps is 2.* of 2"),
        ({"generation_batch_size": 4}, "steps_per_generation: it is 1, .* a multiple of 8 completions"),
        ({"temperature": 0.0}, "temperature: 0.0 cannot sample completions.* greater than 0"),
        ({"temperature": -1.0}, "temperature: -1.0 cannot sample completions"),
        ({"temperature": float("nan")}, "temperature: nan cannot sample completions"),
        ({"temperature": float("inf")}, "temperature: inf cannot sample completions"),
    ],
)
def test_arguments_that_are_not_computed_are_refused(
    given: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        streamed(given, tmp_path / "out", more, dtype="float32")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"reward_funcs": "some/model"}, "reward_funcs: a reward is that of a function; 'some/model'"),
        ({"rollout_func": len}, "rollout_func: not with a streamed model: .* `objective: grpo`"),
        ({"tools": [len]}, "tools: not with a streamed model"),
        ({"args": None}, "args: GRPOTrainer has no defaults without them; give GRPOConfig"),
    ],
)
def test_parts_that_have_no_place_here_are_refused(
    given: Path, tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    model = load(given / "model", profile=str(given / "profile.json"), device="cpu")
    named = {"reward_funcs": len, "args": rollouts.arguments(tmp_path / "out"), "train_dataset": prompts(), **keys}
    with pytest.raises(InputError, match=said):
        spillway.hf.GRPOTrainer(model=model, **named)


def test_a_base_of_4_bits_is_refused(given: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="load_in_4bit, load_in_8bit: generation takes plain weights"):
        streamed(given, tmp_path / "out", {}, method="lora", load_in_4bit=True)


def test_a_model_that_memory_cannot_hold_whole_is_refused_with_the_way_out(given: Path, tmp_path: Path) -> None:
    """Refused before anything is planned or sampled; the budget is what the process holds with a little more."""
    reward = Watched()
    budget = f"{(process_memory.resident() >> 20) + 64}MiB"
    more = {"max_completion_length": 400_000}
    trainer = streamed(given, tmp_path / "out", more, reward, dtype="float32", dram_budget=budget)
    with pytest.raises(DoesNotFit, match="GRPOTrainer generates with the whole model, .* `objective: grpo`") as refused:
        trainer.train()
    assert "Raise dram_budget, lower per_device_train_batch_size or max_completion_length" in str(refused.value)
    assert not reward.tokens


def test_generation_keeps_keys_and_values(given: Path, tmp_path: Path) -> None:
    """After the prompt each pass takes one token."""
    trainer = streamed(given, tmp_path / "out", {}, dtype="float32")
    lengths: list[int] = []
    with trainer.whole_model() as whole:
        kind = type(whole)
    forward = kind.forward

    def watched(self: Any, *positional: Any, **named: Any) -> Any:
        lengths.append(named["input_ids"].shape[1])
        return forward(self, *positional, **named)

    with mock.patch.object(kind, "forward", functools.wraps(forward)(watched)):
        trainer.model.generate(torch.tensor([[5, 6, 7]]), generation_config=trainer.generation_config)
    assert lengths[0] == 3
    assert set(lengths[1:]) == {1}
