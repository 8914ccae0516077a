"""Templates render the time of the run's start. A refusal names the change: rows, tokenizer or template."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from real_runs import apart, here, on_path, result, words
from spillway.cli import main
from spillway.config import resolve
from spillway.data.dataset import Builder, Dataset
from spillway.data.encode import Encoded
from spillway.data.origins import Clock
from spillway.errors import InputError
from spillway.output import state

LIMIT = 300  # seconds that a process of its own may take at most
DRAM = ["--placement", "dram"]
KEYS = ["--max_steps", "6", "--save_steps", "2"]
MICROSECONDS = "{{ strftime_now('%H:%M:%S.%f') }} " + tiny.MARKED
TODAY = "{{ strftime_now('%d %b %Y') }} " + tiny.PLAIN
KILLED = (
    real_runs.dying("step")
    + """
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""
)


def make_chats(count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": row["text"]}]}
        for number, row in enumerate(tiny.text_rows(count))
    ]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("given"))
    tiny.jsonl(place / "train.jsonl", make_chats(23))
    tiny.jsonl(place / "held_out.jsonl", make_chats(7))
    for name, template in {"now": MICROSECONDS, "today": TODAY, "plain": tiny.PLAIN}.items():
        (place / f"{name}.jinja").write_text(template)
    return place


def choose_template(inputs: Path, name: str) -> list[str]:
    return ["--chat_template_path", str(inputs / f"{name}.jinja")]


def kill_run(inputs: Path, place: Path, *keys: str) -> list[str]:
    """Kills a run in its fourth step, and returns the command that resumes it."""
    phrase = words(inputs, place / "out", *KEYS, *keys, *on_path(place / "storage"))
    process = apart("-c", KILLED, *phrase, env_more={"DIES_AFTER": "0.000001", "DIES_IN": "4"})
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == -14, error
    return ["resume", str(place / "out")]


def test_template_that_renders_the_time_renders_the_runs_start(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The template renders microseconds. Evaluations have rows of the same template."""
    more = [*choose_template(inputs, "now"), "--eval_dataset", str(inputs / "held_out.jsonl"), "--eval_steps", "2"]
    resume = kill_run(inputs, tmp_path, *more)
    fixed = json.loads((tmp_path / "out" / "spillway" / "run.json").read_text())["fixed"]
    assert datetime.fromisoformat(fixed["started"]) <= datetime.now()
    assert main(resume) == 0, capfd.readouterr().err
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "out" / "checkpoint-2", copy / "checkpoint-2")
    alone = tmp_path / "alone"
    export = ["export", str(tmp_path / "out"), "--to", str(alone), "--checkpoint", str(tmp_path / "out/checkpoint-2")]
    assert main(export) == 0
    again = ["--resume_from_checkpoint", str(alone), "--placement", "dram"]
    assert here(inputs, tmp_path / "elsewhere", *KEYS, *more, *again) == 0, capfd.readouterr().err
    (rows, files, _), (expected, whole, _) = result(tmp_path / "elsewhere"), result(tmp_path / "out")
    assert files == whole
    assert [row for row in rows if row["step"] > 2] == [row for row in expected if row["step"] > 2]


def test_plan_of_a_resume_has_the_runs_time(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kill_run(inputs, tmp_path, *choose_template(inputs, "now"))
    config = str(tmp_path / "out" / "config.yaml")
    assert main(["plan", config, "--resume_from_checkpoint", "true"]) == 0, capfd.readouterr().err


def test_preferences_are_rendered_at_the_runs_start(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tiny.jsonl(tmp_path / "pairs.jsonl", [
        {"prompt": row["messages"][:1], "chosen": row["messages"][1:],
         "rejected": [{"role": "assistant", "content": f"no {number}"}]}
        for number, row in enumerate(make_chats(12))
    ])  # fmt: skip
    keys = ["--dataset", str(rows), "--objective", "dpo", *choose_template(inputs, "now")]
    resume = kill_run(inputs, tmp_path, *keys)
    assert main(resume) == 0, capfd.readouterr().err


def test_several_processes_render_one_time(inputs: Path, tmp_path: Path) -> None:
    from test_ranks import started

    keys = ["--max_steps", "2", *choose_template(inputs, "now"), *DRAM]
    two = started(2, ["-m", "spillway", *words(inputs, tmp_path / "out", *keys)])
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in two]
    assert all(code == 0 for *_, code in ends), ends


def test_run_whose_template_reads_no_time_stores_none(inputs: Path, tmp_path: Path) -> None:
    assert here(inputs, tmp_path / "out", "--max_steps", "2", *choose_template(inputs, "plain")) == 0
    fixed = json.loads((tmp_path / "out" / "spillway" / "run.json").read_text())["fixed"]
    assert "started" not in fixed and fixed["origins"].keys() == {"rows", "tokenizer", "template", "keys"}


@pytest.mark.parametrize("damage", ["noon", 5, None])
def test_invalid_start_time_is_named(
    damage: Any, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    resume = kill_run(inputs, tmp_path, *choose_template(inputs, "now"))
    path = tmp_path / "out" / "spillway" / "run.json"
    content = json.loads(path.read_text())
    content["fixed"]["started"] = damage
    del content["digest"]
    path.write_text(json.dumps(content))
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    assert main(resume) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error and ("no time" in error or "the rows" in error or "template" in error)


@pytest.fixture(scope="module")
def stopped_run(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `inputs`, `out` and `storage` of a killed run whose template renders the date."""
    place = tmp_path_factory.mktemp("stopped")
    shutil.copytree(inputs, place / "inputs")
    kill_run(place / "inputs", place, *choose_template(place / "inputs", "today"))
    return place


def change_tokenizer(inputs: Path) -> None:
    path = inputs / "model" / "tokenizer.json"
    content = json.loads(path.read_text())
    del content["model"]["merges"][0]
    path.write_text(json.dumps(content))


def change_rows(inputs: Path) -> None:
    tiny.jsonl(inputs / "train.jsonl", make_chats(22))


def change_template(inputs: Path) -> None:
    (inputs / "today.jinja").write_text("once more: " + TODAY)


CHANGES = {
    "rows": ([change_rows], [], ["dataset: the run was started with"], ["tokenizer:", "template"]),
    "tokenizer": ([change_tokenizer], [], ["tokenizer: the vocabulary or the rules of"], ["dataset:", "template"]),
    "template": ([change_template], [], ["chat_template_path: the chat template of"], ["dataset:", "tokenizer:"]),
    "rows and template": (
        [change_rows, change_template], [], ["dataset: the run was", "the chat template of"], ["tokenizer:"],
    ),
    "key": (
        [], ["--assistant_only_loss", "false"],
        ["assistant_only_loss: the run was started with True, a resume cannot change it to False"],
        ["dataset:", "tokenizer:", "template"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_refusal_names_what_changed(
    kind: str, stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changes, keys, present, absent = CHANGES[kind]
    shutil.copytree(stopped_run, tmp_path / "run")
    place = tmp_path / "run"
    inputs = place / "inputs"
    moved = ["--model", str(inputs / "model"), "--tokenizer", str(inputs / "model")]
    moved += ["--dataset", str(inputs / "train.jsonl"), "--storage", str(place / "storage")]
    moved += ["--profile", str(inputs / "profile.json"), *choose_template(inputs, "today")]
    for change in changes:
        change(inputs)
    assert main(["resume", str(place / "out"), *moved, *keys]) == 2
    error = capfd.readouterr().err
    assert all(phrase in error for phrase in present), error
    assert not any(phrase in error for phrase in absent), error


def test_moved_inputs_are_the_same(stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(stopped_run, tmp_path / "run")
    place, inputs = tmp_path / "run", tmp_path / "run" / "inputs"
    moved = ["--model", str(inputs / "model"), "--dataset", str(inputs / "train.jsonl")]
    moved += ["--storage", str(place / "storage"), *choose_template(inputs, "today")]
    assert main(["resume", str(place / "out"), *moved]) == 0, capfd.readouterr().err


def test_earlier_releases_run_is_refused_with_its_message(
    stopped_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(stopped_run, tmp_path / "run")
    place, inputs = tmp_path / "run", tmp_path / "run" / "inputs"
    for path in [place / "out" / "spillway" / "run.json", *place.glob("out/checkpoint-*/spillway/run.json")]:
        content = json.loads(path.read_text())
        for name in ("origins", "started", "base"):
            content["fixed"].pop(name, None)
        content.pop("digest", None)
        path.write_text(json.dumps(content))
        (path.parent / "files.json").unlink(missing_ok=True)
    moved = ["--storage", str(place / "storage"), *choose_template(inputs, "today")]
    change_rows(inputs)
    assert main(["resume", str(place / "out"), *moved, "--dataset", str(inputs / "train.jsonl")]) == 2
    assert "dataset: " in capfd.readouterr().err
    assert main(["resume", str(place / "out"), *moved]) == 0, capfd.readouterr().err


def test_clock_is_read_by_templates_alone() -> None:
    tokenizer, clock = tiny.tokenizer(chat_template=TODAY), Clock(datetime(2024, 7, 26, 12, 30))
    clock.give_to(tokenizer)
    assert not clock.is_read
    text = tokenizer.apply_chat_template(make_chats(1)[0]["messages"], tokenize=False)
    assert text.startswith("26 Jul 2024 ") and clock.is_read


def test_rows_that_changed_in_place_are_named() -> None:
    def make_dataset(digest: str, tokens: int) -> Dataset:
        builder = Builder(64, False, False, 0)
        builder.add(Encoded(list(range(tokens)), [True] * tokens))
        dataset = builder.finish()
        dataset.origins.update({"rows": digest, "tokenizer": "same", "template": "same"})
        return dataset

    config = resolve({"model": "of/hub", "dataset": "rows.jsonl", "output_dir": "out"}, {})
    fixed = state.fixed_keys(config.replaced(model=str(Path(__file__).parent)))
    state.fix_data(fixed, config, make_dataset("one", 4), None)
    state.check_data(fixed, config, make_dataset("another column that no token comes of", 4))
    with pytest.raises(InputError) as caught:
        state.check_data(fixed, config, make_dataset("another", 5))
    assert str(caught.value) == describe_change("dataset", "the rows of rows.jsonl")
    with pytest.raises(InputError, match="the tokens that a template makes of the rows of rows.jsonl changed"):
        state.check_data(fixed, config, make_dataset("one", 5))
    del fixed["origins"]
    with pytest.raises(InputError, match="its rows, or the tokenizer, of rows.jsonl changed"):
        state.check_data(fixed, config, make_dataset("another", 5))


def describe_change(key: str, part: str) -> str:
    return f"{key}: {part} changed since the run was started; a resume needs what it was started with"
