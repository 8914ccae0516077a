"""Packs what the engine is built from and a machine without packages and network lacks, for `make gpu-check` there:
headers and libraries of Debian's packages, below build/gpu-bundle, where CMake looks for them (SPILLWAY_BUNDLE), and
Python packages as wheels, of which gpu_check.py takes those that are missing there.

python3 scripts/gpu_bundle.py [--out build/gpu-bundle] [--wheels all|few|none] [--python 3.12] [--build]
                              [--megatrain CLONE]

To be carried along with the checkout, to a machine with the same CPU and a C library as new as this one's.
`all`: all that Spillway needs, for a Python that has PyTorch and nothing else, and its peers (DeepSpeed, Liger,
torchao). `few`: without transformers and what comes with it, where that Python has them. `--build` also compiles the
programs into build/gpu-built, with this machine's nvcc and its Python of that version. gpu_check.py and gpu_queue.py
take them with `--built`. `--megatrain` packs the Python sources of a git clone of MegaTrain, which PyPI does not have,
with their license. SOURCE.txt beside them states the commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILT, TREE, VENV = ROOT / "build" / "gpu-built", ROOT / "build" / "gpu-tree", ROOT / "build" / "gpu-venv"
TARGETS = {
    "_engine": "python/bindings",
    "device_test": "tests",
    "fake_cuda": "tests/fake_driver",
    "device_copies": "bench",
}
SYSTEM = "/usr/include;/usr/lib/x86_64-linux-gnu;/lib/x86_64-linux-gnu"  # other machines may lack its libraries
PACKAGES = ("libhwy-dev", "libhwy1", "libgtest-dev", "nlohmann-json3-dev", "libxxhash-dev")
BELOW = ("/usr/include/", "/usr/lib/", "/usr/share/cmake/")
MOST = 64 * 2**20
TOOLS = ("nanobind", "ninja")
DEEPSPEED = "deepspeed==0.19.8"  # only its source is published
BESIDE_DEEPSPEED = ("einops", "hjson", "msgpack", "packaging", "psutil", "py-cpuinfo", "pydantic", "tqdm")
MEGATRAIN = "https://github.com/DLYuanGod/MegaTrain"
PEERS = ("liger-kernel", "torchao")  # PyTorch brings their dependencies
NEEDED = ("transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy", "PyYAML", "rich")
SYSTEMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_12",
           "manylinux2010", "manylinux_2_5", "manylinux1")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-bundle"))
    parser.add_argument("--wheels", choices=("all", "few", "none"), default="all")
    parser.add_argument("--python", default="3.12", help="version of the Python there")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--megatrain", type=Path, metavar="CLONE")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    for package in PACKAGES:
        for file in files_of(package):
            copy(file, out)
    if arguments.wheels != "none":
        take_wheels(out / "wheels", arguments.python, arguments.wheels == "all")
    if arguments.megatrain:
        print(pack_megatrain(arguments.megatrain, out / "MegaTrain"))
    if arguments.build:
        build(out, arguments.python)
    total = sum(file.stat().st_size for place in (out, BUILT) for file in place.rglob("*") if file.is_file())
    if total > MOST:
        raise SystemExit(f"{out} holds {total / 2**20:.0f} MiB, more than {MOST // 2**20}; try --wheels few")
    print(f"{out}: {total / 2**20:.1f} MiB")


def files_of(package: str) -> list[Path]:
    try:
        listed = subprocess.run(["dpkg-query", "-L", package], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{package} is not installed here: apt-get install {package} ({error})") from None
    return [Path(line) for line in listed.splitlines() if line.startswith(BELOW) and Path(line).is_file()]


def copy(file: Path, out: Path) -> None:
    """It lies below `out` as it lies below /usr; a link becomes what it points to."""
    target = out / file.relative_to("/usr")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)


def take_wheels(out: Path, python: str, everything: bool) -> None:
    out.mkdir(parents=True)
    wanted = [*TOOLS, *BESIDE_DEEPSPEED, *(NEEDED if everything else ())]
    systems = [word for system in SYSTEMS for word in ("--platform", f"{system}_{os.uname().machine}")]
    with tempfile.TemporaryDirectory() as made:
        # What is published as source alone is made a wheel here; it holds no machine code.
        for source in (DEEPSPEED, "hjson", "py-cpuinfo"):
            pip("wheel", "--no-deps", "--wheel-dir", made, source)
        pip("download", "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *systems,
            "--find-links", made, "--dest", str(out), "-c", str(constraints(Path(made))), *wanted)  # fmt: skip
        pip("download", "--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
            *systems, "--dest", str(out), *PEERS)  # fmt: skip
        for wheel in Path(made).glob("deepspeed-*.whl"):
            shutil.copy(wheel, out)


def pack_megatrain(clone: Path, out: Path) -> str:
    """Packs the Python files of the clone's newest commit. Returns the text of SOURCE.txt."""
    commit = git(clone, "rev-parse", "HEAD").strip()
    terms = git(clone, "show", "HEAD:LICENSE")
    if " ".join(terms.split()[:4]) != "Apache License Version 2.0,":
        raise SystemExit(f"{clone}: the license of commit {commit} is not Apache-2.0. Name another clone.")
    files = git(clone, "ls-tree", "-r", "--name-only", "HEAD", "infinity").splitlines()
    for name in ["LICENSE", *(file for file in files if file.endswith(".py"))]:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(git(clone, "show", f"HEAD:{name}"), encoding="utf-8")
    source = f"{MEGATRAIN}\ncommit {commit}\nlicense Apache-2.0 (LICENSE), unchanged Python files\n"
    (out / "SOURCE.txt").write_text(source, encoding="utf-8")
    return source.strip()


def git(clone: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{clone} is not a git clone of {MEGATRAIN}: {done.stderr.strip()}")
    return done.stdout


def build(bundle: Path, python: str) -> None:
    """Builds the programs with the bundle's libraries and none of the system's."""
    interpreter = shutil.which(f"python{python}")
    if interpreter is None:
        raise SystemExit(f"python{python} is not here, for which the module would be built (--python)")
    run(interpreter, "-m", "venv", VENV)
    run(VENV / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "cmake", *TOOLS)
    parts = [f"-DSPILLWAY_{part}={value}" for part, value in
             {"TESTS": "ON", "BENCH": "ON", "PYTHON": "ON", "EXAMPLES": "OFF"}.items()]  # fmt: skip
    cmake = VENV / "bin" / "cmake"
    run(cmake, "-S", ROOT, "-B", TREE, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={VENV / 'bin' / 'ninja'}", *parts,
        f"-DPython_EXECUTABLE={VENV / 'bin' / 'python'}", f"-DSPILLWAY_BUNDLE={bundle}",
        f"-DCMAKE_IGNORE_PATH={SYSTEM}")  # fmt: skip
    run(cmake, "--build", TREE, "--target", *TARGETS)
    shutil.rmtree(BUILT, ignore_errors=True)
    for name, place in TARGETS.items():
        (BUILT / place).mkdir(parents=True)
        pattern = {"_engine": "_engine*.so", "fake_cuda": "libcuda.so.1"}.get(name, name)
        for file in (TREE / place).glob(pattern):
            run("strip", "--strip-unneeded", "-o", BUILT / place / file.name, file)


def run(*words: object) -> None:
    environment = os.environ | {"DS_BUILD_OPS": "0"}  # DeepSpeed's wheel has no machine code
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}:\n{(done.stdout + done.stderr)[-3000:]}")


def constraints(folder: Path) -> Path:
    """The versions that the project was tested with, without PyTorch's."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    file = folder / "constraints.txt"
    file.write_text("\n".join(line for line in lines if not line.startswith("torch==")) + "\n", encoding="utf-8")
    return file


def pip(*words: str) -> None:
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *words)


if __name__ == "__main__":
    main()
