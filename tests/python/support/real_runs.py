"""Whole runs with the real engine: inputs, the command line in this process or in one of its own, what a run leaves."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tiny
import warm
from hf_models import tiny_model
from native import file_bytes, profile
from spillway.cli import main
from spillway.output import saved, wear
from spillway.output.records import rows

NOT_BITS = (
    "step_seconds",
    "path_bytes",
    "link_bytes",
    "node_updates",
)  # of a row of metrics.jsonl: they depend on the machine


def dying(method: str) -> str:
    """The beginning of a script: where DIES_AFTER is set, an alarm that nothing catches ends the process so many
    seconds after the session's first call of `method`, or after that of number DIES_IN."""
    return f"""
import os, signal, sys
from spillway.run.session import EngineSession
if "DIES_AFTER" in os.environ:
    method, left = EngineSession.{method}, int(os.environ.get("DIES_IN", "1"))
    def counted(*given):
        global left
        left -= 1
        if left == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, float(os.environ["DIES_AFTER"]))
            EngineSession.{method} = method
        return method(*given)
    EngineSession.{method} = counted
"""


def kill_after(method: str, command: list[str], calls: int = 1) -> None:
    """Runs a command line, which an alarm ends right after the session's call of `method` of this number."""
    script = dying(method) + "\nfrom spillway.cli import main\nsys.exit(main())"
    process = apart("-c", script, *command, env_more={"DIES_AFTER": "1e-6", "DIES_IN": str(calls)})
    _, error = process.communicate(timeout=240)
    assert process.returncode == -14, error[-2000:]


@cache
def prepared() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        return file_bytes(made(Path(place)))


def inputs(path: Path) -> Path:
    """A model with weights and tokenizer, rows to train on and rows held out: made once in a process."""
    for name, content in prepared().items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def made(path: Path) -> Path:
    from transformers import AutoConfig

    model = tiny.model_directory(path / "model")
    tiny_model(AutoConfig.from_pretrained(model)).save_pretrained(model)
    profile(path)
    tiny.jsonl(path / "train.jsonl", tiny.text_rows(23))
    tiny.jsonl(path / "held_out.jsonl", tiny.text_rows(7))
    return path


def words(given: Path, out: Path, *more: str, verb: str = "train") -> list[str]:
    """A command line with small defaults: 6 steps an epoch."""
    defaults = {
        "model": given / "model",
        "dataset": given / "train.jsonl",
        "output_dir": out,
        "max_length": 64,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": "1e-3",
        "profile": given / "profile.json",
    }
    chosen = {key: value for key, value in defaults.items() if f"--{key}" not in more}
    return [verb, *(str(word) for key, value in chosen.items() for word in (f"--{key}", value)), *more]


def on_path(storage: Path) -> list[str]:
    return [*storage_in(storage), "--placement", "weight=50%,state=path,grad=path,activation=dram"]


def storage_in(directory: Path) -> list[str]:
    directory.mkdir(exist_ok=True)
    return ["--storage", f"{directory},capacity=512MiB"]


def here(given: Path, out: Path, *more: str, verb: str = "train") -> int:
    return main(words(given, out, *more, verb=verb))


def apart(*command: str, env_more: Mapping[str, str] = MappingProxyType({}), **options: Any) -> Any:
    """`python COMMAND` in a process of its own, with these variables in its environment besides."""
    return warm.python(*command, env=env_more, **options)


def metrics(out: Path) -> list[dict[str, Any]]:
    """Every row, without what depends on the machine."""
    return [{key: value for key, value in row.items() if key not in NOT_BITS} for row in rows(out / "metrics.jsonl")]


def last_checkpoint(out: Path) -> Path:
    return max(out.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


def result(out: Path) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, Any]]:
    """What an uninterrupted run of the same configuration has bit for bit: rows, weights and state, trainer's log."""
    checkpoint = last_checkpoint(out)
    with standing_alone(out, checkpoint) as whole:
        binary = {
            str(path.relative_to(whole)): path.read_bytes()
            for path in sorted(whole.rglob("*"))
            if path.is_file()
            and path.name not in (wear.FILE, Path(saved.FILES).name)  # which has digests of seconds, too
            and (path.suffix in (".safetensors", ".bin") or path.parent.name == "spillway")
        }
    (root,) = out.glob("*model.safetensors")  # the model's, or the adapters'
    binary["the model at the root"] = root.read_bytes()
    log = json.loads((checkpoint / "trainer_state.json").read_text())
    for row in log["log_history"]:
        for key in NOT_BITS:
            row.pop(key, None)
    return metrics(out), binary, log


@contextmanager
def standing_alone(out: Path, checkpoint: Path) -> Iterator[Path]:
    """The checkpoint, or what is exported of it where its state lies on the run's paths."""
    if not (checkpoint / "spillway" / "manifest.bin").exists():
        yield checkpoint
        return
    copy = out.with_name(f"{out.name}-alone")
    assert main(["export", str(out), "--to", str(copy), "--checkpoint", str(checkpoint)]) == 0
    yield copy
    shutil.rmtree(copy)


def names(directory: Path) -> list[str]:
    return sorted(item.name for item in directory.iterdir())
