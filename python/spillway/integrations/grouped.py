"""TRL's GRPOTrainer over a streamed model: its arguments, the memory that it samples in, and its micro-batches.

TRL samples and scores the completions of a step by its own code. For that it calls `model.generate`, which runs on the
current weights, whole in DRAM between two steps, or on a server that they are handed to. The update streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from spillway.base import sizes as words
from spillway.config.objectives import OBJECTIVES
from spillway.errors import DoesNotFit, InputError
from spillway.integrations.loading import Origin, origin_of
from spillway.integrations.reused_completions import (
    ReusedCompletions,
    collect,
    find_stored,
    sample_for_one_step,
)
from spillway.integrations.server import ENGINES
from spillway.integrations.server_sampling import TAKEN, ServerSampler
from spillway.integrations.sizes import Sizes, is_iterated, row_count
from spillway.integrations.without_reference import WithoutReference
from spillway.machine import process_memory
from spillway.model.batches.batch import Batch, Sampled, WorkShape
from spillway.model.batches.microbatch import IGNORED, Work
from spillway.model.head.objective import Choice, Objective
from spillway.model.head.policy import Policy
from spillway.model.source.source import is_multimodal
from spillway.output import identity
from spillway.run.settings import memory_budget

NAME, OBJECTIVE = "GRPOTrainer", "grpo"
ON_SERVER = 'name the server that samples: load(..., generation=Server("http://localhost:8000"))'
RECORDED = "sample with another program, and train on the record with `objective: grpo` of `spillway train`"
NO_SERVER = f"completions are sampled by this process; {ON_SERVER}; or {RECORDED}"
TOOLS = f"completions come from the model alone; {RECORDED}"
# argument, the value that asks for nothing, and what to do instead
PLAIN = (
    ("use_vllm", False, NO_SERVER),
    ("use_transformers_continuous_batching", False, NO_SERVER),
    ("delta", None, "the ratio is clipped by epsilon and epsilon_high"),
    ("top_entropy_quantile", 1.0, "every token of a completion counts"),
    ("off_policy_mask_threshold", None, "each step samples its own completions"),
    ("entropy_coef", 0.0, "the loss has no term of entropy"),
    ("use_adaptive_entropy", False, "the loss has no term of entropy"),
    ("cast_lm_head_to_fp32", False, "the head computes as the layers do; load(..., dtype=torch.float32)"),
    ("sync_ref_model", False, "there is no reference"),
)
ORDER = ("model", "reward_funcs", "args")  # of TRL's constructor
TEMPORARIES = 8  # fp32 rows of the vocabulary that sampling holds for each completion
# Beside the weights, generation is estimated: products may keep weights in another order, and the heap has holes
# between keys and values that grow.
MARGIN = 128 << 20
HIDDEN, INNER = 12, 4  # of a token in a layer: hidden states, and those of its MLP


def check(named: Mapping[str, Any], positional: tuple[Any, ...]) -> None:
    """InputError for the first argument of TRL's constructor that is not computed."""
    given = {**dict(zip(ORDER, positional, strict=False)), **named}
    if given.get("args") is None:
        raise InputError(f"args: {NAME} has no defaults without them; give GRPOConfig")
    check_arguments(given["args"], given)
    if (origin := origin_of(given.get("model"))) is not None:
        check_reference(origin, given["args"].beta)
        if origin.server is not None:
            check_sampling(given["args"])
    given["args"].gradient_checkpointing = False  # the plan says which layers recompute


def check_arguments(args: Any, given: Mapping[str, Any]) -> None:
    for name, plain, instead in PLAIN:
        if getattr(args, name, plain) != plain:
            raise InputError(f"{name}: {getattr(args, name)} is not computed over a streamed model: {instead}")
    if args.loss_type not in OBJECTIVES[OBJECTIVE].losses:
        losses = ", ".join(OBJECTIVES[OBJECTIVE].losses)
        raise InputError(f"loss_type: {args.loss_type} is not computed over a streamed model; expects one of {losses}")
    if not (math.isfinite(args.temperature) and args.temperature > 0):
        raise InputError(
            f"temperature: {args.temperature} cannot sample completions, whose logits are divided by it; give a finite "
            "number greater than 0, such as GRPOConfig(temperature=1.0)"
        )
    if args.steps_per_generation != args.gradient_accumulation_steps:
        raise InputError(
            f"steps_per_generation: it is {args.steps_per_generation}, and gradient_accumulation_steps is "
            f"{args.gradient_accumulation_steps}; one step takes all completions that are sampled at once, so leave it "
            "out, and generation_batch_size, too"
        )
    functions = given.get("reward_funcs")
    for each in functions if isinstance(functions, list) else [functions]:
        if each is None or isinstance(each, str | torch.nn.Module):
            raise InputError(f"reward_funcs: a reward is that of a function; {each!r:.60} would be a model in memory")
    for name in ("tools", "rollout_func", "environment_factory"):
        if given.get(name):
            raise InputError(f"{name}: not with a streamed model: {TOOLS}")


def check_reference(origin: Origin, beta: float) -> None:
    """InputError for a `beta` whose reference would be a second model."""
    if beta and (origin.config.method != "lora" or origin.config.lora_adapter):
        raise InputError(
            f"beta: {beta} is not computed over this model: its reference would be a second model in memory. The base "
            f'of new adapters is their reference, load(..., method="lora"); or {RECORDED}'
        )


def check_sampling(args: Any) -> None:
    """InputError for a way of sampling that a server does not have."""
    other = [name for name in (getattr(args, "generation_kwargs", None) or {}) if name not in TAKEN]
    if other:
        raise InputError(f"generation_kwargs: {other[0]} is not for a server; expects {', '.join(TAKEN)}")


def check_origin(origin: Origin, config: Any, world: int) -> None:
    """InputError for a model, or a place to compute, that generation has no way for."""
    keys = origin.config
    if is_multimodal(config):
        raise InputError(f"model: the generation of multimodal models is not here; {RECORDED}")
    if world > 1:
        raise InputError(f"{NAME}: one process samples and trains in this release, and {world} were started")
    if origin.server is not None:
        return
    if keys.device != "cpu":
        raise InputError(
            f'device: this process samples on the CPUs in this release; load(..., device="cpu"), or {ON_SERVER}'
        )
    if keys.method not in ("full", "lora"):
        raise InputError(f"method: {keys.method} has no generation in this process; full and lora have; {ON_SERVER}")
    if keys.load_in_4bit or keys.load_in_8bit:
        raise InputError(f"load_in_4bit, load_in_8bit: generation takes plain weights; leave them out, or {ON_SERVER}")


class Grouped(WithoutReference):
    """State that a streamed GRPOTrainer keeps beside the session."""

    sampler: ServerSampler | None = None  # the server that samples; None: this process does
    _policy: Policy | None = None  # of the last step
    _reused: ReusedCompletions | None = None  # where several steps train on the same completions
    _places: Sequence[Path] = ()  # directories that may hold these

    def keys(self, args: Any) -> dict[str, Any]:
        """The configuration's keys for this trainer."""
        own = {name: getattr(args, name) for name in OBJECTIVES[OBJECTIVE].defaults}
        return {"objective": OBJECTIVE, **own, "num_iterations": 1}  # this trainer repeats the completions itself

    def watch(self, choice: Choice) -> Choice:
        """The objective, of which each step's is kept."""

        def make(work: Work, training: bool) -> Objective:
            objective = choice(work, training)
            if training and isinstance(objective, Policy):
                self._policy = objective
            return objective

        return make

    def refer(self, trainer: Any, began_in: Path | None, began: bool, durable: bool) -> None:
        """Before a training: completions that a killed run trained on are looked for when a step wants them."""
        self._reused = None
        own = Path(trainer.args.output_dir)
        places = [own, began_in] if durable else [began_in, own]
        self._places = [place for place in places if place is not None]

    def save(self, checkpoint: Path) -> None:
        if self._reused is not None:
            self._reused.write(checkpoint / identity.ROLLOUTS)

    def fit(self, trainer: Any) -> None:
        """Changes TRL's trainer when its constructor has returned."""
        trainer.model.__dict__.pop("forward", None)  # TRL's, which gives log-probabilities
        origin = origin_of(trainer.model)
        assert origin is not None
        check_origin(origin, trainer.model.config, trainer.args.world_size)
        if origin.server is not None:
            self.sampler = ServerSampler(origin.server, trainer)

    def measure(self, trainer: Any, origin: Origin) -> Sizes:
        """The largest step, and the memory of generation. DoesNotFit where that alone exceeds the budget."""
        args = trainer.args
        sets = trainer.eval_dataset
        every = list(sets.values()) if isinstance(sets, dict) else [] if sets is None else [sets]
        length = measure_length(trainer, origin, "train_dataset", [trainer.train_dataset])
        evaluated = measure_length(trainer, origin, "eval_dataset", every) if every else 0
        shape = WorkShape(
            micro_batches=args.gradient_accumulation_steps,
            batch=args.per_device_train_batch_size,
            length=length,
            eval_batch=args.per_device_eval_batch_size if every else 0,
            eval_length=evaluated,
            between=0 if self.sampler else measure_generation(trainer, origin, max(length, evaluated), bool(every)),
        )
        return Sizes(shape, packing=False)

    def take(self, trainer: Any, generation_batch: Any) -> Any:
        """The next micro-batch. TRL samples and scores completions where a step begins, as it does in its own
        `training_step`, and counts the micro-batches."""
        step, iterations = int(trainer.state.global_step), int(trainer.args.num_iterations)
        if step % iterations and (self._reused is None or not self._reused.serves(step, iterations)):
            self._reused = find_stored(self._places, step, iterations)
        if step % iterations and self._reused is not None:
            inputs: Any = self._reused.batches[trainer._step % trainer.args.steps_per_generation]
        else:
            inputs = self.sample(trainer, generation_batch)
        trainer._step += 1
        return inputs

    def sample(self, trainer: Any, generation_batch: Any) -> Any:
        """A micro-batch of TRL's, sampled and scored."""
        with sample_for_one_step(trainer):
            return trainer._prepare_inputs(generation_batch)

    def keep(self, trainer: Any, batches: list[Batch]) -> None:
        """Keeps the micro-batches of a step that has its losses, if later steps train on them, too."""
        step, iterations = int(trainer.state.global_step), int(trainer.args.num_iterations)
        if iterations > 1 and step % iterations == 0:
            assert self._policy is not None
            self._reused = collect(step, batches, self._policy.list_tokens())
            self._reused.write(Path(trainer.args.output_dir) / identity.ROLLOUTS)

    def tell_seconds(self, trainer: Any, seconds: float) -> None:
        """TRL's figure of the seconds of a step, without its update."""
        trainer._metrics["train"]["step_time"].append(seconds)

    def batch(self, inputs: Mapping[str, Any] | Batch) -> Batch:
        """A micro-batch of TRL's, whose prompts are padded on the left; or one that a step before has made of it."""
        if isinstance(inputs, Batch):
            return inputs
        rows, labels, sampling = [], [], []
        for prompt, seen, completion, kept in zip(
            *(inputs[name].cpu() for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")),
            strict=True,
        ):
            own, answer = prompt[seen.bool()], completion[kept.bool()]
            rows.append(torch.cat([own, answer]))
            labels.append(torch.cat([torch.full_like(own, IGNORED), answer]))
            sampling.append(self.sampler.log_probabilities(own, answer) if self.sampler else None)
        lengths = torch.tensor([len(row) for row in rows])
        pad = torch.nn.utils.rnn.pad_sequence
        known = [values for values in sampling if values is not None]
        advantages = inputs["advantages"].cpu().double()
        return Batch(
            input_ids=pad(rows, batch_first=True),
            labels=pad(labels, batch_first=True, padding_value=IGNORED),
            position_ids=None,
            tokens=int(lengths.sum()),
            lengths=lengths if len(set(lengths.tolist())) > 1 else None,
            rows_each=1,
            sampled=Sampled(
                None,
                advantages,
                {},
                torch.cat(known) if len(known) == len(rows) else None,
                self.sampler is None or self.sampler.divides,
            ),
        )


@contextmanager
def load_no_reference(pairs: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[None]:
    """TRL's constructor loads no reference model while this is open, whatever `args.beta` is."""
    args = {**dict(zip(ORDER, positional, strict=False)), **named}.get("args")
    if not isinstance(pairs, Grouped) or args is None:
        yield
        return
    beta, args.beta = args.beta, 0.0
    try:
        yield
    finally:
        args.beta = beta


def measure_length(trainer: Any, origin: Origin, name: str, sets: Sequence[Any]) -> int:
    """The tokens of the longest prompt of the datasets, with its completion."""
    longest = max(count_prompt_tokens(trainer, origin, name, rows) for rows in sets)
    length = longest + int(trainer.args.max_completion_length)
    if "max_length" in origin.given:
        length = max(length if longest else 0, int(origin.config.max_length))
    return length


def count_prompt_tokens(trainer: Any, origin: Origin, name: str, rows: Any) -> int:
    """The tokens of the longest prompt; 0 where `max_length` stands for all of them. `name`: of the argument."""
    if is_iterated(rows) or row_count(rows) is None:
        if "max_length" not in origin.given:
            raise InputError(
                f"max_length: the longest prompt cannot be seen from {name}, which is iterated; say it with its "
                "completion: load(..., max_length=1024)"
            )
        return 0
    prompts = rows["prompt"]
    return max(
        max(map(len, trainer._tokenize_prompts(list(prompts[first : first + 256]))[0]))
        for first in range(0, len(prompts), 256)
    )


def measure_generation(trainer: Any, origin: Origin, length: int, evaluates: bool) -> int:
    """Bytes of DRAM that generation takes between steps. DoesNotFit where they exceed the budget alone."""
    args = trainer.args
    completions = args.per_device_train_batch_size * args.steps_per_generation
    if evaluates:
        completions = max(completions, args.per_device_eval_batch_size)
    weights = count_weight_bytes(trainer.model)
    rest = weights + 2 * count_cache_bytes(trainer.model.config, completions, length) + MARGIN
    check_memory(weights, rest, memory_budget(origin.config), process_memory.resident())
    return weights + rest


def count_weight_bytes(model: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def count_cache_bytes(config: Any, rows: int, length: int) -> int:
    """Bytes of keys, values and temporaries of `rows` completions that get `length` tokens long with their prompts."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    cache = 2 * (config.num_hidden_layers + 1) * key_heads * width
    layer = HIDDEN * max(config.hidden_size, heads * width) + INNER * inner
    return rows * (length * 4 * (cache + layer) + TEMPORARIES * 4 * config.vocab_size)


def check_memory(weights: int, rest: int, budget: int, held: int) -> None:
    if weights + rest + held > budget:
        raise DoesNotFit(
            f"does not fit in DRAM: {NAME} generates with the whole model, {words.size(weights)} of weights and "
            f"about {words.size(rest)} to sample the completions of a step. dram_budget is {words.size(budget)}, of "
            f"which the process has {words.size(held)} already. Raise dram_budget, lower per_device_train_batch_size "
            f"or max_completion_length, or {ON_SERVER}; {ENGINES}. Or {RECORDED}"
        )


@contextmanager
def name_generation(between: int) -> Iterator[None]:
    """A refusal of a plan says what generation takes of its memory."""
    try:
        yield
    except DoesNotFit as error:
        if not between:
            raise
        raise DoesNotFit(
            f"{error}. (Of the working set {words.size(between)} are the whole model and the completions of a step, "
            f"which {NAME} generates. Or {RECORDED})",
            error.plan,
        ) from error
