"""Models, tokenizers and data by name: the command line beside a hub on this machine (hub_server.py)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants

import tiny
import warm
from hub_server import Hub, serving
from native import file_bytes
from needs import package
from real_runs import here, inputs, metrics, on_path, words
from spillway.cli import main
from spillway.config import resolve
from spillway.model.source import hub

NAME = "somebody/small"
NOT_NEEDED = {  # what repositories hold besides
    "pytorch_model.bin": b"pickled",
    "model-q4.gguf": b"quantised",
    "onnx/model.onnx": b"graph",
    "consolidated.safetensors": b"the same once more",
    "modeling_small.py": b"raise SystemExit",
    "pytorch_model.bin.index.json": b"{}",
    "README.md": b"# A model",
    "LICENSE.txt": b"free",
    ".gitattributes": b"*",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return inputs(tmp_path_factory.mktemp("given"))


@pytest.fixture
def served(given: Path, tmp_path: Path) -> Iterator[Hub]:
    place = tmp_path / "hub"
    repository = place / "models" / NAME
    shutil.copytree(given / "model", repository)
    for name, content in NOT_NEEDED.items():
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(content)
    with serving(place) as found:
        yield found


Ask = Callable[..., tuple[int, str]]


@pytest.fixture
def ask(
    served: Hub, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ask:
    """The command line in this process, with a cache of its own: exit code, and what it said."""
    home = tmp_path / "home"
    environment = {"HF_ENDPOINT": served.endpoint, "HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub")}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", served.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    hub.listed.cache_clear()

    def run(*more: str, verb: str = "train", model: str = NAME) -> tuple[int, str]:
        hub.listed.cache_clear()
        code = here(given, tmp_path / "out", "--model", model, "--max_steps", "1", *more, verb=verb)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def weights_of(home: Path) -> list[Path]:
    return list(home.rglob("*.safetensors"))


RESUME = """
import os, sys
from huggingface_hub import constants
constants.ENDPOINT, constants.HF_HUB_CACHE = os.environ["HF_ENDPOINT"], os.environ["HF_HOME"] + "/hub"
from spillway.cli import main
sys.exit(main(["resume", *sys.argv[1:]]))
"""


def test_a_name_is_fetched_killed_and_resumed_with_the_hub_gone(given: Path, tmp_path: Path) -> None:
    """As a user does: the installed command, with HF_ENDPOINT and a fresh HF_HOME."""
    more = ("--max_steps", "8", "--compute_dtype", "bf16", *on_path(tmp_path / "paths"))
    out, home = tmp_path / "run", tmp_path / "home"
    place = tmp_path / "hub"
    shutil.copytree(given / "model", place / "models" / NAME)
    for name, content in NOT_NEEDED.items():
        (place / "models" / NAME / name).parent.mkdir(exist_ok=True)
        (place / "models" / NAME / name).write_bytes(content)
    command = words(given, out, "--model", NAME, *more)
    with serving(place) as served:
        environment = {"HF_ENDPOINT": served.endpoint, "HF_HOME": str(home), "HF_TOKEN": "hf_ours"}
        process = warm.python("-m", "spillway", *command, env=environment, cold=True)
        while process.poll() is None and len(rows_of(out)) < 2:
            time.sleep(0.01)
        process.kill()
        said, errors = process.communicate()
        assert rows_of(out), said + errors
        expected = set(file_bytes(given / "model")) | {"model.safetensors"}
        assert served.downloaded() - {f"models/{NAME}/model.safetensors"} <= expected
        assert served.tokens == {"hf_ours"}
        commit = served.commit(place / "models" / NAME)
    assert f"downloading model.safetensors of {NAME} (file 1 of 1" in said
    assert yaml.safe_load((out / "config.yaml").read_text())["model_revision"] == commit
    process = warm.python("-c", RESUME, str(out), env=environment)
    said, errors = process.communicate()
    assert process.returncode == 0, said + errors
    plain = tmp_path / "plain"
    shutil.rmtree(tmp_path / "paths")
    assert here(given, plain, "--max_steps", "8", "--compute_dtype", "bf16", *on_path(tmp_path / "paths")) == 0
    assert metrics(out) == metrics(plain)
    assert (out / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    assert (out / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()


def rows_of(out: Path) -> list[str]:
    path = out / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def test_a_plan_fetches_no_weights_and_says_what_training_will(ask: Ask, served: Hub, tmp_path: Path) -> None:
    code, said = ask(verb="plan")
    assert code == 0 and "It fits." in said, said
    assert f"the weights of {NAME}" in said and "are downloaded when training begins" in said
    assert not weights_of(tmp_path / "home") and "model.safetensors" not in served.downloaded()
    assert not set(NOT_NEEDED) & served.downloaded()


def test_random_weights_need_the_configuration_and_the_tokenizer_alone(ask: Ask, served: Hub, tmp_path: Path) -> None:
    (served.place / "models" / NAME / "model.safetensors").unlink()
    code, said = ask("--init", "random")
    assert code == 0, said
    assert not weights_of(tmp_path / "home") and "downloading" not in said


def test_weights_in_several_files(ask: Ask, served: Hub, given: Path, tmp_path: Path) -> None:
    split(served.place / "models" / NAME)
    code, said = ask()
    assert code == 0, said
    assert "file 2 of 2" in said
    assert (tmp_path / "out" / "model.safetensors").is_file()


def split(repository: Path) -> None:
    """Its weights as two files and an index."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(repository / "model.safetensors")
    (repository / "model.safetensors").unlink()
    names, half = list(tensors), len(tensors) // 2
    parts = {"model-00001-of-00002.safetensors": names[:half], "model-00002-of-00002.safetensors": names[half:]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, repository / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, held in parts.items() for name in held}}
    (repository / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_second_run_finds_all_of_it_in_the_cache(ask: Ask, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask()[0] == 0
    before = served.downloaded()
    served.asked.clear()
    assert ask("--overwrite")[0] == 0
    assert before and not served.downloaded()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    served.asked.clear()
    code, said = ask("--overwrite")
    assert code == 0 and not served.asked, said


def test_a_hub_that_is_away_leaves_what_the_cache_has(
    ask: Ask, served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert ask()[0] == 0
    (served.place / "models" / NAME).rename(tmp_path / "moved")
    code, said = ask("--overwrite")
    assert code == 0
    assert "check the name" not in said and "which is in the cache" in said and "going on with commit" in said


def test_a_resume_keeps_to_the_commit_that_it_was_begun_with(ask: Ask, served: Hub, tmp_path: Path) -> None:
    assert ask("--max_steps", "2", "--save_steps", "1")[0] == 0
    repository = served.place / "models" / NAME
    first = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["model_revision"]
    (repository / "model.safetensors").write_bytes(b"another one")
    asked = ("--max_steps", "3", "--save_steps", "1", "--resume_from_checkpoint", "true")
    code, said = ask(*asked, "--model_revision", served.commit(repository))
    assert code == 2 and "model_revision: the run was started with" in said
    code, said = ask(*asked)
    assert code == 0, said
    assert yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())["model_revision"] == first


def test_a_commit_may_be_named(ask: Ask, served: Hub) -> None:
    commit = served.commit(served.place / "models" / NAME)
    assert ask("--model_revision", commit)[0] == 0
    code, said = ask("--model_revision", "v9", "--overwrite")
    assert code == 2 and f"{NAME} has no revision v9; name a branch, a tag or a commit" in said


def test_a_tokenizer_of_another_name(ask: Ask, served: Hub, given: Path, tmp_path: Path) -> None:
    other = served.place / "models" / "tokenizer-alone"
    shutil.copytree(given / "model", other)
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (other / name).unlink(missing_ok=True)
    code, said = ask("--tokenizer", "tokenizer-alone")
    assert code == 0, said
    config = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config["tokenizer_revision"] == served.commit(other)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nobody/nothing", "model: nobody/nothing is no directory here, and no repository at http://127.0.0.1"),
        ("not a name", "no name that a repository can have"),
    ],
)
def test_a_name_that_is_nobodys(ask: Ask, tmp_path: Path, model: str, message: str) -> None:
    code, said = ask(model=model)
    assert code == 2 and message in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_a_repository_without_safetensors(ask: Ask, served: Hub, verb: str, tmp_path: Path) -> None:
    (served.place / "models" / NAME / "model.safetensors").unlink()
    code, said = ask(verb=verb)
    assert code == 2 and f"model: {NAME} has no model.safetensors and no model.safetensors.index.json" in said
    assert "save it as safetensors first" in said and not (tmp_path / "out").exists()


def test_a_gated_model(ask: Ask, served: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served.gated[NAME] = "hf_may"
    code, said = ask()
    assert code == 2 and f"{NAME} is gated" in said and f"{served.endpoint}/{NAME}" in said and "HF_TOKEN" in said
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_may")
    code, said = ask()
    assert code == 0, said


def test_a_private_model(ask: Ask, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    served.private[NAME] = "hf_may"
    code, said = ask()
    assert code == 2 and "HF_TOKEN" in said and "where it is private" in said
    monkeypatch.setenv("HF_TOKEN", "hf_may")
    assert ask(verb="plan")[0] == 0


def test_offline_with_nothing_in_the_cache(ask: Ask, served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    code, said = ask()
    assert code == 2 and "HF_HUB_OFFLINE is set" in said and f"hf download {NAME}" in said
    assert not served.asked


def test_a_hub_that_nobody_reaches(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    code, said = ask()
    assert code == 2 and "http://127.0.0.1:9 cannot be reached" in said and f"hf download {NAME}" in said


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_no_room_for_the_weights_is_said_before_any_is_fetched(
    ask: Ask, served: Hub, tmp_path: Path, verb: str
) -> None:
    served.sizes["model.safetensors"] = 10**16
    code, said = ask(verb=verb)
    assert code == 2 and "10,000 TB" in said and "HF_HOME" in said and "free" in said
    assert "model.safetensors" not in served.downloaded() and not (tmp_path / "out").exists()


def test_a_download_that_breaks_off_leaves_nothing_of_a_run(ask: Ask, served: Hub, tmp_path: Path) -> None:
    """The file is listed, and gone when it is asked for."""
    split(served.place / "models" / NAME)
    assert ask(verb="plan")[0] == 0
    commit = served.commit(served.place / "models" / NAME)
    lost = served.place / "models" / NAME / "model-00002-of-00002.safetensors"
    kept, served.commit = lost.read_bytes(), lambda repository: commit  # type: ignore[method-assign]
    served.missing = lost
    code, said = ask()
    assert code == 2 and "model: " in said and not list((tmp_path / "out").glob("*.jsonl"))
    served.missing = None
    assert lost.read_bytes() == kept
    code, said = ask()
    assert code == 0 and "file 1 of 1" in said  # the first one is in the cache


def test_doctor_says_where_names_lead(
    ask: Ask, served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        assert main(["doctor"]) == 0
        return "".join(capsys.readouterr().out.replace("│", "").split())

    assert f"fromhttp://127.0.0.1:{served.endpoint.rpartition(':')[2]},withoutatoken" in said()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert "withyourtoken" in said() and "hf_secret" not in said()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINEisset" in said()
    assert not served.asked


def test_a_revision_of_a_directory_is_refused(ask: Ask, given: Path) -> None:
    code, said = ask("--model_revision", "v2", model=str(given / "model"))
    assert code == 2 and "model_revision" in said and "is a directory" in said
    assert ask("--model_revision", "main", model=str(given / "model"), verb="plan")[0] == 0


def test_which_files_are_fetched() -> None:
    files = {name: 1 for name in (
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "merges.txt",
        "tokenizer.model", "chat_template.jinja", "additional_chat_templates/rag.jinja", "model.safetensors.index.json",
        "special_tokens_map.json", "added_tokens.json", *NOT_NEEDED, "model-00001-of-00002.safetensors",
        "original/params.json", "runs/log.txt",
    )}  # fmt: skip
    found = hub.Listing("0" * 40, files).described_by()
    assert found[-1] == "config.json" and not set(found) & set(NOT_NEEDED)
    assert len(found) == 12 and "original/params.json" not in found


def test_a_dataset_by_name(ask: Ask, served: Hub, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = package("datasets", "datasets by name").config
    rows = served.place / "datasets" / "somebody" / "rows"
    rows.mkdir(parents=True)
    shutil.copy(given / "train.jsonl", rows / "train.jsonl")
    tiny.jsonl(rows / "test.jsonl", tiny.text_rows(5))
    monkeypatch.setattr(config, "HF_ENDPOINT", served.endpoint)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path / "home" / "datasets")
    code, said = ask("--dataset", "somebody/rows", "--eval_dataset", "somebody/rows")
    assert code == 0, said
    config_of_run: dict[str, Any] = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert config_of_run["dataset_revision"] == served.commit(rows) == config_of_run["eval_dataset_revision"]
    code, said = ask("--dataset", "somebody/else", "--overwrite")
    assert code == 2 and "dataset: somebody/else" in said


def test_data_in_files_has_no_revision(tmp_path: Path) -> None:
    from spillway.config.checks import check_dataset
    from spillway.errors import InputError

    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(InputError, match="dataset_revision: .* is a file and has none"):
        check_dataset("dataset", resolve({}, {"dataset": str(tmp_path / "rows.jsonl"), "dataset_revision": "v1"}))
