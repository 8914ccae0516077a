"""CUDA's compiler for wheels: the machine's, or the one that pip brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "nvidia-cuda-nvcc"  # and what it depends on: the headers and the parts of the compiler


def find_installed() -> Path | None:
    """The nvcc that the build takes by itself (cmake/SpillwayCuda.cmake)."""
    named = [Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    for each in (*named, *([Path(on_path)] if on_path else []), Path("/usr/local/cuda/bin/nvcc")):
        if each.is_file():
            return each
    return None


def install(folder: Path) -> tuple[Path | None, str]:
    """The nvcc of pip's packages, which are installed into `folder` once, and the last words of a pip that failed."""
    if (found := find_below(folder)) is None:
        shutil.rmtree(folder, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--target", str(folder)]
        said = subprocess.run([*pip, PACKAGE], capture_output=True, text=True)
        if said.returncode != 0:
            return None, (said.stderr.strip().splitlines() or ["pip failed"])[-1]
        found = find_below(folder)
    return found, "" if found else f"{PACKAGE} has no nvcc"


def find_below(folder: Path) -> Path | None:
    """nvidia/cu13/bin/nvcc, of the newest toolkit in the folder."""
    found = sorted(folder.glob("nvidia/*/bin/nvcc"))
    return found[-1] if found and os.access(found[-1], os.X_OK) else None


def provide(folder: Path) -> str:
    """Lets the build find an nvcc, by CUDA_HOME where it is pip's. Returns a sentence about it."""
    if (found := find_installed()) is not None:
        return f"Kernels for GPUs are compiled by {found}."
    found, why = install(folder)
    if found is None:
        return f"The wheels get no kernels for GPUs: there is no nvcc, and pip does not bring one ({why})."
    os.environ["CUDA_HOME"] = str(found.parents[1])
    return f"Kernels for GPUs are compiled by pip's {found}."
