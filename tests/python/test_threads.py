"""Thread counts come from the machine, and a launcher's OMP_NUM_THREADS=1 is noticed and named."""

import subprocess
import sys

import pytest

from spillway.machine.threads import choose

TORCHRUN = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("cores", "default", "environment", "compute", "update_cores", "words"),
    [
        (2, 2, {}, 2, 0, ["2 for compute on 2 cores; ", "share these cores"]),
        (1, 1, {}, 1, 0, ["1 for compute on 1 core; "]),
        (16, 1, TORCHRUN, 16, 0, ["16 for compute", "not 1 as torchrun asks", "OMP_NUM_THREADS=1"]),
        (8, 1, {"OMP_NUM_THREADS": "1", "ACCELERATE_MIXED_PRECISION": "no"}, 8, 0, ["accelerate launch"]),
        (8, 1, {"OMP_NUM_THREADS": "1"}, 1, 7, ["kept as OMP_NUM_THREADS=1 asks", "7 cores of their own"]),
        (8, 7, {"OMP_NUM_THREADS": "7"}, 7, 1, ["1 core of their own"]),
        (8, 4, {"OMP_NUM_THREADS": "4", "TORCHELASTIC_RUN_ID": "none"}, 4, 4, ["kept as OMP_NUM_THREADS=4 asks"]),
        (1, 1, TORCHRUN, 1, 0, ["1 for compute"]),
        (2, 64, {}, 2, 0, ["not 64 as PyTorch would take", "cgroup"]),
        (2, 64, {"OMP_NUM_THREADS": "64"}, 2, 0, ["not 64"]),
        (16, 8, {}, 8, 8, ["8 for compute on 16 cores; ", "8 cores of their own"]),
    ],
)  # fmt: skip
def test_choice(
    cores: int, default: int, environment: dict[str, str], compute: int, update_cores: int, words: list[str]
) -> None:
    found = choose(cores, default, environment)
    assert (found.compute, found.update_cores) == (compute, update_cores)
    for part in words:
        assert part in found.words


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
