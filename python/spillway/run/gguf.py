"""A checkpoint as one GGUF file, by llama.cpp's own converter, which is a program of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from spillway.base.files import flush
from spillway.errors import InputError, SpillwayError
from spillway.output import saved

CONVERTERS = ("convert_hf_to_gguf.py", "convert-hf-to-gguf")  # in llama.cpp's tree, and as packages install it
FILE, MAGIC = "model.gguf", b"GGUF"
TYPES = ("auto", "f32", "f16", "bf16", "q8_0")


def find_converter(verb: str, place: Path, to: Path) -> str:
    """The converter on PATH. InputError with the commands to type where there is none."""
    if converter := next(filter(None, map(shutil.which, CONVERTERS)), None):
        return converter
    first = shlex.join(["spillway", verb, str(place), "--to", str(to)])
    second = shlex.join(["python", f"llama.cpp/{CONVERTERS[0]}", str(to), "--outfile", str(to / FILE)])
    raise InputError(
        f"gguf: {CONVERTERS[0]} of llama.cpp is not on PATH; put it there, or in a checkout of "
        f"https://github.com/ggml-org/llama.cpp type `{first}`, then `{second}`"
    )


def check_type(outtype: str) -> str:
    if outtype not in TYPES:
        raise InputError(f"outtype: got {outtype!r}, expects one of {', '.join(TYPES)}")
    return outtype


def convert(converter: str, directory: Path, outtype: str) -> Path:
    """Writes FILE into a directory of a checkpoint, which has its name when all of it is there. SpillwayError where the
    converter fails; the checkpoint stays."""
    to = directory / FILE
    temporary = directory / f".tmp-{FILE}"
    command = [converter, str(directory), "--outfile", str(temporary), "--outtype", outtype]
    try:
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        words = next((line.strip() for line in reversed(ended.stderr.splitlines()) if line.strip()), "it says nothing")
        if ended.returncode != 0:
            raise SpillwayError(
                f"gguf: {shlex.join(command)} ended with {ended.returncode}: {words}; {stays(directory)}"
            )
        if not is_gguf(temporary):
            raise SpillwayError(f"gguf: {converter} wrote no GGUF file ({words}); {stays(directory)}")
        flush(temporary)
        os.replace(temporary, to)
    finally:
        temporary.unlink(missing_ok=True)
    saved.record_files(directory)
    flush(directory)
    return to


def stays(directory: Path) -> str:
    return f"the checkpoint in {directory} is whole"


def is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False
