"""How many copies a step makes to a device and from it, by kind, and how large they are.

    copies.py plan [--shape 0.5b] [--layers N] [--tokens 2048] [--chunk-elements N] [--lives 1] [--passes 0]
                   [--durable] [--early] [--rate 2e14] [--out FILE]
    copies.py run TIMELINE ... [--out FILE]

`plan`: of the step that is planned on a device with a link of 25 GB/s each way, copies of images by the part of them
that is due in a step. `run`: of steps that were made (timeline.json.gz of a run, or engine_run.py --timelines). Copies
of less than 8 MiB do not reach the bandwidth of a GPU's link; the last column is the share of a kind's bytes that goes
in such.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MIB = 2**20
GOOD = 8 * MIB
CHUNK = 4 << 20  # elements
LANES = ("to_device", "from_device")


class Copy(NamedTuple):
    lane: str
    kind: str  # as "upload weight"
    bytes: int
    share: float  # of it that falls on a step


def copies(timeline: dict[str, Any], process: int) -> Iterator[Copy]:
    """`process`: 1 what was measured, 2 what was predicted."""
    for event in timeline["traceEvents"]:
        if event["ph"] == "b" and event["pid"] == process and event["cat"] in LANES:
            kind = " ".join(event["name"].split()[:2])
            every = event["args"].get("every", 1) if process == 2 else 1
            yield Copy(event["cat"], kind, event["args"]["bytes"], 1 / every)


def table(found: Sequence[Copy], steps: int = 1) -> list[dict[str, Any]]:
    """A row for each kind, per step."""
    kinds: dict[tuple[str, str], list[Copy]] = defaultdict(list)
    for copy in found:
        kinds[copy.lane, copy.kind].append(copy)
    return [row(*key, them, steps) for key, them in sorted(kinds.items(), reverse=True)]


def row(lane: str, kind: str, them: Sequence[Copy], steps: int) -> dict[str, Any]:
    count = sum(copy.share for copy in them)
    moved = sum(copy.share * copy.bytes for copy in them)
    small = sum(copy.share * copy.bytes for copy in them if copy.bytes < GOOD)
    return {"lane": lane, "kind": kind, "copies": count / steps, "bytes": moved / steps, "mean": moved / count,
            "least": min(copy.bytes for copy in them), "share_below_8_MiB": small / moved}  # fmt: skip


def at_once(timeline: dict[str, Any]) -> float:
    """Of the predicted seconds in which the direction that has less to do copies, the share in which both do."""
    spans: dict[str, list[tuple[float, int]]] = {lane: [] for lane in LANES}
    for event in timeline["traceEvents"]:
        if event["pid"] == 2 and event.get("cat") in LANES:
            spans[event["cat"]].append((event["ts"], 1 if event["ph"] == "b" else -1))
    marks = sorted((at, change, lane) for lane, its in spans.items() for at, change in its)
    busy, open_ = dict.fromkeys((*LANES, "both"), 0.0), dict.fromkeys(LANES, 0)
    before = 0.0
    for at, change, lane in marks:
        for each in LANES:
            busy[each] += (at - before) * (open_[each] > 0)
        busy["both"] += (at - before) * all(open_.values())
        open_[lane] += change
        before = at
    least = min(busy[lane] for lane in LANES)
    return busy["both"] / least if least > 0 else 0.0


def tell(rows: Sequence[dict[str, Any]]) -> None:
    print(f"{'lane':12}{'kind':20}{'copies':>9}{'MiB':>10}{'mean MiB':>10}{'least':>8}{'below 8':>9}")
    for it in rows:
        print(f"{it['lane']:12}{it['kind']:20}{it['copies']:9.1f}{it['bytes'] / MIB:10.1f}{it['mean'] / MIB:10.2f}"
              f"{it['least'] / MIB:8.2f}{100 * it['share_below_8_MiB']:8.0f}%")  # fmt: skip


def planned(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import torch
    from overlap_update import pass_seconds
    from shapes import config_of

    from spillway._engine import DeviceSettings, Engine, EngineSettings, PathSettings, PlacementSettings
    from spillway.model.meta.building import build
    from spillway.model.meta.describe import WorkSize, describe

    meta_model = build(config_of(arguments.shape, arguments.layers), torch.bfloat16)
    described = describe(meta_model, WorkSize(1, arguments.tokens), "bf16")
    described.chunk_elements = arguments.chunk_elements
    device = DeviceSettings(
        memory=1 << 40, weight=0, activation=0, state=arguments.lives, device_updated=arguments.passes,
        grad=arguments.keeps, to_device=25e9, from_device=25e9, update=1e11,
    )  # fmt: skip
    seconds = pass_seconds(described, arguments.tokens, arguments.rate)
    settings = EngineSettings(dram_budget=1 << 40, device=device, clipping=False, seconds=seconds)
    if arguments.early:
        settings.update_schedule = "early"
    if arguments.durable:
        settings.storage, settings.durability = [PathSettings(directory=".", capacity=1 << 40)], "step"
        settings.placement = PlacementSettings(weight=1, state=1, grad=1, activation=1)
    timeline = json.loads(Engine(described, settings).timeline())
    print(f"both directions at once: {100 * at_once(timeline):.0f} % of the time of the one that has less to do")
    return table(list(copies(timeline, 2)))


def made(files: Sequence[Path]) -> list[dict[str, Any]]:
    found: list[Copy] = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            found += copies(json.load(stream), 1)
    return table(found, len(files))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=("plan", "run"))
    parser.add_argument("timelines", nargs="*", type=Path)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--tokens", type=int, default=2048, help="of a step")
    parser.add_argument("--chunk-elements", type=int, default=CHUNK)
    parser.add_argument("--lives", type=float, default=1, help="share of the blocks that live on the device")
    parser.add_argument("--passes", type=float, default=0, help="share of the others whose states pass through it")
    parser.add_argument("--keeps", type=float, default=0, help="share of these whose gradients stay there")
    parser.add_argument("--durable", action="store_true", help="every step is")
    parser.add_argument("--rate", type=float, default=2e14, help="operations a second of the device")
    parser.add_argument("--early", action="store_true", help="updates during backward")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = planned(arguments) if arguments.question == "plan" else made(arguments.timelines)
    tell(rows)
    if arguments.out:
        command = " ".join(["copies.py", *sys.argv[1:]])
        arguments.out.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
