"""What a build from nothing costs: CPU seconds of every file, by room, in a build folder of its own.

    python bench/build_time.py --tests --out bench/results/build.json

Compiles without a compiler cache and adds up the time of CPUs; on a machine with other work that grows, too, so
compare figures of one time. `--define NAME=VALUE` goes to CMake as it is: SPILLWAY_UNITY=OFF compiles each file apart.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import figures

ROOT = Path(__file__).resolve().parent.parent
TIMER = """import os, resource, subprocess, sys
log, *command = sys.argv[1:]
code = subprocess.call(command)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(log, "a") as file:
    print(used.ru_utime + used.ru_stime, command[-1], file=file)
sys.exit(code)
"""


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(words: list[str]) -> dict[str, float]:
    start, before = time.monotonic(), processor_seconds()
    environment = {name: value for name, value in os.environ.items() if name != "CMAKE_CXX_COMPILER_LAUNCHER"}
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return {"seconds": round(time.monotonic() - start, 1), "processor_seconds": round(processor_seconds() - before, 1)}


def room(source: str, tree: Path) -> str:
    """The room of a file of ours, of one that CMake has made of several, or of a dependency."""
    path = Path(source)
    inside = path.relative_to(tree) if path.is_relative_to(tree) else path
    target = next((part.removesuffix(".dir") for part in inside.parts if part.endswith(".dir")), None)
    if target:
        return target.removeprefix("spillway_")
    return "/".join(path.relative_to(ROOT).parts[:-1]) if path.is_relative_to(ROOT) else path.parent.name


def by_room(log: Path, tree: Path) -> dict[str, Any]:
    files: dict[str, list[float]] = defaultdict(list)
    for line in log.read_text().splitlines():
        seconds, source = line.split(maxsplit=1)
        files[room(source, tree)].append(float(seconds))
    most_first = sorted(files.items(), key=lambda item: -sum(item[1]))
    return {name: {"files": len(each), "processor_seconds": round(sum(each), 1)} for name, each in most_first}


def build(tree: Path, jobs: int, tests: bool, defines: list[str]) -> dict[str, Any]:
    log, timer = tree / "files.log", tree / "timer.py"
    timer.write_text(TIMER)
    log.touch()
    given = {
        "SPILLWAY_PYTHON": "ON",
        "SPILLWAY_TESTS": "ON" if tests else "OFF",
        "SPILLWAY_EXAMPLES": "OFF",
        "Python_EXECUTABLE": sys.executable,
        "CMAKE_CXX_COMPILER_LAUNCHER": f"{sys.executable};-S;{timer};{log}",
    }
    words = [f"-D{name}={value}" for name, value in given.items()] + [f"-D{define}" for define in defines]
    cmake = str(Path(sys.executable).with_name("cmake"))
    out: dict[str, Any] = {"configure": timed([cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja", *words])}
    out["engine"] = timed([cmake, "--build", str(tree), "--target", "_engine", "-j", str(jobs)])
    out["engine"]["rooms"] = by_room(log, tree)
    if tests:
        log.write_text("")
        out["tests"] = timed([cmake, "--build", str(tree), "-j", str(jobs)])
        out["tests"]["rooms"] = by_room(log, tree)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--tests", action="store_true", help="the test programs, too")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    out = {"machine": figures.processor() | figures.machine(), "jobs": options.jobs, "defines": options.define}
    with tempfile.TemporaryDirectory() as folder:
        out |= build(Path(folder), options.jobs, options.tests, options.define)
    text = json.dumps(out, indent=2) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
