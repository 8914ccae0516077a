"""The configuration of one run: every key with its value, resolved once, checked before anything else happens.

Precedence: command line, file, default. What is left unresolved on purpose stays None (`dram_budget` is what is free
when the run starts, `durability` what the plan makes necessary).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from spillway.base import installed
from spillway.base.documents import read_text
from spillway.base.ranks import ALONE, Ranks
from spillway.config import methods
from spillway.config.aliases import ALIASES, translate
from spillway.config.foreign import describe_foreign
from spillway.config.hub_keys import SECRET
from spillway.config.key import Key
from spillway.config.keys import GROUPS, KEYS
from spillway.config.objectives import OBJECTIVES, ObjectiveEntry
from spillway.config.values import FileShare, NodeShare, StoragePath, WrongPart
from spillway.errors import InputError, first_line

PATHS = (
    "output_dir", "model", "teacher", "tokenizer", "chat_template_path", "dataset", "eval_dataset", "profile",
    "lora_adapter",
)  # fmt: skip
CONFIG_HEADER = "# Written by spillway"
NEAR = 0.8  # likeness from which on a name is taken for a mistyped key


class Config:
    """Read-only access to every key by name: `config.learning_rate`."""

    def __init__(
        self,
        values: Mapping[str, Any],
        notices: list[str] | None = None,
        chosen: str = "",
        any_device: bool = False,
        any_ranks: bool = False,
        ranks: Ranks = ALONE,
        device_why: str = "",
    ) -> None:
        self._values = dict(values)
        self.notices = list(notices or [])  # what a person should know, one sentence each
        self.chosen = chosen  # why compute_dtype is what it is; empty where it was given
        self.any_device = any_device  # nobody said which, and nobody has looked yet; until then the key is `cpu`
        self.device_why = device_why  # what computes, and why, where nobody said it and there is a choice
        self.any_ranks = any_ranks  # nobody said how many virtual ranks
        self.ranks = ranks  # which of the run's processes this is

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"the configuration has no key {name!r}") from None

    @property
    def paths(self) -> list[StoragePath]:
        """Every storage path of this process, in the order of the engine's names path:0, path:1 ..."""
        return [*self.directories, *self.devices]

    @property
    def directories(self) -> list[StoragePath]:
        """Those that are no block devices."""
        return [self._filled(self._divide_directory(path)) for path in self.storage]

    @property
    def devices(self) -> list[StoragePath]:
        return [self._filled(path) for path in self.storage_device]

    @property
    def files(self) -> list[FileShare]:
        """Where this process maps files as memory."""
        return [replace(share, directory=self.ranks.filled(share.directory)) for share in self.memory_file]

    @property
    def rows_each(self) -> int:
        """That one of what `per_device_train_batch_size` counts is: of a pair two."""
        return self.objective_entry.rows or 1

    @property
    def objective_entry(self) -> ObjectiveEntry:
        """The objective's entry in the table."""
        return OBJECTIVES[self.objective]

    @property
    def divisor(self) -> float:
        """The divisor of the logits of sampled tokens."""
        return float(self.temperature) if self.objective_entry.is_sampled else 1.0

    @property
    def group_size(self) -> int:
        """Completions of each prompt, of a run that samples them."""
        return int(self.num_generations or 8)

    @property
    def has_reference(self) -> bool:
        """Whether the loss compares with a reference model."""
        return self.objective_entry.has_reference or bool(self.objective_entry.is_sampled and self.beta)

    @property
    def refers_in_step(self) -> bool:
        """True if each step computes its reference, which is the base of its adapters."""
        first_pass = self.precompute_ref_log_probs or (self.num_iterations or 1) > 1
        return self.has_reference and begins_from_base(self._values) and not first_pass

    @property
    def base_form(self) -> str | None:
        """What the matrices of the frozen base are kept as, by the engine's name; None: as `weight_dtype` says."""
        if self.load_in_4bit:
            return f"{self.bnb_4bit_quant_type}{'_nested' if self.bnb_4bit_use_double_quant else ''}"
        return "int8" if self.load_in_8bit else None

    def values(self) -> dict[str, Any]:
        return dict(self._values)

    def replaced(self, **values: Any) -> Config:
        """A copy with other, already checked, values."""
        return self._copied({**self._values, **values}, self.chosen)

    def computing(self, compute_dtype: str, why: str) -> Config:
        """A copy that multiplies in this type, which nobody gave."""
        return self._copied({**self._values, "compute_dtype": compute_dtype}, why)

    def computing_on(self, device: str, why: str) -> Config:
        """A copy whose layers compute there, which nobody gave."""
        found = self._copied({**self._values, "device": device}, self.chosen)
        found.any_device, found.device_why = False, why
        return found

    def over(self, ranks: Ranks) -> Config:
        """The configuration of one of several processes. Where nobody said how many virtual ranks there are, each
        process is one, with `gradient_accumulation_steps` micro-batches of a step; from here on the key counts those
        of all, so that what is written down means the same to any number of processes."""
        found = self.parted(ranks.world) if self.any_ranks else self
        return found.among(ranks)

    def parted(self, virtual_ranks: int) -> Config:
        """A copy with so many virtual ranks, where nobody said how many: each with `gradient_accumulation_steps`
        micro-batches of a step."""
        accumulation = self.gradient_accumulation_steps * virtual_ranks
        parts = {"virtual_ranks": virtual_ranks, "gradient_accumulation_steps": accumulation}
        found = self._copied({**self._values, **parts}, self.chosen)
        found.any_ranks = False
        return found

    def among(self, ranks: Ranks) -> Config:
        """That of one of several processes, where both keys are of all of them already."""
        found = self._copied(self._values, self.chosen)
        found.ranks, found.any_ranks = ranks, False
        return found

    def _copied(self, values: Mapping[str, Any], chosen: str) -> Config:
        return Config(
            values, self.notices, chosen, self.any_device, self.any_ranks, self.ranks, device_why=self.device_why
        )

    def _filled(self, path: StoragePath) -> StoragePath:
        file = path.file if self.ranks.world == 1 else f"spillway.shard-{self.ranks.rank}-of-{self.ranks.world}.volume"
        return replace(path, place=self.ranks.filled(path.place), file=file, world=self.ranks.world)

    def _divide_directory(self, path: StoragePath) -> StoragePath:
        """The part of one process in a directory that serves all processes of this machine: an equal share of the
        directory's capacity and endurance."""
        sharers = self.ranks.local_world if self.ranks.filled(path.place) == path.place else 1
        capacity, endurance = (size and max(1, size // sharers) for size in (path.capacity, path.endurance))
        return replace(path, sharers=sharers, capacity=capacity, endurance=endurance)

    def text(self) -> str:
        """config.yaml: every key, resolved; reading it back gives the same values."""
        # orders to one call, not properties of the run
        once = {"overwrite": False, "resume_from_checkpoint": None, "erase": False} | dict.fromkeys(SECRET)
        parts = [CONFIG_HEADER + ": every key of this run. Go on with `spillway resume DIR`.\n"]
        for title, keys in GROUPS.items():
            plain = {key.name: as_yaml(once.get(key.name, self._values[key.name])) for key in keys}
            parts.append(f"\n# {title}\n" + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000))
        return "".join(parts)


def as_yaml(value: Any) -> Any:
    if isinstance(value, list):
        return [as_yaml(item) for item in value]
    return str(value) if isinstance(value, StoragePath | NodeShare | FileShare) else value


class UniqueKeyLoader(yaml.SafeLoader):  # type: ignore[misc, unused-ignore]
    """Safe YAML in which a key given twice is an error, not a guess."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call, unused-ignore]
            if key in seen:
                raise InputError(f"{self.name}:{key_node.start_mark.line + 1}: the key {key!r} is given twice")
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_file(path: Path) -> dict[str, Any]:
    """The file's own keys and values, names normalised, nothing else checked."""
    try:
        loader = UniqueKeyLoader(read_text(path))
        loader.name = str(path)
        content = loader.get_single_data()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such configuration file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: its values are nested too deep; it needs keys and values only") from None
    except (ValueError, TypeError) as error:  # an impossible date, a number of too many digits, a key that is a list
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: a value cannot be read: {first_line(error)}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{path}: expects keys and values, such as `learning_rate: 2e-5`")
    return normalised(content, str(path))


def normalised(raw: Mapping[Any, Any], origin: str) -> dict[str, Any]:
    """Dashes become underscores; unknown names are refused with the nearest known one."""
    names: dict[str, Any] = {}
    for given, value in raw.items():
        name = str(given).replace("-", "_")
        if name in names:
            raise InputError(f"{origin}: the key {name!r} is given twice")
        if name not in KEYS and name not in ALIASES:
            raise InputError(f"{origin}: {unknown_key(str(given))}")
        names[name] = value
    return names


def unknown_key(given: str) -> str:
    name = given.replace("-", "_").lower()
    if words := describe_foreign(name):
        return f"{given}: {words}"
    near = difflib.get_close_matches(name, [*KEYS, *ALIASES], n=1, cutoff=NEAR)
    hint = f"did you mean {near[0]!r}?" if near else "`spillway train --help-all` lists all keys"
    return f"unknown key {given!r}; {hint}"


def resolve(file_values: Mapping[str, Any], given: Mapping[str, Any], file_name: str = "the file") -> Config:
    """One configuration from a file's values and those given beside it, which win. Names are normalised already."""
    notices: list[str] = []
    merged = {**translate(dict(file_values), notices), **translate(dict(given), notices)}
    origins = {name: f"{file_name}: " for name in file_values if name not in given}
    values = {name: parsed(key, merged.get(name), origins.get(name, "")) for name, key in KEYS.items()}
    for name, key in KEYS.items():
        if key.absent and (what := key.absent(values[name])):
            raise InputError(f"{origins.get(name, '')}{name}: {what}")
    any_device, any_ranks = values["device"] == "auto", values["virtual_ranks"] is None
    return Config(with_defaults(values), notices, any_device=any_device, any_ranks=any_ranks)


def parsed(key: Key, value: Any, origin: str) -> Any:
    """The value of one key, or its default where none is given."""
    word = value.strip().lower() if isinstance(value, str) else value
    if value is None or (word in ("none", "null") and key.default is None and "none" not in key.kind.expected):
        return list(key.default) if key.kind.many and key.default is not None else key.default
    try:
        if key.kind.many:
            return [key.kind.parse(item) for item in (value if isinstance(value, list) else [value])]
        return key.kind.parse(value)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        part = f"; {error}" if isinstance(error, WrongPart) else ""
        raise InputError(f"{origin}{key.name}: got {value!r}, expects {key.kind.expected}{part}") from None


def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Defaults that depend on other keys, and paths that no longer depend on the working directory."""
    values = dict(values)
    values["profile"] = installed.profile(values["profile"])
    for name in PATHS:
        values[name] = absolute(values[name])
    if isinstance(values["resume_from_checkpoint"], str) and values["resume_from_checkpoint"] != "auto":
        values["resume_from_checkpoint"] = absolute(values["resume_from_checkpoint"], always=True)
    if values["output_dir"] is not None:
        values["output_dir"] = absolute(values["output_dir"], always=True)
    for name in ("storage", "storage_device"):
        values[name] = [replace(path, place=absolute(path.place, always=True)) for path in values[name]]
    values["memory_file"] = [
        replace(share, directory=absolute(share.directory, always=True)) for share in values["memory_file"]
    ]
    values["report_to"] = reporters(values["report_to"])
    values["tokenizer"] = values["tokenizer"] or values["model"]
    if values["eval_packing"] is None:
        values["eval_packing"] = values["packing"]
    if values["data_seed"] is None:
        values["data_seed"] = values["seed"]
    if values["virtual_ranks"] is None:
        values["virtual_ranks"] = 1
    if values["resume_from_checkpoint"] is False:
        values["resume_from_checkpoint"] = None
    if values["device"] == "auto":
        values["device"] = "cpu"
    values["weight_dtype"] = weight_dtype(values)
    objective = OBJECTIVES[values["objective"]]
    for name, default in {**objective.defaults, "learning_rate": objective.learning_rate}.items():
        values[name] = default if values[name] is None else values[name]
    if objective.has_reference and values["precompute_ref_log_probs"] is None:
        values["precompute_ref_log_probs"] = not begins_from_base(values)
    return with_strategies(methods.with_defaults(values))


def begins_from_base(values: Mapping[str, Any]) -> bool:
    """True if the model without its adapters is the model before the first step."""
    return values["method"] == "lora" and not values["lora_adapter"]


def weight_dtype(values: Mapping[str, Any]) -> str:
    """`fp16` and `fp32` that layers compute in are what is kept, too, unless that is said."""
    computes, kept = values["compute_dtype"], values["weight_dtype"]
    if kept is None:
        return computes if computes in ("fp16", "fp32") else "bf16"
    if computes not in ("auto", "fp32", kept):
        raise InputError(
            f"compute_dtype: {computes} contradicts weight_dtype: {kept}; layers multiply in what weights are kept in, "
            f"or in fp32: give weight_dtype {computes}, or compute_dtype {kept} or fp32"
        )
    return str(kept)


def reporters(named: list[str]) -> list[str]:
    """Without the word for none; `all` stands for every other."""
    if "none" in named and len(named) > 1:
        raise InputError(f"report_to: none contradicts {', '.join(name for name in named if name != 'none')}")
    return ["all"] if "all" in named else [name for name in named if name != "none"]


def with_strategies(values: dict[str, Any]) -> dict[str, Any]:
    if values["eval_strategy"] is None:
        by_epoch = "epoch" if values["eval_dataset"] else "no"
        values["eval_strategy"] = "steps" if values["eval_steps"] else by_epoch
    if values["eval_strategy"] == "steps" and values["eval_steps"] is None:
        values["eval_steps"] = values["logging_steps"]
    if values["save_strategy"] is None:
        values["save_strategy"] = "steps" if values["save_steps"] else "no"
    if values["save_strategy"] == "steps" and values["save_steps"] is None:
        values["save_steps"] = 500
    return values


def absolute(value: str | None, always: bool = False) -> Any:
    """A path that is there (or `always`) made absolute; names of hubs stay as they are."""
    if value is None:
        return None
    path = Path(value).expanduser()
    try:
        there = always or path.exists()
    except OSError:  # a name that no file can have
        there = False
    return str(path.absolute()) if there else value
