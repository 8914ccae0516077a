"""TRL's GRPOTrainer over a streamed model: its arguments, the memory that it samples in, and its micro-batches.

TRL samples and scores the completions of a step by its own code. For that it calls `model.generate`, which runs on the
current weights, whole in DRAM or in GPU memory between two steps, or on a server that they are handed to. The update
streams.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.config.objectives import OBJECTIVES, SAMPLING
from spillway.errors import InputError
from spillway.integrations.generation_memory import ADVICE, NAME, ON_SERVER, RECORDED
from spillway.integrations.loading import Origin, origin_of
from spillway.integrations.reused_completions import (
    Reuse,
    ReusedCompletions,
    add_values,
    collect,
    find_stored,
    sample_for_one_step,
)
from spillway.integrations.server_sampling import TAKEN, ServerSampler
from spillway.integrations.sizes import Sizes, is_iterated, row_count
from spillway.integrations.without_reference import WithoutReference
from spillway.model.batches.batch import Batch, Sampled, WorkShape
from spillway.model.batches.microbatch import IGNORED, Work
from spillway.model.head.objective import Choice, Objective
from spillway.model.head.policy import Policy
from spillway.model.source.source import is_multimodal
from spillway.output import identity
from spillway.run.generation_memory import GenerationMemory, measure_generation

if TYPE_CHECKING:
    from spillway.config import Config

OBJECTIVE = "grpo"
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
    if args.steps_per_generation % args.gradient_accumulation_steps:
        step = args.per_device_train_batch_size * args.gradient_accumulation_steps
        raise InputError(
            f"steps_per_generation: it is {args.steps_per_generation}, and gradient_accumulation_steps is "
            f"{args.gradient_accumulation_steps}; all completions of a step are sampled at once, so give a multiple of "
            f"{args.gradient_accumulation_steps}. With generation_batch_size give a multiple of {step} completions"
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
    """InputError for a model that generation has no way for."""
    keys = origin.config
    if is_multimodal(config):
        raise InputError(f"model: the generation of multimodal models is not here; {RECORDED}")
    if world > 1:
        raise InputError(f"{NAME}: one process samples and trains in this release, and {world} were started")
    if origin.server is not None:
        return
    if keys.method not in ("full", "lora"):
        raise InputError(f"method: {keys.method} has no generation in this process; full and lora have; {ON_SERVER}")
    if keys.load_in_4bit or keys.load_in_8bit:
        raise InputError(f"load_in_4bit, load_in_8bit: generation takes plain weights; leave them out, or {ON_SERVER}")


class Grouped(WithoutReference):
    """State that a streamed GRPOTrainer keeps beside the session."""

    sampler: ServerSampler | None = None  # the server that samples; None: this process does
    _memory = GenerationMemory(ADVICE)
    _policy: Policy | None = None  # of the last step or evaluation
    _reused: ReusedCompletions | None = None  # where several steps train on the completions of one generation
    _later: Sequence[Batch] = ()  # those of steps to come, of the generation of this step
    _places: Sequence[Path] = ()  # directories that may hold these

    def keys(self, args: Any) -> dict[str, Any]:
        """The configuration's keys for this trainer."""
        own = {name: getattr(args, name) for name in OBJECTIVES[OBJECTIVE].defaults if name not in SAMPLING}
        return {"objective": OBJECTIVE, **own, "num_iterations": 1}  # this trainer repeats the completions itself

    def watch(self, choice: Choice) -> Choice:
        """The objective, of which each step's and each evaluation's is kept."""

        def make(work: Work, training: bool) -> Objective:
            objective = choice(work, training)
            if isinstance(objective, Policy):
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

    @property
    def samples_on_host(self) -> bool:
        """True if generation takes none of the compute device's memory."""
        return not self._memory.on_device

    def name_generation(self) -> AbstractContextManager[None]:
        """A refusal of a plan says what generation takes of its memory."""
        return self._memory.explain_refusals()

    def measure(self, trainer: Any, origin: Origin, config: Config) -> Sizes:
        """The largest step, and the memory of generation. DoesNotFit where that alone exceeds the budget. `config`:
        with the device that computes."""
        args = trainer.args
        sets = trainer.eval_dataset
        every = list(sets.values()) if isinstance(sets, dict) else [] if sets is None else [sets]
        length = measure_length(trainer, origin, "train_dataset", [trainer.train_dataset])
        evaluated = measure_length(trainer, origin, "eval_dataset", every) if every else 0
        if self.sampler is None:
            rows = args.per_device_train_batch_size * args.steps_per_generation
            rows = max(rows, args.per_device_eval_batch_size if every else 0)
            self._memory = measure_generation(
                trainer.model, config, rows, max(length, evaluated), origin.samples_on_host, ADVICE
            )
        shape = WorkShape(
            micro_batches=args.gradient_accumulation_steps,
            batch=args.per_device_train_batch_size,
            length=length,
            eval_batch=args.per_device_eval_batch_size if every else 0,
            eval_length=evaluated,
            between=self._memory.on_host,
            between_on_device=self._memory.on_device,
        )
        return Sizes(shape, packing=False)

    def take(self, trainer: Any, generation_batch: Any) -> Batch:
        """The next micro-batch. TRL samples and scores completions where a generation is due, as it does in its own
        `training_step`, and counts the micro-batches."""
        step, reuse = int(trainer.state.global_step), Reuse.from_arguments(trainer.args)
        place = trainer._step % reuse.micro_batches
        trainer._step = step * reuse.micro_batches + place  # of a resumed run, too
        if step % reuse.steps:
            if self._reused is None or not self._reused.serves(step, reuse):
                self._reused = find_stored(self._places, step, reuse)
            batch = self._reused.batches[step % reuse.parts * reuse.micro_batches + place]
        else:
            batch = self.batch(self.sample(trainer, generation_batch), reuse.share(trainer))
            if place == 0:
                self._later = self._look_ahead(trainer, reuse)
        trainer._step += 1
        return batch

    def _look_ahead(self, trainer: Any, reuse: Reuse) -> list[Batch]:
        """The micro-batches of later steps that this generation has sampled, with the log-probabilities that the
        weights of this step give their tokens."""
        share, batches = reuse.share(trainer), []
        for first in range(reuse.micro_batches, reuse.parts * reuse.micro_batches, reuse.micro_batches):
            inputs = trainer._buffered_inputs[first : first + reuse.micro_batches]
            part = [self.batch(each, share) for each in inputs]
            trainer.session.evaluate(part)
            assert self._policy is not None
            batches += [add_values(*each) for each in zip(part, self._policy.list_tokens(), strict=True)]
        return batches

    def sample(self, trainer: Any, generation_batch: Any) -> Any:
        """A micro-batch of TRL's, sampled and scored."""
        with sample_for_one_step(trainer):
            return trainer._prepare_inputs(generation_batch)

    def keep(self, trainer: Any, batches: list[Batch]) -> None:
        """Keeps the micro-batches of a step that has its losses, if later steps train on completions of the same
        generation."""
        step, reuse = int(trainer.state.global_step), Reuse.from_arguments(trainer.args)
        if reuse.steps > 1 and step % reuse.steps == 0:
            assert self._policy is not None
            self._reused = collect(step, batches, self._policy.list_tokens(), self._later)
            self._reused.write(Path(trainer.args.output_dir) / identity.ROLLOUTS)

    def tell_seconds(self, trainer: Any, seconds: float) -> None:
        """TRL's figure of the seconds of a step, without its update."""
        trainer._metrics["train"]["step_time"].append(seconds)

    def batch(self, inputs: Mapping[str, Any] | Batch, share: float = 1.0) -> Batch:
        """A micro-batch of TRL's, whose prompts are padded on the left; or one that was made of it already. `share`: of
        a generation's tokens that the loss of a step is a mean over."""
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
                max(1.0, float(inputs["num_items_in_batch"])) * share,
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
