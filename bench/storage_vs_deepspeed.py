"""State on a drive, beside DeepSpeed on the same directory, in alternating rounds of one run.

    python bench/storage_vs_deepspeed.py BUILD/bench --storage DIR [--rounds N] [--params N] [--only PART]

Update: 494 M parameters by default, everything on the drive. Spillway's storage_update with a window of 206 MB of
staging, gradients bf16; DeepSpeed's pipelined swapper with 12 buffers of 400 MB, and its plain one with 5, gradients
fp32 as it keeps them. Each updates with its own kernel on two threads. And once more with gradients in memory, so that
both move the same bytes (12 per parameter each way) and DeepSpeed needs 3 buffers less (1 less). Seconds are from the
first read to the end of the last write; nobody flushes.

Transfers: 4 requests of 1 GiB, one after the other, against DeepSpeed's asynchronous handle at those of its settings
that are fastest here. Spillway verifies checksums, DeepSpeed has none. Results: bench/results/storage-deepspeed.json;
with --only one part of it is measured anew.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import swapper_peer
from figures import RESULTS, asked, fio, machine, pairs, rates_of, save

GIB = 1 << 30
CEILINGS = ("read", "write", "mixed")


def seconds_of(line: str) -> float:
    return float(line.split()[1])


def update(arguments: argparse.Namespace, directory: Path, *, pipelined: bool, gradients: bool) -> dict[str, Any]:
    params = arguments.params
    name = f"{'pipelined' if pipelined else 'plain'}{'' if gradients else ', equal bytes'}"
    words = [str(arguments.programs / "storage_update"), str(directory), "--params", str(params)]
    with asked(*words, *([] if gradients else ["--no-gradients"])) as program:
        peer = swapper_peer.Swapper(
            directory, pipelined=pipelined, params=params, group=100_000_000, gradients=gradients
        )
        staging = float(program.ask("update").split("staging ")[1].split()[0]) * 1e6
        found = pairs(
            arguments.rounds, lambda: seconds_of(program.ask("update")), peer.step, say=f"update, {name}", unit=1
        )
    found |= {"unit": "seconds of an update", "staging": staging, "other_staging": peer.staging}
    del peer
    shutil.rmtree(directory / "optimizer")
    memory = staging / found["other_staging"]
    print(f"{name}: {found['ratio']:.2f} of DeepSpeed's time, {memory:.3f} of its staging memory")
    return found


def fastest(peer: swapper_peer.Transfers) -> dict[str, Any]:
    """Of each direction the settings of the handle that moved most, each tried twice."""
    best: dict[str, Any] = {}
    for block, depth, threads in itertools.product((1 << 20, 8 << 20), (8, 32, 128), (1, 2)):
        settings = dict(block_size=block, queue_depth=depth, intra_op_parallelism=threads)
        peer.use(settings | {"single_submit": False, "overlap_events": True})
        for pattern in ("read", "write"):
            rate = max(peer.rate(pattern), peer.rate(pattern))
            if pattern not in best or rate > best[pattern]["rate"]:
                best[pattern] = {"rate": rate, **settings}
    return best


def transfers(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    peer = swapper_peer.Transfers(directory, GIB, 4)
    best = fastest(peer)
    found: dict[str, Any] = {"deepspeed_settings": best}
    words = ["--mib-volume", "4096", "--mib", "1024", "--streams", "1", "--seconds", "1.5"]
    with asked(str(arguments.programs / "storage_path"), str(directory), *words, ready="first write") as program:
        for pattern in ("read", "write"):
            settings = {key: value for key, value in best[pattern].items() if key != "rate"}
            peer.use(settings | {"single_submit": False, "overlap_events": True})

            def ours(pattern: str = pattern) -> float:
                return sum(rates_of(program.ask(pattern)))

            def theirs(pattern: str = pattern) -> float:
                return peer.rate(pattern)

            found[pattern] = pairs(2 * arguments.rounds + 1, ours, theirs, say=f"1 GiB, {pattern}")
            print(f"large transfers, {pattern}: {found[pattern]['ratio']:.2f} of DeepSpeed's rate, {settings}")
    for file in peer.files:
        file.unlink()
    return found


def ceilings(directory: Path) -> dict[str, float]:
    rates = {pattern: fio(directory / "fio.data", pattern, 4096, 3, warm=False) for pattern in CEILINGS}
    (directory / "fio.data").unlink()
    print("fio GB/s: " + ", ".join(f"{pattern} {rate / 1e9:.2f}" for pattern, rate in rates.items()), flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built benchmarks")
    parser.add_argument("--storage", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--params", type=int, default=494_032_768)
    parser.add_argument("--only", help="large_transfers, update_pipelined, update_plain_equal_bytes ...")
    arguments = parser.parse_args()
    swapper_peer.load()
    parts: dict[str, Callable[[Path], Any]] = {"fio_before": ceilings}
    for pipelined, gradients in itertools.product((True, False), (True, False)):
        name = f"update_{'pipelined' if pipelined else 'plain'}{'' if gradients else '_equal_bytes'}"
        parts[name] = functools.partial(update, arguments, pipelined=pipelined, gradients=gradients)
    parts |= {"large_transfers": functools.partial(transfers, arguments), "fio_after": ceilings}
    file = RESULTS / "storage-deepspeed.json"
    found: dict[str, Any] = json.loads(file.read_text()) if arguments.only else {}
    for name, part in parts.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(dir=arguments.storage) as work:
                found[name] = {"machine": machine(), **part(Path(work))}
    save("storage-deepspeed", found)


if __name__ == "__main__":
    main()
