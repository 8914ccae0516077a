"""One process of bench/durability.py: a model with random weights whose run may be durable. Prints JSON lines.

    durability_run.py --placement path --storage DIR --dram-budget 3GiB --durability step --steps 4

First {"plan", "recovery"}, then a line for each step when its commit was handed over, at last {"end"}.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from shapes import config_of, peak_watch, random_tokens

from spillway._engine import Engine, Recovery
from spillway.cli.arguments import parse
from spillway.model.batches.batch import Batch, WorkShape
from spillway.run.protocol import Keeping, StartPoint
from spillway.run.session import EngineSession

PHASES = ("memory", "opening", "records", "reading", "replay")  # of a recovery


class Listening(Engine):
    """The engine, and what it told when it was started."""

    engine: Listening
    told: Recovery

    def start(self, *words: Any) -> Recovery:
        answer = super().start(*words)
        Listening.engine, Listening.told = self, answer
        return answer


def paths() -> dict[str, dict[str, float]]:
    """Counters of each path, since it was opened."""
    keys = ("read", "written", "syncs", "sync_seconds")
    found = Listening.engine.counters().paths
    return {name: {key: getattr(path, key) for key in keys} for name, path in found.items()}


def growth(now: dict[str, dict[str, float]], before: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {key: path[key] - before[name][key] for key in path} for name, path in now.items()}


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def opened(arguments: argparse.Namespace, directory: Path) -> EngineSession:
    config_of(arguments.shape).save_pretrained(directory)
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", arguments.placement, "--learning_rate", "1e-5", "--overwrite",
             "--storage", str(arguments.storage), "--dram_budget", arguments.dram_budget,
             "--durability", arguments.durability]  # fmt: skip
    session = EngineSession(
        parse(words).config(), WorkShape(1, 1, arguments.sequence, 0, 0), Listening,
        Keeping("bench-durability", checkpoints=1 if arguments.checkpoint else 0, keep=True),
    )  # fmt: skip
    began = time.perf_counter()
    session.start(StartPoint(durable=True, fresh=False) if arguments.resume else StartPoint())
    told = {name: getattr(Listening.told, name) for name in ("step", "replayed", "chunks", "replayed_steps", "seconds")}
    told["phases"] = {name: getattr(Listening.told.phases, name) for name in PHASES}
    say({"plan": session.plan, "recovery": told, "start_seconds": time.perf_counter() - began})
    return session


def steps(arguments: argparse.Namespace, session: EngineSession) -> None:
    first = Listening.told.step
    if not arguments.resume:
        session.commit({"step": 0})
    before = paths()
    for step in range(first, first + arguments.steps):
        ids = random_tokens(arguments.shape, arguments.sequence, step)
        began = time.perf_counter()
        result = session.step([Batch(ids, ids, None, arguments.sequence)], 1e-5)
        computed = time.perf_counter()
        session.commit({"step": step + 1})
        ended = time.perf_counter()
        now = paths()
        say({"step": step + 1, "seconds": ended - began, "commit_seconds": ended - computed,
             "loss": result.loss_sum / result.label_tokens, "paths": growth(now, before)})  # fmt: skip
        before = now


def checkpoint(arguments: argparse.Namespace, session: EngineSession, directory: Path) -> dict[str, Any]:
    """After the last step: how long until its updates and its commit are through, then the manifest, then a state that
    stands alone."""
    began = time.perf_counter()
    session.settle()
    settled = time.perf_counter()
    session.save_state(directory / "checkpoint")
    saved = time.perf_counter()
    alone = arguments.storage / "alone"
    alone.mkdir()
    try:
        Listening.engine.save_state(str(alone), 0)
        written = sum(file.stat().st_size for file in alone.iterdir())
        for file in alone.iterdir():
            flush(file)
        seconds = time.perf_counter() - saved
    finally:
        shutil.rmtree(alone)
    manifest = (directory / "checkpoint" / "spillway" / "manifest.bin").stat().st_size
    return {"settle_seconds": settled - began, "seconds": saved - settled, "manifest_bytes": manifest,
            "alone_seconds": seconds, "alone_bytes": written}  # fmt: skip


def flush(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--placement", default="path")
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="for the model's configuration and checkpoints")
    parser.add_argument("--dram-budget", default="3GiB")
    parser.add_argument("--durability", default="step")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--checkpoint", action="store_true")
    arguments = parser.parse_args()
    with peak_watch() as watch:
        session = opened(arguments, arguments.directory)
        steps(arguments, session)
        found = {"checkpoint": checkpoint(arguments, session, arguments.directory)} if arguments.checkpoint else {}
        session.close()
    say(found | {"end": True, "peak_bytes": watch.bytes})


if __name__ == "__main__":
    main()
