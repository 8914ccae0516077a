"""The installer of Debian packages, on machines played by a few stub commands."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY

INSTALLER = REPOSITORY / "scripts" / "install_packages.sh"
PLAIN = ("bash", "env", "grep", "dirname")


class Machine:
    """A folder of commands that is all the installer finds in PATH, and the log they write."""

    def __init__(self, folder: Path, *, missing: tuple[str, ...] = (), user: int = 0, sudo: bool = False) -> None:
        self.log = folder / "log"
        self.log.touch()
        self.commands = folder / "commands"
        self.commands.mkdir()
        for name in PLAIN:
            (self.commands / name).symlink_to(str(shutil.which(name)))
        self.command("id", f"echo {user}")
        self.command("dpkg-query", f'case " {" ".join(missing)} " in *" $3 "*) exit 1 ;; *) echo -n installed ;; esac')
        self.command("apt-get", f'echo "apt-get $*" >>{self.log}')
        if sudo:
            self.command("sudo", f'echo -n "sudo " >>{self.log}; exec "$@"')

    def command(self, name: str, body: str) -> None:
        (self.commands / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.commands / name).chmod(0o755)

    def install(self, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.commands), "PYTHON": python}
        return subprocess.run(["/bin/bash", INSTALLER], env=environment, capture_output=True, text=True)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


def test_nothing_missing_asks_apt_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, user=1000)
    result = machine.install()
    assert (result.returncode, result.stdout, machine.calls()) == (0, "", [])


def test_only_what_is_missing_is_installed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, missing=("libhwy-dev", "liburing-dev"))
    assert machine.install().returncode == 0
    update, install = machine.calls()
    assert update.startswith("apt-get update")
    assert install.endswith(" libhwy-dev liburing-dev")


def test_a_user_goes_through_sudo(tmp_path: Path) -> None:
    machine = Machine(tmp_path, missing=("g++",), user=1000, sudo=True)
    assert machine.install().returncode == 0
    assert [call.split()[:2] for call in machine.calls()] == [["sudo", "apt-get"]] * 2


def test_without_root_the_command_to_run_is_named(tmp_path: Path) -> None:
    machine = Machine(tmp_path, missing=("g++", "libhwy-dev"), user=1000)
    result = machine.install()
    assert result.returncode == 1
    assert "apt-get install g++ libhwy-dev" in result.stderr
    assert machine.calls() == []


@pytest.mark.parametrize("lacks", ["venv", "headers"])
def test_debians_python_in_parts(tmp_path: Path, lacks: str) -> None:
    machine = Machine(tmp_path)
    probe = {"venv": "*ensurepip*", "headers": "*Python.h*"}[lacks]
    machine.command("python3", f'grep -q apt {machine.log} && exit 0\ncase "$2" in {probe}) exit 1 ;; esac')
    assert machine.install("python3").returncode == 0
    assert machine.calls()[1].endswith({"venv": " python3-venv", "headers": " python3-dev"}[lacks])


def test_a_python_that_stays_incomplete_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.command("python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    result = machine.install("python3")
    assert result.returncode == 1
    assert "PYTHON=/usr/bin/python3" in result.stderr


def test_an_old_python_is_refused_first(tmp_path: Path) -> None:
    machine = Machine(tmp_path, missing=("g++",))
    machine.command("python3", 'case "$2" in *version_info*) exit 1 ;; esac; echo Python 3.9.2')
    result = machine.install("python3")
    assert result.returncode == 1
    assert "Python 3.9.2" in result.stderr
    assert machine.calls() == []


def test_an_unknown_python_is_named(tmp_path: Path) -> None:
    result = Machine(tmp_path).install("python9")
    assert result.returncode == 1
    assert "python9" in result.stderr


def test_another_system_is_told_what_to_bring(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.commands / "dpkg-query").unlink()
    result = machine.install()
    assert result.returncode == 0
    assert "liburing-dev" in result.stdout
