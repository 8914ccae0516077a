"""Tests of `make gpu-queue`: every program takes the options of its parts, the selection of rows, result files and
the table. Rows run on a GPU, and in `make nightly` on tiny shapes and the simulated device."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu_bundle
import gpu_queue
import gpu_tools
from folders import REPOSITORY
from gpu_queue import Queue, Row, align, compare_parts, drop_warm_up, is_open, select_rows, shrink, summarise
from gpu_tools import DoesNotFit, Failed

sys.path.append(str(REPOSITORY / "bench"))
ROWS = gpu_queue.read_rows()
PARTS = [pytest.param(words, id=f"{row.name}: {name}") for row in ROWS for name, words in row.parts.items()]


@pytest.mark.parametrize("is_tiny", [False, True], ids=["real", "tiny"])
@pytest.mark.parametrize("words", PARTS)
def test_each_program_takes_the_options_of_its_part(words: list[str], is_tiny: bool, tmp_path: Path) -> None:
    folder = str(tmp_path)
    values = {"device": "cuda:0", "check": "cuda:0", "built": "built", "out": folder, "drive": folder,
              "sources": folder}  # fmt: skip
    program, *options = [gpu_queue.fill(word, values) for word in (shrink(words) if is_tiny else words)]
    assert not [option for option in options if "{" in option]
    if program == "-m":
        assert options[0] == "pytest" and (REPOSITORY / options[-1]).is_file()
        return
    module = importlib.import_module(Path(program).stem)
    assert Path(module.__file__ or "").resolve() == (REPOSITORY / program).resolve()
    arguments = module.parser().parse_args(options)
    if Path(program).stem == "engine_run":
        assert module.make_config(arguments, tmp_path).gpu_memory > 0


def test_processes_of_a_row_take_the_gpus_of_their_ranks_and_one_number_of_micro_batches(tmp_path: Path) -> None:
    (row,) = (row for row in ROWS if row.name == "two-gpus")
    module = importlib.import_module("gpu_ranks")
    processes, lines = [], []
    for words in row.parts.values():
        options = [gpu_queue.fill(word, {"device": "cuda:0"}) for word in words[1:]]
        arguments = module.parser().parse_args(options)
        processes.append(arguments.processes)
        lines.append(module.choose_words(arguments, tmp_path))
    assert processes == [1, 2, 2]
    assert all(words[words.index("--device") + 1] == "cuda" for words in lines)
    assert [words for words in lines if "--ddp_backend" in words] == [[*lines[0], "--ddp_backend", "nccl"]]
    assert lines[0] == lines[1] and lines[0][lines[0].index("--virtual_ranks") + 1] == "2"


def test_each_row_has_a_name_a_reason_and_at_most_eight_and_a_half_minutes() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 19
    assert all(row.decides and row.parts and 0 < row.minutes <= 8.5 for row in ROWS)


def test_bundle_packs_the_packages_of_all_peers() -> None:
    assert {name for row in ROWS for name in row.needs} == {"deepspeed", *gpu_bundle.PEERS}
    for row in ROWS:
        commands = list(row.parts.values())
        used = {name for name in ("deepspeed", "torchao") if any(name in words for words in commands)}
        used |= {"deepspeed"} if any("megatrain" in words for words in commands) else set()  # its Adam
        used |= {"liger-kernel"} if any("liger" in word for words in commands for word in words) else set()
        assert used == set(row.needs), row.name


def test_tiny_command_has_tiny_shapes_and_no_gpu_kernels() -> None:
    words = ["bench/peers.py", "fsdp2", "--liger", "--shape", "7b", "--micro-batches", "1", "4", "--steps", "8"]
    tiny = ["bench/peers.py", "fsdp2", "--shape", "tiny", "--micro-batches", "1", "2", "--steps", "3"]
    assert shrink(words) == tiny
    assert shrink(["--shape", "30b-a3b"]) == ["--shape", "tiny-moe"]
    assert shrink(["a.py", "--liger", "--offload", "torchao", "--steps", "2"]) == ["a.py", "--steps", "2"]


def test_tiny_programs_have_no_limit_of_minutes() -> None:
    assert shrink(["scripts/gpu_check.py", "--minutes", "7.8"]) == ["scripts/gpu_check.py", "--minutes", "0"]
    checks = [words for row in ROWS for words in row.parts.values() if words[0] == "scripts/gpu_check.py"]
    assert checks and all("--minutes" in words for words in checks)


def test_rows_are_named_by_one_option_or_several() -> None:
    named = ["--row", "host", "contract", "--row", "lsp-7b"]
    assert gpu_queue.parser().parse_args(named).row == ["host", "contract", "lsp-7b"]
    assert gpu_queue.parser().parse_args([]).row == []


def make_row(name: str, minutes: float = 1, **more: Any) -> Row:
    return Row(name, minutes, "nothing", {"one": ["-c", "one"], "two": ["-c", "two"]}, **more)


def write_result(results: Path, name: str, **parts: dict[str, Any]) -> None:
    (results / f"{name}.json").write_text(json.dumps({"facts": {}, "parts": parts}))


def test_selection_takes_open_rows_that_fit_into_the_minutes(tmp_path: Path) -> None:
    rows = [make_row("done"), make_row("first", 4), make_row("long", 5), make_row("failed", 2), make_row("short", 2)]
    write_result(tmp_path, "done", one={"good": True}, two={"good": True})
    write_result(tmp_path, "failed", one={"good": True}, two={"good": False})
    write_result(tmp_path, "short", one={"good": True})  # an older file, before the row had its second part
    assert [row.name for row in rows if is_open(row, tmp_path)] == ["first", "long", "failed", "short"]
    assert [row.name for row in select_rows(rows, tmp_path, 8)] == ["first", "failed", "short"]
    assert select_rows(rows, tmp_path, 1.5) == []
    assert [row.name for row in select_rows(rows, tmp_path, 8, ["done", "long"])] == ["done", "long"]


class FakePrograms:
    """Programs whose figures, or error, depend on their last word."""

    def __init__(self, **results: Any) -> None:
        self.results = results

    def python(self, *words: str, seconds: float) -> str:
        result = self.results[words[-1]]
        if isinstance(result, Exception):
            raise result
        return json.dumps(result)


def make_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: FakePrograms, is_tiny: bool = False) -> Queue:
    monkeypatch.setattr("gpu_check.facts", lambda device, programs: {"gpu": "NVIDIA H100 80GB HBM3"})
    queue = Queue("cuda:0", tmp_path, tmp_path, 1, is_tiny)
    queue.programs = programs  # type: ignore[assignment]
    return queue


def test_result_file_names_parts_that_fail_or_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = FakePrograms(seconds={}, two=DoesNotFit("needs 80 GiB"))
    row = Row("both", 1, "nothing", {"one": ["bench/gpu_host.py", "seconds"], "two": ["bench/gpu_host.py", "two"]})
    assert make_queue(tmp_path, monkeypatch, programs).run_row(row) and not is_open(row, tmp_path)
    report = json.loads((tmp_path / "both.json").read_text())
    assert report["row"] == "both" and report["facts"]["gpu"] == "NVIDIA H100 80GB HBM3"
    part = report["parts"]["two"]
    assert part["good"] and not part["fits"] and part["refusal"] == "needs 80 GiB"
    programs.results["seconds"] = Failed("it fell over")
    assert not make_queue(tmp_path, monkeypatch, programs).run_row(row) and is_open(row, tmp_path)
    lines = summarise(row, json.loads((tmp_path / "both.json").read_text()))
    assert lines == [["both", "one", "failed: it fell over"], ["both", "two", "does not fit"]]


def test_tiny_part_that_does_not_fit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = FakePrograms(one={"seconds": [1.0]}, two=DoesNotFit("needs 128 MiB"))
    assert not make_queue(tmp_path, monkeypatch, programs, is_tiny=True).run_row(make_row("both"))
    part = json.loads((tmp_path / "both.json").read_text())["parts"]["two"]
    assert not part["good"] and part["words"] == "needs 128 MiB"


def test_figures_that_must_be_identical_are_compared_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = FakePrograms(one={"losses": [1.0, 0.5]}, two={"losses": [1.0, 0.5]})
    row = make_row("same", identical=("losses",))
    assert make_queue(tmp_path, monkeypatch, programs).run_row(row)
    programs.results["two"] = {"losses": [1.0, 0.5000001]}
    assert not make_queue(tmp_path, monkeypatch, programs).run_row(row)
    with pytest.raises(Failed, match=r"losses differs: \[1\.0, 0\.5000001\] in two, \[1\.0, 0\.5\] in one"):
        compare_parts(json.loads((tmp_path / "same.json").read_text())["parts"], ["losses"])


def test_images_fail_by_their_loss_their_norm_and_their_bytes() -> None:
    gpu_images = importlib.import_module("gpu_images")
    good = {"losses": [6.25, 1.0], "grad_norms": [0.77, 9.0], "plain_loss": 6.2501, "plain_grad_norm": 0.7701,
            "planned_peak": 100, "device_peak": 100}  # fmt: skip
    assert gpu_images.list_faults(good) == []
    assert "has loss nan" in gpu_images.list_faults(good | {"losses": [float("nan")]})[0]
    assert "has grad_norm 0.77" in gpu_images.list_faults(good | {"plain_grad_norm": 0.9})[0]
    assert "held 101 bytes" in gpu_images.list_faults(good | {"device_peak": 101})[0]


def test_table_has_medians_rates_and_the_share_of_the_peak() -> None:
    words = ["bench/engine_run.py", "--shape", "7b", "--sequence", "2048", "--layers", "8"]
    part = {"good": True, "words": words, "seconds": [9.0, 2.0, 1.0, 3.0], "tokens": 32768, "device_peak": 1 << 30}
    lines = summarise(make_row("seven"), {"facts": {"gpu": "NVIDIA H100 80GB HBM3"}, "parts": {"one": part}})
    # 8 layers with 233,046,016 weights in products, a head of 152,064 x 3,584, causal attention
    operations = 32768 * (6 * (8 * 233_046_016 + 152_064 * 3584) + 6 * 8 * 3584 * 2048)
    rates = [
        "16384 tokens/s",
        f"{operations / 2 / 1e12:.3g} TFLOP/s, {operations / 2 / 989e12:.0%} of peak",
    ]
    assert lines == [["seven", "one", "2 s (1 to 3)", *rates, "GPU 1.0 GiB", "host 0.0 GiB"]]
    assert drop_warm_up([5.0, 4.0]) == [4.0]
    failed = {"good": False, "words": "exit code 1\nequality: FAILED in 3 s\nno time is left\n/out/check.json\n"}
    assert summarise(make_row("seven"), {"parts": {"one": failed}}) == [
        ["seven", "one", "failed: equality: FAILED in 3 s"]
    ]
    assert align([["a", "bb"], ["ccc"]]) == "a    bb\nccc"


def test_unknown_row_is_refused_and_list_shows_which_rows_are_open(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert gpu_queue.main(["--row", "7b-24gbi"]) == 2
    assert "unknown row 7b-24gbi. The rows are host, launches-1.5b" in capsys.readouterr().err
    write_result(tmp_path, "host", host={"good": True})
    assert gpu_queue.main(["--list", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROWS) and lines[0].split()[:4] == ["host", "1.0", "min", "done"]
    assert lines[1].split()[3] == "open"


@pytest.mark.nightly
def test_every_row_of_installed_peers_runs_on_tiny_shapes(tmp_path: Path) -> None:
    lacking = {name for row in ROWS for name in row.needs if not gpu_tools.installed(name)} - {"liger-kernel"}
    names = [row.name for row in ROWS if not lacking & set(row.needs)]
    if not gpu_queue.MEGATRAIN.is_dir():
        names = [name for name in names if name != "7b-megatrain"]
    assert gpu_queue.main(["--tiny", "--minutes", "240", "--out", str(tmp_path), "--row", *names]) == 0
