"""Placed memory and tensors in virtual machines with several NUMA nodes, every page asked of their kernel; and a run on
an export of NFS, in one whose kernel has client and server.

    python tests/virtual/check.py --build BUILD [--nightly] [--machine numa|cxl|nfs] ... [--part engine] ...

BUILD holds the C++ tests. A test that is skipped in there is a failure, but for those that would fill an emulated card.
Status 77: this system cannot start the machines, and why.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

import machine
from machine_errors import CannotStart

TIMEOUT = {"engine": 300, "python": 600, "training": 2400, "remote": 2400}  # seconds; on an idle CPU a tenth
ABOUT_NODES = "not ordinary and not no_sense and not module and not safetensors"  # the others ask no node anything
MAY_SKIP = "filling an emulated card takes minutes"
GTEST = "--gtest_color=no --gtest_print_time=1"


def engine_command(build: Path, kind: str) -> str:
    """A card of 6 MB/s is spared what takes much memory."""
    spared = "-*MemoryIsGivenBack*" if kind == "cxl" else ""
    system = "*Numa*:Node*:Affinity*:WeightedInterleave*" + ("-*OfTheVirtualMachine*" if kind == "cxl" else "")
    runs = [f"{build}/tests/sys_test {GTEST} --gtest_filter='{system}'",
            f"{build}/tests/memory_test {GTEST} --gtest_filter='Placed*:*Parts*{spared}'",
            f"{build}/tests/contract_test {GTEST} --gtest_filter='Nodes.Of*:Nodes.That*'"]  # fmt: skip
    if kind == "numa":
        runs.append(f"{build}/tests/machine_test {GTEST} --gtest_filter='NodeMatrix*:Checkup*'")
    return " && ".join(runs)


def environment() -> str:
    """The package is the one that is installed here, or what PYTHONPATH says. Bits depend on the threads, so each run
    has one."""
    given = os.environ.get("PYTHONPATH")
    path = f" PYTHONPATH={shlex.quote(str(Path(given).resolve()))}" if given else ""
    return f"SPILLWAY_NIGHTLY=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1{path}"


def python_command(_build: Path, _kind: str) -> str:
    pytest = f"{shlex.quote(sys.executable)} -m pytest -q -m '' -p no:cacheprovider"
    return f"{environment()} {pytest} tests/python/modules/test_placed.py -k {shlex.quote(ABOUT_NODES)}"


def training_command(_build: Path, _kind: str) -> str:
    return f"{environment()} {shlex.quote(sys.executable)} tests/virtual/train_nodes.py"


def remote_command(_build: Path, _kind: str) -> str:
    return f"{environment()} {shlex.quote(sys.executable)} tests/virtual/train_nfs.py"


PARTS = {"engine": engine_command, "python": python_command, "training": training_command, "remote": remote_command}


def faults(result: machine.Result) -> list[str]:
    """What is wrong with a run; empty when nothing is."""
    found = []
    if result.status != 0:
        found.append(f"status {result.status}")
    if not re.search(r"\[  PASSED  \] \d+ test|\d+ passed|the same bits", result.output):
        found.append("no tests ran")
    skips = re.findall(r"Skipped\n(.*)", result.output) + re.findall(
        r"^SKIPPED \[\d+\] (.*)", result.output, re.MULTILINE
    )
    found += [f"skipped: {reason}" for reason in skips if MAY_SKIP not in reason]
    return found


def check(kind: str, part: str, build: Path) -> bool:
    print(f"== {part} in the {kind} machine", flush=True)
    command = PARTS[part](build, kind)
    result = machine.boot(["sh", "-c", command], kind, TIMEOUT[part], show=True)
    wrong = faults(result)
    print(f"== {part} in the {kind} machine: {', '.join(wrong) or 'passed'} after {result.seconds:.0f} s", flush=True)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--machine", action="append", choices=sorted(machine.OPTIONS))
    parser.add_argument("--part", action="append", choices=sorted(PARTS))
    parser.add_argument("--nightly", action="store_true", help="only where SPILLWAY_NIGHTLY is set")
    arguments = parser.parse_args()
    if arguments.nightly and os.environ.get("SPILLWAY_NIGHTLY", "0") in ("", "0"):
        print("SKIPPED: nightly: a virtual machine takes half a minute")
        return machine.CANNOT_START
    # Importing PyTorch from an emulated card's machine adds nothing to what the engine's tests see there.
    every = [("numa", "engine"), ("numa", "python"), ("numa", "training"), ("cxl", "engine"), ("nfs", "remote")]
    chosen = [
        (kind, part)
        for kind, part in every
        if kind in (arguments.machine or machine.OPTIONS) and part in (arguments.part or PARTS)
    ]
    try:
        passed = [check(kind, part, arguments.build.resolve()) for kind, part in chosen]
    except CannotStart as error:
        print(f"SKIPPED: qemu: a virtual machine cannot be started here: {error}")
        return 1 if "qemu" in os.environ.get("SPILLWAY_REQUIRE", "").split(",") else machine.CANNOT_START
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
