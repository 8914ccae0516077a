"""Every command of README and docs is run as it stands there, and so is their Python; places are moved to a sandbox."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import distilled
import pairs
import real_runs
import tiny
from folders import REPOSITORY
from model_directories import model_shapes
from needs import lacks, package
from spillway.cli import VERBS, main
from spillway.errors import InputError
from spillway.report import serve
from spillway.run.gguf import CONVERTERS

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
MULTIMODAL = "gemma-3-4b-it"
NOT_RUN = {  # run by others: the continuous integration, and the test of the packages
    "make": ("quickstart", "test", "wheel", "gpu-check", "gpu-queue", "gpu-queue-tiny", "gpu-queue-bundle"),
    "apt-get": None,
    "python3": ("-m", "venv"),
}


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        yield match[1], match[2]


def commands() -> list[str]:
    """Of every page's blocks and of code between the lines, without comments."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for language, block in blocks(page):
            if language in ("", "sh", "bash", "console"):
                found += [line.partition("#")[0].strip() for line in block.splitlines()]
        found += [match.replace("\n", " ") for match in re.findall(r"`(spillway [a-z]+ [^`]+)`", text)]
    return sorted({line for line in found if line.startswith("spillway ") and line.split()[1] in (*VERBS, "--help")})


def snippets() -> list[Any]:
    pages = [page for page in PAGES if page.name == "README.md" or "how-to" in page.parts]
    return [
        pytest.param(block, id=f"{page.name}-{number}")
        for page in pages
        for number, (language, block) in enumerate(blocks(page))
        if language == "python"
    ]


class Sandbox:
    """A directory in which the documents' names mean something."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("nvme/spillway", "second/spillway", "adapters", "pmem", "a", "b", "runs"):
            (place / name).mkdir(parents=True)
        real_runs.inputs(place)
        (place / "model").rename(place / "Qwen2.5-1.5B")
        (place / "train.jsonl").rename(place / "rows.jsonl")
        tiny.jsonl(place / "pairs.jsonl", pairs.texts(5))
        tiny.jsonl(place / "judged.jsonl", pairs.answers(5))
        tiny.jsonl(place / "reviews.jsonl", [{**row, "label": i % 2} for i, row in enumerate(tiny.text_rows(5))])
        tiny.jsonl(place / "entities.jsonl", [{"tokens": ["A", "river"], "ner_tags": [0, 8]}] * 5)
        group = {"prompt_ids": [5, 6], "completion_ids": [[7], [8]], "rewards": [0, 1], "old_logprobs": [[-5], [-6]]}
        tiny.jsonl(place / "rollouts.jsonl", [group] * 8)
        tiny.jsonl(place / "prompts.jsonl", [{"prompt": sentence} for sentence in tiny.SENTENCES[:2]])
        (place / "rewards.py").write_text(
            "def score(completions, **_):\n    return [len(text) for text in completions]\n"
        )
        shutil.copy(place / "profile.json", place / "other-machine.json")
        shutil.copytree(REPOSITORY / "profiles", place / "profiles")
        model_shapes.write(place, "Qwen2.5-0.5B").rename(place / "Qwen2.5-7B")  # a configuration, no weights
        for name in ("config", "full", "qlora"):  # what the documents copy from recipes
            (place / f"{name}.yaml").write_text(self.moved(self.readme_configuration()))
        shutil.copy(place / "rows.jsonl", place / "trial.jsonl")

    def readme_configuration(self) -> str:
        (text,) = (block for language, block in blocks(REPOSITORY / "README.md") if language == "yaml")
        text = text.replace("num_train_epochs: 1", "num_train_epochs: 1\nplacement: path")  # tiny, and yet on the path
        return text + f"profile: {self.place / 'profile.json'}\n"

    def moved(self, text: str) -> str:
        """The documents' places, and models of the hub, as the sandbox's."""
        text = text.replace("Qwen/Qwen2.5", "./Qwen2.5")
        text = text.replace("/mnt/pmem=400GiB", "/mnt/pmem=64MiB")
        for name in ("nvme", "second", "pmem"):
            text = text.replace(f"/mnt/{name}", str(self.place / name))
        text = text.replace("path:/a", f"path:{self.place / 'a'}").replace("path:/b", f"path:{self.place / 'b'}")
        text = re.sub(r"\bruns/qlora-24gib\b", "runs/adapters", text)
        return re.sub(r"\bOUTPUT_DIR\b|\bruns/(first|try|gpu-24gib)\b", "runs/first", text)

    def words(self, command: str) -> list[str]:
        text = command.replace("...", "").replace("[--key value]", "")
        if "--profile" not in text:  # which takes a configuration without weights
            text = re.sub(r"Qwen2\.5-(0\.5|7|32)B", "Qwen2.5-1.5B", text)
        text = text.replace("--to DIR", "--to exported").replace("--checkpoint DIR", "").replace("CKPT", "")
        text = text.replace("--device cuda", "--device simulated --gpu_memory 512MiB")
        return shlex.split(self.moved(text))[1:]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """With runs that have ended: of a whole model in runs/first, of adapters in runs/adapters."""
    sandbox = Sandbox(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(sandbox.place)
        assert main(["train", "config.yaml"]) == 0
        if find_spec("peft"):
            adapters = ("--method", "lora", "--output_dir", "runs/adapters", "--no-packing", "--max_steps", "1")
            assert main(["train", "config.yaml", *adapters, "--storage", str(sandbox.place / "adapters")]) == 0
    yield sandbox


def test_there_are_commands_and_snippets() -> None:
    assert len(commands()) >= 15 and len(snippets()) >= 6
    assert {command.split()[1] for command in commands()} >= {"train", "plan", "resume", "verify", "export", "check"}


@pytest.mark.parametrize("command", commands())
def test_a_command_does_what_the_documents_say(
    command: str, finished: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "tensorboard" in command:
        package("tensorboard", "TensorBoard is not installed: its command is not run")
    if "runs/adapters" in command:
        package("peft", "PEFT is not installed: its command is not run")
    verb = command.split()[1]
    sandbox = finished
    if verb in ("train", "plan", "check"):
        sandbox = Sandbox(tmp_path / "fresh")
    if "--teacher" in command:
        distilled.make_teacher(sandbox.place / "Qwen3-8B")
    monkeypatch.chdir(sandbox.place)
    for made in ("exported", "merged"):
        shutil.rmtree(sandbox.place / made, ignore_errors=True)
    words = sandbox.words(command)
    if "--gguf" in words:
        install_converter(sandbox.place, monkeypatch)
    if "--serve" in words:  # until Ctrl-C
        monkeypatch.setattr(serve.Server, "service_actions", interrupt)
        words += ["--port", "0"]
    assert main(words) == (3 if "--gpu_memory 1GiB" in command else 0)  # the page's plan that does not fit


def install_converter(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for llama.cpp's converter: it writes the first bytes of a GGUF file."""
    converter = place / CONVERTERS[0]
    converter.write_text('#!/bin/sh\nprintf GGUF >"$3"\n', encoding="utf-8")
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)


def interrupt(_: serve.Server) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("block", snippets())
def test_a_snippet_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    if "trl" in block:
        package("trl", "TRL is not installed: its snippet is not run")
    sandbox = Sandbox(tmp_path / "fresh")
    if MULTIMODAL in block:
        package("PIL", "Pillow is not installed: the snippet of rows with images is not run")
        from image_models import image_directory

        (image_directory(tmp_path, "gemma3") / "model").rename(sandbox.place / MULTIMODAL)
    monkeypatch.chdir(sandbox.place)
    ids = torch.randint(3, 300, (1, 12), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": ids, "labels": ids}
    names: dict[str, Any] = {
        "model": torch.nn.Linear(8, 8),
        "batches": [[batch]],
        "held_out": [batch],
        "x": torch.ones(4, 8),
    }
    if '"runs/first"' in block and not re.search(r"\btrain\(", block):  # the block is about a run that has ended
        assert main(["train", "config.yaml", "--output_dir", "runs/first", "--max_steps", "1"]) == 0
    try:
        exec("import spillway\n" + sandbox.moved(block), names)
    except InputError as error:
        if "does not exist or is offline" not in str(error):
            raise
        lacks("nodes", f"the snippet is for a machine with more NUMA nodes: {error}")
    if "trainer.save_model()" in block:  # a whole script
        assert (sandbox.place / "runs" / "sft" / "model.safetensors").is_file()
        assert names["trainer"].state.global_step == 3  # 23 rows, 8 in a step


def test_other_commands_are_known() -> None:
    """What a person is told to type and is not Spillway's own."""
    for page in PAGES:
        for language, block in blocks(page):
            for line in block.splitlines() if language in ("", "sh", "bash", "console") else ():
                words = line.partition("#")[0].split()
                if words and words[0] in NOT_RUN:
                    following = NOT_RUN[words[0]]
                    assert following is None or words[1] in following, line
