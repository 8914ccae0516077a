"""What lies where in a volume and in a checkpoint's manifest: read and changed byte by byte, as docs/formats has it."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SUPERBLOCKS = (0, 524288)
HEAD = 1 << 20  # bytes before the metadata area
SLOT = 4096  # records and commits begin at multiples
COMMIT, RECORD = b"SPWCOMIT", b"SPWRECRD"


def metadata_bytes(volume: Path) -> int:
    with open(volume, "rb", buffering=0) as stream:
        return int.from_bytes(os.pread(stream.fileno(), 8, 296), sys.byteorder)


@dataclass(frozen=True)
class Slot:
    offset: int  # in the file
    magic: bytes
    generation: int
    step: int  # of a record: its version
    kind: int  # of a record: 1 image, 2 gradient
    object: int


def slots(volume: Path) -> list[Slot]:
    """Every commit and record of the metadata area, in the order of their offsets."""
    with open(volume, "rb", buffering=0) as stream:
        area = os.pread(stream.fileno(), metadata_bytes(volume), HEAD)
    found = []
    for at in range(0, len(area), SLOT):
        magic = area[at : at + 8]
        if magic == COMMIT:
            generation, step = struct.unpack_from("=Iq", area, at + 28)
            found.append(Slot(HEAD + at, magic, generation, step, 0, 0))
        elif magic == RECORD:
            kind, number, generation, version = struct.unpack_from("=IIIQ", area, at + 28)
            found.append(Slot(HEAD + at, magic, generation, version, kind, number))
    return found


def newest_commit(volume: Path) -> list[int]:
    """Where its copies begin."""
    commits = [slot for slot in slots(volume) if slot.magic == COMMIT]
    newest = max((slot.generation, slot.step) for slot in commits)
    return [slot.offset for slot in commits if (slot.generation, slot.step) == newest]


def blank_metadata(volume: Path) -> None:
    with open(volume, "r+b", buffering=0) as stream:
        os.pwrite(stream.fileno(), bytes(metadata_bytes(volume)), HEAD)


@dataclass
class Piece:
    """As a record names it."""

    path: int
    place: int
    bytes: int
    part: int
    checksum: int


def change_manifest(file: Path, change: Callable[[list[list[Piece]]], None]) -> None:
    """`change` gets the pieces of every chunk; what it leaves is written with checksums that are right."""
    import xxhash

    content = file.read_bytes()
    identity, commit, images = struct.unpack_from("=QII", content, 16)
    at = 32 + commit
    heads, pieces = [], []
    for _ in range(images):
        head = bytearray(content[at : at + 56])
        length, count = struct.unpack_from("=I", head, 24)[0], struct.unpack_from("=I", head, 52)[0]
        pieces.append([Piece(*struct.unpack_from("=IIIIQ", content, at + 56 + 24 * i)) for i in range(count)])
        heads.append(head)
        at += length
    assert at == len(content)
    change(pieces)
    body = bytearray(content[32 : 32 + commit])
    for head, named in zip(heads, pieces, strict=False):
        struct.pack_into("=I", head, 24, 56 + 24 * len(named))
        struct.pack_into("=I", head, 52, len(named))
        record = head + b"".join(struct.pack("=IIIIQ", *vars(piece).values()) for piece in named)
        struct.pack_into("=Q", record, 8, xxhash.xxh3_64_intdigest(bytes(record[16:])))
        body += record
    whole = bytearray(content[:16] + struct.pack("=QII", identity, commit, min(len(pieces), images)) + body)
    struct.pack_into("=Q", whole, 8, xxhash.xxh3_64_intdigest(bytes(whole[16:])))
    file.write_bytes(whole)
