"""A few steps of the engine on a model of a real shape; prints one JSON line. Exit code 3: it does not fit.

engine_run.py --shape 0.5b --sequence 1024 --steps 4 [--layers N]
              [--placement path --storage DIR --dram-budget BYTES] [--method lsp] [--profile FILE] [--durability none]
              [--device cuda:0 --gpu-memory BYTES] [--batch N] [--micro-batches N ...] [--compute-dtype fp32]
              [--learning-rate R] [--timelines DIR] [--set KEY=VALUE ...]
              [--repeat-layers] [--any-order] [--launch-alone CORES] [--kernels FILE]

`seconds` are those of every step, `start_seconds` those of what comes before the first. Of several numbers of
micro-batches each has as many steps, in one session that is planned for the most; `series` has them apart, and
`seconds` and `tokens` are those of the last. `--repeat-layers`: weights are drawn for the first layer, and those of its
kind have the same, so that 7B starts within seconds. `--any-order`: PyTorch may take kernels that add in any order,
which the product does not allow. `--launch-alone`: the engine's threads have so many cores, and the thread that gives
kernels to a GPU has the next one to itself. `--kernels`: one step more, under PyTorch's profiler; what ran, by kind and
by name, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import kernel_table
from shapes import config_of, peak_watch, random_tokens

from spillway.cli.arguments import parse
from spillway.config import Config
from spillway.errors import DoesNotFit
from spillway.model.batch import Batch, WorkShape
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--placement", default="dram")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--dram-budget")
    for name in ("method", "device", "gpu-memory", "profile", "durability", "compute-dtype"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--set", action="append", default=[], help="any other key, as KEY=VALUE")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--timelines", type=Path, help="where every step's goes, as STEP.json.gz")
    parser.add_argument("--batch", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1])
    parser.add_argument("--repeat-layers", action="store_true")
    parser.add_argument("--any-order", action="store_true")
    parser.add_argument("--launch-alone", type=int, metavar="CORES")
    parser.add_argument("--kernels", type=Path, metavar="FILE")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    try:
        with tempfile.TemporaryDirectory() as directory, peak_watch() as watch, as_asked(arguments):
            found = run(arguments, Path(directory))
    except DoesNotFit as refused:
        print(refused, file=sys.stderr)
        sys.exit(refused.exit_code)
    print(json.dumps(found | {"peak_bytes": watch.bytes}))


def as_asked(arguments: argparse.Namespace) -> ExitStack:
    """What of the package gives way while a run asks for it."""
    changed = ExitStack()
    if arguments.repeat_layers:
        changed.enter_context(mock.patch("spillway.model.initialise.draw_stage", Repeated()))
    if arguments.any_order:
        changed.enter_context(mock.patch("spillway.machine.place.deterministic", nullcontext))
    return changed


class Repeated:
    """draw_stage, for the first layer; layers of the same shapes get the same values."""

    def __init__(self) -> None:
        from spillway.model import initialise

        self._draw = initialise.draw_stage
        self._kept: dict[tuple[Any, ...], list[Any]] = {}

    def __call__(self, meta_model: Any, stage: Any, engine: Any, first_tensor: int, *rest: Any) -> None:
        shapes = tuple(parameter.shape for parameter in stage.parameters)
        if shapes not in self._kept:
            keeper = Keeper(engine)
            self._draw(meta_model, stage, keeper, first_tensor, *rest)
            self._kept[shapes] = keeper.values
            return
        for number, values in enumerate(self._kept[shapes], start=first_tensor):
            engine.store_tensor(number, 0, values)


class Keeper:
    """The engine, for one stage; `values`: what it was given."""

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
    session = planned(arguments, directory)
    start_seconds = {"plan": time.perf_counter() - began}
    began = time.perf_counter()
    session.start(StartPoint())
    start_seconds["start"] = time.perf_counter() - began
    if arguments.launch_alone:
        os.sched_setaffinity(0, cores[arguments.launch_alone : arguments.launch_alone + 1])
    series = [Series(session, arguments, micro_batches) for micro_batches in arguments.micro_batches]
    for each in series:
        for step in range(arguments.steps):
            each.step(step)
    if arguments.kernels:
        with kernel_table.written(arguments.kernels):
            session.step(each.batches(arguments.steps), arguments.learning_rate)
    measured = session.measured()
    session.close()
    apart = [each.figures() for each in series]
    return {
        "series": apart,
        "seconds": apart[-1]["seconds"],
        "tokens": apart[-1]["tokens"],
        "start_seconds": start_seconds,
        "loss": each.losses[-1],
        "losses": [loss for one in series for loss in one.losses],
        "grad_norms": [norm for one in series for norm in one.norms],
        "stalls": each.stalls,
        "link_bytes": each.link_bytes,
        "plan": session.plan,
        "measured": measured,
    }


def planned(arguments: argparse.Namespace, directory: Path) -> EngineSession:
    shape = WorkShape(max(arguments.micro_batches), arguments.batch, arguments.sequence, 0, 0)
    return EngineSession(configured(arguments, directory), shape)


def configured(arguments: argparse.Namespace, directory: Path) -> Config:
    """What a user would write, for a model that is put into the directory, without weights."""
    config_of(arguments.shape, arguments.layers).save_pretrained(directory)
    words = ["--model", str(directory), "--init", "random", "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", arguments.placement, "--learning_rate", str(arguments.learning_rate),
             "--overwrite"]  # fmt: skip
    if arguments.storage:
        words += ["--storage", str(arguments.storage)]
    if arguments.dram_budget:
        words += ["--dram_budget", arguments.dram_budget]
    for name in ("method", "device", "gpu_memory", "profile", "durability", "compute_dtype"):
        if value := getattr(arguments, name):
            words += [f"--{name}", value]
    for each in arguments.set:
        name, _, value = each.partition("=")
        words += [f"--{name}", value]
    return parse(words).config()


class Series:
    """Steps of so many micro-batches."""

    def __init__(self, session: EngineSession, arguments: argparse.Namespace, micro_batches: int) -> None:
        self._session, self._arguments, self._micro_batches = session, arguments, micro_batches
        self._count = arguments.batch * arguments.sequence
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.stalls: list[dict[str, float]] = []
        self.link_bytes: object = None

    def batches(self, step: int) -> list[Batch]:
        numbers = range(step * self._micro_batches, (step + 1) * self._micro_batches)
        drawn = [random_tokens(self._arguments.shape, self._count, number) for number in numbers]
        return [Batch(*[ids.view(self._arguments.batch, -1)] * 2, None, self._count) for ids in drawn]

    def step(self, number: int) -> None:
        before = stalled(self._session)
        result = self._session.step(self.batches(number), self._arguments.learning_rate)
        self.seconds.append(result.seconds)
        if self._arguments.timelines and number > 0:  # of the newest step that has wholly ended
            self._session.write_timeline(self._arguments.timelines / f"{number}.json.gz")
        self.losses.append(result.loss_sum / result.label_tokens)
        self.norms.append(result.grad_norm)
        after = stalled(self._session)
        self.stalls.append({cause: value - before.get(cause, 0.0) for cause, value in after.items()})
        self.link_bytes = result.link_bytes

    def figures(self) -> dict[str, Any]:
        tokens = self._count * self._micro_batches
        return {"micro_batches": self._micro_batches, "tokens": tokens, "seconds": self.seconds}


def stalled(session: Any) -> dict[str, float]:
    """Seconds that compute has waited so far, by cause."""
    return dict(session.measured()["stall_seconds"])


if __name__ == "__main__":
    main()
