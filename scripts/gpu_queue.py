"""Runs the open rows of bench/gpu_queue.toml on this machine's GPU, in order, as many as the minutes allow.

python3 scripts/gpu_queue.py [--minutes 8.5] [--row NAME ...] [--device cuda:0] [--out DIR] [--built TREE] [--list]
                             [--megatrain DIR] [--tiny]

Each row writes bench/results/gpu/NAME.json. A table of the results follows. A row that fails stays open, its file says
what failed, and the next row runs. `--built`: takes the programs from a tree that make gpu-queue-bundle built, and
compiles nothing. `--megatrain`: a clone of MegaTrain, which PyPI does not have. Its default is the folder that
make gpu-queue-bundle packs. `--tiny`: runs the same programs on tiny shapes and the simulated device, for machines
without a GPU; its files go to build/gpu/tiny. Exit code: 0 if every row that ran was good, else 1.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_check import TREE, Check, explain_lack, model_flops
from gpu_tools import BUNDLE, ROOT, DoesNotFit, Failed, Parts, Report, last_json

QUEUE = ROOT / "bench" / "gpu_queue.toml"
RESULTS = ROOT / "bench" / "results" / "gpu"
MEGATRAIN = BUNDLE / "MegaTrain"
WARM_UP = 2  # first steps, which the median leaves out
TIME_LIMIT = 575  # seconds of a part
TINY_TIME_LIMIT = 3600  # on CPUs that may be few and busy
GIB = 2**30
# Dense bf16 FLOP/s by card, from its maker's data sheet.
PEAKS = {
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "4090": 165e12,
    "5090": 209e12,
    "L40S": 362e12,
}
# `--tiny` replaces the first values, limits the second, and drops options that need kernels for GPUs. A mixture of
# experts stays one.
TINY_VALUES = {
    "--shape": "tiny",
    "--layers": "2",
    "--gpu-memory": "96MiB",
    "--device-memory": "0",
    "--dram-budget": "1GiB",
    "--elements": "65536",
    "--launch-alone": "1",
    "--sub-group": "1000000",
    "--minutes": "0",  # no limit
}
TINY_SHAPES = {"30b-a3b": "tiny-moe"}
# `--tiny` runs these on the simulated device.
ENGINE_PROGRAMS = ("bench/engine_run.py", "bench/gpu_images.py", "bench/gpu_ranks.py")
GPU_ONLY = ("--liger", "--offload", "--backend")
TINY_LIMITS = {"--sequence": 64, "--batch": 2, "--micro-batches": 2, "--steps": 3, "--repeats": 2}


@dataclass(frozen=True)
class Row:
    name: str
    minutes: float
    decides: str
    parts: dict[str, list[str]]  # command lines of Python programs, with {device} and others (gpu_queue.toml)
    needs: tuple[str, ...] = ()  # Python packages
    identical: tuple[str, ...] = ()  # figures that must be equal in all parts


def read_rows(file: Path = QUEUE) -> list[Row]:
    content = tomllib.loads(file.read_text(encoding="utf-8"))

    def split(line: str) -> list[str]:
        return shlex.split(fill(line, content["words"]))

    return [
        Row(row["name"], row["minutes"], row["decides"], {name: split(line) for name, line in row["part"].items()},
            tuple(row.get("needs", ())), tuple(row.get("identical", ())))
        for row in content["row"]
    ]  # fmt: skip


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replaces each {name} that `values` has."""
    return re.sub(r"\{([a-z0-9]+)\}", lambda match: values.get(match[1], match[0]), text)


def is_open(row: Row, results: Path) -> bool:
    file = results / f"{row.name}.json"
    if not file.is_file():
        return True
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return not all(parts.get(name, {}).get("good") for name in row.parts)


def select_rows(rows: Sequence[Row], results: Path, minutes: float, names: Sequence[str] = ()) -> list[Row]:
    """The open rows, or the named rows, that fit into the minutes. A row that does not fit lets later rows pass."""
    selected = []
    for row in rows:
        if (row.name in names if names else is_open(row, results)) and row.minutes <= minutes:
            selected.append(row)
            minutes -= row.minutes
    return selected


def shrink(words: Sequence[str]) -> list[str]:
    """The command line for `--tiny`."""
    shrunk: list[str] = []
    option = ""
    for word in words:
        if word.startswith("--"):
            option = word
        elif option in TINY_VALUES:
            word = TINY_SHAPES.get(word, TINY_VALUES[option])
        elif option in TINY_LIMITS:
            word = str(min(int(word), TINY_LIMITS[option]))
        if option not in GPU_ONLY:
            shrunk.append(word)
    return shrunk


class Queue:
    def __init__(
        self, device: str, out: Path, built: Path | None, minutes: float, is_tiny: bool, megatrain: Path = MEGATRAIN
    ) -> None:
        self.check = Check(device, out / "build.json", built, minutes)
        self.programs, self.out, self.is_tiny = self.check.programs, out, is_tiny
        self.megatrain = megatrain
        self.facts: Report = self.check.report["facts"]

    def build(self) -> bool:
        good = self.check.build()
        if good:
            self.check.out.unlink()
        return good

    def run_row(self, row: Row) -> bool:
        """Returns whether all parts were good."""
        parts = Parts(self.out / f"{row.name}.json", {"facts": self.facts, "row": row.name, "decides": row.decides})
        good = True
        with tempfile.TemporaryDirectory(prefix="gpu-queue-", dir="/var/tmp") as drive:
            for name, words in row.parts.items():
                good = parts.part(name, partial(self.run_part, words, Path(drive))) and good
        if row.identical and good:
            good = parts.part("identical", lambda: compare_parts(parts.report["parts"], row.identical))
        return good

    def run_part(self, words: list[str], drive: Path) -> Report:
        out = drive / "out"
        out.mkdir(exist_ok=True)
        peer_device = "cpu" if self.is_tiny else self.check.device
        values = {"device": self.check.device if words[0] in ENGINE_PROGRAMS else peer_device,
                  "check": self.check.device, "built": str(self.check.tree), "out": str(out),
                  "drive": str(drive), "sources": str(self.megatrain)}  # fmt: skip
        command = [fill(word, values) for word in (shrink(words) if self.is_tiny else words)]
        try:
            output = self.programs.python(*command, seconds=TINY_TIME_LIMIT if self.is_tiny else TIME_LIMIT)
        except DoesNotFit as error:
            if self.is_tiny:
                raise  # tiny shapes fit: the part did not run
            return {"words": command, "fits": False, "refusal": str(error)[-1500:]}
        figures = {"output": output[-500:]} if command[0] == "-m" else last_json(output)
        for file in out.glob("*.json"):
            figures[file.stem] = json.loads(file.read_text(encoding="utf-8"))
            file.unlink()
        return {"words": command, "fits": True} | figures


def compare_parts(parts: dict[str, Report], figures: Sequence[str]) -> Report:
    """Raises Failed if a figure differs in any bit from the first part's."""
    first, *others = parts
    for name in others:
        for figure in figures:
            value, reference = parts[name].get(figure), parts[first].get(figure)
            if value != reference:
                raise Failed(f"{figure} differs: {value} in {name}, {reference} in {first}")
    return {"figures": list(figures), "compared": list(parts)}


def drop_warm_up(seconds: Sequence[float]) -> list[float]:
    return list(seconds[WARM_UP:] or seconds[-1:])


def summarise(row: Row, report: Report) -> list[list[str]]:
    """Table lines of a row: median seconds a step and their range, tokens/s, FLOP/s, peak memory of GPU and host."""
    lines = []
    for name, part in report["parts"].items():
        if not part["good"]:
            lines.append([row.name, name, f"failed: {select_line(part['words'])}"[:90]])
        elif part.get("fits") is False:
            lines.append([row.name, name, "does not fit"])
        elif "sides" in part:
            for side, figures in part["sides"].items():
                result = figures.get("refused") or f"{figures['median_seconds'] * 1e3:.3g} ms"
                lines.append([row.name, f"{name}, {side}", result])
        elif "seconds" in part:
            for series in part.get("series", [part]):
                lines.append([row.name, name, *step_cells(part, series, str(report["facts"].get("gpu", "")))])
        else:
            lines.append([row.name, name, "good"])
    return lines


def select_line(words: str) -> str:
    """The first line of a failure that names a failed part of a program, or the last line."""
    lines = words.strip().splitlines()
    return next((line for line in lines if "FAILED" in line), lines[-1])


def step_cells(part: Report, series: Report, gpu: str) -> list[str]:
    steps = drop_warm_up(series["seconds"])
    median = statistics.median(steps)
    cells = [f"{median:.3g} s ({min(steps):.3g} to {max(steps):.3g})"]
    if tokens := series.get("tokens"):
        options = dict(zip(part["words"], part["words"][1:], strict=False))
        layers = int(options["--layers"]) if "--layers" in options else None
        rate = model_flops(options["--shape"], int(options["--sequence"]), tokens, layers) / median
        peak = next((peak for card, peak in PEAKS.items() if card in gpu), None)
        share = f", {rate / peak:.0%} of peak" if peak else ""
        cells += [f"{tokens / median:.0f} tokens/s", f"{rate / 1e12:.3g} TFLOP/s{share}"]
    gpu_peak = part.get("device_peak") or part.get("measured", {}).get("tiers", {}).get("device", 0)
    return [*cells, f"GPU {gpu_peak / GIB:.1f} GiB", f"host {part.get('peak_bytes', 0) / GIB:.1f} GiB"]


def align(lines: Sequence[Sequence[str]]) -> str:
    """Pads each column to its widest cell."""
    columns = max(map(len, lines), default=0)
    widths = [max(len(line[column]) if column < len(line) else 0 for line in lines) for column in range(columns)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=False)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--row", action="extend", nargs="+", default=[], help="run these rows, open or not")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="default: bench/results/gpu")
    parser.add_argument("--built", type=Path)
    parser.add_argument("--megatrain", type=Path, default=MEGATRAIN, metavar="DIR")
    parser.add_argument("--list", action="store_true", help="list the rows and whether they are open, and stop")
    parser.add_argument("--tiny", action="store_true")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    device = "simulated" if arguments.tiny else arguments.device
    out: Path = arguments.out or (TREE / "tiny" if arguments.tiny else RESULTS)
    rows = read_rows()
    names = [row.name for row in rows]
    if unknown := sorted(set(arguments.row) - set(names)):
        print(f"gpu-queue: unknown row {', '.join(unknown)}. The rows are {', '.join(names)}.", file=sys.stderr)
        return 2
    if arguments.list:
        print(align([[row.name, f"{row.minutes} min", "open" if is_open(row, out) else "done", row.decides]
                     for row in rows]))  # fmt: skip
        return 0
    if why := explain_lack(device, arguments.built):
        print(f"gpu-queue: {why}", file=sys.stderr)
        return 1
    began = time.monotonic()
    built = arguments.built and arguments.built.absolute()
    queue = Queue(device, out, built, arguments.minutes, arguments.tiny, arguments.megatrain.absolute())
    print(json.dumps(queue.facts), flush=True)
    if not queue.build():
        return 1
    minutes_left = arguments.minutes - (time.monotonic() - began) / 60
    selected = select_rows(rows, out, minutes_left, arguments.row)
    if not selected:
        print(f"gpu-queue: no open row fits into {minutes_left:.1f} minutes. --list shows all rows.")
        return 0
    print("rows: " + ", ".join(row.name for row in selected), flush=True)
    results = [queue.run_row(row) for row in selected]
    lines = [line for row in selected for line in summarise(row, json.loads((out / f"{row.name}.json").read_text()))]
    print(align(lines))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
