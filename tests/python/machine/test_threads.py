"""Thread counts come from the machine. A launcher's own OMP_NUM_THREADS=1 is ignored; a person's value is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from needs import package
from spillway.machine.threads import choose

ONE = {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("cores", "default", "environment", "launcher", "compute", "update_cores", "words"),
    [
        (2, 2, {}, "", 2, 0, ["2 for compute on 2 cores; ", "share these cores"]),
        (1, 1, {}, "", 1, 0, ["1 for compute on 1 core; "]),
        (16, 1, ONE, "torchrun", 16, 0, ["16 for compute", "not 1 as torchrun asks", "OMP_NUM_THREADS=1"]),
        (8, 1, ONE, "accelerate launch", 8, 0, ["accelerate launch"]),
        (8, 1, ONE, "", 1, 7, ["kept as OMP_NUM_THREADS=1 asks", "7 cores of their own"]),
        (8, 7, {"OMP_NUM_THREADS": "7"}, "", 7, 1, ["1 core of their own"]),
        (8, 4, {"OMP_NUM_THREADS": "4"}, "torchrun", 4, 4, ["kept as OMP_NUM_THREADS=4 asks"]),
        (1, 1, ONE, "torchrun", 1, 0, ["1 for compute"]),
        (2, 64, {}, "", 2, 0, ["not 64 as PyTorch would take", "cgroup"]),
        (2, 64, {"OMP_NUM_THREADS": "64"}, "", 2, 0, ["not 64"]),
        (16, 8, {}, "", 8, 8, ["8 for compute on 16 cores; ", "8 cores of their own"]),
    ],
)  # fmt: skip
def test_choice(
    cores: int,
    default: int,
    environment: dict[str, str],
    launcher: str,
    compute: int,
    update_cores: int,
    words: list[str],
) -> None:
    found = choose(cores, default, environment, launcher=launcher)
    assert (found.compute, found.update_cores) == (compute, update_cores)
    for part in words:
        assert part in found.words


def test_cores_are_divided_unless_a_person_says_otherwise() -> None:
    assert choose(8, 8, {}, 4).compute == 2
    assert choose(2, 2, {}, 4).compute == 1
    assert choose(8, 1, ONE, 4, "torchrun").compute == 2
    assert choose(8, 3, {"OMP_NUM_THREADS": "3"}, 2, "torchrun").compute == 3
    threads = choose(8, 1, ONE, 4)
    assert threads.compute == 1 and "as OMP_NUM_THREADS=1 asks" in threads.words


TELLS = """
import os
from spillway.machine.threads import find_launcher_default
print(f"told: {find_launcher_default(os.environ)!r} {os.environ.get('OMP_NUM_THREADS')}\\n", end="")
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
ACCELERATE = ["-m", "accelerate.commands.launch", "--num_machines", "1", "--mixed_precision", "no"]
SHELL = ["--no-python", "sh", "-c", f'"{sys.executable}" "$0"; exit $?']  # a shell stands between launcher and script


@pytest.mark.parametrize(
    ("launcher", "setting", "expected"),
    [
        ([*TORCHRUN, "1"], "1", "'' 1"),
        ([*TORCHRUN, "2"], None, "'torchrun' 1"),
        ([*TORCHRUN, "2"], "1", "'' 1"),
    ]
    + [
        pytest.param(*case, marks=pytest.mark.nightly)
        for case in [
        ([*TORCHRUN, "1"], None, "'' None"),
        ([*TORCHRUN, "2", *SHELL], "1", "'' 1"),
        ([*TORCHRUN, "2", *SHELL], None, "'torchrun' 1"),
        ([*ACCELERATE, "--num_processes", "1"], None, "'accelerate launch' 1"),
        ([*ACCELERATE, "--num_processes", "1"], "1", "'' 1"),
        ([*ACCELERATE, "--num_processes", "1", "--num_cpu_threads_per_process", "1"], None, "'' 1"),
        ([*ACCELERATE, "--num_processes", "2", "--multi_gpu"], None, "'accelerate launch' 1"),
        ([*ACCELERATE, "--num_processes", "2", "--multi_gpu"], "1", "'' 1"),
        ]
    ],
)  # fmt: skip
def test_number_of_a_person_differs_from_that_of_a_launcher(
    tmp_path: Path, launcher: list[str], setting: str | None, expected: str
) -> None:
    package("accelerate", "its launcher stays untried")
    script = tmp_path / "script.py"
    script.write_text(TELLS)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": setting} if setting else {}
    done = subprocess.run(
        [sys.executable, *launcher, str(script)], env=environment, capture_output=True, text=True, timeout=120
    )
    lines = [line.removeprefix("told: ") for line in done.stdout.splitlines() if line.startswith("told: ")]
    assert lines and set(lines) == {expected}, (done.stdout, done.stderr)


RESTING = """
import os, time
import torch
from spillway.machine import threads

def there():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
before = there()
x = torch.ones(1 << 20).exp()
computing, end = there(), time.monotonic() + 60
threads.rest()
while there() > before and time.monotonic() < end:
    time.sleep(0.01)
print(computing - before, there() - before, bool((x + 1 > 3).all()), there() - before)
"""


def test_threads_that_rest_are_gone_until_the_next_operation() -> None:
    found = subprocess.run([sys.executable, "-c", RESTING], capture_output=True, text=True, timeout=120)
    assert found.stdout.split() == ["2", "0", "True", "2"], found.stderr
