"""Helpers of gpu_check.py and gpu_queue.py: programs with time limits and their environment, packages that this
machine's Python lacks, and reports."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "build" / "gpu-bundle"
REFUSED = 3  # exit code of what does not fit
Report = dict[str, Any]


class Failed(Exception):
    """A part did not do what it should; the words say what."""


class DoesNotFit(Failed):
    """It was refused for want of memory."""


class Programs:
    """Runs programs from the repository's root, none beyond `ends`. `site`: where packages of the bundle are put."""

    def __init__(self, site: Path, minutes: float = 0) -> None:
        self.site = site
        self.ends = time.monotonic() + 60 * minutes if minutes else None

    def run(self, *words: Any, seconds: float = 60) -> str:
        """What it said. Failed when it did, DoesNotFit when that was for want of memory."""
        if self.ends is not None:
            seconds = min(seconds, self.ends - time.monotonic())
            if seconds < 1:
                raise Failed("no time is left for it")
        shown = " ".join(map(str, words))
        try:
            done = subprocess.run([str(word) for word in words], cwd=ROOT, env=self.environment(), capture_output=True,
                                  text=True, errors="replace", timeout=seconds)  # fmt: skip
        except FileNotFoundError as error:
            raise Failed(f"{shown}: {error}") from None
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
            raise Failed(f"{shown}: not done after {seconds:.0f} s\n{said[-1500:]}") from None
        if done.returncode == 0:
            return done.stdout
        kind = DoesNotFit if done.returncode == REFUSED else Failed
        ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise kind(f"{shown}: {ended}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")

    def asked(self, *words: Any) -> str:
        """What it said in a few seconds; "" where it is not there or failed."""
        try:
            return self.run(*words, seconds=20).strip()
        except Failed:
            return ""

    def python(self, *words: Any, seconds: float) -> str:
        return self.run(sys.executable, *words, seconds=seconds)

    def environment(self) -> dict[str, str]:
        """Variables of programs. CMake, Ninja and nvcc may be installed beside this Python; packages lie in `site`."""
        given = [os.environ[name] for name in ("PYTHONPATH",) if os.environ.get(name)]
        path = [str(ROOT / "python"), str(ROOT / "bench"), *given, str(self.site)]
        libraries = [str(BUNDLE / "lib" / f"{os.uname().machine}-linux-gnu"), os.environ.get("LD_LIBRARY_PATH", "")]
        tools = [str(Path(sys.executable).parent), os.environ.get("PATH", ""), str(self.site / "bin"), *cuda_folders()]
        return os.environ | {
            "PATH": os.pathsep.join(tools),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "PYTHONPATH": os.pathsep.join(path),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def unpack(self) -> list[str]:
        """Puts those packages of the bundle into `site` that this Python does not have; their names."""
        missing = [wheel for wheel in sorted((BUNDLE / "wheels").glob("*.whl")) if not installed(name_of(wheel))]
        if missing:
            self.python("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
                        "--no-compile", "--upgrade", "--target", self.site, *missing, seconds=120)  # fmt: skip
        return [wheel.name for wheel in missing]


def cuda_folders() -> list[str]:
    """Folders in which cmake/SpillwayCuda.cmake finds nvcc, and those of pip's package `nvidia-cuda-nvcc`."""
    named = [Path(os.environ[name], "bin") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    packaged = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin")
    return [str(folder) for folder in (*named, *sorted(packaged), Path("/usr/local/cuda/bin")) if folder.is_dir()]


class Parts:
    """Parts that run one after the other, and their report. The file is written after each part, so that a run that is
    cut off leaves it. `report`: entries known before the first part."""

    def __init__(self, out: Path, report: Report) -> None:
        self.out = out
        self.report = report | {"parts": {}}

    def needs(self, name: str) -> tuple[str, ...]:
        """Names of the parts that must be good before this one runs."""
        return ()

    def part(self, name: str, work: Callable[[], Report]) -> bool:
        """Runs a part and returns whether it was good. An error goes into the report."""
        began = time.monotonic()
        try:
            for other in self.needs(name):
                if not self.report["parts"].get(other, {"good": True})["good"]:
                    raise Failed(f"needs {other}, which failed")
            result = work() | {"good": True}
        except Exception as error:
            plain = isinstance(error, Failed)
            result = {"good": False, "words": ("" if plain else f"{type(error).__name__}: ") + str(error)[-3000:]}
        result["part_seconds"] = round(time.monotonic() - began, 1)
        self.report["parts"][name] = result
        self.save()
        words = "" if result["good"] else f"\n{result['words']}"
        print(f"{name}: {'good' if result['good'] else 'FAILED'} in {result['part_seconds']} s{words}", flush=True)
        return bool(result["good"])

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        whole = self.out.with_suffix(".part")
        whole.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        whole.replace(self.out)


def last_json(said: str) -> Report:
    """The line of figures with which a program ends."""
    for line in reversed(said.strip().splitlines()):
        if line.startswith("{"):
            return dict(json.loads(line))
    raise Failed(f"no figures in what it said: {said[-1500:]}")


def name_of(wheel: Path) -> str:
    return re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()


def installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))  # none: what is left of a package that was removed
    except importlib.metadata.PackageNotFoundError:
        return False
