"""What a machine with a GPU may lack: the bundle stands in for packages, and the engine is built without what only
makes storage faster. `make gpu-check` itself needs a GPU; `--device simulated` runs its parts without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpu_bundle
from folders import REPOSITORY

SYSTEM = "/usr/include;/usr/lib/x86_64-linux-gnu;/lib/x86_64-linux-gnu;/usr/lib;/lib;/usr/local/include;/usr/local/lib"


FROM_DEBIAN = pytest.mark.needs(
    "packages", shutil.which("dpkg-query") and shutil.which("cmake"), "there are no Debian packages, or no CMake"
)

GIT = pytest.mark.needs("packages", shutil.which("git"), "git is not installed")


@FROM_DEBIAN
def test_the_engine_is_configured_from_the_bundle_alone(tmp_path: Path) -> None:
    configured(tmp_path)


@GIT
def test_bundle_packs_the_committed_sources_of_megatrain_with_commit_and_license(tmp_path: Path) -> None:
    commit = commit_clone(tmp_path / "clone", "Apache License\n  Version 2.0, January 2004\n")
    (tmp_path / "clone" / "infinity" / "later.py").write_text("")
    gpu_bundle.pack_megatrain(tmp_path / "clone", tmp_path / "out")
    packed = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert packed == ["LICENSE", "SOURCE.txt", "infinity/__init__.py", "infinity/model/loop.py"]
    source = (tmp_path / "out" / "SOURCE.txt").read_text()
    assert f"commit {commit}\n" in source and "Apache-2.0" in source


@GIT
def test_bundle_refuses_other_licenses_and_folders_that_are_no_clone(tmp_path: Path) -> None:
    commit_clone(tmp_path / "clone", "Commercial license\n")
    with pytest.raises(SystemExit, match="is not Apache-2.0"):
        gpu_bundle.pack_megatrain(tmp_path / "clone", tmp_path / "out")
    with pytest.raises(SystemExit, match="is not a git clone"):
        gpu_bundle.pack_megatrain(tmp_path / "absent", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def commit_clone(clone: Path, terms: str) -> str:
    """A repository with two Python files, another file and a license. Returns the commit."""
    files = {"LICENSE": terms, "infinity/__init__.py": "", "infinity/model/loop.py": "", "infinity/loop.cu": ""}
    for name, text in files.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", "-C", clone, *words], check=True)
    return gpu_bundle.git(clone, "rev-parse", "HEAD").strip()


@pytest.mark.nightly
@FROM_DEBIAN
def test_the_engine_builds_from_the_bundle_alone(tmp_path: Path) -> None:
    command = ["cmake", "--build", str(configured(tmp_path)), "--target", "spillway_sys"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-3000:]


def configured(place: Path) -> Path:
    bundle, tree = place / "bundle", place / "tree"
    words = [sys.executable, REPOSITORY / "scripts" / "gpu_bundle.py", "--out", bundle, "--wheels", "none"]
    packed = subprocess.run(words, capture_output=True, text=True)
    assert packed.returncode == 0, packed.stderr
    said = subprocess.run(
        ["cmake", "-S", REPOSITORY, "-B", tree, "-G", "Ninja", f"-DSPILLWAY_BUNDLE={bundle}",
         f"-DCMAKE_IGNORE_PATH={SYSTEM}", "-DSPILLWAY_BENCH=ON"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert "liburing was not found" in said.stderr and "libblkid was not found" in said.stderr
    cache = (tree / "CMakeCache.txt").read_text()
    for package in ("hwy", "GTest", "nlohmann_json"):
        assert f"{package}_DIR:PATH={bundle}/" in cache, package
    return tree
