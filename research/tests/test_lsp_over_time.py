"""Long runs of training in a subspace: their order, and their gain over steps and over time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "research"))
import lsp_over_time  # noqa: E402
import lsp_training  # noqa: E402
from figures import RESULTS, rounded  # noqa: E402
from lsp_training import SHORT_STEPS, TRIAL_STEPS, Found, Run  # noqa: E402

FULL = {"steps": 500, "final": 2.0, "held_out": [[0, 3.0], [250, 2.4], [500, 2.0]]}
SHORT = {"steps": 230, "final": 2.2, "held_out": [[0, 3.0], [230, 2.2]]}
BEST = 2e-4


def line(run: Run) -> dict[str, Any]:
    """A run whose loss falls with its steps, and rises beside the best rate."""
    final = 3.0 - 0.001 * run.steps + abs(run.rate / BEST - 1)
    points = [[step, 3.0 + (final - 3.0) * step / run.steps] for step in (0, run.steps // 2, run.steps)]
    return {**vars(run), "final": final, "held_out": points, "train": final, "others_rate": 1e-4, "cpu_seconds": 1.0}


def run_to_the_end(path: Path) -> list[Run]:
    """All runs of a long task, after those of `gsm8k` that it begins at."""
    lines, runs = Found(path), []
    for method in ("full", "ours", "published", "lora", "galore"):
        lines.add(line(Run("gsm8k", method, 0.5, 0, BEST, 60)))
    for run in lsp_training.runs_of(lines, ["gsm8k-500"]):
        if lines.of(run) is None:
            runs.append(run)
            lines.add(line(run))
    return runs


def test_trials_precede_the_runs_of_a_method_and_pick_its_rate(tmp_path: Path) -> None:
    runs = run_to_the_end(tmp_path / "lines.jsonl")
    trials = [run for run in runs if run.steps == TRIAL_STEPS]
    assert len(trials) == 3 * 6, "three rates for each of six methods"
    assert {run.seed for run in trials} == {0}
    for method in ("full", "anew", "published", "lora", "galore", "ours"):
        own = [run for run in runs if run.method == method]
        assert [run.rate for run in own[:3]] == [BEST, 2 * BEST, BEST / 2]
        assert {run.rate for run in own[3:]} == {BEST}
    seeds = [run.seed for run in runs if run.steps != TRIAL_STEPS and run.share == 0.25]
    assert seeds == sorted(seeds), "the first seed of all methods precedes the second"


def test_trials_go_on_while_the_best_rate_is_at_an_edge() -> None:
    tried = {BEST: 3.0, BEST * 2: 2.9, BEST / 2: 3.1}
    assert lsp_training.untried(tried, BEST) == BEST * 4
    assert lsp_training.untried(tried | {BEST * 4: 3.2}, BEST) is None


def test_finished_runs_are_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    run_to_the_end(path)
    lines = Found(path)
    assert all(lines.of(run) is not None for run in lsp_training.runs_of(lines, ["gsm8k-500"]))


def test_share_of_gain_is_one_at_the_end_of_full_training() -> None:
    assert lsp_over_time.share_of_gain(2.0, FULL) == 1
    assert lsp_over_time.share_of_gain(2.5, FULL) == pytest.approx(0.5)


def test_step_of_a_loss_lies_between_evaluations() -> None:
    assert lsp_over_time.step_of(FULL["held_out"], 2.7) == pytest.approx(125)
    assert lsp_over_time.step_of(FULL["held_out"], 2.0) == pytest.approx(500)
    assert lsp_over_time.step_of(FULL["held_out"], 1.9) is None


@pytest.mark.parametrize(
    ("loss", "steps", "bound", "saved"),
    [
        (2.0, 500, "at least", 0.6),
        (1.9, 500, "at least", 0.6),
        (2.1, math.sqrt(230 * 500), "about", 1 - 200 / math.sqrt(230 * 500)),
        (2.3, 230, "at most", 1 - 200 / 230),
    ],
)
def test_less_time_compares_ends_with_the_same_loss(loss: float, steps: float, bound: str, saved: float) -> None:
    own = {"steps": 500, "final": loss, "held_out": [[0, 3.0], [500, loss]]}
    row = lsp_over_time.compare(own, FULL, SHORT, own=0.4, others=1.0)
    assert row["full_steps"] == pytest.approx(steps)
    assert row["bound"] == bound
    assert row["time_saved"] == pytest.approx(saved)
    assert (row["seconds_to_full_loss"] is None) == (loss > 2.0)


def test_step_seconds_are_those_of_the_files() -> None:
    seconds = lsp_over_time.read_step_seconds()
    path = json.loads((RESULTS / "lsp-steps-path.json").read_text(encoding="utf-8"))
    assert seconds["path"]["full"] == path["full"][0]["median"]
    assert seconds["path"]["published"] == path["lsp"][0]["median"]
    for each in seconds.values():
        assert each["anew"] >= each["ours"]
        assert set(each) == {"full", "anew", "published", "ours"}, "other methods have no measured seconds"


def test_page_shows_each_method_and_an_answer_to_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    run_to_the_end(path)
    page = "\n".join(lsp_over_time.sections(Found(path)))
    for name in ("full", f"full, {SHORT_STEPS} steps", "rotating, d = n/4", "none, d = n/2", "LoRA, d = n/4"):
        assert f"| {name} |" in page
    assert "meets the paper's 33 to 62 %" in page, "equal losses on the throttled path"
    assert "misses the paper's 33 to 62 %" in page, "equal losses on the link"


def test_page_without_long_runs_has_no_sections(tmp_path: Path) -> None:
    assert lsp_over_time.sections(Found(tmp_path / "none.jsonl")) == []


def test_figures_are_what_the_lines_say() -> None:
    held = json.loads((RESULTS / "lsp-over-time.json").read_text(encoding="utf-8"))
    assert held == rounded(lsp_over_time.figures_of(Found(lsp_training.LINES)))


def test_a_trial_of_a_small_model_leaves_a_line(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    lines = tmp_path / "lines.jsonl"
    for method in ("full", "joint"):
        Found(lines).add(line(Run("gsm8k", method, 0.5, 0, 1e-3, 60)))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "How many?", "answer": "One, two, three: 3."}\n' * 1000, encoding="utf-8")
    text = tmp_path / "text.txt"
    text.write_text("To be or not to be. " * 1000, encoding="utf-8")
    files = ("--questions", rows, "--held-out", rows, "--text", text, "--model", tmp_path / "model", "--lines", lines)
    words = ("--first-row", "0", "--seconds", "1", "--tasks", "gsm8k-500")
    subprocess.run([sys.executable, ROOT / "research/lsp_training.py", *files, *words], check=True)
    trial = Found(lines).lines[-1]
    assert (trial["task"], trial["method"], trial["steps"]) == ("gsm8k-500", "full", TRIAL_STEPS)
    assert [step for step, _ in trial["held_out"]] == [0, TRIAL_STEPS]
    assert trial["final"] < trial["held_out"][0][1]


def test_real_task_without_a_real_model_is_refused(tmp_path: Path) -> None:
    files = [word for name in ("--questions", "--held-out", "--text", "--model") for word in (name, str(tmp_path))]
    command = [sys.executable, str(ROOT / "research/lsp_training.py"), *files, "--tasks", "real-gsm8k-500"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "Name its directory with --real-model" in result.stderr


def write_model(directory: Path) -> None:
    """One layer of 32, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(("<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(directory)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
