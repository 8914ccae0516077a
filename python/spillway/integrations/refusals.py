"""Refusals of requests to a Trainer that a streamed model cannot serve. A refusal comes when the Trainer is made, and
says what to do instead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import transformers

from spillway._engine import Description, Training
from spillway.base import ranks
from spillway.config.key import describe_other_optimizer
from spillway.config.keys import KEYS
from spillway.errors import InputError
from spillway.integrations import generation_memory, grouped, ranked
from spillway.integrations.alone import TRAINERS
from spillway.integrations.loading import LOGGER, Origin, origin_of
from spillway.integrations.referred import FORMS
from spillway.model.meta.meta_model import bare_name
from spillway.output import volumes

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from spillway.config import Config

NO_LOGITS = (
    "predict: it wants the logits of whole batches, for which no memory was planned; give the Trainer an eval_dataset "
    "and compute_metrics, or set prediction_loss_only"
)
NOT_LOADED = (
    "model: the Trainer streams what spillway.hf.load made, and this is something else: "
    "model = spillway.hf.load(PATH, storage=...)"
)
ADAPTERS = (
    "adapters stream with the model that load makes, which puts PEFT's into it: "
    'load(PATH, method="lora", lora_r=16, lora_alpha=32, lora_target_modules=["q_proj", "v_proj"]), or '
    "load(PATH, peft_config=LoraConfig(...))"
)
FROM_TRL = (
    "SFTTrainer",
    *FORMS,
    ranked.NAME,
    generation_memory.NAME,
    *TRAINERS,
    "BaseTrainer",
    "_BaseTrainer",
)  # the others are what these are made from
LOSSES = (  # whose compute_loss the engine computes instead
    "trl.trainer.sft_trainer",
    *(f"trl.trainer.{each.OBJECTIVE}_trainer" for each in (ranked, grouped)),
    *(f"trl.trainer.{form.objective}_trainer" for form in FORMS.values()),
    *(f"trl.experimental.{name}.{name}_trainer" for name in TRAINERS.values()),
)
SAME_LOSS = ("nll", "chunked_nll")  # the second, the default of TRL 1.7 to 1.9, computes the first in pieces
RECOMPUTES = "which layers recompute is the plan's choice, or that of load(..., activation_recompute=...)"
# argument, whether its value asks for something, and why it is not done
ARGUMENTS = (
    ("label_smoothing_factor", "the loss is computed in slices of the vocabulary, as plain cross-entropy"),
    ("neftune_noise_alpha", "noise on the embedding is added by a hook of a module that is never called"),
    ("torch_compile", "layers run on the engine's own bytes"),
    ("use_liger_kernel", "it replaces the model's forward pass, which is not what runs here"),
    ("deepspeed", "two engines cannot own one model"),
    ("fsdp", "two engines cannot own one model"),
    ("auto_find_batch_size", "a plan is made for one batch size, and refuses what does not fit before it starts"),
    ("predict_with_generate", "an evaluation gives losses; call model.generate in compute_metrics or in a callback"),
    ("fp16_full_eval", "evaluation computes as training does"),
    ("bf16_full_eval", "evaluation computes as training does"),
)


def trainer_first(kind: type) -> None:
    """Before TRL's own constructor, which may load another model: some of its trainers have losses that are computed
    here."""
    for base in kind.__mro__:
        if base.__name__ in FORMS and base.__module__.startswith("trl.experimental."):
            raise InputError(
                f"{base.__name__}: the one of trl.experimental is not computed over a streamed model; install a newer "
                "TRL, which has its own outside of its experiments"
            )
        if base.__module__.startswith("trl.") and base.__name__.endswith("Trainer") and base.__name__ not in FROM_TRL:
            raise InputError(
                f"{base.__name__}: its objective is not computed over a streamed model; of TRL's trainers those of "
                "SFTTrainer, DPOTrainer, KTOTrainer, RewardTrainer, GRPOTrainer, ORPOTrainer and CPOTrainer are"
            )


def model_first(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Before the library looks at anything: a name would make it load the whole model."""
    model = positional[0] if positional else named.get("model")
    if type(model).__module__.startswith("peft."):
        raise InputError(f"model: it was given to PEFT; {ADAPTERS}")
    if origin_of(model) is None:
        raise InputError(NOT_LOADED)


def check(trainer: Any) -> Origin:
    """InputError for the first thing that this Trainer, made but not started, cannot do."""
    origin = origin_of(trainer.model)
    if origin is None:
        raise InputError(NOT_LOADED)
    check_arguments(trainer.args, trainer._pairs is not None)
    check_hooks(trainer)
    check_generation(trainer, origin)
    optimizer(str(getattr(trainer.args.optim, "value", trainer.args.optim)))
    return origin


def check_generation(trainer: Any, origin: Origin) -> None:
    """InputError for a model that was told where to generate, in a trainer that does not generate."""
    if origin.generation is not None and not isinstance(trainer._pairs, grouped.Grouped):
        raise InputError(
            f"generation: of the trainers {generation_memory.NAME} alone generates; load the model without it"
        )


def check_images(origin: Origin, compares: bool) -> None:
    """InputError for a model loaded for images in a trainer that takes text alone."""
    if origin.images.arguments and compares:
        raise InputError("images: rows with images are for Trainer and SFTTrainer; load the model without it")


def check_arguments(args: Any, compares: bool = False) -> None:
    for name, why in ARGUMENTS:
        if getattr(args, name, None):
            raise InputError(f"{name}: not with a streamed model: {why}")
    if not compares and getattr(args, "loss_type", "nll") not in SAME_LOSS:  # of TRL's SFTConfig
        raise InputError(f"loss_type: {args.loss_type} is not computed here; nll is")
    if args.n_gpu > 1:
        raise InputError(
            f"n_gpu: {args.n_gpu} are visible; this release computes on one device: CUDA_VISIBLE_DEVICES=0"
        )
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        if getattr(args, name, None):
            setattr(args, name, False)
            LOGGER.warning(f"{name} changes nothing: {RECOMPUTES}")


def check_processes(args: Any) -> None:
    """Refuses launchers, and ways of sharing rows among processes, that a streamed model cannot use."""
    started = ranks.of_environment(os.environ).world
    if args.world_size == 1 and started > 1:
        raise InputError(
            f"use_cpu: {started} processes were started (WORLD_SIZE), and transformers joins them on CPUs where it is "
            "told to alone: TrainingArguments(use_cpu=True)"
        )
    if args.world_size == 1:
        return
    if not args.average_tokens_across_devices:
        raise InputError(
            "average_tokens_across_devices: a step's loss is the mean over the label tokens of all processes; leave it "
            "out"
        )
    if not getattr(args.accelerator_config, "even_batches", True):
        raise InputError("even_batches: all processes take part in every step; leave it out of accelerator_config")
    if args.save_on_each_node:
        raise InputError("save_on_each_node: rank 0 alone writes output_dir; leave it out")
    args.average_tokens_across_devices = False  # they are counted with the micro-batches, which each process hears of


def check_durable(args: Any) -> None:
    """Refuses settings that durable steps cannot be combined with."""
    if args.load_best_model_at_end and args.save_only_model:
        raise InputError(
            "load_best_model_at_end: with durable steps the best step is gone back to; leave save_only_model out"
        )
    if args.push_to_hub:
        raise InputError(
            "push_to_hub: not with durable steps, whose checkpoints get their place when they are whole; push when the "
            "run has ended"
        )


def check_free(config: Config) -> None:
    """Before a model of durable steps is looked at outside of train()."""
    if there := volumes.present(config.paths):
        raise InputError(
            f"durability: {there[0]} holds a run; train(resume_from_checkpoint=True) goes on with it; evaluate and "
            "save after that"
        )


def check_hooks(trainer: Any) -> None:
    """Refuses overridden or passed hooks that compute something of their own."""
    if callable(trainer.compute_loss_func):  # TRL 1.0's GRPOTrainer gives a text, which asks for no scaling
        raise InputError("compute_loss_func: the loss is computed in slices of the vocabulary, as plain cross-entropy")
    own = type(trainer).compute_loss
    if own is not transformers.Trainer.compute_loss and own.__module__ not in LOSSES:
        raise InputError(f"compute_loss: {own.__qualname__} would never be called; the engine computes the loss")
    if trainer.model_init is not None:
        raise InputError("model_init: hand in one model, made by spillway.hf.load")
    if trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None:
        raise InputError("optimizers: the engine updates; name the rule with TrainingArguments(optim=...)")


def optimizer(name: str) -> str:
    """The engine's name of one of transformers'."""
    if words := describe_other_optimizer(name):
        raise InputError(f"optim: {words}")
    try:
        return str(KEYS["optim"].kind.parse(name))
    except ValueError:
        raise InputError(f"optim: {name} is not here; expects {KEYS['optim'].kind.expected}") from None


def same_parameters(model: PreTrainedModel, description: Description) -> None:
    """A model whose embedding was resized, or to which something was added, is not what the engine holds."""
    held = {tensor.name: tensor.shape for block in description.blocks for tensor in block.tensors}
    apart = model.spillway_origin.carried
    for name, parameter in model.named_parameters():
        if bare_name(name) in apart and parameter.requires_grad:
            raise InputError(
                f"model: {name} requires a gradient, and it belongs to another modality than text. For rows with "
                "images load the model with freeze_vision_tower=False or freeze_multi_modal_projector=False"
            )
        there = held.get(bare_name(name))
        if bare_name(name) not in apart and there != list(parameter.shape):
            raise InputError(
                f"model: {name} is {list(parameter.shape)}, the checkpoint's is {there}; change the checkpoint first "
                "(from_pretrained, resize, save_pretrained), then load it"
            )


def same_learning(model: PreTrainedModel, description: Description) -> None:
    """Raises InputError if `requires_grad` differs from the parameters that the description trains. With adapters,
    setting `requires_grad` on the meta model changes nothing of what is trained."""
    every = [tensor for block in description.blocks for tensor in block.tensors]
    frozen = {tensor.name for tensor in every if tensor.training is Training.frozen}
    frozen |= model.spillway_origin.carried
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (bare_name(name) in frozen):
            raise InputError(
                f"model: requires_grad of {name} was changed; with method lora adapters are trained and all of the "
                "base is frozen"
            )
