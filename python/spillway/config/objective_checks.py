"""Checks of the keys of an objective: which of them belong together, and which it does not take."""

from __future__ import annotations

from pathlib import Path

from spillway.config.objective_keys import join
from spillway.config.objectives import OWN_KEYS, SAMPLING, list_owners
from spillway.config.resolve import Config
from spillway.errors import InputError

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")


def check_objective(config: Config) -> None:
    objective = config.objective_entry
    for name in OWN_KEYS:
        if name not in objective.defaults and getattr(config, name) is not None:
            raise InputError(
                f"{name}: it is for objective {join(list_owners(name))}, and the objective is {config.objective}"
            )
    if objective.has_reference and not (config.precompute_ref_log_probs or config.refers_in_step):
        raise InputError(
            "precompute_ref_log_probs: without new adapters no step has the reference, which is the model before the "
            "first step; leave it out, or give `method: lora` without `lora_adapter`"
        )
    if objective.has_teacher:
        check_teacher(config)
    if objective.is_labelled:
        check_labels(config)
    if not objective.compares:
        return
    for name in ("packing", "eval_packing"):
        if getattr(config, name):
            raise InputError(f"{name}: a pair's rows stand for themselves; objective {objective.name} joins no rows")
    for name in ("dataset_text_field", "prompt_field", "completion_field", "messages_field"):
        if getattr(config, name) is not None:
            raise InputError(
                f"{name}: objective {objective.name} reads the columns {join(objective.columns)}; leave it out"
            )
    for name in ("completion_only_loss", "assistant_only_loss"):
        if not getattr(config, name):
            raise InputError(f"{name}: objective {objective.name} says which tokens carry loss; leave it out")
    if objective.losses and config.loss_type not in objective.losses:
        raise InputError(
            f"loss_type: objective {objective.name} has no {config.loss_type}; expects one of "
            f"{', '.join(objective.losses)}"
        )
    if objective.is_mismatched and config.per_device_train_batch_size < 2:
        raise InputError(
            f"per_device_train_batch_size: objective {objective.name} gives each prompt another answer of its "
            "micro-batch; expects 2 or more"
        )
    if config.beta == 0 and not objective.is_sampled:
        raise InputError(f"beta: 0 leaves nothing of the loss of objective {objective.name}; expects a number above 0")
    if objective.is_sampled and config.eval_dataset:
        raise InputError(
            f"eval_dataset: objective {objective.name} has no loss of completions that another policy sampled; "
            "generate from the saved model and score, or leave it out"
        )
    if objective.is_sampled:
        check_sampling(config)
    check_smoothing(config)


def check_sampling(config: Config) -> None:
    """The keys of a run that samples its own completions."""
    if not config.reward_funcs:
        if given := [name for name in SAMPLING if getattr(config, name) is not None and name != "reward_funcs"]:
            raise InputError(
                f"{given[0]}: it is for a run that samples completions; give reward_funcs, or leave it out"
            )
        return
    step, size = config.per_device_train_batch_size * config.gradient_accumulation_steps, config.group_size
    if step % size:
        raise InputError(
            f"num_generations: it is {size}, and a step takes {step} completions (per_device_train_batch_size times "
            f"gradient_accumulation_steps); a group lies in one step, so expects a multiple of {size}"
        )
    if config.num_iterations != 1:
        raise InputError(
            f"num_iterations: it is {config.num_iterations}, and with reward_funcs each step samples its own "
            "completions; leave it out"
        )
    if config.beta and not config.refers_in_step:
        raise InputError(
            f"beta: {config.beta} needs a reference, which with reward_funcs is the base of new adapters; give "
            "`method: lora` without `lora_adapter`, or leave beta out"
        )
    if config.method not in ("full", "lora") or config.load_in_4bit or config.load_in_8bit:
        raise InputError(
            "reward_funcs: completions are sampled with plain weights; give `method: full` or `lora` without "
            "load_in_4bit and load_in_8bit, or train on recorded completions"
        )
    if config.ranks.world > 1:
        raise InputError(
            f"reward_funcs: one process samples and trains in this release, and there are {config.ranks.world}; start "
            "one, or train on recorded completions"
        )


def check_labels(config: Config) -> None:
    objective = config.objective_entry
    for name in ("packing", "eval_packing"):
        if getattr(config, name):
            raise InputError(f"{name}: objective {objective.name} labels rows that stand for themselves; leave it out")
    kinds = ("messages_field",) if objective.labels_words else ()
    for name in ("prompt_field", "completion_field", *kinds):
        if getattr(config, name) is not None:
            raise InputError(
                f"{name}: objective {objective.name} has no such column; dataset_text_field names that of the "
                f"{'words' if objective.labels_words else 'text'}, and label_field that of the labels"
            )
    for name in ("completion_only_loss", "assistant_only_loss"):
        if not getattr(config, name):
            raise InputError(f"{name}: the loss of objective {objective.name} is of labels; leave it out")
    if config.text_pair_field and not config.dataset_text_field:
        raise InputError("text_pair_field: it names the second text; dataset_text_field names the first")
    names = config.id2label
    if names and config.num_labels not in (None, len(names)):
        raise InputError(
            f"num_labels: it is {config.num_labels}, and id2label names {len(names)}; leave num_labels out"
        )
    count = config.num_labels or (len(names) if names else None)
    if count == 1 and config.problem_type not in (None, "regression"):
        raise InputError(f"problem_type: {config.problem_type} needs 2 labels or more, and num_labels is 1")


def check_teacher(config: Config) -> None:
    if config.teacher is None:
        raise InputError("teacher: objective distill learns from another model; name the directory of one")
    place = Path(config.teacher)
    if not (place / "config.json").is_file():
        what = "has no config.json" if place.is_dir() else "is no directory"
        raise InputError(f"teacher: {config.teacher} {what}; expects a model as transformers saves it")
    if not any((place / name).is_file() for name in SAFETENSORS):
        raise InputError(f"teacher: {config.teacher} has no {' and no '.join(SAFETENSORS)}; save it as safetensors")
    if config.ranks.world > 1:
        raise InputError(
            f"objective: distill runs in one process in this release, and there are {config.ranks.world}; start one"
        )
    if config.loss_type not in config.objective_entry.losses:
        raise InputError(
            f"loss_type: objective distill has no {config.loss_type}; expects one of "
            f"{', '.join(config.objective_entry.losses)}"
        )


def check_smoothing(config: Config) -> None:
    smoothed = config.objective_entry.smoothed
    if config.simpo_gamma != config.objective_entry.defaults.get("simpo_gamma") and config.loss_type != "simpo":
        raise InputError(f"simpo_gamma: it is for loss_type simpo, and that is {config.loss_type}")
    if config.label_smoothing and config.loss_type not in smoothed:
        raise InputError(
            f"label_smoothing: it is for loss_type {' or '.join(smoothed)}, and that is {config.loss_type}"
        )
    if (config.label_smoothing or 0) >= 0.5:
        raise InputError(
            f"label_smoothing: {config.label_smoothing} of the pairs the wrong way round; expects below 0.5"
        )
