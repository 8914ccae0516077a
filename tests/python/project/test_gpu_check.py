"""What `make gpu-check` does when something fails, hangs or is missing: the other parts run, the file is written, and
the exit code says so. Its parts themselves need a built tree; `gpu_check.py --device simulated` runs them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gpu_check
import gpu_tools
from gpu_check import Check, apart, last_json, model_flops, smaller
from gpu_tools import DoesNotFit, Failed, Programs

QUICK = ("contract", "copies", "equality", "budget", "steps")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """What each part does: nothing, but what a test puts there."""
    found: dict[str, Callable[..., Any]] = {}
    for name in ("build_programs", "build_extension", *QUICK):
        found[name] = dict
        monkeypatch.setattr(Check, name, lambda self, name=name: found[name]())
    monkeypatch.setattr(gpu_check, "facts", lambda device, programs: {"gpu": "NVIDIA Made-up 7", "torch": "0"})
    return found


def ends(*_: Any) -> Any:
    raise Failed("it fell over")


def run(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    code = gpu_check.main(["--device", "simulated", "--out", str(tmp_path / "found.json"), *words])
    return code, json.loads((tmp_path / "found.json").read_text())


def test_every_part_runs(parts: dict[str, Any], tmp_path: Path) -> None:
    code, found = run(tmp_path)
    assert code == 0 and list(found["parts"]) == ["programs", "extension", *QUICK]
    assert all(part["good"] for part in found["parts"].values())


@pytest.mark.parametrize(
    "error", [Failed("it fell over"), OSError("no space"), ZeroDivisionError(), MemoryError("full")]
)
def test_a_part_that_fails_is_told_and_the_others_run(parts: dict[str, Any], tmp_path: Path, error: Exception) -> None:
    def fail() -> Any:
        raise error

    parts["equality"] = fail
    code, found = run(tmp_path)
    assert code == 1 and list(found["parts"]) == ["programs", "extension", *QUICK]
    assert [name for name, part in found["parts"].items() if not part["good"]] == ["equality"]
    assert str(error) in found["parts"]["equality"]["words"]


def test_without_the_extension_what_needs_none_still_runs(parts: dict[str, Any], tmp_path: Path) -> None:
    parts["build_extension"] = ends
    code, found = run(tmp_path)
    good = [name for name, part in found["parts"].items() if part["good"]]
    assert code == 1 and good == ["programs", "contract", "copies"]
    assert found["parts"]["steps"]["words"] == "needs extension, which failed"


def test_parts_are_chosen_by_how_they_begin(parts: dict[str, Any], tmp_path: Path) -> None:
    code, found = run(tmp_path, "--only", "cop", "bud")
    assert code == 0 and list(found["parts"]) == ["programs", "extension", "copies", "budget"]


def test_a_device_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        gpu_check.main(["--device", "gpu0"])
    assert refused.value.code == 2 and "cuda:N or simulated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "there", "words"),
    [(None, False, "was built without CUDA"), ("13.0", False, "finds no GPU (nvidia-smi"), ("13.0", True, "sees 1")],
)
def test_a_machine_without_that_gpu_is_told_once_and_nothing_is_built(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    version: str | None, there: bool, words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.version.cuda", version)
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    parts["build_programs"] = ends
    assert gpu_check.main(["--device", "cuda:1", "--out", str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr()
    assert words in said.err and len(said.err.splitlines()) == 1 and "it fell over" not in said.out
    assert not (tmp_path / "found.json").exists()


def test_compilers_that_are_missing_are_named_before_anything_runs(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name, path: None if name == "c++" else name)
    assert gpu_check.main(["--device", "simulated", "--out", str(tmp_path / "found.json")]) == 1
    assert "needed to build: c++ (apt-get install g++)\n" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_the_compiler_of_the_install_page_is_found(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no program of PATH: pip puts it into a folder of its package, which the variable names."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv(variable, str(tmp_path / "nvidia" / "cu13"))
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    path = Programs(tmp_path).environment()["PATH"]
    assert shutil.which("nvcc", path=path) == str(nvcc)
    monkeypatch.delenv(variable)
    monkeypatch.setattr(gpu_tools.sysconfig, "get_path", lambda name: str(tmp_path))
    assert shutil.which("nvcc", path=Programs(tmp_path).environment()["PATH"]) == str(nvcc)


def test_the_long_benchmarks_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "facts", lambda device, programs: {"gpu": "NVIDIA Made-up 7"})
    names = [name for name, _ in Check("cuda:0", tmp_path / "x", None).long()]
    assert len(names) == len(set(names)) == 1 + 2 * 2 * (1 + 3 + 1)
    assert "7b, sequence 8192, 24576 MiB" in names and "1.5b, sequence 2048, without offload" in names
    assert Check("cuda:0", None, None).out.name == "gpu-made-up-7.json"


def test_programs_that_fail_hang_or_are_missing(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    with pytest.raises(Failed, match="exit code 7\n.*said this"):
        programs.python("-c", "print('said this'); raise SystemExit(7)", seconds=60)
    with pytest.raises(DoesNotFit, match="needs more"):
        programs.python("-c", "import sys; print('needs more', file=sys.stderr); sys.exit(3)", seconds=60)
    with pytest.raises(Failed, match="not done after 2 s\nbegun"):
        programs.python("-c", "print('begun', flush=True); import time; time.sleep(60)", seconds=2)
    with pytest.raises(Failed, match="ended by signal 9"):
        programs.python("-c", "import os; os.kill(os.getpid(), 9)", seconds=60)
    with pytest.raises(Failed, match="no-such-program"):
        programs.run("no-such-program")
    assert programs.asked("no-such-program") == "" and programs.asked(sys.executable, "-c", "raise OSError") == ""


def test_no_program_runs_beyond_the_end(tmp_path: Path) -> None:
    programs = Programs(tmp_path, minutes=2 / 60)
    with pytest.raises(Failed, match="not done after"):
        programs.python("-c", "import time; time.sleep(60)", seconds=60)
    with pytest.raises(Failed, match="no time is left"):
        programs.python("-c", "pass", seconds=60)


def test_what_was_given_stays_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    path = Programs(tmp_path).environment()["PYTHONPATH"].split(":")
    assert path.index("/elsewhere") < path.index(str(tmp_path))


def test_only_packages_that_are_missing_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bundle" / "wheels"
    folder.mkdir(parents=True)
    for name in ("pytest-1.0", "nobody_has.this-1.0", "typing_extensions-1.0"):
        (folder / f"{name}-py3-none-any.whl").touch()
    monkeypatch.setattr(gpu_tools, "BUNDLE", tmp_path / "bundle")
    asked: list[Any] = []
    monkeypatch.setattr(Programs, "python", lambda self, *words, seconds: asked.append(words))
    assert Programs(tmp_path / "site").unpack() == ["nobody_has.this-1.0-py3-none-any.whl"]
    assert asked[0][-1] == folder / "nobody_has.this-1.0-py3-none-any.whl" and tmp_path / "site" in asked[0]


def test_a_step_that_does_not_fit_is_tried_with_fewer_rows() -> None:
    def once(rows: int) -> dict[str, Any]:
        if rows > most:
            raise DoesNotFit(f"{rows} rows")
        return {"rows": rows}

    most = 8
    assert smaller(4, once) == (4, {"rows": 4})
    most = 1
    assert smaller(4, once) == (1, {"rows": 1})
    most = 0
    assert smaller(4, once) == (0, None)


def test_figures() -> None:
    assert last_json('warning: {not this}\n{"a": 1}\nbye') == {"a": 1}
    with pytest.raises(Failed, match="no figures in"):
        last_json("nothing")
    one = {"losses": [2.0, 1.0], "grad_norms": [1.0, 1.0]}
    assert apart(one, one) == 0 and apart(one, one | {"losses": [2.0, 1.5]}) == 0.5
    none = apart(one, one | {"losses": [2.0, float("nan")]})
    assert none != none  # which no bound admits
    # Qwen2.5 7B has 7,615,616,512 parameters, its input table 544,997,376 of them, which no product reads.
    assert model_flops("7b", 0, 1000) == pytest.approx(6 * (7_615_616_512 - 544_997_376) * 1000, rel=1e-3)
    assert model_flops("1.5b", 0, 1000) == pytest.approx(6 * 1_543_714_304 * 1000, rel=1e-3)  # one table, a product's
