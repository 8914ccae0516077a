"""Checks between keys, and of the files they name: everything that can be refused before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from spillway.base import installed, silence
from spillway.base.documents import describe_broken_link, name_file_kind
from spillway.config import methods, several
from spillway.config.keys import KEYS
from spillway.config.objective_checks import check_objective
from spillway.config.optimizers import OPTIMIZERS, own_keys
from spillway.config.resolve import Config
from spillway.errors import InputError, SpillwayError

ADAPTER = "adapter_model.safetensors"  # PEFT's name of the file
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet")
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
SAVED_DATASET_FILES = ("state.json", "dataset_dict.json")  # `save_to_disk` of the package datasets writes one of them


def check(
    config: Config, required: tuple[str, ...] = ("model", "dataset", "output_dir"), described: bool = True
) -> None:
    """Raises InputError naming the first key that cannot be as it is. Writes nothing.

    `described`: the model's directory says what it is; else that is code of the caller's own.
    """
    check_required(config, required)
    if config.ranks.world > 1:
        several.check(config)
    else:
        check_processes()
    check_model(config, described)
    check_dataset("dataset", config)
    check_evaluation(config)
    check_objective(config)
    check_fields(config)
    check_places(config)
    check_updates(config)
    check_replays(config)
    check_saves(config)
    check_optimizer(config)
    check_method(config)
    check_adapter(config)


def check_adapter(config: Config) -> None:
    """Refuses a directory without adapters. A resume has them in its own state."""
    if config.lora_adapter is None or config.resume_from_checkpoint:
        return
    file = Path(config.lora_adapter, ADAPTER)
    if not file.is_file():
        raise InputError(f"lora_adapter: there is no {file}; expects a directory of adapters, as PEFT saves them")


def check_method(config: Config) -> None:
    methods.check(config)
    for name in ("trainable", "frozen"):
        if config.method == "lora" and getattr(config, name):
            raise InputError(
                f"{name}: with method lora adapters are trained and all of the base is frozen; leave it out"
            )
    for name in ("freeze_vision_tower", "freeze_multi_modal_projector"):
        if config.method not in ("full", "lora") and not getattr(config, name):
            raise InputError(f"{name}: with method {config.method} it has to stay true; full and lora train that part")
        if (config.load_in_4bit or config.load_in_8bit) and not getattr(config, name):
            raise InputError(f"{name}: with load_in_4bit or load_in_8bit it has to stay true; leave these out")
    if config.lora_target_parameters and config.lora_dropout:
        raise InputError(
            f"lora_dropout: it is {config.lora_dropout}, and adapters of lora_target_parameters have no dropout, as in "
            "PEFT; give 0"
        )
    if config.lora_target_parameters and config.use_dora:
        raise InputError(
            "use_dora: adapters of lora_target_parameters have no lengths of rows, as in PEFT; leave it out"
        )
    if config.method == "lora" and find_spec("peft") is None:
        raise InputError("method: lora needs the package peft; install it with `pip install peft`")
    check_base_form(config)
    methods.check_reduced(config)


def check_base_form(config: Config) -> None:
    for name in ("load_in_4bit", "load_in_8bit"):
        if getattr(config, name) and config.method != "lora":
            raise InputError(
                f"{name}: what is trained cannot be kept as codes, and with method {config.method} the model's layers "
                "are; it is for the frozen base of method lora"
            )
    if config.load_in_4bit and config.load_in_8bit:
        raise InputError("load_in_8bit: the base is kept in one form, and load_in_4bit is given, too; leave one out")
    if config.bnb_4bit_use_double_quant and not config.load_in_4bit:
        raise InputError("bnb_4bit_use_double_quant: it is for the scales of load_in_4bit, which is not given")
    if config.expert_loading == "on_demand" and config.method == "lsp":
        raise InputError("expert_loading: on_demand is for method full or lora, and the method is lsp; leave it out")


def check_optimizer(config: Config) -> None:
    optimizer = OPTIMIZERS[config.optim]
    if config.state_format not in optimizer.formats:
        raise InputError(
            f"state_format: {config.state_format} with optim {config.optim}, which keeps its state in "
            f"{', '.join(optimizer.formats)}; use that, or another optim"
        )
    for name, owner in own_keys().items():
        if owner != config.optim and getattr(config, name) != KEYS[name].default:
            raise InputError(f"{name}: it is for optim {owner}, and optim is {config.optim}")


def check_required(config: Config, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(config, name) is None:
            raise InputError(f"{name}: this key is required: {KEYS[name].help}")


def check_updates(config: Config) -> None:
    if config.update_schedule == "early" and config.max_grad_norm > 0 and not config.speculative_updates:
        raise InputError(
            "update_schedule: early updates parameters during backward, but the factor that max_grad_norm "
            f"{config.max_grad_norm:g} clips by is known only after it; add --speculative_updates (by a predicted "
            "factor, undone where it was wrong), or use --max_grad_norm 0 or --update_schedule deferred"
        )


def check_replays(config: Config) -> None:
    if config.replay_action != KEYS["replay_action"].default and config.replay_steps is None:
        raise InputError(f"replay_action: {config.replay_action} is for replayed steps; add --replay_steps N")


def check_saves(config: Config) -> None:
    if config.save_whole_steps is not None and config.save_only_model:
        raise InputError(
            "save_whole_steps: its checkpoints hold the state, and save_only_model leaves it out; remove one of them"
        )


def check_processes() -> None:
    """Launchers such as torchrun start copies of one command; copies would train on top of each other."""
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        raise InputError(
            f"WORLD_SIZE: {world} processes were started; `spillway train`, `resume`, Session and the Trainer are for "
            "several, the other verbs for one, started without the launcher"
        )


def check_model(config: Config, described: bool = True) -> None:
    for name in ("model", "tokenizer"):
        value = getattr(config, name)
        if Path(value).is_dir():
            check_revision(name, value, getattr(config, f"{name}_revision"))
            continue
        if Path(value).exists():
            kind = "a file" if Path(value).is_file() else name_file_kind(Path(value))
            raise InputError(f"{name}: {value} is {kind}; expects a directory or a name on the hub")
        if is_path_like(value):
            raise InputError(f"{name}: there is no directory {value}{describe_broken_link(value)}")
    if described and Path(config.model).is_dir() and not Path(config.model, "config.json").is_file():
        link = describe_broken_link(Path(config.model, "config.json"))
        raise InputError(f"model: {config.model} has no config.json{link}; expects a Hugging Face checkpoint directory")
    template = config.chat_template_path
    if template is not None and not Path(template).exists():
        raise InputError(f"chat_template_path: there is no {template}{describe_broken_link(template)}")
    if template is not None and not Path(template).is_file() and not Path(template).is_dir():
        raise InputError(
            f"chat_template_path: {template} is {name_file_kind(Path(template))}; expects a file or a directory with a "
            "tokenizer"
        )
    if config.profile is not None and not Path(config.profile).is_file():
        names = ", ".join(installed.profiles())
        raise InputError(
            f"profile: there is no file {config.profile}, and no installed profile of this name; installed are {names}"
        )


def check_revision(name: str, value: str, revision: str | None) -> None:
    if revision not in (None, "main"):  # TRL's default
        raise InputError(
            f"{name}_revision: {value} is a directory, which has no revision {revision}; leave it out, or give `none`"
        )


def is_path_like(value: str) -> bool:
    """Whether a name can only be meant as a path: hub ids look like `name` or `owner/name`."""
    return value.startswith(("/", ".", "~")) or value.count("/") > 1 or value.endswith("/")


def is_data_file(value: str) -> bool:
    """Whether it is read here; a directory of data files, as a name, is for the package datasets."""
    if is_data_directory(Path(value)):
        return False
    return is_path_like(value) or data_suffix(value) in DATA_SUFFIXES or Path(value).exists()


def data_suffix(value: str) -> str:
    """The ending of a file's name that gives the form of its rows, without the ending of a compression."""
    path = Path(value)
    return Path(path.stem).suffix if path.suffix in COMPRESSED_SUFFIXES else path.suffix


def is_saved_dataset(path: Path) -> bool:
    """True if `save_to_disk` of the package datasets wrote the directory."""
    return any((path / name).is_file() for name in SAVED_DATASET_FILES)


def is_data_directory(path: Path) -> bool:
    """Whether it holds data files, and not a model."""
    if not path.is_dir() or (path / "config.json").exists():
        return False
    return is_saved_dataset(path) or any(
        data_suffix(file.name) in (*DATA_SUFFIXES, ".arrow") for file in path.rglob("*")
    )


def check_dataset(name: str, config: Config) -> None:
    value = getattr(config, name)
    if value is None or not is_data_file(value):
        return
    path = Path(value)
    if not path.exists():
        raise InputError(f"{name}: there is no file {value}{describe_broken_link(value)}")
    if not path.is_file():
        advice = "" if path.is_dir() else "; rows are read again by a resume, so copy them into a file first"
        raise InputError(
            f"{name}: {value} is {name_file_kind(path)}; expects a file ({', '.join(DATA_SUFFIXES)}){advice}"
        )
    suffix = data_suffix(value)
    if suffix not in DATA_SUFFIXES or (suffix == ".parquet" and path.suffix != suffix):
        raise InputError(
            f"{name}: {value} has an unknown ending; expects one of {', '.join(DATA_SUFFIXES)}, all but .parquet also "
            f"compressed ({', '.join(COMPRESSED_SUFFIXES)})"
        )
    if not os.access(path, os.R_OK):
        raise InputError(f"{name}: {value} cannot be read (permissions)")
    own = ("dataset_config", "dataset_split") if name == "dataset" else ("eval_dataset_split",)
    own = (*own, f"{name}_revision")
    for key in own:
        if getattr(config, key) != KEYS[key].default:
            raise InputError(f"{key}: {value} is a file and has none; it is for named datasets")


def check_evaluation(config: Config) -> None:
    if config.eval_dataset is not None:
        check_dataset("eval_dataset", config)
    elif config.eval_strategy != "no" or config.eval_on_start:
        asked = "eval_on_start" if config.eval_on_start else "eval_steps or eval_strategy"
        raise InputError(
            f"eval_dataset: {asked} asks for evaluations, but no data is given for them; add --eval_dataset"
        )


def check_fields(config: Config) -> None:
    pair = (config.prompt_field, config.completion_field)
    if any(pair) and not all(pair):
        missing = "prompt_field" if pair[0] is None else "completion_field"
        raise InputError(f"{missing}: prompt_field and completion_field are given together or not at all")
    kinds = [config.dataset_text_field, config.prompt_field, config.messages_field]
    if sum(kind is not None for kind in kinds) > 1:
        raise InputError("dataset_text_field, prompt_field, messages_field: give one kind of column only")


def check_places(config: Config) -> None:
    if not config.paths and any(place in config.placement for place in ("path", "%")):
        raise InputError(
            f"storage: placement {config.placement} puts bytes on a path, but no storage is given; add "
            "--storage DIR, or use another placement"
        )
    if not config.paths and config.durability in ("checkpoint", "step"):
        raise InputError(
            f"durability: {config.durability} needs a place to write to, but no storage is given; add "
            "--storage DIR, or leave durability out"
        )
    check_spilling(config)
    if config.erase and not config.storage_device:
        raise InputError("erase: it is about the block devices of storage_device, but none is given")
    check_storage(config)
    if config.device.startswith("cuda") and (found := not_on_a_gpu(config)):
        name, why = found
        raise InputError(f"{name}: with device {config.device} {why}; leave it out, or use --device cpu")


def not_on_a_gpu(config: Config) -> tuple[str, str] | None:
    """The key with which layers cannot compute on a GPU, and why."""
    if config.activation_spill == "all":
        return "activation_spill", "layers keep what autograd saves on the GPU, or compute it again, and do not spill"
    return None


def check_gpu_memory(config: Config) -> None:
    """Where it is known which device computes."""
    if config.gpu_memory is not None and config.device == "cpu" and not config.any_device:
        raise InputError("gpu_memory: device cpu has no memory of its own; this key needs --device cuda or simulated")


def check_spilling(config: Config) -> None:
    if config.activation_spill != "all":
        return
    if config.activation_recompute == "all":
        raise InputError("activation_spill: all spills what is not computed again, and activation_recompute: all is")
    if not (config.paths or config.node or config.memory_file or config.device == "simulated"):
        raise InputError(
            "activation_spill: all sends what autograd saves to a path or to another tier of memory, but no storage, "
            "node or memory_file is given; add one of them, or leave activation_spill out"
        )


def check_storage(config: Config) -> None:
    with silence.watched([path.place for path in config.paths]):
        check_paths(config)


def check_paths(config: Config) -> None:
    seen: set[str] = set()
    for path in config.paths:
        if (real := os.path.realpath(path.place)) in seen:
            raise InputError(f"storage: {path.place} is given twice; each path needs a place of its own")
        seen.add(real)
    for path in config.directories:
        with answering(path.place):
            check_directory(Path(path.place))
    for path in config.devices:
        check_device(Path(path.place))


@contextmanager
def answering(place: str) -> Iterator[None]:
    """A file system that cannot even say what is there is named with what it said."""
    try:
        yield
    except OSError as error:
        raise SpillwayError(
            f"storage: {place} does not answer: {error.strerror}. If its server is away or was begun anew, wait for it "
            "or mount it again, and then give the same command: what was durable is there"
        ) from error


def check_directory(directory: Path) -> None:
    if directory.is_block_device():
        raise InputError(f"storage: {directory} is a block device; name it with storage_device")
    if not directory.is_dir():
        link = describe_broken_link(directory)
        raise InputError(f"storage: there is no directory {directory}{link}; create it, or name another")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InputError(f"storage: {directory} cannot be written (permissions, or a read-only file system)")


def check_device(device: Path) -> None:
    if device.is_dir():
        raise InputError(f"storage_device: {device} is a directory; name it with storage")
    if not device.is_block_device():
        raise InputError(f"storage_device: there is no block device {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        raise InputError(f"storage_device: {device} cannot be read and written (permissions)")
