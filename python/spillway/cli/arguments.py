"""The words of the command line: VERB [CONFIG.yaml] [--key value ...]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillway.config import Config, read_file, resolve, unknown_key
from spillway.config.aliases import ALIASES, SAME
from spillway.config.keys import KEYS
from spillway.config.values import FLAG, TEXT, Kind, parse_flag
from spillway.errors import InputError


@dataclass
class Arguments:
    """What was said, not yet what it means."""

    positional: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    options: set[str] = field(default_factory=set)  # options of the verb itself, such as --json, and --help
    named: dict[str, str] = field(default_factory=dict)  # those that have a value, such as --to

    def config(self) -> Config:
        """The configuration of a verb that takes one configuration file at most."""
        if len(self.positional) > 1:
            raise InputError(f"expects one configuration file, got {' and '.join(self.positional)}")
        path = Path(self.positional[0]) if self.positional else None
        return resolve(read_file(path) if path else {}, self.values, str(path))

    def find_stored_place(self, verb: str) -> str:
        """The value of OUTPUT_DIR or of --output_dir."""
        place = self.positional[0] if self.positional else self.values.get("output_dir")
        if len(self.positional) > 1 or place is None:
            raise InputError(f"{verb}: expects the output_dir of a run: spillway {verb} OUTPUT_DIR [--key value ...]")
        return str(place)

    def parse_stored_run(self, verb: str, *, reads_keys: bool = True) -> Arguments:
        """The arguments for an existing run, in OUTPUT_DIR or --output_dir. Its config.yaml has the other keys.
        InputError for a damaged one, unless the verb needs none of its keys."""
        place = self.find_stored_place(verb)
        file = Path(place, "config.yaml")
        if not file.is_file():
            raise InputError(f"{verb}: {place} holds no run (there is no {file})")
        if reads_keys and "model" not in self.values and read_file(file).get("model") is None:
            raise InputError(f"{verb}: {file} names no model, so it is not as a run wrote it; put back a copy of it")
        return Arguments([str(file)], {"output_dir": str(place), **self.values}, self.options, self.named)


def parse(words: list[str], options: tuple[str, ...] = (), named: tuple[str, ...] = ()) -> Arguments:
    """`options` are the flags of the verb that are no keys, `named` those that have a value."""
    arguments = Arguments()
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help", "--help-all"):
            arguments.options.add("help-all" if word == "--help-all" else "help")
        elif not word.startswith("--"):
            arguments.positional.append(word)
        else:
            take_option(arguments, word, rest, (options, named))
    return arguments


def take_option(arguments: Arguments, word: str, rest: list[str], own: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    given, equals, text = word[2:].partition("=")
    name = given.replace("-", "_")
    if name in own[1]:
        arguments.named[name] = text if equals else next_value(given, TEXT, rest)
        return
    if name in own[0]:
        if equals:
            raise InputError(f"--{given}: takes no value")
        arguments.options.add(name)
        return
    value: Any = text
    if is_negation(name):
        if equals:
            raise InputError(f"--{given}: takes no value")
        name, value = name[3:], False
    elif name not in KEYS and name not in ALIASES:
        raise InputError(unknown_key(given))
    elif not equals:
        value = next_value(given, describe_kind(name), rest)
    store(arguments.values, name, value)


def describe_kind(name: str) -> Kind:
    if (key := SAME.get(name, name)) in KEYS:
        return KEYS[key].kind
    return TEXT if name == "warmup_ratio" else FLAG


def is_negation(name: str) -> bool:
    positive = name[3:] if name.startswith("no_") else ""
    return (positive in KEYS or positive in ALIASES) and describe_kind(positive).bare


def next_value(given: str, kind: Kind, rest: list[str]) -> Any:
    """The word after `--given`, or true where the key may stand alone."""
    follows = bool(rest) and not rest[0].startswith("--")
    if not kind.bare:
        if not follows:
            raise InputError(f"--{given}: the value is missing; expects {kind.expected}")
        return rest.pop(0)
    belongs: Callable[[str], bool] = is_flag_word if kind is FLAG else is_no_config_file
    return rest.pop(0) if follows and belongs(rest[0]) else True


def is_flag_word(word: str) -> bool:
    try:
        parse_flag(word)
    except ValueError:
        return False
    return True


def is_no_config_file(word: str) -> bool:
    return not word.endswith((".yaml", ".yml"))


def store(values: dict[str, Any], name: str, value: Any) -> None:
    """Said twice, the last wins; lists grow."""
    if name in KEYS and KEYS[name].kind.many:
        values.setdefault(name, []).append(value)
    else:
        values[name] = value
