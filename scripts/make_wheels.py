"""Builds the wheels: for each Python the package, with notices and a bill of materials, then made to stand alone by
auditwheel, which takes what other libraries the engine needs into the wheel and says how old a system may be.

    python scripts/make_wheels.py --out dist python3.11 python3.12

Run by `make wheel`, with an environment of auditwheel, CMake, Ninja and what writes bills of materials.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wheels import nvcc
from wheels.components import Unknown, components, foreign_files

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
OLDEST, STABLE = (3, 11), (3, 12)  # from STABLE on one wheel serves all
KERNELS = ("auto", "required", "none")
WITH_KERNELS = "with kernels for GPUs"
NOT_TO_TAKE = ("libtorch*", "libc10*", "libcuda*")  # the user's own, if anything linked them


class Stopped(Exception):
    """No wheel can be made; the words say why."""


@dataclass(frozen=True)
class Python:
    command: Path
    version: tuple[int, int]

    @property
    def tag(self) -> str:
        return f"cp{self.version[0]}{self.version[1]}"


def python(name: str) -> Python | None:
    """The interpreter of that name or path; None where there is none, or one that does not run."""
    command = shutil.which(name)
    asked = "import sys; print(*sys.version_info[:2])"
    said = subprocess.run([command, "-c", asked], capture_output=True, text=True) if command else None
    if command is None or said is None or said.returncode != 0:
        return None
    major, minor = said.stdout.split()
    return Python(Path(command), (int(major), int(minor)))


def to_build(found: Sequence[Python]) -> list[Python]:
    """One for each version before the stable ABI, and of the others the first."""
    chosen: dict[tuple[int, int], Python] = {}
    for each in found:
        if each.version < OLDEST:
            raise Stopped(f"{each.command} is Python {each.version[0]}.{each.version[1]}; 3.11 or newer is needed")
        chosen.setdefault(min(each.version, STABLE), each)
    return list(chosen.values())


def environment(each: Python, folder: Path) -> Path:
    """The interpreter of a virtual environment that has the build's Python packages."""
    interpreter, complete = folder / "bin" / "python", folder / "complete"
    if not complete.exists():
        run([each.command, "-m", "venv", "--clear", folder])
        install = [interpreter, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        run([*install, "-c", ROOT / "constraints.txt", "scikit-build-core", "nanobind"])
        complete.touch()
    return interpreter


def run(command: Sequence[str | Path], log: Path | None = None) -> str:
    """What the command said. Stopped with its last lines where it failed."""
    ended = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if log:
        log.write_text(ended.stdout)
    if ended.returncode != 0:
        last = "\n".join(ended.stdout.splitlines()[-40:])
        raise Stopped(f"{shlex.join(str(word) for word in command)} failed:\n{last}")
    return ended.stdout


def build(each: Python, work: Path, kernels: bool) -> Path:
    """The wheel as the compiler and CMake leave it. The engine's own objects are compiled once for all versions."""
    interpreter = environment(each, work / f"env-{each.tag}")
    settings = {
        "build-dir": work / "tree",
        "cmake.define.SPILLWAY_OLDER_LIBSTDCXX": "ON",
        "cmake.define.SPILLWAY_CUDA": "ON" if kernels else "OFF",
    }
    place = fresh(work / f"raw-{each.tag}")
    command = [interpreter, "-m", "pip", "-v", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, ROOT]
    command += [word for key, value in settings.items() for word in ("--config-settings", f"{key}={value}")]
    shown = [sys.executable, ROOT / "scripts" / "progress.py", work / f"build-{each.tag}.log", *command]
    if subprocess.run(shown).returncode != 0:
        raise Stopped("the build failed")
    (wheel,) = place.glob("*.whl")
    return wheel


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def engine_target(tree: Path) -> str:
    """The extension that was linked last: trees hold one for each version of Python."""
    built = [file for file in (tree / "python" / "bindings").glob("_engine*.so")]
    return str(max(built, key=lambda file: file.stat().st_mtime).relative_to(tree))


def for_every_processor(tree: Path, target: str) -> None:
    """Highway chooses among the CPU's instructions when the program runs; a flag for one kind would go before."""
    commands = run([TOOLS / "ninja", "-C", tree, "-t", "commands", target])
    if found := re.search(r"-m(arch|cpu|tune)=\S+", commands):
        raise Stopped(f"{found[0]} is among the compiler's flags (CXXFLAGS?): the wheel would run on one kind only")


def stand_alone(wheel: Path, out: Path) -> Path:
    """auditwheel's: the same wheel with the libraries it needs, and the tag that its symbols allow."""
    place = fresh(wheel.parent / "repaired")
    words = [word for library in NOT_TO_TAKE for word in ("--exclude", library)]
    run([TOOLS / "auditwheel", "repair", "--wheel-dir", place, *words, wheel], wheel.parent / "auditwheel.log")
    (repaired,) = place.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(repaired, out / repaired.name))


def make(each: Python, out: Path, work: Path, kernels: bool = True) -> Path:
    from wheels.contents import add  # whose packages only the environment of `make wheel` has

    tree = work / "tree"
    wheel = build(each, work, kernels)
    target = engine_target(tree)
    for_every_processor(tree, target)
    files = foreign_files(tree, target, ROOT, TOOLS / "ninja")
    parts = components(files, work / f"env-{each.tag}" / "bin" / "python")
    return stand_alone(add(wheel, parts, fresh(work / f"whole-{each.tag}")), out)


def tried(wheel: Path, each: Python) -> str:
    """Loads the engine of the wheel in that Python, without any package beside it, and says what it has for GPUs."""
    program = "from spillway import __version__, _engine; print(__version__, int(_engine.gpu_kernels()))"
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as content:
            content.extractall(folder)
        command = [str(each.command), "-c", program]
        said = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": folder}, cwd=folder)
    if said.returncode != 0:
        raise Stopped(f"{wheel.name} does not load in {each.command}:\n{said.stderr}")
    version, kernels = said.stdout.split()
    return f"spillway {version} loads in Python {each.version[0]}.{each.version[1]}, " + (
        WITH_KERNELS if kernels == "1" else "no kernels for GPUs: a run on a GPU is refused"
    )


def require_kernels(wheel: Path, told: Sequence[str], kernels: str) -> None:
    """Stopped for a wheel without kernels where they are `required`."""
    if kernels == "required" and not all(each.endswith(WITH_KERNELS) for each in told):
        raise Stopped(f"{wheel.name} has no kernels for GPUs, and SPILLWAY_KERNELS is `required`")


def described(wheel: Path) -> list[str]:
    """Its size, the libraries that were taken in, and what was compiled in."""
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (bill,) = (name for name in names if name.endswith("sboms/spillway.cdx.json"))
        parts = json.loads(content.read(bill))["components"]
    libraries = [Path(name).name for name in names if re.match(r"spillway\.libs/.", name)]
    return [
        f"{wheel}: {wheel.stat().st_size / 2**20:.1f} MiB",
        "libraries in it: " + ", ".join(libraries),
        "compiled in: " + ", ".join(f"{part['name']} {part.get('version', '')}".strip() for part in parts),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", help="interpreters; what is not there is passed over")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder of the wheels")
    parser.add_argument(
        "--kernels",
        choices=KERNELS,
        default=os.environ.get("SPILLWAY_KERNELS", KERNELS[0]),
        help="for GPUs: where an nvcc is there or pip brings one; a wheel without them is an error; none",
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="folder of the build")
    options = parser.parse_args()
    os.environ["PATH"] = f"{TOOLS}:{os.environ['PATH']}"  # CMake, Ninja and patchelf
    found = [each for each in map(python, options.pythons) if each]
    try:
        if not found:
            raise Stopped(f"None of {', '.join(options.pythons)} is here; name others: make wheel WHEEL_PYTHONS=...")
        builds, work = to_build(found), options.work.resolve()
        if options.kernels != "none":
            print(nvcc.provide(work / "cuda"), flush=True)
        for each in builds:
            wheel = make(each, options.out, work, kernels=options.kernels != "none")
            users = [other for other in found if min(other.version, STABLE) == min(each.version, STABLE)]
            told = [tried(wheel, other) for other in users]
            print("\n  ".join([*described(wheel), *told]), flush=True)
            require_kernels(wheel, told, options.kernels)
    except (Stopped, Unknown) as reason:
        print(f"make wheel: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
