"""`load`: a model for `spillway.hf.Trainer`, without its weights, and where they are to live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import PreTrainedModel

from spillway.config import Config, checks, normalised, resolve
from spillway.config.objectives import OWN_KEYS
from spillway.errors import InputError
from spillway.integrations.keywords import translate
from spillway.integrations.loaded_model import make_callable
from spillway.integrations.server import Server
from spillway.machine import auto, products
from spillway.model.adapters.lora import adapters_of
from spillway.model.checkpoint import freeze
from spillway.model.checkpoint.ties import build_as_stored
from spillway.model.meta.image_tower import list_arguments
from spillway.model.source import hub
from spillway.model.source.source import DTYPES, OF_ROWS, OF_TOKENS, generation_config, load_config, text_config
from spillway.model.spec import train_tower
from spillway.report import tables

if TYPE_CHECKING:
    from spillway.model.meta.meta_model import MetaModel

LOGGER = transformers.logging.get_logger("spillway")
ON_HOST = "cpu"  # the value of `generation` that samples on the CPUs

# what TrainingArguments, the dataset and the collator decide
ELSEWHERE = (
    "model",
    "tokenizer",
    "dataset",
    "eval_dataset",
    "output_dir",
    "resume_from_checkpoint",
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "seed",
    "data_seed",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "logging_steps",
    "report_to",
    "eval_strategy",
    "eval_steps",
    "eval_on_start",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "save_only_model",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
    "hub_strategy",
    "max_steps",
    "num_train_epochs",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "ddp_backend",
    "objective",
    *OWN_KEYS,
)


# keys of `spillway train` without a counterpart in a Trainer, and the replacement for each
OWN_ROWS = "give the Trainer rows as TRL and datasets make them"
OF_COMMAND = {
    "save_whole_steps": "without durability, every checkpoint of a Trainer stands alone",
    **dict.fromkeys(
        (
            "dataset_config", "dataset_split", "dataset_revision", "eval_dataset_split", "eval_dataset_revision",
            "dataset_text_field", "prompt_field", "completion_field", "messages_field", "completion_only_loss",
            "assistant_only_loss", "chat_template_path",
        ),
        OWN_ROWS,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class RowsWithImages:
    """The keyword `images` of `load`."""

    arguments: frozenset[str] = frozenset()  # of the model, which come with images; none: rows are text
    looked_at: int | None = None  # rows that are prepared to find how large images get; None: all


class Origin:
    """Arguments of `load`; attached to the model as `spillway_origin`."""

    def __init__(
        self,
        config: Config,
        given: set[str],
        meta_model: MetaModel,
        images: RowsWithImages,
        generation: Server | str | None = None,
    ) -> None:
        self.config, self.images = config, images
        self.generation = generation  # the keyword of `load`
        self.carried = meta_model.carried_names  # names of parameters of other modalities than text
        self.given = given  # names of the keys that were said
        self._meta_model = meta_model

    @property
    def server(self) -> Server | None:
        """The server that completions are sampled on; None: this process samples."""
        return self.generation if isinstance(self.generation, Server) else None

    @property
    def samples_on_host(self) -> bool:
        """True if the CPUs sample completions, whatever device computes layers."""
        return self.generation == ON_HOST

    def add_adapters(self, config: Config, given: set[str]) -> None:
        """Puts the adapters of `config`, whose keys `given` were said, into the loaded model."""
        checks.check_method(config)
        adapters = adapters_of(config)
        assert adapters is not None
        adapters.like(self._meta_model)
        self.config, self.given = config, self.given | given

    def __deepcopy__(self, memo: Any) -> Origin:
        return self


def load(
    path: str | Path, storage: str | Path | Sequence[str | Path] | None = None, dtype: Any = None, **keys: Any
) -> PreTrainedModel:
    """The model of a directory or hub id as a meta model on `meta`: every module, no weights.

    `keys` are those of the configuration that say where bytes live and how they are computed (`dram_budget`,
    `placement`, `state_format`, `compute_dtype`, `max_length`, `packing` ...), what is trainable (`trainable`,
    `frozen`, `method="lora"` with `lora_r` and its neighbours). `dtype` is `compute_dtype` by torch's name, or "auto"
    for the checkpoint's own. Keywords of `from_pretrained` are taken or refused by name (`keywords`). What
    TrainingArguments has is said there. `durability="step"`: every finished step of `train()` survives a crash, and
    `train(resume_from_checkpoint=True)` goes on after the last one; by default ("none") checkpoints stand alone, and
    nothing is kept between them. `num_labels`: the head `score` of so many labels in place of the vocabulary's, for
    Trainer, and with 1 for RewardTrainer; `task="token-classification"`: for every token. `images=True`: rows have
    images, for Trainer and SFTTrainer. The plan prepares all rows once to find the largest; with `images=100` it
    prepares the first 100. With `freeze_vision_tower=False` and `freeze_multi_modal_projector=False` these parts are
    trained, too. `peft_config`: a LoraConfig in place of `method="lora"` and its neighbours. `generation=Server(URL)`:
    the server that GRPOTrainer samples on; `generation="cpu"`: it samples on the CPUs beside a GPU. InputError for
    anything else.
    """
    kind, labels, images = choose_task(keys), choose_labels(keys), keys.pop("images", None)
    generation = choose_generation(keys)
    keys = translate(keys if dtype is None else {**keys, "dtype": dtype})
    dtype = keys.pop("dtype", None)
    given = normalised(keys, "load()")
    refuse_keys_of_others(given)
    if dtype == "auto":
        dtype = read_checkpoint_dtype(path, given)
    if dtype is not None:
        given["compute_dtype"] = named_dtype(dtype)
    if storage is not None:
        several = [storage] if isinstance(storage, str | Path) else list(storage)
        given["storage"] = [str(place) for place in several]
    config = resolve({}, {**given, "model": str(path)}, "load()")
    config = config.replaced(durability=config.durability or "none")
    checks.check_model(config)
    checks.check_places(config)
    checks.check_method(config)
    config = hub.resolve_commits(auto.settled(config), only=("model",))
    computes = (tables.computes_on(config.device_why), products.said(config.compute_dtype, config.chosen))
    for notice in filter(None, (*computes, *products.warnings(config))):
        LOGGER.warning(notice)
    directory = hub.model_directory(config)
    built = build_as_stored(
        load_config(directory, labels, kind),
        directory if config.init == "pretrained" else directory / "none",
        DTYPES[config.compute_dtype],
        DTYPES[config.weight_dtype],
    )
    model_config, meta_model = built.config, built.meta_model
    model = meta_model.model
    if images:
        train_tower(meta_model, config)
    if meta_model.tower and config.method == "lora":
        raise InputError(
            "freeze_vision_tower, freeze_multi_modal_projector: `spillway train` and Session train these parts beside "
            "adapters; with a Trainer leave both at True, or give method='full'"
        )
    for parameter in meta_model.carried:
        parameter.requires_grad_(False)
    if (adapters := adapters_of(config)) is not None:
        adapters.like(meta_model)  # their values are drawn when training begins, by the Trainer's seed
    else:
        freeze.choose(meta_model, config, directory)
    model.generation_config = generation_config(directory, model_config)
    told = choose_images(images, model, labels)
    model.spillway_origin = Origin(config, set(given), meta_model, told, generation)
    make_callable(model)
    return model


def refuse_keys_of_others(names: Iterable[str]) -> None:
    """InputError for a key of a Trainer, or of `spillway train`."""
    for name in names:
        if name in ELSEWHERE:
            raise InputError(f"load(): {name} is not the model's; give it to TrainingArguments, or to the Trainer")
        if name in OF_COMMAND:
            raise InputError(f"load(): {name} is a key of `spillway train`; {OF_COMMAND[name]}")


def choose_labels(keys: dict[str, Any]) -> int:
    """Takes `num_labels` out of the keywords: labels of the head; 0: the model predicts tokens. InputError if it is no
    number of them."""
    labels = keys.pop("num_labels", None)
    if labels is None:
        return 0
    if not isinstance(labels, int) or isinstance(labels, bool) or labels < 1:
        raise InputError(f"load(): num_labels={labels!r} is not taken: expects a whole number, 1 or more")
    return labels


def choose_images(images: Any, model: PreTrainedModel, labels: int) -> RowsWithImages:
    """Reads the keyword `images`. InputError for another value, and for a model without a vision tower."""
    if images is None or images is False:
        return RowsWithImages()
    if not isinstance(images, int) or images < 1:
        raise InputError(f"load(): images={images!r} is not taken: expects True, or a number of rows to look at")
    if labels:
        raise InputError("images: a model with num_labels is trained on text alone in this release")
    return RowsWithImages(list_arguments(model.config), None if images is True else images)


def choose_generation(keys: dict[str, Any]) -> Server | str | None:
    """Takes `generation` out of the keywords. InputError for another value."""
    generation = keys.pop("generation", None)
    if generation is None or generation == ON_HOST or isinstance(generation, Server):
        return generation
    raise InputError(
        f'load(): generation={generation!r} is not taken: expects spillway.hf.Server("http://HOST:PORT"), or "cpu"'
    )


TASKS = {"text-classification": OF_ROWS, "token-classification": OF_TOKENS}


def choose_task(keys: dict[str, Any]) -> str:
    """Takes `task`, of the library's pipelines, out of the keywords: what has labels. InputError for another one."""
    labelled, task = "num_labels" in keys, keys.pop("task", None)
    if task is not None and (task not in TASKS or not labelled):
        raise InputError(f"load(): task={task!r} is not taken: with num_labels expects one of {', '.join(TASKS)}")
    return TASKS[task or "text-classification"]


def origin_of(model: Any) -> Origin | None:
    """None for a model that `load` did not make."""
    origin = getattr(model, "spillway_origin", None)
    return origin if isinstance(origin, Origin) else None


def read_checkpoint_dtype(path: str | Path, keys: dict[str, Any]) -> Any:
    """The type of the weights in config.json; None if it has none."""
    config = hub.resolve_commits(resolve({}, {**keys, "model": str(path)}, "load()"), only=("model",))
    checks.check_model(config)
    model_config = load_config(hub.model_directory(config))
    return getattr(text_config(model_config), "dtype", None) or getattr(model_config, "dtype", None)


def named_dtype(dtype: Any) -> str:
    name = dtype.removeprefix("torch.") if isinstance(dtype, str) else dtype
    for own, dtype_name in DTYPES.items():
        if name in (own, dtype_name, str(dtype_name).removeprefix("torch.")):
            return own
    raise InputError(f"dtype: {dtype} is not computed in here; there are {', '.join(map(str, DTYPES.values()))}")


def untouched(model: PreTrainedModel) -> None:
    """InputError where somebody gave the meta model weights, or froze all of it."""
    for name, parameter in model.named_parameters():
        if parameter.device != torch.device("meta"):
            raise InputError(f"model: {name} was given bytes; weights of a loaded model live in the engine alone")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("model: no parameter requires a gradient, so there is nothing to train")
