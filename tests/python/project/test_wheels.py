"""The wheels: which are made, what must be known of what is in them, and what the release and the workflows rest on.
That one runs on a bare machine is `make wheel-check`, which `make nightly` does."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import make_wheels
import spillway
from folders import REPOSITORY
from make_wheels import Python, Stopped, for_every_processor, to_build
from wheels import components, metadata, nvcc
from wheels.components import Unknown, foreign_files

NINJA = Path(sys.executable).with_name("ninja")
BUILT = pytest.mark.needs(
    "packages",
    shutil.which("dpkg-query") and shutil.which("g++") and NINJA.exists() and Path("/usr/include/xxhash.h").exists(),
    "there are no Debian packages, no compiler, or no Ninja",
)


def interpreter(major: int, minor: int) -> Python:
    return Python(Path(f"python{major}.{minor}"), (major, minor))


def test_one_wheel_serves_every_python_with_the_stable_abi() -> None:
    found = [interpreter(3, 13), interpreter(3, 11), interpreter(3, 11), interpreter(3, 12), interpreter(3, 14)]
    assert [each.tag for each in to_build(found)] == ["cp313", "cp311"]


def test_an_old_python_is_refused() -> None:
    with pytest.raises(Stopped, match="Python 3.10; 3.11 or newer is needed"):
        to_build([interpreter(3, 10)])


def test_no_python_is_refused() -> None:
    script = REPOSITORY / "scripts" / "make_wheels.py"
    said = subprocess.run([sys.executable, script, "python9.9"], capture_output=True, text=True)
    assert said.returncode == 1
    assert "None of python9.9 is here" in said.stderr


class Tree:
    """A build of one object and one library of it, as CMake lays it out for Ninja."""

    def __init__(self, folder: Path, include: str, flags: str = "") -> None:
        self.sources, self.tree = folder / "sources", folder / "sources" / "build" / "tree"
        self.tree.mkdir(parents=True)
        (self.sources / "own.h").write_text(f"#include <{include}>\n")
        (self.sources / "engine.cc").write_text('#include "own.h"\n')
        (self.tree / "build.ninja").write_text(
            f"rule compile\n  command = g++ {flags} -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
            "rule link\n  command = g++ -shared $in -o $out\n"
            f"build engine.o: compile {self.sources}/engine.cc\nbuild engine.so: link engine.o\n"
        )

    def built(self) -> Tree:
        subprocess.run([NINJA, "-C", self.tree], check=True, capture_output=True)
        return self

    def files(self) -> list[Path]:
        return foreign_files(self.tree, "engine.so", self.sources, NINJA)


@BUILT
def test_what_is_compiled_in_is_found_from_the_build(tmp_path: Path) -> None:
    files = Tree(tmp_path, "xxhash.h").built().files()
    assert Path("/usr/include/xxhash.h") in files
    assert not any(file.is_relative_to(tmp_path) for file in files)
    found = {part.name: part for part in components.components(files, Path(sys.executable))}
    assert {"xxhash", "glibc"} <= set(found) <= {"xxhash", "glibc", "gcc", "linux"}
    assert found["xxhash"].licence == "BSD-2-Clause"
    assert found["xxhash"].purl.startswith("pkg:deb/debian/libxxhash-dev@")
    assert "Yann Collet" in found["xxhash"].text()


@BUILT
def test_a_header_of_nobody_is_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.h"
    stranger.write_text("")
    files = Tree(tmp_path / "made", str(stranger)).built().files()
    assert stranger in files
    with pytest.raises(Unknown, match="1 files in the engine are of no package.*\n  .*stranger.h"):
        components.components(files, Path(sys.executable))


@BUILT
def test_an_unknown_licence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(components.LICENCES, "xxhash")
    with pytest.raises(Unknown, match="The licence of xxhash is not in"):
        components.components([Path("/usr/include/xxhash.h")], Path(sys.executable))


def test_a_system_without_dpkg_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unknown, match="make wheels on a Debian"):
        components.components([Path("/usr/include/xxhash.h")], Path(sys.executable))


@BUILT
def test_a_notice_has_the_words_of_its_licence() -> None:
    (highway,) = components.components([Path("/usr/include/hwy/highway.h")], Path(sys.executable))
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in highway.text()


@BUILT
def test_nanobind_and_what_lies_in_it_are_known_apart() -> None:
    package = Path(str(importlib.metadata.distribution("nanobind").locate_file("nanobind"))).resolve()
    files = [package / "include" / "nanobind" / "nanobind.h", *package.rglob("robin_hash.h")]
    nanobind, robin_map = components.components(files, Path(sys.executable))
    assert (nanobind.name, nanobind.version) == ("nanobind", importlib.metadata.version("nanobind"))
    assert "Wenzel Jakob" in nanobind.text()
    assert robin_map.name == "robin-map"
    assert robin_map.text().startswith("/**\n * MIT License")
    assert robin_map.text().endswith("*/\n")


@BUILT
@pytest.mark.parametrize("flag", ["-march=native", "-mtune=native"])
def test_an_engine_for_one_kind_of_processor_is_refused(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_wheels, "TOOLS", NINJA.parent)
    for_every_processor(Tree(tmp_path / "any", "xxhash.h").built().tree, "engine.so")
    with pytest.raises(Stopped, match=f"{flag} is among the compiler's flags"):
        for_every_processor(Tree(tmp_path / "one", "xxhash.h", flag).built().tree, "engine.so")


## The release


def test_what_is_run_as_older_processors_runs_here() -> None:
    """`make wheel-check` runs it by QEMU, on a bare machine."""
    program = REPOSITORY / "scripts" / "wheels" / "processors.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 3, "three formats, three digests"


def test_the_version_is_the_same_everywhere() -> None:
    version = re.search(r"project\(spillway VERSION ([\d.]+)", (REPOSITORY / "CMakeLists.txt").read_text())
    assert version
    assert spillway.__version__ == version[1]
    assert importlib.metadata.version("spillway") == version[1]
    headings = re.findall(r"^## (.*)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == version[1]


@pytest.mark.parametrize("right", [True, False])
def test_only_the_version_can_be_tagged(right: bool) -> None:
    tag = f"v{spillway.__version__}" if right else "v9.9.9"
    make = ["make", "-s", "-C", str(REPOSITORY), "tag-check", f"TAG={tag}"]
    said = subprocess.run(make, capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": ""})
    assert (said.returncode == 0) == right, said.stdout + said.stderr
    assert f"v{spillway.__version__}" in said.stdout


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.stem)
def test_each_step_of_a_workflow_is_a_make_target(workflow: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    ran = [step["run"] for step in steps(workflow) if "run" in step]
    assert ran
    for command in ran:
        make, target, *variables = re.sub(r"\$\{\{.*?\}\}", "X", command).split()
        assert make == "make", command
        assert re.search(rf"^[\w -]*\b{re.escape(target)}:(?!=)", makefile, re.M), f"the Makefile has no {target}"
        assert all(re.fullmatch(r"[A-Z_]+=X", variable) for variable in variables), command
    used = {step["uses"].split("@")[0] for step in steps(workflow) if "uses" in step}
    published = {"actions/download-artifact", "pypa/gh-action-pypi-publish"} if workflow.stem == "publish" else set()
    assert used <= {"actions/checkout", "actions/upload-artifact", *published}


def test_wheels_are_published_by_their_tag_alone_and_without_a_token() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "publish.yml").read_text()
    content = yaml.safe_load(text)
    assert content[True] == {"push": {"tags": ["v*"]}} and "secrets." not in text
    wheel, publish = content["jobs"]["wheel"], content["jobs"]["publish"]
    ran = [step.get("run", "") for step in wheel["steps"]]
    assert ran.index("make tag-check TAG=${{ github.ref_name }}") < ran.index("make wheel")
    assert publish["needs"] == "wheel" and publish["permissions"] == {"id-token": "write"}
    assert content["permissions"] == {"contents": "read"} and content["env"]["SPILLWAY_KERNELS"] == "required"


def test_package_names_every_python_it_is_for() -> None:
    import tomllib

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}
    tried = set(
        re.findall(r"python(3\.\d+)", re.findall(r"^WHEEL_PYTHONS .*", (REPOSITORY / "Makefile").read_text(), re.M)[0])
    )
    assert named == tried and project["requires-python"] == f">={min(named)}"
    authors = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["authors"]
    assert project["authors"] == authors


def test_metadata_names_the_repository_that_publishes(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Name: spillway\nLicense-File: LICENSE\n\nText\n")
    metadata.write_urls(tmp_path, "")
    assert "Project-URL" not in (tmp_path / "METADATA").read_text()
    metadata.write_urls(tmp_path, "https://host/owner/name/")
    lines = (tmp_path / "METADATA").read_text().splitlines()
    assert "Project-URL: Issues, https://host/owner/name/issues" in lines
    assert lines.index("License-File: LICENSE") == 5


def pip_wheel(folder: Path) -> None:
    """A package as NVIDIA's, with a compiler that only tells its version."""
    info = "nvidia_cuda_nvcc-99.0.dist-info"
    script = "#!/bin/sh\necho 'Cuda compilation tools, release 99.0, V99.0.1'\n"
    files = {
        "nvidia/cu99/bin/nvcc": script,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: nvidia-cuda-nvcc\nVersion: 99.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/licenses/License.txt": "The terms.\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / "nvidia_cuda_nvcc-99.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if name.endswith("nvcc") else 0o100644) << 16
            wheel.writestr(entry, text)


def test_compiler_for_gpus_comes_from_pip_where_the_machine_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "find_installed", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", "")
    assert "The wheels get no kernels for GPUs" in nvcc.provide(tmp_path / "none")
    pip_wheel(tmp_path)
    told = nvcc.provide(tmp_path / "cuda")
    home = tmp_path / "cuda" / "nvidia" / "cu99"
    assert told == f"Kernels for GPUs are compiled by pip's {home / 'bin' / 'nvcc'}."
    assert os.environ["CUDA_HOME"] == str(home)
    header = home / "include" / "cuda_runtime.h"
    component = components.of_cuda(header)
    assert component is not None and component.version == "99.0.1"
    assert component.notices[0].read_text() == "The terms.\n"


def test_compiler_of_the_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").touch()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert nvcc.find_installed() == tmp_path / "bin" / "nvcc"


def test_wheel_without_kernels_is_an_error_where_they_are_required() -> None:
    wheel = Path("spillway-1-cp311.whl")
    for kernels in ("auto", "none"):
        make_wheels.require_kernels(wheel, ["no kernels for GPUs: a run on a GPU is refused"], kernels)
    make_wheels.require_kernels(wheel, [f"loads {make_wheels.WITH_KERNELS}"], "required")
    with pytest.raises(Stopped, match="has no kernels for GPUs"):
        make_wheels.require_kernels(wheel, ["no kernels for GPUs: a run on a GPU is refused"], "required")
