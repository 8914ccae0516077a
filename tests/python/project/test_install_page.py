"""docs/how-to/install.md says what the build, `spillway doctor` and pip say."""

from __future__ import annotations

import re
import tomllib

import pytest

from folders import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
FIRST_RUN = (REPOSITORY / "docs" / "how-to" / "first-gpu-run.md").read_text(encoding="utf-8")
DOCTOR = (REPOSITORY / "python" / "spillway" / "cli" / "doctor.py").read_text(encoding="utf-8")
CUDA = (REPOSITORY / "cmake" / "SpillwayCuda.cmake").read_text(encoding="utf-8")
MODULE = (REPOSITORY / "spillway" / "device" / "cuda_module.cc").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [PAGE, FIRST_RUN], ids=["install", "first run"])
def test_expected_lines_of_doctor_are_those_of_the_program(page: str) -> None:
    (block,) = [each for each in re.findall(r"```text\n(.*?)```", page, re.S) if each.startswith("gpu kernels")]
    kernels, gpu = block.splitlines()
    assert re.fullmatch(r"gpu kernels +yes +(.*)", kernels)[1] in DOCTOR  # type: ignore[index]
    assert ", its kernels as " in gpu and ", its kernels as {words}" in DOCTOR
    form = re.search(r"its kernels as ([a-z ]+);", gpu)
    assert form is not None and f'"{form[1]}"' in MODULE


def test_words_of_the_build_are_those_of_cmake() -> None:
    assert "No CUDA kernels, because ${missing}" in CUDA and "CUDA's compiler (nvcc) was not found when it was" in CUDA
    assert "No CUDA kernels, because CUDA's compiler (nvcc) was not found" in " ".join(PAGE.split())
    assert "CUDA kernels by ${SPILLWAY_NVCC}, for compute capability" in CUDA
    assert "CUDA kernels by .../nvcc, for compute capability" in PAGE


def test_distributions_with_an_older_python_say_what_to_install() -> None:
    oldest = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    least = tuple(int(part) for part in oldest.removeprefix(">=").split("."))
    rows = re.findall(r"^\| ([^|]+) \| (3\.\d+)( or newer)? \| ([^|]+) \|", PAGE, re.M)
    assert len(rows) == 3
    for _, version, _, wheel in rows:
        own = tuple(int(part) for part in version.split("."))
        assert (own >= least) == (wheel == "yes") and (own >= least or f"install python3.{least[1]}" in wheel)
