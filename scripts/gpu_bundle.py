"""Packs what the engine is built from and a machine without packages and network lacks, for `make gpu-check` there:
headers and libraries of Debian's packages, below build/gpu-bundle, where CMake looks for them (SPILLWAY_BUNDLE).

python3 scripts/gpu_bundle.py [--out build/gpu-bundle]

To be carried along with the checkout, to a machine with the same processor and a C library as new as this one's.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

PACKAGES = ("libhwy-dev", "libhwy1", "libgtest-dev", "nlohmann-json3-dev", "libxxhash-dev")
BELOW = ("/usr/include/", "/usr/lib/", "/usr/share/cmake/")
MOST = 64 * 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-bundle"))
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    total = sum(copy(file, out) for package in PACKAGES for file in files_of(package))
    if total > MOST:
        raise SystemExit(f"{out} holds {total / 2**20:.0f} MiB, more than {MOST // 2**20}")
    print(f"{out}: {total / 2**20:.1f} MiB")


def files_of(package: str) -> list[Path]:
    try:
        listed = subprocess.run(["dpkg-query", "-L", package], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{package} is not installed here: apt-get install {package} ({error})") from None
    return [Path(line) for line in listed.splitlines() if line.startswith(BELOW) and Path(line).is_file()]


def copy(file: Path, out: Path) -> int:
    """Bytes of the file, which lies below `out` as it lies below /usr; a link becomes what it points to."""
    target = out / file.relative_to("/usr")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return target.stat().st_size


if __name__ == "__main__":
    main()
