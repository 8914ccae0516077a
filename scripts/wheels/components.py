"""What of other projects is compiled into an engine, found from its build: Ninja knows every header that was read and
every library that was linked, Debian's dpkg and pip know whose each file is. A file of nobody, or of a project whose
licence is not in the table below, is an error: no wheel is made that has something unknown in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# SPDX expressions of what is taken: where a project gives a choice of licences, the one that is chosen.
LICENCES = {
    "cpython": "PSF-2.0",
    "cuda": "LicenseRef-NVIDIA-CUDA-EULA",
    "gcc": "GPL-3.0-or-later WITH GCC-exception-3.1",
    "glibc": "LGPL-2.1-or-later",
    "highway": "Apache-2.0",
    "liburing": "MIT",
    "linux": "GPL-2.0-only WITH Linux-syscall-note",
    "nanobind": "BSD-3-Clause",
    "nlohmann-json": "MIT",
    "robin-map": "MIT",
    "util-linux": "LGPL-2.1-or-later",  # of which libblkid is taken
    "xxhash": "BSD-2-Clause",
}
DEBIAN_NAMES = {"nlohmann-json3": "nlohmann-json"}  # source packages that are called otherwise than their project
COMMON_LICENCES = re.compile(r"/usr/share/common-licenses/(Apache-2\.0|LGPL-2\.1|GPL-3)\b")


class Unknown(Exception):
    """Something is in the engine of which it is not known whose it is, or under which licence."""


@dataclass
class Component:
    name: str  # a key of LICENCES
    version: str  # as its package says; empty: not known
    purl: str
    notices: list[Path] = field(default_factory=list)  # files with its licence and whose work it is, in this order

    @property
    def licence(self) -> str:
        return LICENCES[self.name]

    def text(self) -> str:
        """Its notices, and of those licences that a notice of Debian's only points to the words."""
        texts = [notice(file) for file in self.notices]
        common = dict.fromkeys(name for text in texts for name in COMMON_LICENCES.findall(text))
        texts += [Path("/usr/share/common-licenses", name).read_text() for name in common]
        return ("\n" + 78 * "-" + "\n\n").join(texts)


def notice(file: Path) -> str:
    """The whole text; of a header its first comment."""
    text = file.read_text(errors="replace")
    return text[: text.index("*/") + 2] + "\n" if file.suffix == ".h" else text


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def foreign_files(tree: Path, target: str, sources: Path, ninja: Path) -> list[Path]:
    """Headers that were read and libraries that were linked for `target` of a build tree, less the project's own."""
    inputs = output(ninja, "-C", tree, "-t", "inputs", target).splitlines()
    made = [name for name in inputs if not name.startswith("/") or name.startswith(str(tree))]
    found = {Path(name) for name in inputs if re.search(r"\.(so|a)(\.[\d.]+)?$", name)}
    for line in output(ninja, "-C", tree, "-t", "deps", *made).splitlines():
        if line.startswith("    "):
            found.add(Path(line.strip()))
    files = {(file if file.is_absolute() else tree / file).resolve() for file in found}
    return sorted(file for file in files if not is_own(file, tree.resolve(), sources.resolve()))


def is_own(file: Path, tree: Path, sources: Path) -> bool:
    """Of the project or made in its build tree; a virtual environment may lie in its build folder, too."""
    in_sources = file.is_relative_to(sources) and not file.is_relative_to(sources / "build")
    return in_sources or file.is_relative_to(tree)


def components(files: Iterable[Path], python: Path) -> list[Component]:
    """Whose the files are; `python`: the interpreter that the engine was built for. Unknown where one is nobody's."""
    left: list[Path] = []
    found: dict[str, Component] = {}
    files = list(files)
    debian = debian_owners(files)
    for file in files:
        component = debian.get(file) or of_python(file, python) or of_cuda(file)
        if component is None:
            left.append(file)
        else:
            found.setdefault(component.name, component)
    if left:
        shown = "\n  ".join(str(file) for file in left[:10])
        raise Unknown(f"{len(left)} files in the engine are of no package that is known here:\n  {shown}")
    if strangers := sorted(set(found) - set(LICENCES)):
        raise Unknown(f"The licence of {', '.join(strangers)} is not in {__file__}")
    return [found[name] for name in sorted(found)]


def debian_owners(files: Sequence[Path]) -> dict[Path, Component]:
    """Those that are of Debian's packages."""
    if not files:
        return {}
    if shutil.which("dpkg-query") is None:
        raise Unknown("dpkg says here what a header belongs to, and this system has none: make wheels on a Debian")
    # A file that was packed below /lib lies below /usr/lib, too, and dpkg knows it by the first name.
    asked = [str(file) for file in files] + [str(file).removeprefix("/usr") for file in files]
    said = subprocess.run(["dpkg-query", "--search", *asked], capture_output=True, text=True).stdout
    packages = {}
    for line in said.splitlines():
        if not line.startswith("diversion by"):
            package, _, name = line.partition(": ")
            packages[name] = package.split(",")[0]
    known: dict[str, Component] = {}
    owners = {}
    for file in files:
        package = packages.get(str(file)) or packages.get(str(file).removeprefix("/usr"))
        if package:
            owners[file] = known.setdefault(package, debian_component(package))
    return owners


def debian_component(package: str) -> Component:
    words = "${source:Package} ${source:Version} ${Package} ${Version} ${Architecture}"
    source, version, binary, exact, machine = output("dpkg-query", "-W", "-f", words, package).split()
    name = re.sub(r"(?<=gcc)-\d+$", "", DEBIAN_NAMES.get(source, source))
    name = "cpython" if re.fullmatch(r"python3\.\d+", name) else name
    purl = f"pkg:deb/debian/{binary}@{exact}?arch={machine}"
    return Component(name, version, purl, [Path("/usr/share/doc", binary, "copyright")])


@cache
def described(python: Path) -> dict[str, str]:
    """An interpreter's version, and where its headers and its licence are."""
    ask = (
        "import json, os, platform, sysconfig; paths = sysconfig.get_paths(); print(json.dumps(dict("
        "version=platform.python_version(), include=os.path.realpath(paths['include']), "
        "licence=os.path.join(paths['stdlib'], 'LICENSE.txt'))))"
    )
    return dict(json.loads(output(python, "-c", ask)))


def of_python(file: Path, python: Path) -> Component | None:
    """Python's headers, where Debian did not bring them, and those of packages in its environment."""
    about = described(python)
    if file.is_relative_to(about["include"]):
        version = about["version"]
        return Component("cpython", version, f"pkg:generic/cpython@{version}", [Path(about["licence"])])
    if "robin_map" in file.parts:
        header = next(parent for parent in file.parents if parent.name == "tsl") / "robin_map.h"
        return Component("robin-map", "", "pkg:github/Tessil/robin-map", [header])
    if "site-packages" in file.parts and "nanobind" in file.parts:
        (licence,) = site_packages(file).glob("nanobind-*.dist-info/licenses/LICENSE")
        version = licence.parents[1].name.removeprefix("nanobind-").removesuffix(".dist-info")
        return Component("nanobind", version, f"pkg:pypi/nanobind@{version}", [licence])
    return None


def site_packages(file: Path) -> Path:
    return next(parent for parent in file.parents if parent.name == "site-packages")


def of_cuda(file: Path) -> Component | None:
    """Headers of the toolkit, whose code is in the kernels; the folder is known by the compiler that lies in it."""
    for folder in file.parents:
        nvcc = folder / "bin" / "nvcc"
        if nvcc.is_file():
            found = re.search(r"release [\d.]+, V([\d.]+)", output(nvcc, "--version"))
            version = found[1] if found else ""
            texts = (folder / "EULA.txt", *sorted(folder.glob("dist-info/nvidia_cuda_nvcc-*/licenses/*")))
            if folder.parent.name == "nvidia":  # as pip lays it out
                texts += tuple(sorted(folder.parents[1].glob("nvidia_cuda_nvcc-*.dist-info/licenses/*")))
            licences = [text for text in texts if text.is_file()]
            if not licences:
                raise Unknown(f"NVIDIA's licence is not beside {nvcc} (EULA.txt)")
            return Component("cuda", version, f"pkg:generic/nvidia-cuda-toolkit@{version}", licences[:1])
    return None
