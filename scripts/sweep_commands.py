"""A small multimodal checkpoint as a user trains it, for scripts/sweep_models.py.

The installed `spillway train` reads a checkpoint that the library has written, with every state on a path under a
budget, durable. One run is left alone; another is killed with SIGKILL after some steps, and `spillway resume` ends it.
Both must have the same losses and the same files, `spillway verify` must find no damage, the library's own class must
load what was saved, and what belongs to other modalities must be in it byte for byte.
"""

from __future__ import annotations

import contextlib
import filecmp
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

import real_runs
from both_ways import replace_model, tensors
from spillway.cli import main
from spillway.model.checkpoint.files import checkpoint_names
from spillway.model.meta.building import build
from spillway.model.source.source import auto_class
from spillway.output.records import rows
from warm import ONE_THREAD

COMMAND = Path(sys.executable).with_name("spillway")
STEPS, KILLED = 12, 3  # steps of a run; the other one is killed when so many have been logged
BUDGET = "2GiB"


def killed_and_resumed(kind: str, place: Path) -> str:
    """What the table says of a type that works. AssertionError: what does not."""
    real_runs.inputs(place)
    replace_model(place / "model", kind)
    whole, out = place / "whole", place / "out"
    call(*words(place, whole))
    kill(KILLED, out, *words(place, out))
    said = call("resume", out)
    assert "going on after step" in said, "the resume began anew"
    same(whole, out)
    verify(out)
    loads(place / "model", out)
    return f"{carried(place / 'model', out)}"


def words(place: Path, out: Path) -> list[str]:
    storage = out.with_name(f"{out.name}-storage")
    storage.mkdir()
    more = ["--storage", f"{storage},capacity=512MiB", "--placement", "path", "--dram_budget", BUDGET]
    more += ["--compute_dtype", "bf16", "--max_length", "32", "--max_steps", str(STEPS)]
    return real_runs.words(place, out, *more)


def call(*given: object) -> str:
    done = subprocess.run(command(given), env={**os.environ, **ONE_THREAD}, capture_output=True, text=True)
    assert done.returncode == 0, f"{given[0]}: exit code {done.returncode}: {last_line(done.stderr)}"
    return " ".join(done.stdout.split())  # lines are broken anywhere


def kill(steps: int, out: Path, *given: object) -> None:
    """Once metrics.jsonl has so many rows."""
    streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(given), env={**os.environ, **ONE_THREAD}, **streams) as process:
        try:
            while process.poll() is None and sum(1 for _ in rows(out / "metrics.jsonl")) < steps:
                time.sleep(0.005)
        finally:
            process.kill()
        assert process.stderr is not None
        said = process.stderr.read().decode()
    code = process.returncode
    assert code == -signal.SIGKILL, f"{given[0]}: exit code {code} before it was killed: {last_line(said)}"


def command(given: tuple[object, ...]) -> list[str]:
    return [str(COMMAND), *map(str, given)]


def last_line(said: str) -> str:
    return said.strip().rpartition("\n")[2]


def same(whole: Path, out: Path) -> None:
    assert real_runs.metrics(whole) == real_runs.metrics(out), "metrics.jsonl has other values"
    names = [sorted(str(path.relative_to(run)) for path in run.rglob("*.safetensors")) for run in (whole, out)]
    assert names[0] == names[1], f"files differ: {names[0]} and {names[1]}"
    assert "model.safetensors" in names[0]
    for name in names[0]:
        assert filecmp.cmp(whole / name, out / name, shallow=False), f"{name} has other bytes"


def verify(out: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main(["verify", str(out)])
    assert code == 0, said.getvalue()


def loads(model: Path, out: Path) -> None:
    """In the library's own class, which misses what it misses in the checkpoint that it has written, and no more."""
    told = []
    for directory in (model, out):
        made = auto_class(AutoConfig.from_pretrained(directory))
        _, found = made.from_pretrained(directory, dtype=torch.bfloat16, output_loading_info=True)
        told.append({what: sorted(map(str, names)) for what, names in found.items()})
    assert told[0] == told[1], f"the library loads it otherwise: {told[1]}"


def carried(model: Path, out: Path) -> int:
    """How many tensors belong to other modalities than text. They are as they were; others are not."""
    meta_model = build(AutoConfig.from_pretrained(model), torch.float32)
    apart = meta_model.carried_names
    names = checkpoint_names(meta_model, model)
    tower = {name for own, several in names.items() if own not in apart for name in several}
    before, after = tensors(model), tensors(out)
    assert before.keys() == after.keys(), f"keys differ: {sorted(before.keys() ^ after.keys())[:3]}"
    others = sorted(before.keys() - tower)
    for name in others:
        assert same_bytes(before[name], after[name]), f"{name} was changed"
    changed = (not torch.equal(before[name].to(after[name].dtype), after[name]) for name in tower)
    assert any(changed), "nothing was trained"
    return len(others)


def same_bytes(one: torch.Tensor, other: Any) -> bool:
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
