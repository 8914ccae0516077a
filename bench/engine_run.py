"""A few steps of the engine on a model of a real shape; prints one JSON line. Exit code 3: it does not fit.

engine_run.py --shape 0.5b --sequence 1024 --steps 4 [--layers N]
              [--placement path --storage DIR ... --dram-budget BYTES] [--method lsp] [--profile FILE]
              [--durability none] [--device cuda:0 --gpu-memory BYTES] [--batch N] [--pack N] [--micro-batches N ...]
              [--compute-dtype fp32] [--learning-rate R] [--timelines DIR] [--set KEY=VALUE ...]
              [--repeat-layers] [--launch-alone CORES] [--kernels FILE]

`seconds` lists every step, `start_seconds` the time before the first. `--micro-batches 2 4 8` runs the steps once for
each number, in one session that is planned for the largest; `series` lists them all, `seconds` and `tokens` the last.
`--repeat-layers` draws the weights of one layer and copies them to the layers of the same shape, so that 7B starts
within seconds. `--pack` joins so many rows in each sequence. `--launch-alone` gives the engine's threads so many cores,
and the next core to the thread that launches kernels. `--kernels` profiles one more step and writes a table of its
kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import kernel_table
import torch
from shapes import config_of, peak_watch, random_tokens

from spillway.cli.arguments import parse
from spillway.config import Config
from spillway.errors import DoesNotFit
from spillway.model.batches.batch import Batch, WorkShape
from spillway.model.checkpoint import initialise
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--placement", default="dram")
    parser.add_argument("--storage", type=Path, nargs="+", default=[], metavar="DIR")
    parser.add_argument("--dram-budget")
    for name in ("method", "device", "gpu-memory", "profile", "durability", "compute-dtype"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--set", action="append", default=[], help="any other key, as KEY=VALUE")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--timelines", type=Path, help="where every step's goes, as STEP.json.gz")
    parser.add_argument("--batch", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--pack", type=int, default=1, metavar="N", help="rows that each sequence joins")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1])
    parser.add_argument("--repeat-layers", action="store_true")
    parser.add_argument("--launch-alone", type=int, metavar="CORES")
    parser.add_argument("--kernels", type=Path, metavar="FILE")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    try:
        with tempfile.TemporaryDirectory() as directory, peak_watch() as watch, patch_package(arguments):
            found = run(arguments, Path(directory))
    except DoesNotFit as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.exit_code)
    print(json.dumps(found | {"peak_bytes": watch.bytes}))


def patch_package(arguments: argparse.Namespace) -> ExitStack:
    """Replaces parts of the package for the options that the product does not have."""
    patches = ExitStack()
    if arguments.repeat_layers:
        patches.enter_context(mock.patch("spillway.model.checkpoint.initialise.draw_stage", LayerRepeater()))
    return patches


class LayerRepeater:
    """draw_stage, which draws the first layer and copies its values to layers of the same shapes."""

    def __init__(self) -> None:
        self._draw = initialise.draw_stage
        self._drawn: dict[tuple[Any, ...], list[Any]] = {}

    def __call__(self, meta_model: Any, stage: Any, engine: Any, first_tensor: int, *rest: Any) -> None:
        shapes = tuple(parameter.shape for parameter in stage.parameters)
        if shapes not in self._drawn:
            recorder = StoreRecorder(engine)
            self._draw(meta_model, stage, recorder, first_tensor, *rest)
            self._drawn[shapes] = recorder.values
            return
        for number, values in enumerate(self._drawn[shapes], start=first_tensor):
            engine.store_tensor(number, 0, values)


class StoreRecorder:
    """The engine for one stage; `values` holds copies of the stored tensors."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.values: list[Any] = []

    def store_tensor(self, number: int, first: int, values: Any) -> None:
        self.values.append(values.clone())
        self._engine.store_tensor(number, first, values)


def run(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    began = time.perf_counter()
    cores = sorted(os.sched_getaffinity(0))
    if arguments.launch_alone:
        os.sched_setaffinity(0, cores[: arguments.launch_alone])
    session = plan_session(arguments, directory)
    start_seconds = {"plan": time.perf_counter() - began}
    began = time.perf_counter()
    session.start(StartPoint())
    start_seconds["start"] = time.perf_counter() - began
    if arguments.launch_alone:
        os.sched_setaffinity(0, cores[arguments.launch_alone : arguments.launch_alone + 1])
    series = [Series(session, arguments, micro_batches) for micro_batches in arguments.micro_batches]
    last = series[-1]
    for each in series:
        for step in range(arguments.steps):
            each.run_step(step)
    if arguments.kernels:
        with kernel_table.record(arguments.kernels):
            session.step(last.draw_batches(arguments.steps), arguments.learning_rate)
    measured = session.measured()
    session.close()
    return {
        "series": [each.summarise() for each in series],
        "seconds": last.seconds,
        "tokens": last.tokens,
        "start_seconds": start_seconds,
        "loss": last.losses[-1],
        "losses": [loss for each in series for loss in each.losses],
        "grad_norms": [norm for each in series for norm in each.norms],
        "stalls": last.stalls,
        "link_bytes": last.link_bytes,
        "path_bytes": last.path_bytes,
        "plan": session.plan,
        "measured": measured,
    }


def plan_session(arguments: argparse.Namespace, directory: Path) -> EngineSession:
    shape = WorkShape(
        max(arguments.micro_batches), arguments.batch, arguments.sequence, 0, 0, packed_rows=float(arguments.pack)
    )
    return EngineSession(make_config(arguments, directory), shape)


def make_config(arguments: argparse.Namespace, directory: Path) -> Config:
    """The configuration of the run. Puts the model's config.json into the directory."""
    config_of(arguments.shape, arguments.layers).save_pretrained(directory)
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", arguments.placement, "--learning_rate", str(arguments.learning_rate),
             "--overwrite"]  # fmt: skip
    for directory in arguments.storage:
        words += ["--storage", str(directory)]
    if arguments.dram_budget:
        words += ["--dram_budget", arguments.dram_budget]
    if arguments.pack > 1:
        words += ["--packing", "true"]
    for name in ("method", "device", "gpu_memory", "profile", "durability", "compute_dtype"):
        if value := getattr(arguments, name):
            words += [f"--{name}", value]
    for each in arguments.set:
        name, _, value = each.partition("=")
        words += [f"--{name}", value]
    return parse(words).config()


class Series:
    """The steps with one number of micro-batches."""

    def __init__(self, session: EngineSession, arguments: argparse.Namespace, micro_batches: int) -> None:
        self._session, self._arguments, self._micro_batches = session, arguments, micro_batches
        self._count = arguments.batch * arguments.sequence
        self.tokens = self._count * micro_batches
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.stalls: list[dict[str, float]] = []
        self.link_bytes: object = None
        self.path_bytes: object = None  # of the last step

    def draw_batches(self, step: int) -> list[Batch]:
        numbers = range(step * self._micro_batches, (step + 1) * self._micro_batches)
        drawn = [random_tokens(self._arguments.shape, self._count, number) for number in numbers]
        positions = None
        if (pack := self._arguments.pack) > 1:
            row = torch.arange(self._arguments.sequence) % (self._arguments.sequence // pack)
            positions = row.expand(self._arguments.batch, -1)
        return [Batch(*[ids.view(self._arguments.batch, -1)] * 2, positions, self._count) for ids in drawn]

    def run_step(self, number: int) -> None:
        before = stalled(self._session)
        result = self._session.step(self.draw_batches(number), self._arguments.learning_rate)
        self.seconds.append(result.seconds)
        if self._arguments.timelines and number > 0:  # of the newest step that has wholly ended
            self._session.write_timeline(self._arguments.timelines / f"{number}.json.gz")
        self.losses.append(result.loss_sum / result.label_tokens)
        self.norms.append(result.grad_norm)
        after = stalled(self._session)
        self.stalls.append({cause: value - before.get(cause, 0.0) for cause, value in after.items()})
        self.link_bytes, self.path_bytes = result.link_bytes, result.path_bytes

    def summarise(self) -> dict[str, Any]:
        return {"micro_batches": self._micro_batches, "tokens": self.tokens, "seconds": self.seconds}


def stalled(session: Any) -> dict[str, float]:
    """Seconds that compute has waited so far, by cause."""
    return dict(session.measured()["stall_seconds"])


if __name__ == "__main__":
    main()
