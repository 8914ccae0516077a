"""SLURM on this machine: a controller and one node in a directory, and nothing of it anywhere else."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "sinfo")
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"  # where daemons are, which is not on everybody's PATH
LIMIT = 60.0  # seconds until the node is idle

SETTINGS = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class NotInstalled(Exception):
    """This machine lacks a program of SLURM's; which."""


def found(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM}")
    if path is None:
        raise NotInstalled(f"there is no {name} here (Debian: slurmctld, slurmd, slurm-client, munge)")
    return path


def ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    numbers = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return numbers


@contextmanager
def slurm(place: Path) -> Iterator[dict[str, str]]:
    """What the environment of its commands says. `place`: an existing directory. Raises NotInstalled."""
    programs = {name: found(name) for name in PROGRAMS}
    for name in ("state", "spool"):
        (place / name).mkdir()
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    controller, node = ports(2)
    host, cpus = socket.gethostname().partition(".")[0], os.cpu_count() or 1
    settings = place / "slurm.conf"
    settings.write_text(
        SETTINGS.format(place=place, host=host, user=getpass.getuser(), controller=controller, node=node, cpus=cpus)
    )
    environment = {"SLURM_CONF": str(settings)}
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{name}={place}/munge.{end}" for name, end in files.items()]
    daemons: list[subprocess.Popen[Any]] = []
    try:
        for words in (["munged", "--foreground", "--force", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            daemons.append(daemon([programs[words[0]], *words[1:]], place / f"{words[0]}.out", environment))
        wait_until_idle(programs["sinfo"], environment, daemons, place)
        yield environment
    finally:
        for each in reversed(daemons):
            each.terminate()
            each.wait(LIMIT)


def daemon(words: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[Any]:
    with log.open("wb") as file:
        return subprocess.Popen(words, env=os.environ | environment, stdout=file, stderr=file)


def wait_until_idle(sinfo: str, environment: dict[str, str], daemons: Sequence[Any], place: Path) -> None:
    last = time.monotonic() + LIMIT
    while time.monotonic() < last and all(each.poll() is None for each in daemons):
        asked = subprocess.run(
            [sinfo, "-h", "-o", "%T"], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        if "idle" in asked.stdout:
            return
        time.sleep(0.1)
    logs = "\n".join(log.read_text(errors="replace")[-1000:] for log in sorted(place.glob("*.out")))
    raise AssertionError(f"the node has not become idle:\n{logs}")
