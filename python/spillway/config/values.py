"""Kinds of values a key may have: what is expected, in words, and how text or YAML becomes the value.

A parser raises ValueError for anything else; whoever knows the key's name makes the message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from spillway.base.documents import parse_json

UNITS = {"": 1, "b": 1}
for power, letter in enumerate("kmgt", start=1):
    UNITS[f"{letter}b"] = 1000**power
    UNITS[f"{letter}ib"] = 1024**power


MOST_COUNT = 2**31 - 1  # of rows, tokens, layers and the like
MOST_SEED = 2**63 - 1
MOST_STEPS = 10**12  # of a run
MOST_BYTES = 2**60


class WrongPart(ValueError):
    """Says which part of a value is wrong."""


@dataclass(frozen=True)
class Kind:
    """One kind of value."""

    expected: str  # completes "expects ..."
    parse: Callable[[Any], Any]
    many: bool = False  # a list, given one by one on the command line
    bare: bool = False  # "--key" alone means true, "--no-key" false
    names: tuple[str, ...] = ()  # the values, if there are a few


@dataclass(frozen=True)
class StoragePath:
    """One storage path, and how much of it may be used."""

    place: str  # a directory, or a raw block device
    capacity: int | None = None  # bytes; None: what is free, less a margin
    endurance: int | None = None  # bytes that may be written to the drive in its life, as it is rated
    file: str = "spillway.volume"  # in a directory; of one of several processes its shard's
    world: int = 1  # processes of the run
    sharers: int = 1  # processes of the run on this machine that have the directory together

    def __str__(self) -> str:
        options = {"capacity": self.capacity, "endurance": self.endurance}
        return self.place + "".join(f",{name}={size}" for name, size in options.items() if size is not None)


@dataclass(frozen=True)
class NodeShare:
    """A NUMA node, and how much of it may be used."""

    node: int
    capacity: int  # bytes

    def __str__(self) -> str:
        return f"{self.node}={self.capacity}"


@dataclass(frozen=True)
class FileShare:
    """A directory in which a file is mapped as memory, and how much of it may be used."""

    directory: str
    capacity: int  # bytes

    def __str__(self) -> str:
        return f"{self.directory}={self.capacity}"


def parse_text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or str(value).strip() == "":
        raise ValueError
    return str(value)


def parse_pattern(value: Any) -> str:
    text = parse_text(value)
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError from error
    return text


def parse_flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, str | int) and str(value).strip().lower() in words:
        return words[str(value).strip().lower()]
    raise ValueError


def parse_whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d[\d_]*", value.strip()):
        return int(value)
    raise ValueError


def parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def parse_size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())):
        unit = match[2].lower()
        if unit not in UNITS:
            raise ValueError
        size = int(match[1]) * UNITS[unit] if "." not in match[1] else int(float(match[1]) * UNITS[unit])
    else:
        raise ValueError
    if size <= 0:
        raise ValueError
    return int(up_to(MOST_BYTES, size))


def parse_interval(value: Any) -> int | float:
    """A number of steps, or below 1 a share of all steps."""
    number = parse_number(value)
    if number <= 0 or (number >= 1 and number != int(number)):
        raise ValueError
    return int(up_to(MOST_STEPS, number)) if number >= 1 else number


def parse_mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = parse_json(value)
    if not isinstance(value, dict):
        raise ValueError
    return {str(key): number_if_it_is(item) for key, item in value.items()}


def parse_structure(text: str) -> Any:
    """The value of JSON, or of YAML as the configuration's file has it."""
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise ValueError from None


def parse_numbers(parse: Callable[[Any], Any], accept: Callable[[Any], bool]) -> Callable[[Any], dict[str, Any]]:
    """A parser of mappings from regular expressions to numbers that `accept` takes."""

    def parse_all(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            value = parse_structure(value)
        if not isinstance(value, Mapping):
            raise ValueError
        return {parse_part(name): parse_item(name, item) for name, item in value.items()}

    def parse_part(name: Any) -> str:
        try:
            return parse_pattern(name)
        except ValueError:
            raise WrongPart(f"the name {name!r} is no regular expression") from None

    def parse_item(name: Any, item: Any) -> Any:
        try:
            return within(parse, accept)(item)
        except (ValueError, OverflowError):
            raise WrongPart(f"the value {item!r} of {name!r} is none of these numbers") from None

    return parse_all


def parse_factor(value: Any) -> int | float:
    number = parse_number(value)
    return int(number) if number == int(number) else number


def number_if_it_is(value: Any) -> Any:
    """YAML reads 1e-6 as text; here it is a number."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def parse_resume(value: Any) -> bool | str:
    try:
        return parse_flag(value)
    except ValueError:
        return parse_text(value)


def parse_storage(value: Any) -> StoragePath:
    if isinstance(value, StoragePath):
        return value
    place, *options = parse_text(value).split(",")
    sizes: dict[str, int] = {}
    for option in options:
        name, _, size = (part.strip() for part in option.partition("="))
        if name not in ("capacity", "endurance") or name in sizes:
            raise ValueError
        sizes[name] = parse_size(size)
    if not place.strip():
        raise ValueError
    return StoragePath(place.strip(), sizes.get("capacity"), sizes.get("endurance"))


def parse_node(value: Any) -> NodeShare:
    if isinstance(value, NodeShare):
        return value
    if not isinstance(value, str) or not (match := re.fullmatch(r"\s*(\d{1,4})\s*=(.*)", value)):
        raise ValueError
    return NodeShare(int(match[1]), parse_size(match[2].strip()))


def parse_memory_file(value: Any) -> FileShare:
    if isinstance(value, FileShare):
        return value
    directory, _, size = parse_text(value).rpartition("=")
    if not directory.strip():
        raise ValueError
    return FileShare(directory.strip(), parse_size(size.strip()))


def parse_placement(value: Any) -> str:
    text = parse_text(value).replace(" ", "")
    if text in ("auto", "dram", "path"):
        return text
    for part in text.split(","):
        group, _, place = part.partition("=")
        if group not in ("weight", "state", "grad", "activation"):
            raise ValueError
        share = re.fullmatch(r"(\d+(?:\.\d+)?)%", place)
        tier = group in ("grad", "activation") and re.fullmatch(r"(numa|file):\d+", place)
        if place not in ("auto", "dram", "path") and not tier and not (share and float(share[1]) <= 100):
            raise ValueError
    return text


def parse_count_or(*words: str, least: int) -> Callable[[Any], str | int]:
    """What parses a whole number from `least` on, or one of `words`."""

    def parse(value: Any) -> str | int:
        try:
            number = parse_whole(value)
        except ValueError:
            word = parse_text(value).strip()
            if word not in words:
                raise
            return word
        if number < least:
            raise ValueError
        return int(up_to(MOST_COUNT, number))

    return parse


# names that transformers has callbacks for
TRACKERS = (
    "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "kubeflow", "mlflow", "neptune",
    "swanlab", "tensorboard", "trackio", "wandb",
)  # fmt: skip


def parse_tracker(value: Any) -> str:
    text = parse_text(value).strip()
    if text not in (*TRACKERS, "all", "none"):
        raise ValueError
    return text


def up_to(most: int, number: Any) -> Any:
    """The number. WrongPart where it is larger than the engine counts."""
    if number > most:
        raise WrongPart(f"{most} at most")
    return number


def within(parse: Callable[[Any], Any], accept: Callable[[Any], bool]) -> Callable[[Any], Any]:
    """`parse`, refusing what `accept` does not take."""

    def checked(value: Any) -> Any:
        parsed = parse(value)
        if not accept(parsed):
            raise ValueError
        return parsed

    return checked


def whole(least: int, most: int = MOST_COUNT) -> Kind:
    accept = within(parse_whole, lambda value: value >= least)
    return Kind(f"a whole number, {least} or more", lambda value: up_to(most, accept(value)))


def number(expected: str, accept: Callable[[float], bool]) -> Kind:
    return Kind(expected, within(parse_number, accept))


def choice(*names: str, single: bool = False) -> Kind:
    """`single`: a list of one name, too, as TRL's configurations write it."""

    def parse(value: Any) -> str:
        if single and isinstance(value, list) and len(value) == 1:
            value = value[0]
        # YAML reads a bare `no` as false.
        text = "no" if value is False and "no" in names else parse_text(value).strip()
        if text not in names:
            raise ValueError
        return text

    return Kind("one of " + ", ".join(names), parse, names=names)


def synonym(meanings: Mapping[str, str], others: Collection[str]) -> Kind:
    """One of several names, as what it means; `others` pass as they are, to be refused with their reason."""

    def parse(value: Any) -> str:
        text = parse_text(value).strip()
        if text in others:
            return text
        if text not in meanings:
            raise ValueError
        return meanings[text]

    return Kind("one of " + ", ".join(meanings), parse, names=tuple(dict.fromkeys(meanings.values())))


def parse_names(value: Any) -> list[str]:
    """The names of labels in their order: a list, or a mapping from numbers as transformers' configurations have it."""
    if isinstance(value, str):
        value = parse_json(value)
    if isinstance(value, Mapping):
        numbered = {parse_whole(number): name for number, name in value.items()}
        value = [numbered.get(number) for number in range(len(numbered))]
    if not isinstance(value, list) or not value:
        raise ValueError
    names = [parse_text(name) for name in value]
    if len(set(names)) < len(names):
        raise ValueError
    return names


ANY = Kind("a value", lambda value: value)
TEXT = Kind("text", parse_text)
FLAG = Kind("true or false", parse_flag, bare=True)
SIZE = Kind("a size such as 4GiB, 512MiB, 4GB, 512MB or plain bytes", parse_size)
STEPS = Kind("-1 or a whole number, 1 or more", within(parse_whole, lambda value: value == -1 or value >= 1))
INTERVAL = Kind("a whole number of steps, or a share of all steps below 1", parse_interval)
MAPPING = Kind("a mapping, such as {min_lr: 1e-6}", parse_mapping)
RANKS = Kind(
    "a mapping from names to whole numbers, 1 or more, such as {q_proj: 8}",
    parse_numbers(parse_whole, lambda value: value >= 1),
)
FACTORS = Kind(
    "a mapping from names to numbers above 0, such as {q_proj: 16}",
    parse_numbers(parse_factor, lambda value: value > 0),
)
NAMES = Kind(
    "different names as texts, such as {0: negative, 1: positive} (quote yes and no, which YAML reads as flags)",
    parse_names,
)
RESUME = Kind("true, auto or a checkpoint directory", parse_resume, bare=True)
STORAGE = Kind("DIR, and where wanted ,capacity=SIZE or ,endurance=SIZE", parse_storage, many=True)
DEVICE = Kind("DEVICE, and where wanted ,capacity=SIZE or ,endurance=SIZE", parse_storage, many=True)
REPORTERS = Kind("none, all, or one of " + ", ".join(TRACKERS), parse_tracker, many=True)
RECOMPUTE = Kind(
    "auto, all, none, or a whole number of layers, 0 or more", parse_count_or("auto", "all", "none", least=0)
)
PASS_TOKENS = Kind("auto, or a whole number of tokens, 0 or more", parse_count_or("auto", least=0))
TILE = Kind("auto, all, or a whole number of tokens, 1 or more", parse_count_or("auto", "all", least=1))
NODE = Kind("N=SIZE, such as 0=100GiB", parse_node, many=True)
MEMORY_FILE = Kind("DIR=SIZE, such as /mnt/pmem=100GiB", parse_memory_file, many=True)
PATTERN = Kind("a regular expression", parse_pattern, many=True)
TEXTS = Kind("text", parse_text, many=True)
PLACEMENT = Kind(
    "auto, dram, path, or groups such as weight=dram,state=path,grad=50%,activation=dram; "
    "grad and activation also on a tier such as numa:2 or file:0",
    parse_placement,
)
