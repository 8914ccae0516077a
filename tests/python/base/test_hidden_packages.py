"""A bitsandbytes that is installed, as it is beside most QLoRA recipes, is left alone by every command."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import real_runs
from needs import package
from spillway.base.hidden import UNNEEDED, hide_unneeded_package

LOUD = "print('bitsandbytes is imported')\nraise RuntimeError('its CUDA is not that of this machine')\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A place with a package of that name and release, which prints and fails."""
    (tmp_path / "site" / UNNEEDED).mkdir(parents=True)
    (tmp_path / "site" / UNNEEDED / "__init__.py").write_text(LOUD)
    metadata = tmp_path / "site" / f"{UNNEEDED}-0.50.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {UNNEEDED}\nVersion: 0.50.2\n")
    return tmp_path / "site"


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("plan", ()),
        ("train", ("--max_steps", "1")),
        ("train", ("--max_steps", "1", "--method", "lora", "--load_in_4bit")),
    ],
    ids=["plan", "full", "qlora"],
)
def test_command_neither_imports_nor_mentions_bitsandbytes(
    site: Path, tmp_path: Path, verb: str, more: tuple[str, ...]
) -> None:
    package("peft", "it is PEFT that imports bitsandbytes")
    command = real_runs.words(real_runs.inputs(tmp_path / "given"), tmp_path / "out", *more, verb=verb)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "spillway", *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert UNNEEDED not in done.stdout + done.stderr


def test_package_is_found_again_after_a_command(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, UNNEEDED, raising=False)
    with hide_unneeded_package(), pytest.raises(ModuleNotFoundError):
        importlib.import_module(UNNEEDED)
    with pytest.raises(RuntimeError, match="its CUDA"):
        importlib.import_module(UNNEEDED)
