"""`push_to_hub`: one upload at the end of a run, to a hub on this machine (hub_server.py)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer

import real_runs
from hub_server import Hub, digest, serving
from memory_group import limited
from needs import package
from spillway.cli import main
from spillway.model.source import hub

TOKEN, USER = "hf_writer", "somebody"
Ask = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("push"))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    home = tmp_path / "home"
    with serving(tmp_path / "hub") as found:
        found.writers[TOKEN] = USER
        monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        hub.listed.cache_clear()
        yield found


@pytest.fixture
def ask(served: Hub, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """`train` with an upload, in this process: exit code, and what it said."""

    def run(*more: str) -> tuple[int, str]:
        code = real_runs.here(given, tmp_path / "tuned", "--max_steps", "1", "--push_to_hub", *more)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def is_private(asked: dict[str, Any]) -> bool:
    """As huggingface_hub has asked for it, in one of its words."""
    return asked.get("private") is True or asked.get("visibility") == "private"


def test_a_finished_run_is_uploaded_in_one_commit(
    ask: Ask, served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    code, said = ask("--save_steps", "1")
    assert code == 0 and f"The model is at {served.endpoint}/{USER}/tuned." in said, said
    (commit,) = served.commits
    assert (commit["repository"], commit["summary"]) == (f"{USER}/tuned", "End of training")
    files = set(commit["files"])
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= files
    assert not any(name.startswith(("spillway", "checkpoint", "metrics", "trainer_state")) for name in files)
    repository, out = served.place / "models" / USER / "tuned", tmp_path / "tuned"
    for name in files - {"README.md"}:
        assert (repository / name).read_bytes() == (out / name).read_bytes(), name
    assert "Fine-tuned by Spillway" in (repository / "README.md").read_text()
    AutoModelForCausalLM.from_pretrained(repository)
    AutoTokenizer.from_pretrained(repository)
    assert not is_private(served.made[f"{USER}/tuned"])


def test_adapters_are_uploaded_with_their_base_named(ask: Ask, served: Hub) -> None:
    package("peft", "LoRA is PEFT's")
    code, said = ask("--method", "lora", "--lora_r", "4", "--hub_token", TOKEN, "--hub_model_id", f"{USER}/small")
    assert code == 0, said
    (commit,) = served.commits
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= set(commit["files"])
    assert "model.safetensors" not in commit["files"] and commit["repository"] == f"{USER}/small"
    assert "library_name: peft" in (served.place / "models" / USER / "small" / "README.md").read_text()


def test_a_token_that_is_given_is_written_nowhere(ask: Ask, served: Hub, tmp_path: Path) -> None:
    code, said = ask("--hub_token", TOKEN, "--hub_private_repo")
    assert code == 0 and TOKEN not in said
    assert is_private(served.made[f"{USER}/tuned"])
    texts = [path.read_bytes() for path in (tmp_path / "tuned").rglob("*") if path.is_file()]
    assert texts and not any(TOKEN.encode() in text for text in texts)


def test_a_card_that_somebody_wrote_is_uploaded(ask: Ask, served: Hub, tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "README.md").write_text("# Mine")
    assert ask("--hub_token", TOKEN)[0] == 0
    assert (served.place / "models" / USER / "tuned" / "README.md").read_text() == "# Mine"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "push_to_hub: there is no token for http://127.0.0.1"),
        (("--hub_token", "hf_reader"), "makes no repository tuned for this token"),
        (("--hub_token", TOKEN, "--hub_model_id", "others/tuned"), "makes no repository others/tuned for this token"),
        (("--hub_token", TOKEN, "--hub_strategy", "every_save"), "hub_strategy: every_save is not available"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_before_the_run(
    ask: Ask, served: Hub, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    code, said = ask(*more)
    assert code == 2 and words in said, said
    assert not (tmp_path / "tuned" / "metrics.jsonl").exists() and not served.made


def test_an_upload_without_a_network_is_refused(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, said = ask("--hub_token", TOKEN)
    assert code == 2 and "push_to_hub: HF_HUB_OFFLINE is set" in said
    assert not (tmp_path / "tuned").exists()


def test_an_upload_that_fails_is_made_again_by_resume(
    ask: Ask, served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served.full = True
    code, said = ask()
    out = tmp_path / "tuned"
    assert code == 1 and f"the model in {out} is whole, and `spillway resume {out}` tries again" in said, said
    assert not served.commits and (out / "model.safetensors").is_file()
    served.full = False
    assert main(["resume", str(out)]) == 0, capsys.readouterr()
    (commit,) = served.commits
    assert "model.safetensors" in commit["files"]


UPLOAD = """
import re, resource, sys
from spillway.config import resolve
from spillway.run import publication
small, large, free = sys.argv[1:]
def push(place):
    config = resolve({"model": "m", "dataset": "d", "output_dir": place, "push_to_hub": True}, {})
    publication.upload(config, publication.make_repository(config))
push(small)
used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + int(free),) * 2)
try:
    bytearray(2 * int(free))
except MemoryError:
    push(large)
"""


def test_an_upload_takes_a_part_of_the_model_in_memory(served: Hub, given: Path, tmp_path: Path) -> None:
    """In a process that may take an eighth of the model's bytes besides."""
    bytes_there = 512 << 20
    small, large = tmp_path / "small", tmp_path / "large"
    for place in (small, large):
        shutil.copytree(given / "model", place)
    with open(small / "model.safetensors", "ab") as file:
        file.truncate(2 << 20)  # large enough for the way of large files
    with open(large / "model.safetensors", "ab") as file:
        file.truncate(bytes_there)
    more = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": served.endpoint, "HF_HUB_DISABLE_XET": "1"}
    process = real_runs.apart("-c", UPLOAD, str(small), str(large), str(bytes_there // 8), cold=True, env_more=more)
    said = "".join(process.communicate())
    assert process.returncode == 0, said
    assert [commit["repository"] for commit in served.commits] == [f"{USER}/small", f"{USER}/large"]
    uploaded = served.place / "models" / USER / "large" / "model.safetensors"
    assert uploaded.stat().st_size == bytes_there and digest(uploaded) == digest(large / "model.safetensors")


UPLOAD_ALONE = """
import sys
from spillway.config import resolve
from spillway.run import publication
config = resolve({"model": "m", "dataset": "d", "output_dir": sys.argv[1], "push_to_hub": True}, {})
publication.upload(config, publication.make_repository(config))
"""


@pytest.mark.nightly
def test_a_cgroup_that_cannot_hold_the_model_holds_its_upload(
    served: Hub, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts the whole process, the interpreter and the libraries too."""
    from test_merge import run_in

    size, place = 1 << 30, tmp_path / "large"
    shutil.copytree(given / "model", place)
    with open(place / "model.safetensors", "ab") as file:
        file.truncate(size)
    for name, value in {"HF_TOKEN": TOKEN, "HF_ENDPOINT": served.endpoint, "HF_HUB_DISABLE_XET": "1"}.items():
        monkeypatch.setenv(name, value)
    with limited(size * 9 // 10) as group:
        ended = run_in(group, "-c", UPLOAD_ALONE, place)
        assert (ended.returncode, group.killed()) == (0, 0), ended.stderr
    uploaded = served.place / "models" / USER / "large" / "model.safetensors"
    assert uploaded.stat().st_size == size and digest(uploaded) == digest(place / "model.safetensors")


def test_nothing_is_uploaded_unless_it_is_asked_for(given: Path, served: Hub, tmp_path: Path) -> None:
    assert real_runs.here(given, tmp_path / "out", "--max_steps", "1", "--hub_model_id", f"{USER}/x") == 0
    assert not served.asked
