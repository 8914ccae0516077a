"""How the kernels for GPUs are built: for what this nvcc knows, not at all where it fails, and as text that drivers of
years ago take. nvcc is played by a script, but for what it makes of the kernels themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY
from needs import lacks

TREE = REPOSITORY / "build" / "wheel"
NVCC = """#!/bin/sh
case "$1" in --list-gpu-code) printf '{known}'; exit {lists} ;; esac
echo "$@" >>{log}
while [ $# -gt 0 ]; do case "$1" in -o) out=$2 ;; -MF) echo >"$2" ;; esac; shift; done
{body}
"""
MAKES = "printf '//\\n.version 9.0\\n.target sm_80\\n' >\"$out\""
FAILS = "echo 'crt/host_config.h:139: error: #error -- unsupported GNU version!' >&2; exit 1"


class Build:
    """A tree of its own that only the kernels are built in."""

    def __init__(self, folder: Path) -> None:
        self.tree, self.nvcc, self.log = folder / "tree", folder / "nvcc", folder / "log"
        (folder / "ptxas").write_text("#!/bin/sh\nexit 0\n")
        (folder / "ptxas").chmod(0o755)
        self._cmake = str(Path(sys.executable).parent / "cmake")

    def configured(self, known: str, body: str, *more: str, lists: int = 0) -> str:
        """What CMake says with such an nvcc."""
        self.log.write_text("")
        self.nvcc.write_text(NVCC.format(known=known, lists=lists, log=self.log, body=body))
        self.nvcc.chmod(0o755)
        words = ["-S", REPOSITORY, "-B", self.tree, "-G", "Ninja", "-DSPILLWAY_TESTS=OFF", "-DSPILLWAY_EXAMPLES=OFF",
                 f"-DSPILLWAY_NVCC={self.nvcc}", f"-DSPILLWAY_PTXAS={self.nvcc.parent / 'ptxas'}", *more]  # fmt: skip
        done = subprocess.run([self._cmake, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def made(self) -> subprocess.CompletedProcess[str]:
        words = [self._cmake, "--build", self.tree, "--target", "spillway_device_cuda"]
        return subprocess.run(words, capture_output=True, text=True)

    def file(self, extension: str) -> str:
        return (self.tree / "spillway" / f"cuda_kernels.{extension}").read_text()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(tmp_path_factory.mktemp("kernels"))


def test_machine_code_is_made_for_what_nvcc_knows(build: Build) -> None:
    said = build.configured("sm_75\\nsm_80\\nsm_86\\nsm_90\\nsm_101\\n", MAKES)
    assert "for compute capability (in tenths) 80, 90" in said
    assert build.made().returncode == 0
    machine_code, ptx = build.log.read_text().splitlines()
    assert re.findall(r"code=\S+", machine_code) == ["code=sm_80", "code=sm_90"]
    assert "-arch=compute_80 --ptx" in ptx
    assert "-Werror" not in machine_code + ptx, "whoever installs has another compiler than this was written with"
    assert ".version 7.0\n" in build.file("ptx") and build.file("missing") == ""


def test_an_nvcc_that_fails_is_told_once_and_the_rest_is_built(build: Build) -> None:
    build.configured("sm_80\\n", FAILS)
    first, second = build.made(), build.made()
    assert first.returncode == 0, first.stdout + first.stderr
    reason = f"CUDA's compiler ({build.nvcc}) failed when it was built: crt/host_config.h:139: error: #error"
    assert (first.stdout + first.stderr).count(f"No CUDA kernels, because {reason}") == 1
    assert "No CUDA kernels" not in second.stdout + second.stderr
    assert build.file("missing").startswith(reason) and build.file("fatbin") == build.file("ptx") == ""


def test_where_all_must_be_right_it_is_an_error(build: Build) -> None:
    build.configured("sm_80\\n", FAILS, "-DSPILLWAY_STRICT=ON")
    done = build.made()
    assert done.returncode != 0 and "unsupported GNU version" in done.stdout + done.stderr
    assert "-Werror all-warnings" in build.log.read_text()


@pytest.mark.parametrize(
    ("known", "lists", "reason"),
    [("sm_35\\nsm_70\\n", 0, "knows no GPU of compute capability 80, 89, 90, 100, 120"), ("", 1, "does not say")],
)
def test_an_nvcc_that_is_too_old_is_told(build: Build, known: str, lists: int, reason: str) -> None:
    assert reason in build.configured(known, FAILS, lists=lists)
    assert build.made().returncode == 0 and build.log.read_text() == "" and reason in build.file("missing")


@pytest.mark.nightly
def test_the_older_mark_of_the_text_changes_no_instruction(tmp_path: Path) -> None:
    """NVIDIA's assembler makes the same bytes of it as of the text that nvcc has marked with its own version."""
    text, ptxas = TREE / "spillway" / "cuda_kernels.ptx", shutil.which("ptxas")
    if ptxas is None or not text.exists() or not text.stat().st_size:
        lacks("nvcc", "needs ptxas, and a build with kernels")
    older = text.read_text()
    release = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
    newest = int(re.findall(r"release (\d+)", release)[0]) - 4  # PTX 9.0 came with CUDA 13.0
    assert older.count("\n.version 7.0\n") == 1
    (tmp_path / "newest.ptx").write_text(older.replace("\n.version 7.0\n", f"\n.version {newest}.0\n"))
    shutil.copy(text, tmp_path / "older.ptx")
    for generation in ("sm_80", "sm_90", "sm_120"):
        for name in ("newest", "older"):
            words = [ptxas, f"-arch={generation}", "-o", tmp_path / f"{name}.cubin", tmp_path / f"{name}.ptx"]
            subprocess.run(words, check=True)
        assert (tmp_path / "newest.cubin").read_bytes() == (tmp_path / "older.cubin").read_bytes()


FUSED = {
    "rms_norm": (2, 1),  # loads and stores of 16 bytes that each has at least
    "rms_norm_scales": (3, 0),
    "rms_norm_backward": (3, 2),
    "swiglu": (2, 1),
    "swiglu_backward": (3, 3),
    "rotary": (6, 2),
}


def kernels_in(text: str) -> dict[str, str]:
    """The text of each kernel, by name."""
    return {part.split("(")[0].strip(): part for part in text.split(".visible .entry ")[1:]}


def built_text() -> Path:
    text = TREE / "spillway" / "cuda_kernels.ptx"
    if not text.exists() or not text.stat().st_size:
        lacks("nvcc", "needs a build with kernels")
    return text


@pytest.mark.parametrize("kernel", FUSED)
def test_fused_kernels_load_and_store_16_bytes_at_once(kernel: str) -> None:
    found = kernels_in(built_text().read_text())
    for dtype in ("bf16", "fp16", "fp32"):
        part = found[f"spillway_{kernel}_{dtype}"]
        loads, stores = (len(re.findall(rf"{word}\.global(?:\.wb)?\.v4\.[a-z]+32", part)) for word in ("ld", "st"))
        assert loads >= FUSED[kernel][0] and stores >= FUSED[kernel][1], (dtype, loads, stores)


def test_fused_kernels_keep_everything_in_registers(tmp_path: Path) -> None:
    """No stack, no spilled register, on GPUs of each generation."""
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        lacks("nvcc", "needs ptxas")
    for generation in ("sm_80", "sm_90"):
        words = [ptxas, "-v", f"-arch={generation}", "-o", str(tmp_path / "out.cubin"), str(built_text())]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stderr
        entries = re.findall(r"Function properties for (\w+)\n\s*(.*)", said)
        found = {name: use for name, use in entries if name.removeprefix("spillway_").rpartition("_")[0] in FUSED}
        assert len(found) == 3 * len(FUSED)
        for name, use in found.items():
            assert use == "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", (generation, name, use)
