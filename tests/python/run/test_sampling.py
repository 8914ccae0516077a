"""`reward_funcs`: a run from the command line samples its own completions. The mean reward rises, and a run that is
killed twice ends with the bits of one that is not."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import real_runs
import tiny
from folders import REPOSITORY
from spillway.data.order import Order
from spillway.errors import SpillwayError
from spillway.output.records import rows as rows_of
from spillway.run import rewards

EXAMPLE = REPOSITORY / "examples" / "grpo"
STEPS, RISE = 30, 0.2
GRPO = (
    "--objective", "grpo", "--compute_dtype", "fp32", "--learning_rate", "1e-2", "--lr_scheduler_type", "constant",
    "--per_device_train_batch_size", "8", "--max_completion_length", "16", "--max_steps", str(STEPS),
)  # fmt: skip
REWARDS = """
import math, torch
seen = []
def length(completions, **_):
    return [float(len(text)) for text in completions]
def level(prompts, completions, completion_ids, level, trainer_state, **_):
    assert len(prompts) == len(completions) == len(completion_ids) == len(level)
    seen.append((trainer_state.global_step, trainer_state.max_steps, list(level), [len(ids) for ids in completion_ids]))
    return [None if each == 0 else each * torch.rand(1).item() for each in level]
def wrong(completions, **_):
    return [1.0]
def failing(completions, **_):
    raise ValueError("no such answer")
def lost(completions, **_):
    return [math.nan] * len(completions)
async def later(completions, **_):
    return []
constant = 3
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("sampling"))
    prompts = [{"prompt": sentence, "level": number % 3} for number, sentence in enumerate(tiny.SENTENCES)]
    tiny.jsonl(place / "prompts.jsonl", prompts)
    (place / "my_rewards.py").write_text(REWARDS)
    return place


def words(given: Path, out: Path, *more: str) -> list[str]:
    return real_runs.words(given, out, *GRPO, "--dataset", str(given / "prompts.jsonl"), *more)


def test_the_mean_reward_of_a_run_killed_twice_rises_with_the_same_bits(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLE)
    reward = ["--reward_funcs", "reward.reward_format"]
    place = [*real_runs.on_path(tmp_path / "whole-path"), "--durability", "step"]
    process = real_runs.apart("-m", "spillway", *words(given, tmp_path / "whole", *reward, *place))
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error[-3000:]
    found = [row["reward"] for row in rows_of(tmp_path / "whole" / "metrics.jsonl")]
    assert len(found) == STEPS
    assert sum(found[-5:]) / 5 > sum(found[:5]) / 5 + RISE

    out = tmp_path / "killed"
    place = [*real_runs.on_path(tmp_path / "killed-path"), "--durability", "step"]
    script = KILLED + "\nfrom spillway.cli import main\nsys.exit(main())"
    for method, call in (("hold_whole_model", 6), ("update", 12)):
        command = words(given, out, *reward, *place, "--resume_from_checkpoint", "auto")
        process = real_runs.apart("-c", script, *command, env_more={"DIES_IN": f"{method} {call}"})
        _, error = process.communicate(timeout=600)
        assert process.returncode == -signal.SIGKILL, error[-3000:]
    resumed = real_runs.apart("-m", "spillway", "resume", str(out))
    _, error = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, error[-3000:]
    assert real_runs.metrics(out) == real_runs.metrics(tmp_path / "whole")
    weights = [(place / "model.safetensors").read_bytes() for place in (out, tmp_path / "whole")]
    assert weights[0] == weights[1]


KILLED = """
import os, signal, sys
from spillway.run.session import EngineSession
name, left = os.environ["DIES_IN"].split()
method, left = getattr(EngineSession, name), int(left)
def counted(*given):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return method(*given)
setattr(EngineSession, name, counted)
"""


@pytest.mark.parametrize("method", ["full", "lora"])
def test_reward_functions_get_what_trl_gives_them(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Columns of the row, the tokens and the position; several rewards add up, and None adds nothing."""
    monkeypatch.chdir(given)
    functions = rewards.load_functions(["my_rewards.length", "my_rewards.level"])
    seen = functions[1].__globals__["seen"]
    seen.clear()
    more = ["--reward_funcs", "my_rewards.length", "--reward_funcs", "my_rewards.level", "--num_generations", "4"]
    lora = ["--method", "lora", "--lora_r", "4", "--beta", "0.04"] if method == "lora" else []
    assert real_runs.main(words(given, tmp_path / "out", *more, *lora, "--max_steps", "3")) == 0
    order = Order(len(tiny.SENTENCES), 4, 1, 42)
    for step, (at, steps, levels, lengths) in enumerate(seen):
        assert (at, steps) == (step, 3)
        assert levels == [row % 3 for row in order.step(step)[0].tolist() for _ in range(4)]
        assert max(lengths) <= 16
    made = list(rows_of(tmp_path / "out" / "metrics.jsonl"))
    assert len(seen) == len(made) == 3
    for row in made:
        assert row["reward"] > row["rewards/length/mean"] > 0
        assert row["rewards/length/std"] >= 0 and row["rewards/level/mean"] > 0
        assert row["completions/max_length"] <= 16
        assert ("kl" in row) == (method == "lora")


def test_messages_are_answered_by_messages(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are rendered with the beginning of an answer, as TRL renders them."""
    monkeypatch.chdir(given)
    (given / "chats.py").write_text(
        "seen = []\n"
        "def count(prompts, completions, **_):\n"
        "    seen.extend(zip(prompts, completions))\n"
        "    return [float(len(turns[0]['content'])) for turns in completions]\n"
    )
    rows = [{"prompt": [{"role": "user", "content": sentence}]} for sentence in tiny.SENTENCES]
    data = tiny.jsonl(tmp_path / "chats.jsonl", rows)
    template = tmp_path / "template.jinja"
    template.write_text(tiny.PLAIN)
    more = ["--dataset", str(data), "--chat_template_path", str(template), "--max_steps", "1", "--max_length", "128"]
    assert real_runs.main(words(given, tmp_path / "out", "--reward_funcs", "chats.count", *more)) == 0
    (function,) = rewards.load_functions(["chats.count"])
    seen = function.__globals__["seen"]
    assert len(seen) == 16
    for prompt, answer in seen:
        assert [turn["role"] for turn in prompt] == ["user"]
        assert [turn["role"] for turn in answer] == ["assistant"]


def call(name: str, monkeypatch: pytest.MonkeyPatch, given: Path) -> Any:
    monkeypatch.chdir(given)
    return rewards.score(rewards.load_functions([f"my_rewards.{name}"]), 2, {"completions": ["a", "bcd"]})


def test_rewards_are_numbers_of_each_completion(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_array_equal(call("length", monkeypatch, given), np.array([[1.0, 3.0]]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong", "wrong gave 1 rewards for 2 completions"),
        ("failing", "failing failed: ValueError: no such answer"),
        ("lost", "lost gave the reward nan; expects finite numbers"),
    ],
)
def test_a_function_that_gives_no_rewards_is_named(
    given: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    with pytest.raises(SpillwayError, match=said):
        call(name, monkeypatch, given)


REWARD = ["--reward_funcs", "my_rewards.length"]
REFUSED = [
    (["--reward_funcs", "length"], "'length' names no module; expects MODULE.FUNCTION"),
    (["--reward_funcs", "not_there.length"], "not_there cannot be imported from .*; expects MODULE.FUNCTION"),
    (["--reward_funcs", "my_rewards.nothing"], "nothing is missing in my_rewards"),
    (["--reward_funcs", "my_rewards.later"], "later is no plain function in my_rewards"),
    (["--reward_funcs", "my_rewards.constant"], "constant is no plain function in my_rewards"),
    ([*REWARD, "--num_generations", "5"], "num_generations: it is 5, and a step takes 16 completions"),
    ([*REWARD, "--num_iterations", "2"], "num_iterations: it is 2"),
    ([*REWARD, "--beta", "0.1"], "beta: 0.1 needs a reference"),
    ([*REWARD, "--method", "lora", "--load_in_4bit"], "reward_funcs: completions are sampled with plain weights"),
    ([*REWARD, "--top_p", "0"], "top_p: got 0, expects a number above 0, at most 1|top_p"),
    (["--num_generations", "4"], "num_generations: it is for a run that samples completions; give reward_funcs"),
    ([*REWARD, "--objective", "sft"], "it is for objective grpo, and the objective is sft"),
    ([*REWARD, "--max_completion_length", "60"], "max_completion_length is 60; raise max_length"),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_keys_that_do_not_fit_together_are_refused(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    more: list[str], said: str,
) -> None:  # fmt: skip
    import re

    monkeypatch.chdir(given)
    assert real_runs.main(words(given, tmp_path / "out", *more)) == 2
    assert re.search(said, " ".join(capsys.readouterr().err.split()))
    assert not (tmp_path / "out").exists()


def test_a_check_of_sampled_completions_is_refused(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(given)
    command = ["check", *words(given, tmp_path / "out", *REWARD)[1:]]
    assert real_runs.main(command) == 2
    assert "leave reward_funcs out and name recorded ones" in capsys.readouterr().err


def test_a_budget_without_room_for_the_whole_model_is_refused(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a process of PyTorch takes leaves nothing of this budget."""
    monkeypatch.chdir(given)
    assert real_runs.main(words(given, tmp_path / "out", *REWARD, "--dram_budget", "320MiB")) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "the run generates with the whole model" in said
    assert "lower per_device_train_batch_size or max_completion_length" in said
    assert not (tmp_path / "out").exists()
