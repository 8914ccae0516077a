"""What a machine with a GPU may lack: the bundle stands in for packages, and the engine is built without what only
makes storage faster. `make gpu-check` itself needs a GPU; `--device simulated` runs its parts without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEM = "/usr/include;/usr/lib/x86_64-linux-gnu;/lib/x86_64-linux-gnu;/usr/lib;/lib;/usr/local/include;/usr/local/lib"


FROM_DEBIAN = pytest.mark.needs(
    "packages", shutil.which("dpkg-query") and shutil.which("cmake"), "there are no Debian packages, or no CMake"
)


@FROM_DEBIAN
def test_the_engine_is_configured_from_the_bundle_alone(tmp_path: Path) -> None:
    configured(tmp_path)


@pytest.mark.nightly
@FROM_DEBIAN
def test_the_engine_builds_from_the_bundle_alone(tmp_path: Path) -> None:
    command = ["cmake", "--build", str(configured(tmp_path)), "--target", "spillway_sys"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-3000:]


def configured(place: Path) -> Path:
    bundle, tree = place / "bundle", place / "tree"
    words = [sys.executable, ROOT / "scripts" / "gpu_bundle.py", "--out", bundle, "--wheels", "none"]
    packed = subprocess.run(words, capture_output=True, text=True)
    assert packed.returncode == 0, packed.stderr
    said = subprocess.run(
        ["cmake", "-S", ROOT, "-B", tree, "-G", "Ninja", f"-DSPILLWAY_BUNDLE={bundle}", f"-DCMAKE_IGNORE_PATH={SYSTEM}",
         "-DSPILLWAY_BENCH=ON"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "liburing was not found" in said.stderr and "libblkid was not found" in said.stderr
    cache = (tree / "CMakeCache.txt").read_text()
    for package in ("hwy", "GTest", "nlohmann_json"):
        assert f"{package}_DIR:PATH={bundle}/" in cache, package
    return tree
