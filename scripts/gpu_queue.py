"""The rows of bench/gpu_queue.toml on the GPU that is here: those that are open, in order, as many as the minutes have
room for. Each writes bench/results/gpu/NAME.json; a table of what was found follows.

python3 scripts/gpu_queue.py [--minutes 8.5] [--row NAME ...] [--device cuda:0] [--out DIR] [--built TREE] [--list]
                             [--tiny]

A row that fails stays open, with what failed in its file, and the next ones run. `--built`: a tree of make gpu-bundle,
for a machine on which nothing is to be compiled. `--tiny`: the same programs and options over small shapes and the
simulated device, where no GPU is; its files go to build/gpu/tiny. Exit code: 0 when every row that ran was good, else
1.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_check import TREE, Check, compilers, lacking, model_flops
from gpu_tools import ROOT, DoesNotFit, Failed, Parts, Programs, Report, last_json

QUEUE = ROOT / "bench" / "gpu_queue.toml"
RESULTS = ROOT / "bench" / "results" / "gpu"
SETTLING = 2  # steps that are not counted, where more than these were made
LONGEST = 575  # seconds of a part
GIB = 2**30
# Of a card, products of bf16 a second, as its maker gives them for dense matrices.
PEAKS = {
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
    "A100": 312e12,
    "4090": 165e12,
    "5090": 209e12,
    "L40S": 362e12,
}
# What `--tiny` puts in the place of values, which it keeps below a number, and what it leaves out: kernels for GPUs.
TINY = {"--shape": "tiny", "--layers": "2", "--gpu-memory": "96MiB", "--device-memory": "0", "--dram-budget": "1GiB",
        "--elements": "65536", "--launch-alone": "1", "--sub-group": "1000000"}  # fmt: skip
GPU_ALONE = ("--liger",)
AT_MOST = {"--sequence": 64, "--batch": 2, "--micro-batches": 2, "--steps": 3, "--repeats": 2}


@dataclass(frozen=True)
class Row:
    name: str
    minutes: float
    decides: str
    parts: dict[str, list[str]]  # words of a Python program, with {device}, {check}, {built}, {out} and {drive}
    needs: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()  # figures that all parts have the same


def rows(file: Path = QUEUE) -> list[Row]:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    shared = content["words"]

    def words(line: str) -> list[str]:
        return shlex.split(re.sub(r"\{([a-z0-9]+)\}", lambda found: shared.get(found[1], found[0]), line))

    return [
        Row(each["name"], each["minutes"], each["decides"], {name: words(line) for name, line in each["part"].items()},
            tuple(each.get("needs", ())), tuple(each.get("alike", ())))
        for each in content["row"]
    ]  # fmt: skip


def is_open(row: Row, results: Path) -> bool:
    file = results / f"{row.name}.json"
    if not file.is_file():
        return True
    found = json.loads(file.read_text(encoding="utf-8"))["parts"]
    return not all(found.get(name, {}).get("good") for name in row.parts)


def chosen(every: Sequence[Row], results: Path, minutes: float, names: Sequence[str] = ()) -> list[Row]:
    """Those that are named, or are open, and have room one after the other; where one has none, a later one may."""
    found = []
    for row in every:
        if (row.name in names if names else is_open(row, results)) and row.minutes <= minutes:
            found.append(row)
            minutes -= row.minutes
    return found


def tiny(words: Sequence[str]) -> list[str]:
    found: list[str] = []
    option = ""
    for word in words:
        if word in GPU_ALONE:
            continue
        if word.startswith("--"):
            option = word
        elif option in TINY:
            word = TINY[option]
        elif option in AT_MOST:
            word = str(min(int(word), AT_MOST[option]))
        found.append(word)
    return found


class Queue:
    def __init__(self, device: str, out: Path, built: Path | None, minutes: float, small: bool) -> None:
        self.check = Check(device, out / "build.json", built, minutes)
        self.check.dry = small
        self.programs, self.out, self.small = self.check.programs, out, small
        self.known: Report = {"facts": self.check.report["facts"]}

    def build(self) -> bool:
        """What the rows run, by the ways of gpu_check."""
        good = self.check.part("programs", self.check.build_programs)
        good = self.check.part("extension", self.check.build_extension) and good
        if good:
            self.check.out.unlink()
        return good

    def run(self, row: Row) -> bool:
        """Whether all its parts were good."""
        parts = Parts(self.out / f"{row.name}.json", self.known | {"row": row.name, "decides": row.decides})
        good = True
        with tempfile.TemporaryDirectory(prefix="gpu-queue-", dir="/var/tmp") as drive:
            for name, words in row.parts.items():
                good = parts.part(name, lambda words=words: self.part(words, Path(drive))) and good  # type: ignore[misc]
        if row.alike and good:
            good = parts.part("all alike", lambda: alike(parts.report["parts"], row.alike))
        return good

    def part(self, words: list[str], drive: Path) -> Report:
        own = drive / "out"
        own.mkdir(exist_ok=True)
        host = "cpu" if self.small else self.check.device
        values = {"device": self.check.device if "engine_run.py" in words[0] else host, "check": self.check.device,
                  "built": str(self.check.tree), "out": str(own), "drive": str(drive)}  # fmt: skip
        asked = tiny(words) if self.small else words
        asked = [re.sub(r"\{([a-z]+)\}", lambda found: values.get(found[1], found[0]), word) for word in asked]
        try:
            said = self.programs.python(*asked, seconds=LONGEST)
        except DoesNotFit as refused:
            return {"words": asked, "fits": False, "refusal": str(refused)[-1500:]}
        found = {} if asked[0] == "-m" else last_json(said)
        for file in own.glob("*.json"):
            found[file.stem] = json.loads(file.read_text(encoding="utf-8"))
            file.unlink()
        return {"words": asked, "fits": True} | ({"said": said[-500:]} if asked[0] == "-m" else {}) | found


def alike(parts: dict[str, Report], figures: Sequence[str]) -> Report:
    """Failed where a figure is not bit for bit that of the first part."""
    first, *others = parts
    for name in others:
        for figure in figures:
            if parts[name].get(figure) != parts[first].get(figure):
                raise Failed(f"{figure} of {name}: {parts[name].get(figure)}; of {first}: {parts[first].get(figure)}")
    return {"alike": list(figures), "of": list(parts)}


def counted(seconds: Sequence[float]) -> list[float]:
    return list(seconds[SETTLING:] or seconds[-1:])


def lines(row: Row, report: Report) -> list[list[str]]:
    """Of each part: seconds a step in the median and their range, tokens a second, share of the card's peak, GiB of the
    GPU and of the host."""
    peak = next((peak for card, peak in PEAKS.items() if card in str(report["facts"].get("gpu", ""))), 0.0)
    found = []
    for name, part in report["parts"].items():
        if not part["good"] or part.get("fits") is False:
            words = "does not fit" if part["good"] else f"failed: {part['words'].strip().splitlines()[-1]}"
            found.append([row.name, name, words[:90]])
            continue
        for series in part.get("series") or ([part] if "seconds" in part else []):
            steps = counted(series["seconds"])
            median = statistics.median(steps)
            cells = [row.name, name, f"{median:.3g} s ({min(steps):.3g} to {max(steps):.3g})"]
            if tokens := series.get("tokens"):
                options = dict(zip(part["words"], part["words"][1:], strict=False))
                layers = int(options["--layers"]) if "--layers" in options else None
                done = model_flops(options["--shape"], int(options["--sequence"]), tokens, layers)
                share = f", {done / median / peak:.0%} of its peak" if peak else ""
                cells += [f"{tokens / median:.0f} tokens/s", f"{done / median / 1e12:.3g} TFLOP/s{share}"]
            on_gpu = part.get("device_peak") or part.get("measured", {}).get("tiers", {}).get("device", 0)
            cells += [f"{on_gpu / GIB:.1f} GiB of the GPU", f"{part.get('peak_bytes', 0) / GIB:.1f} GiB of the host"]
            found.append(cells)
        for side, each in part.get("sides", {}).items():
            words = each.get("refused") or f"{each['median_seconds'] * 1e3:.3g} ms"
            found.append([row.name, f"{name}, {side}", words])
        if not any(line[1].startswith(name) for line in found):
            found.append([row.name, name, "good"])
    return found


def table(found: Sequence[Sequence[str]]) -> str:
    columns = max(map(len, found), default=0)
    widths = [max(len(line[column]) if column < len(line) else 0 for line in found) for column in range(columns)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=False)] for line in found]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.5)
    parser.add_argument("--row", nargs="+", default=[], help="these, whether they are open or not")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, help="default: bench/results/gpu")
    parser.add_argument("--built", type=Path)
    parser.add_argument("--list", action="store_true", help="the rows, and which are open; nothing runs")
    parser.add_argument("--tiny", action="store_true")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    device = "simulated" if arguments.tiny else arguments.device
    out: Path = arguments.out or (TREE / "tiny" if arguments.tiny else RESULTS)
    every = rows()
    if unknown := sorted(set(arguments.row) - {row.name for row in every}):
        there = ", ".join(row.name for row in every)
        print(f"gpu-queue: no row {', '.join(unknown)}; there are {there}", file=sys.stderr)
        return 2
    if arguments.list:
        print(table([[row.name, f"{row.minutes} min", "open" if is_open(row, out) else "done", row.decides]
                     for row in every]))  # fmt: skip
        return 0
    tools = Programs(TREE / "site")
    if why := lacking(device, tools) or ("" if arguments.built else compilers(device, tools)):
        print(f"gpu-queue: {why}", file=sys.stderr)
        return 1
    began = time.monotonic()
    queue = Queue(device, out, arguments.built and arguments.built.absolute(), arguments.minutes, arguments.tiny)
    print(json.dumps(queue.known["facts"]), flush=True)
    if not queue.build():
        return 1
    left = arguments.minutes - (time.monotonic() - began) / 60
    picked = chosen(every, out, left, arguments.row)
    if not picked:
        print(f"gpu-queue: no open row has room in {left:.1f} minutes (--list shows them)")
        return 0
    print("rows: " + ", ".join(row.name for row in picked), flush=True)
    good = [queue.run(row) for row in picked]
    found = [line for row in picked for line in lines(row, json.loads((out / f"{row.name}.json").read_text()))]
    print(table(found))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
