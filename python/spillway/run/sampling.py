"""Completions that a run samples between two steps, on its own weights, and the micro-batches that they become.

The random numbers of a step follow from the seed and the step, so a run that was killed samples the same completions
again.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spillway.data.encode import Encoded, EncodedGroup
from spillway.data.order import in_file_order
from spillway.data.prompts import Prompt, Prompts
from spillway.data.rollouts import GroupBuilder, Rollouts, find_ends
from spillway.errors import InputError
from spillway.machine import process_memory
from spillway.model.batches.batch import Batch
from spillway.run import rewards
from spillway.run.generation_memory import Advice, GenerationMemory, measure_generation

if TYPE_CHECKING:
    from spillway.config import Config
    from spillway.run.protocol import SessionProtocol

ADVICE = Advice(
    "the run",
    "sample with another program, and train on its record (docs/how-to/reinforcement.md) without reward_funcs",
)


@dataclass
class Sampler:
    """Samples and scores the completions of each step."""

    config: Config
    prompts: Prompts
    tokenizer: Any
    functions: list[Callable[..., Any]]
    memory: GenerationMemory

    def sample(self, session: SessionProtocol, rows: NDArray[np.int64], step: int, steps: int) -> list[Batch]:
        """The micro-batches of a step. `rows`: its prompts; `steps`: of the whole run."""
        import torch

        prompts = [self.prompts.prompts[row] for row in rows for _ in range(self.config.group_size)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(choose_seed(self.config.seed, step))
            completions = self.generate(session, prompts)
            rollouts = self.score(prompts, completions, step, steps)
        parts = in_file_order(len(prompts), self.config.per_device_train_batch_size)
        return [without_old(rollouts.batch(part)) for part in parts]

    def generate(self, session: SessionProtocol, prompts: list[Prompt]) -> list[list[int]]:
        """Tokens of one completion of each prompt, with the end token if there is one."""
        import torch

        width = max(len(each.ids) for each in prompts)
        pad = self.settings.pad_token_id
        ids = torch.tensor([[pad] * (width - len(each.ids)) + list(each.ids) for each in prompts])
        mask = torch.tensor([[0] * (width - len(each.ids)) + [1] * len(each.ids) for each in prompts])
        with session.hold_whole_model() as model, torch.no_grad():
            made = model.generate(ids, attention_mask=mask, generation_config=copy.deepcopy(self.settings))
        process_memory.trim()
        return [self.cut(each) for each in made[:, width:].tolist()]

    @cached_property
    def settings(self) -> Any:
        """The settings of TRL's GRPOTrainer."""
        from transformers import GenerationConfig

        config, tokenizer = self.config, self.tokenizer
        return GenerationConfig(
            max_new_tokens=config.max_completion_length,
            do_sample=True,
            temperature=config.temperature,
            top_k=config.top_k or 0,
            top_p=config.top_p or 1.0,
            pad_token_id=self.prompts.pad,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            use_cache=True,
        )

    def cut(self, completion: list[int]) -> list[int]:
        """Up to its end token. Padding follows that."""
        end = self.tokenizer.eos_token_id
        return completion[: completion.index(end) + 1] if end in completion else completion

    def score(self, prompts: list[Prompt], completions: list[list[int]], step: int, steps: int) -> Rollouts:
        from transformers import TrainerState

        texts = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        given = {
            "prompts": [each.given for each in prompts],
            "completions": [make_answer(*each) for each in zip(prompts, texts, strict=True)],
            "completion_ids": completions,
            "trainer_state": TrainerState(global_step=step, max_steps=steps),
        }
        for name in {name for each in prompts for name in each.columns} - given.keys():
            given[name] = [each.columns.get(name) for each in prompts]
        scored = rewards.score(self.functions, len(prompts), given)
        builder = GroupBuilder(self.config, self.prompts.pad, find_ends(self.tokenizer), len(prompts))
        sums, size = np.nansum(scored, 0).tolist(), self.config.group_size
        for first in range(0, len(prompts), size):
            part = slice(first, first + size)
            encoded = tuple(join(*each) for each in zip(prompts[part], completions[part], strict=True))
            builder.add(EncodedGroup(prompts[first].where, encoded, tuple(sums[part]), ((),) * size))
        rollouts = builder.finish()
        rollouts.figures = [each | rewards.describe(self.functions, scored) for each in rollouts.figures]
        return rollouts


def open_sampler(config: Config, prompts: Prompts, tokenizer: Any, model_config: Any) -> Sampler:
    """InputError for a reward function that is not there; DoesNotFit where the whole model exceeds the budget."""
    refuse_multimodal(model_config)
    functions, model = rewards.load_functions(config.reward_funcs), describe_model(config, model_config)
    memory = measure_generation(
        model, config, count_most(config, len(prompts)), prompts.longest, on_host=False, advice=ADVICE
    )
    return Sampler(config, prompts, tokenizer, functions, memory)


def refuse_multimodal(model_config: Any) -> None:
    from spillway.model.source.source import is_multimodal

    if is_multimodal(model_config):
        raise InputError("reward_funcs: a run samples no completions of multimodal models; train on recorded ones")


def describe_model(config: Config, model_config: Any) -> Any:
    """The library's model without weights, in the type that layers compute in."""
    import torch

    from spillway.model.meta.on_meta import from_config
    from spillway.model.source.source import DTYPES

    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        return from_config(copy.deepcopy(model_config), DTYPES[config.compute_dtype])


def count_prompts(config: Config) -> int:
    """Prompts of a step."""
    return int(config.per_device_train_batch_size * config.gradient_accumulation_steps // config.group_size)


def count_most(config: Config, prompts: int) -> int:
    """The most completions of a step, of a run with so many prompts."""
    return min(prompts, count_prompts(config)) * config.group_size


def choose_seed(seed: int, step: int) -> int:
    digest = hashlib.sha256(f"completions of step {step} by seed {seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def make_answer(prompt: Prompt, text: str) -> Any:
    """A text, or messages as the prompt has them."""
    return text if isinstance(prompt.given, str) else [{"role": "assistant", "content": text}]


def join(prompt: Prompt, completion: list[int]) -> Encoded:
    return Encoded([*prompt.ids, *completion], [False] * len(prompt.ids) + [True] * len(completion))


def without_old(batch: Batch) -> Batch:
    """The model that is trained sampled the completions, so their old log-probabilities are its own."""
    assert batch.sampled is not None
    return replace(batch, sampled=replace(batch.sampled, old=None))
