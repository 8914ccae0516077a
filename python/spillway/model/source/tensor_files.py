"""Tensors in safetensors files, one or a piece at a time: read when they are asked for, written as they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from spillway.errors import InputError

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.float64: "F64", torch.int64: "I64",
         torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}  # fmt: skip
for name, attribute in (("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"), ("F8_E8M0", "float8_e8m0fnu"),
                        ("F8_E4M3FNUZ", "float8_e4m3fnuz"), ("F8_E5M2FNUZ", "float8_e5m2fnuz"), ("U16", "uint16"),
                        ("U32", "uint32"), ("U64", "uint64"), ("C64", "complex64")):  # fmt: skip
    if (kind := getattr(torch, attribute, None)) is not None:  # older releases lack some types
        TYPES[kind] = name
BY_NAME = {name: dtype for dtype, name in TYPES.items()}
PIECE = 1 << 24  # elements in memory at a time
Tensors = dict[str, torch.Tensor]


class Stored:
    """The tensors of a checkpoint's directory, or of one file, each read when it is asked for. By the engine's reader,
    which maps no file: one that is cut short meanwhile is an error and not the end of the process."""

    def __init__(self, place: Path, decoded_dtype: torch.dtype = torch.float32) -> None:
        """`decoded_dtype`: the type of weights that are codes in the files."""
        from spillway._engine import SafetensorsReader

        self._place, self._decoded_dtype = place, decoded_dtype
        try:
            self._reader = SafetensorsReader(str(place))
        except (ValueError, OSError) as error:
            raise InputError(str(error)) from error
        self._heads, self._decoded = self._reader.tensors(), self._reader.decoded()

    @property
    def place(self) -> Path:
        return self._place

    def names(self) -> set[str]:
        return set(self._heads)

    def tensor(self, name: str) -> torch.Tensor:
        meta = self._in_file(name)
        values = torch.empty(meta.numel() * meta.element_size(), dtype=torch.uint8)
        self._read(name, values, 0)
        return self._narrow(name, values.view(meta.dtype).view(meta.shape))

    def pieces(self, name: str) -> Iterator[torch.Tensor]:
        """All of it, flat, a piece at a time."""
        meta = self._in_file(name)
        for first in range(0, meta.numel(), PIECE):
            count = min(PIECE, meta.numel() - first)
            values = torch.empty(count * meta.element_size(), dtype=torch.uint8)
            self._read(name, values, first)
            yield self._narrow(name, values.view(meta.dtype))

    def _read(self, name: str, values: torch.Tensor, first: int) -> None:
        """Reads values. InputError if the bytes are not the saved ones."""
        try:
            self._reader.read(name, values.numpy(), first)
        except ValueError as error:
            raise InputError(str(error)) from error

    def meta(self, name: str) -> torch.Tensor:
        return self._narrow(name, self._in_file(name))

    def _narrow(self, name: str, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._decoded_dtype) if name in self._decoded else values

    def _in_file(self, name: str) -> torch.Tensor:
        kind, shape = self._heads[name]
        if kind not in BY_NAME:
            raise InputError(f"{self._place}: tensor {name} is of type {kind}, which cannot be converted here")
        return torch.empty(shape, dtype=BY_NAME[kind], device="meta")


@dataclass(frozen=True)
class Unit:
    """Tensors that are made, and written to files, together."""

    listed: list[tuple[str, torch.Tensor]]  # names, and on meta types and shapes
    made: Callable[[], Iterator[Iterator[torch.Tensor]]]  # of each of them its elements, flat, in pieces


def copied(stored: Stored, name: str, to: str) -> Unit:
    return Unit([(to, stored.meta(name))], lambda: iter([stored.pieces(name)]))


def held(name: str, tensor: torch.Tensor) -> Unit:
    return Unit([(name, tensor.to("meta"))], lambda: iter([pieces(tensor)]))


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    flat = tensor.detach().contiguous().view(-1)
    for first in range(0, flat.numel(), PIECE):
        yield flat[first : first + PIECE]


def write_files(directory: Path, base: str, max_shard: int, units: list[Unit]) -> None:
    from spillway._engine import SafetensorsWriter

    listed = [each for unit in units for each in unit.listed]
    heads = [(name, TYPES[tensor.dtype], list(tensor.shape)) for name, tensor in listed]
    writer = SafetensorsWriter(str(directory), base, heads, max_shard)
    parts = (each for unit in units for each in unit.made())
    for number, several in enumerate(parts):
        first = 0
        for part in several:
            writer.write(number, first, part.view(torch.uint8).numpy())
            first += part.numel()
    writer.finish()
