"""docs/how-to/troubleshooting.md: the source has each message of the page, and the program ends with the exit code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import real_runs
from folders import REPOSITORY
from needs import lacks
from real_runs import here, storage_in
from spillway.base.calls import translated
from spillway.cli import command, main

PAGE = REPOSITORY / "docs" / "how-to" / "troubleshooting.md"
GAP = "\0"  # what the program fills in
COMPOSED = ("unknown key ...", "device: ...", "... failed: ...")  # messages that hold a second text of the source
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def quoted() -> Iterator[tuple[int, str]]:
    """Exit code and message of every row. Sections about a run that goes on have code 0."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        found = re.match(r"Exit codes? (\d+)", section)
        for message in re.findall(r"^\| `([^`]+)` \|", section, re.M):
            yield int(found[1]) if found else 0, message


MESSAGES = sorted({*quoted()})


def fixed_words(message: str) -> list[str]:
    return [part.strip() for part in message.split("...") if part.strip(" .:;,")]


@cache
def read_templates() -> list[str]:
    """Every text of the Python package, with a gap for each value in it."""
    found = []
    for file in (REPOSITORY / "python" / "spillway").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


@cache
def read_engine() -> list[str]:
    """The string literals of each file of the engine, in order, with a gap for the code between two of them."""
    out = []
    for file in (REPOSITORY / "spillway").rglob("*.cc"):
        text = re.sub(r'"\s*\n\s*"', "", file.read_text(encoding="utf-8"))
        out.append(GAP.join(LITERAL.findall(text)))
    return out


def read_cuda_rows() -> dict[str, tuple[str, int]]:
    """Rows of the table about CUDA: its words, with Spillway's line and exit code."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Messages of CUDA\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| `([^`]+)` \| (\d) \|", section, re.M)
    return {words: (line, int(code)) for words, line, code in rows}


def has_source(message: str) -> bool:
    parts = fixed_words(message)
    near = re.compile(".{0,400}?".join(map(re.escape, parts)), re.S)
    return any(near.search(text) for text in (*read_templates(), *read_engine()))


def print_matching(code: int, error: str) -> list[str]:
    """Messages of the page for this exit code that the program's words match."""
    return [
        message
        for number, message in MESSAGES
        if number == code and re.search(".*".join(map(re.escape, fixed_words(message))), error, re.S)
    ]


def test_page_quotes_messages_of_every_exit_code() -> None:
    assert {code for code, _ in MESSAGES} == {0, 1, 2, 3, 129} and len(MESSAGES) >= 50


@pytest.mark.parametrize(("code", "message"), MESSAGES)
def test_source_has_the_fixed_words(code: int, message: str) -> None:
    parts = [part.strip(";? ") for part in fixed_words(message)] if message.startswith(COMPOSED) else [message]
    assert parts and all(map(has_source, parts))


def test_words_that_no_message_has_are_found() -> None:
    assert not has_source("...: this key is nice: ...")
    assert not has_source("does not fit in DRAM: ..., and gpu_memory is ...")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize(
    ("keys", "code", "message"),
    [
        (("--learnig_rate", "1"), 2, "unknown key ...; did you mean ...?"),
        (("--zzz_qqq", "1"), 2, "unknown key ...; ... lists all keys"),
        (("--base_model", "m"), 2, "Spillway does not take this key of ..."),
        (("--learning_rate", "fast"), 2, "...: got ..., expects ..."),
        (("--lsp_rank", "4"), 2, "...: it is for method ..., and the method is ..."),
        (("--beta", "0.2"), 2, "...: it is for objective ..., and the objective is ..."),
        (("--fp16", "--bf16"), 2, "fp16: true contradicts bf16: true"),
        (("--model", "./gone"), 2, "...: there is no directory ..."),
        (("--dataset", "./gone.jsonl"), 2, "...: there is no file ..."),
        (("--placement", "path"), 2, "storage: placement ... puts bytes on a path, but no storage is given"),
        (("--storage", "./gone"), 2, "...: there is no directory ..."),
        (
            ("--dram_budget", "100MiB"),
            3,
            "does not fit in DRAM: the smallest plan for this placement needs ..., and dram_budget is ...",
        ),
    ],
)
def test_command_prints_the_message_of_the_page(
    keys: tuple[str, ...], code: int, message: str, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(inputs, tmp_path / "out", *keys, verb="plan") == code
    assert message in print_matching(code, capfd.readouterr().err)


def test_steps_without_a_finite_gradient_print_the_messages_of_the_page(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rate of the first step makes weights infinite, so all other steps are skipped."""
    keys = ("--learning_rate", "1e30", "--lr_scheduler_type", "constant", "--max_steps", "3")
    assert here(inputs, tmp_path / "out", *keys) == 0
    printed = capfd.readouterr().out
    assert "loss nan" in printed and "(skipped)" in printed
    assert {
        "step ...: the gradient is not finite, nothing was updated",
        "... skipped: the gradient was not finite, nothing was updated",
    } <= {*print_matching(0, printed)}
    assert "Predicted and measured" in printed
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "This run is bound by" in page


def test_small_capacity_does_not_fit(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = storage_in(tmp_path / "storage")[1].replace("512MiB", "1MiB")
    assert here(inputs, tmp_path / "out", "--storage", path, "--placement", "path", verb="plan") == 3
    message = "does not fit on storage: the plan needs ... there, and there is ..."
    assert message in print_matching(3, capfd.readouterr().err)


def test_gpu_that_is_missing_is_told(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        lacks("gpu", "the message is for a machine without a GPU")
    assert here(inputs, tmp_path / "out", "--device", "cuda", verb="plan") == 2
    assert any(message.startswith("device: ") for message in print_matching(2, capfd.readouterr().err))


def test_run_that_exists_is_told(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here(inputs, tmp_path / "out", "--max_steps", "1") == 0
    assert here(inputs, tmp_path / "out", "--max_steps", "1") == 2
    assert "output_dir: ... holds a run already (...)" in print_matching(2, capfd.readouterr().err)
    weights = next((tmp_path / "out").glob("model*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    assert main(["verify", str(tmp_path / "out")]) == 1
    assert "damaged: " in "".join(capfd.readouterr())
    assert main(["resume", str(tmp_path / "gone")]) == 2
    assert "...: ... holds no run (there is no ...)" in print_matching(2, capfd.readouterr().err)


@pytest.mark.parametrize("words", read_cuda_rows())
def test_line_about_cuda_has_a_source(words: str) -> None:
    line, _ = read_cuda_rows()[words]
    assert all(map(has_source, fixed_words(line)))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("CUDA out of memory", torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        (
            "an illegal memory access was encountered, from PyTorch",
            RuntimeError("CUDA error: an illegal memory access was encountered"),
        ),
        (
            "CUDA_ERROR_ILLEGAL_ADDRESS, from the engine",
            OSError("the GPU failed in cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access"),
        ),
    ],
)
def test_error_of_cuda_ends_the_command_as_the_page_says(
    words: str, error: Exception, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: list[str]) -> int:
        with translated():
            raise error

    monkeypatch.setattr(command, "dispatch", fail)
    line, code = read_cuda_rows()[words]
    assert main(["train", "config.yaml"]) == code
    said = capfd.readouterr().err
    assert re.search(".*".join(map(re.escape, fixed_words(line))), said, re.S) and str(error)[:40] in said
