"""Adapters' base as the reference of each step: the same bits as a first pass, fewer bytes read, killed and resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pairs
import real_runs
import spillway
import tiny
from hf_models import tiny_config
from needs import package
from spillway.model.adapters.lora import Adapters
from spillway.model.batches.batch import WorkShape
from spillway.model.measure.trace import StepTrace, trace_step
from spillway.model.meta.building import build
from spillway.output.records import rows as rows_of

ROWS = 6
ONE = ("--compute_dtype", "fp32", "--num_train_epochs", "2", "--per_device_train_batch_size", "1")
ADAPTERS = ("--method", "lora", "--lora_r", "4", "--learning_rate", "1e-2")
FIRST_PASS = ("--precompute_ref_log_probs", "true")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package("peft", "LoRA is PEFT's")
    place = real_runs.inputs(tmp_path_factory.mktemp("base"))
    tiny.jsonl(place / "texts.jsonl", pairs.texts(ROWS))
    tiny.jsonl(place / "answers.jsonl", pairs.answers(ROWS))
    return place


def words(given: Path, storage: Path, *more: str) -> list[str]:
    return ["--dataset", str(given / "texts.jsonl"), "--objective", "dpo", *ONE, *ADAPTERS, *more,
            *real_runs.on_path(storage)]  # fmt: skip


def count_read(out: Path) -> int:
    return sum(path["read"] for path in json.loads((out / "summary.json").read_text())["path_bytes"].values())


def test_a_step_gives_the_bits_of_a_first_pass_and_reads_less(given: Path, tmp_path: Path) -> None:
    """Micro-batches of one pair, which both ways pad alike; the base lies on a path."""
    held_out = ["--eval_dataset", str(given / "texts.jsonl"), "--per_device_eval_batch_size", "1"]
    for name, more in (("step", ()), ("pass", FIRST_PASS)):
        assert real_runs.here(given, tmp_path / name, *words(given, tmp_path / f"at-{name}", *held_out, *more)) == 0
    assert real_runs.metrics(tmp_path / "step") == real_runs.metrics(tmp_path / "pass")
    adapters = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("step", "pass")]
    assert adapters[0] == adapters[1]
    assert (tmp_path / "pass" / "spillway" / "reference-train.jsonl").is_file()
    assert not list((tmp_path / "step" / "spillway").glob("reference-*"))
    evaluated = [row for row in rows_of(tmp_path / "step" / "metrics.jsonl") if "eval_loss" in row]
    assert len(evaluated) == 2 and all(row["eval_rewards/margins"] for row in evaluated)
    assert count_read(tmp_path / "step") < count_read(tmp_path / "pass")
    plan = json.loads((tmp_path / "step" / "plan.json").read_text())
    assert "reference" not in plan


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2")


def test_a_killed_run_resumes_bit_by_bit(given: Path, tmp_path: Path) -> None:
    """Nothing of the reference is stored: the base gives it again. Answers, whose step has mismatched rows, too."""
    data = ["--dataset", str(given / "answers.jsonl"), "--objective", "kto", *ADAPTERS, *DURABLE]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    outs = {name: tmp_path / name / "out" for name in ("whole", "killed")}
    every = {name: [*data, *real_runs.on_path(tmp_path / name / "storage")] for name in outs}
    assert real_runs.here(given, outs["whole"], *every["whole"]) == 0
    real_runs.kill_after("update", real_runs.words(given, outs["killed"], *every["killed"]), calls=2)
    assert real_runs.main(["resume", str(outs["killed"])]) == 0
    assert real_runs.metrics(outs["killed"]) == real_runs.metrics(outs["whole"])
    adapters = [(out / "adapter_model.safetensors").read_bytes() for out in outs.values()]
    assert adapters[0] == adapters[1]


def test_a_resume_keeps_the_way_of_the_run(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--dataset", str(given / "texts.jsonl"), "--objective", "dpo", *ADAPTERS]
    assert real_runs.here(given, tmp_path / "out", *more, "--max_steps", "2", "--save_steps", "2") == 0
    resumed = [*more, "--max_steps", "3", "--resume_from_checkpoint", "true", *FIRST_PASS]
    assert real_runs.here(given, tmp_path / "out", *resumed) == 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert "precompute_ref_log_probs: the run was started with False, a resume cannot change it to True" in said


def test_a_loop_of_ones_own_needs_no_columns(given: Path) -> None:
    """Micro-batches with the columns keep them; those without get the same values in their step."""
    keys = {
        "model": given / "model", "profile": given / "profile.json", "objective": "dpo", "compute_dtype": "fp32",
        "max_length": 64, "max_steps": 3, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        "method": "lora", "lora_r": 4, "learning_rate": 1e-2,
    }  # fmt: skip
    steps = [[batch_of(number), batch_of(number + 1)] for number in (1, 4, 7)]
    losses = []
    for refers in (True, False):
        with spillway.Session({key: str(value) for key, value in keys.items()}) as session:
            given_steps = [session.reference(step) for step in steps] if refers else steps
            losses.append([session.step(step)["loss"] for step in given_steps])
    assert losses[0] == losses[1] and losses[0][2] != losses[0][0]


def batch_of(seed: int) -> dict[str, Any]:
    """Two pairs, as TRL's collator makes them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 90, (4, 12 + seed), generator=generator)
    mask = torch.ones_like(ids)
    completion = mask.clone()
    completion[:, :5] = 0
    return {"input_ids": ids, "attention_mask": mask, "completion_mask": completion}


def count_products(trace: StepTrace, kind: str) -> float:
    return sum(each.calls for each in trace.whole.passes[kind].each.products)


def test_a_plan_counts_the_rows_through_the_base() -> None:
    """A forward pass of layers and head has products of both ways, a backward pass of one; the step keeps one hidden
    state more for each token."""
    model = build(tiny_config("llama"), torch.float32)
    Adapters({"r": 2, "target_modules": ["q_proj"]}, 1).adapt(model)
    shape = WorkShape(4, 2, 48, 0, 0)
    alone, both = (
        trace_step(model, "fp32", replace(shape, refers=refers), (), "nobody asks") for refers in (False, True)
    )
    assert count_products(both, "head_loss") == 2 * count_products(alone, "head_loss")
    adapter = 2  # products of one adapter, which the base has not
    assert count_products(both, "forward") == 2 * count_products(alone, "forward") - adapter
    assert count_products(both, "backward") == count_products(alone, "backward")
    assert both.kept_bytes - alone.kept_bytes >= 3 * 2 * 48 * model.width * 4
