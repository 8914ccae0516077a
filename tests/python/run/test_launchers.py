"""The commands of docs/how-to/several-processes.md, as they stand there, but for the number of processes and where they
meet: two machines are two launchers of this one, and SLURM has one node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import real_runs
from folders import REPOSITORY
from needs import lacks, package
from one_node import NotInstalled, slurm
from test_ranks import LIMIT, free_port, one_process

PAGE = REPOSITORY / "docs/how-to/several-processes.md"
WORLD = 2
KEYS = ("--virtual_ranks", "2", "--gradient_accumulation_steps", "4", "--max_steps", "2")
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
ENVIRONMENT = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


def command(beginning: str, replaced: dict[str, str]) -> str:
    """The one that begins so, with the port and these words replaced."""
    (found,) = re.findall(rf"^{beginning} .*?(?<!\\)$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for word, other in {"29500": str(free_port()), **replaced}.items():
        assert word in found, (word, found)
        found = found.replace(word, other)
    return str(found)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the page's c.yaml, and what one process makes of it in `one`."""
    given = real_runs.inputs(tmp_path)
    one_process(given, tmp_path / "one", *KEYS)
    words = real_runs.words(given, tmp_path / "out", *KEYS)[1:]
    pairs = zip(words[::2], words[1::2], strict=True)
    values = {name.removeprefix("--"): yaml.safe_load(value) for name, value in pairs}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("beginning", "replaced"),
    [
        ("torchrun --nnodes 2", {"--nproc_per_node 4": "--nproc_per_node 1", "node0": "127.0.0.1"}),
        ("accelerate launch", {"--num_processes 8": f"--num_processes {WORLD}", "node0": "127.0.0.1"}),
    ],
)
def test_a_launcher_on_each_of_two_machines(place: Path, beginning: str, replaced: dict[str, str]) -> None:
    package("accelerate", "its launcher stays untried")
    asked = command(beginning, replaced)
    told = {"cwd": place, "env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    launchers = [
        subprocess.Popen(["sh", "-c", asked.replace("rank K", f"rank {machine}")], **told)  # type: ignore[call-overload]
        for machine in range(WORLD)
    ]
    said = [process.communicate(timeout=LIMIT)[0] for process in launchers]
    assert [process.returncode for process in launchers] == [0, 0], said
    assert sum("2 processes train together" in each for each in said) == 1, said
    assert real_runs.result(place / "out") == real_runs.result(place / "one")


@pytest.mark.nightly
def test_slurm(place: Path) -> None:
    asked = command("srun", {"--nproc_per_node 4": f"--nproc_per_node {WORLD}"})
    (place / "job.sh").write_text(f"#!/bin/sh\n#SBATCH --nodes 1\n{asked}\n")
    (place / "cluster").mkdir()
    try:
        with slurm(place / "cluster") as told:
            done = subprocess.run(
                ["sbatch", "--wait", "--output", "job.log", "job.sh"],
                cwd=place, env=ENVIRONMENT | told, capture_output=True, text=True, timeout=LIMIT, check=False,
            )  # fmt: skip
    except NotInstalled as why:
        lacks("slurm", str(why))
    log = place / "job.log"
    said = log.read_text(encoding="utf-8") if log.is_file() else "no output"
    assert done.returncode == 0, (done.stdout, done.stderr, said)
    assert "2 processes train together" in said
    assert real_runs.result(place / "out") == real_runs.result(place / "one")
