"""Damages of a file: other bytes, other values of its JSON, seeds of the fuzzers, or another kind of file."""

from __future__ import annotations

import copy
import gzip
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from folders import REPOSITORY
from warm import NIGHTLY

CORPUS = REPOSITORY / "tests" / "fuzz" / "corpus"
DEEP, LEVELS, DIGITS = 5000, 400, 5000
HEAD = 4096  # bytes: the place of flipped bits
NAN, INFINITY = float("nan"), float("inf")  # as Python writes them into JSON
VALUES: tuple[Any, ...] = (None, [], {}, "x", "", -1, 0, 1e300, 2**70, True, [[]], ["x"], {"x": 1}, NAN, INFINITY)
NESTED = 60 if NIGHTLY else 6  # values of another type below the top of a JSON document
KINDS = ("nothing", "a FIFO", "a directory", "a socket", "a link to itself")
Change = Callable[[bytes, random.Random], bytes]


class Damage(NamedTuple):
    name: str
    content: bytes = b""
    kind: str = ""  # one of KINDS, in place of the file


def spoil(content: bytes, chance: random.Random, byte: bytes) -> bytes:
    place = chance.randrange(max(1, len(content)))
    return content[:place] + byte + content[place + 1 :]


def flip(content: bytes, chance: random.Random) -> bytes:
    if not content:
        return b"\1"
    place = chance.randrange(min(len(content), HEAD))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


BYTES: dict[str, Change] = {
    "empty": lambda content, chance: b"",
    "cut": lambda content, chance: content[: chance.randrange(max(1, len(content)))],
    "nul": lambda content, chance: spoil(content, chance, b"\0"),
    "no UTF-8": lambda content, chance: spoil(content, chance, b"\xff"),
    "bit": flip,
    "bits": lambda content, chance: flip(flip(flip(content, chance), chance), chance),
    "zeros": lambda content, chance: bytes(len(content)),
    "deep list": lambda content, chance: b"[" * DEEP,
    "deep mapping": lambda content, chance: b'{"a":' * DEEP,
    "nested": lambda content, chance: b'{"a":' * LEVELS + b"1" + b"}" * LEVELS,
    "digits": lambda content, chance: b'{"a": ' + b"9" * DIGITS + b"}",
    "a word": lambda content, chance: b'"word"',
    "a list": lambda content, chance: b"[1, 2]",
    "null": lambda content, chance: b"null",
}


def damages(path: Path, chance: random.Random, corpus: str = "") -> Iterator[Damage]:
    """Every damage of a file. `corpus`: of the fuzzer that reads such files."""
    content = path.read_bytes()
    for name, change in BYTES.items():
        yield Damage(name, change(content, chance))
    for kind in KINDS:
        yield Damage(kind, kind=kind)
    for name, text in seeds(corpus, content, chance):
        yield Damage(f"{corpus}: {name}", text)
    for name, text in changed_values(path, content, chance):
        yield Damage(name, text)


def damages_of_head(head: bytes, chance: random.Random) -> Iterator[Damage]:
    """Damages of a volume's first bytes, behind which it stays as it is."""
    for name, content in seeds("superblock", head, chance):
        yield Damage(f"superblock: {name}", content)
    for number in range(60 if NIGHTLY else 6):
        content = head
        for _ in range(number % 4 + 1):
            content = spoil(content, chance, chance.randbytes(1)) if number % 2 else flip(content, chance)
        yield Damage(f"bytes {number}", content)
    yield Damage("zeros", bytes(len(head)))


def seeds(corpus: str, content: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """The seeds of a fuzzer, each as it is, cut, and with a flipped bit."""
    for file in sorted((CORPUS / corpus).iterdir()) if corpus else ():
        seed = file.read_bytes()
        if corpus == "header":  # the fuzzer's input is the bytes of data, and the header
            (length,) = struct.unpack("<I", seed[:4])
            seed = struct.pack("<Q", len(seed) - 4) + seed[4:] + bytes(length)
        elif corpus == "superblock":
            seed += content[len(seed) :]
        yield file.name, seed
        for name in ("cut", "bit"):
            yield f"{file.name}, {name}", BYTES[name](seed, chance)


def changed_values(path: Path, content: bytes, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """The file with a value of another type, or without one, for each that it has."""
    if path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", content[:8])
        data = content[8 + length :]
        for name, text in changed_json(json.loads(content[8 : 8 + length]), chance):
            yield name, struct.pack("<Q", len(text)) + text + data
        for text in (b"[" * DEEP, b'{"a":' * DEEP, b"null"):
            yield f"header {text[:5]!r}", struct.pack("<Q", len(text)) + text + data
    elif path.suffix == ".json":
        yield from changed_json(json.loads(content), chance)
    elif path.suffix == ".gz":
        for name, text in changed_json(json.loads(gzip.decompress(content)), chance):
            yield name, gzip.compress(text, mtime=0)
    elif path.suffix == ".jsonl":
        lines = content.splitlines(keepends=True)
        for number in sorted({0, len(lines) // 2, len(lines) - 1}):
            for name, text in changed_json(json.loads(lines[number]), chance):
                yield f"line {number + 1}: {name}", b"".join([*lines[:number], text + b"\n", *lines[number + 1 :]])


def changed_json(content: Any, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    for key in content if isinstance(content, dict) else ():
        yield f"without {key}", json.dumps({name: value for name, value in content.items() if name != key}).encode()
        for value in VALUES if NIGHTLY else chance.sample(VALUES, 2):
            yield f"{key}: {value!r}", json.dumps(content | {key: value}).encode()
    places = [place for place in places_of(content) if len(place) > 1]
    for place in chance.sample(places, min(NESTED, len(places))):
        changed, value = copy.deepcopy(content), chance.choice(VALUES)
        holder = changed
        for key in place[:-1]:
            holder = holder[key]
        holder[place[-1]] = value
        yield f"{'/'.join(map(str, place))}: {value!r}", json.dumps(changed).encode()


def places_of(content: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The keys and numbers that lead to each value of a document."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield (*above, key)
            yield from places_of(value, (*above, key))
