"""docs/how-to/install.md and gpu.md say what the build, `spillway doctor` and pip say."""

from __future__ import annotations

import re
import tomllib

from folders import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
GPU = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text(encoding="utf-8")
DOCTOR = (REPOSITORY / "python" / "spillway" / "cli" / "doctor.py").read_text(encoding="utf-8")
CUDA = (REPOSITORY / "cmake" / "SpillwayCuda.cmake").read_text(encoding="utf-8")
PROGRAM = [  # the files with the words of `doctor`
    REPOSITORY / "python" / "spillway" / "cli" / "doctor.py",
    REPOSITORY / "python" / "spillway" / "machine" / "device.py",
    REPOSITORY / "spillway" / "machine" / "checkup.cc",
    REPOSITORY / "spillway" / "device" / "cuda_driver.cc",
    REPOSITORY / "spillway" / "device" / "cuda_module.cc",
]
MODULE = (REPOSITORY / "spillway" / "device" / "cuda_module.cc").read_text(encoding="utf-8")


def test_expected_lines_of_doctor_are_those_of_the_program() -> None:
    (block,) = [each for each in re.findall(r"```text\n(.*?)```", GPU, re.S) if each.startswith("gpu kernels")]
    kernels, gpu = block.splitlines()
    assert re.fullmatch(r"gpu kernels +yes +(.*)", kernels)[1] in DOCTOR  # type: ignore[index]
    assert ", its kernels as " in gpu and ", its kernels as {words}" in DOCTOR
    form = re.search(r"its kernels as ([a-z ]+);", gpu)
    assert form is not None and f'"{form[1]}"' in MODULE


def test_answers_of_the_gpu_check_are_those_of_the_program() -> None:
    section = PAGE.partition("\n## Check the GPU\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section, re.M)
    sources = "".join(path.read_text(encoding="utf-8") for path in PROGRAM)
    quotes = [quote for name, cell in rows for quote in (name, *re.findall(r"`([^`]+)`", cell))]
    assert len(rows) == 9
    for quote in {*quotes} - {"yes", "no", "in part"}:
        parts = re.split(r" ?\.\.\. ?|(?<=kernels as )", quote)  # the program fills these places
        assert all(part in sources for part in parts), quote


def test_words_of_the_build_are_those_of_cmake() -> None:
    assert "No CUDA kernels, because ${missing}" in CUDA and "CUDA's compiler (nvcc) was not found when it was" in CUDA
    assert "No CUDA kernels, because CUDA's compiler (nvcc) was not found" in " ".join(GPU.split())
    assert "CUDA kernels by ${SPILLWAY_NVCC}, for compute capability" in CUDA
    assert "CUDA kernels by .../nvcc, for compute capability" in GPU


def test_distributions_with_an_older_python_say_what_to_install() -> None:
    oldest = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    least = tuple(int(part) for part in oldest.removeprefix(">=").split("."))
    rows = re.findall(r"^\| ([^|]+) \| (3\.\d+)( or newer)? \| ([^|]+) \|", PAGE, re.M)
    assert len(rows) == 3
    for _, version, _, wheel in rows:
        own = tuple(int(part) for part in version.split("."))
        assert (own >= least) == (wheel == "yes") and (own >= least or f"install python3.{least[1]}" in wheel)
