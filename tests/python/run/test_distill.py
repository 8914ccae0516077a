"""`objective: distill`: equal to plain PyTorch in memory, wherever teacher and state lie, killed and resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import distilled
import real_runs
import spillway
import tiny
from breadth import some
from needs import package
from spillway.base.ranks import Ranks
from spillway.config import resolve
from spillway.config.objective_checks import check_objective
from spillway.errors import InputError
from spillway.output.records import rows as rows_of

STEPS = 24  # four epochs, with accumulation and remainders
CLOSE = 1e-5


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("distill"))
    distilled.make_teacher(place / "teacher")
    return place


def words(given: Path, *more: str) -> list[str]:
    plain = {"objective": "distill", "teacher": str(given / "teacher"), "num_train_epochs": "4"}
    return [*(word for key, value in plain.items() if f"--{key}" not in more for word in (f"--{key}", value)), *more]


def train(given: Path, out: Path, *more: str, verb: str = "train") -> int:
    return real_runs.here(given, out, *words(given, *more), verb=verb)


def steps_of(out: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(out / "metrics.jsonl") if "loss" in row]


def load_work(given: Path, **more: Any) -> Any:
    from spillway.run.train import load_work as load

    values = {
        "model": given / "model", "dataset": given / "train.jsonl", "objective": "distill",
        "teacher": given / "teacher", "max_length": 64, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "num_train_epochs": 4, **more,
    }  # fmt: skip
    return load(resolve({}, {key: str(value) for key, value in values.items()}), lambda _: None)


def same(out: Path, plain: distilled.Plain, file: str = "model.safetensors", prefix: str = "") -> None:
    rows = steps_of(out)
    assert len(rows) == len(plain.losses)
    for number, row in enumerate(rows):
        expected = {"loss": plain.losses, "grad_norm": plain.norms, "kl": plain.divergences}
        for name, values in expected.items():
            assert abs(row[name] - values[number]) <= CLOSE * max(1.0, abs(values[number])), (number, name)
    ours = load_file(out / file)
    compared = {name: tensor for name, tensor in plain.weights.items() if prefix + name in ours}
    assert compared
    for name, tensor in compared.items():
        assert float((ours[prefix + name] - tensor).abs().max()) <= CLOSE * float(tensor.abs().max()), name


EPSILON = 1e-6  # with a smaller one AdamW makes steps of the rounding where a gradient is next to zero
FP32 = ("--compute_dtype", "fp32", "--adam_epsilon", str(EPSILON))
CASES: Mapping[str, tuple[distilled.Loss, list[str]]] = MappingProxyType(
    {
        "all of the vocabulary": (distilled.Loss(), ["--teacher_top_k", "320"]),
        "all, reverse": (distilled.Loss(reverse=True), ["--teacher_top_k", "320", "--loss_type", "reverse_kl"]),
        "the largest": (distilled.Loss(top_k=16), ["--teacher_top_k", "16"]),
        "the largest, reverse, warm, mixed": (
            distilled.Loss(top_k=5, reverse=True, temperature=2.0, alpha=0.7),
            ["--teacher_top_k", "5", "--loss_type", "reverse_kl", "--temperature", "2", "--distill_alpha", "0.7"],
        ),
        "warm": (distilled.Loss(top_k=64, temperature=2.0), ["--temperature", "2"]),
    }
)


@pytest.mark.parametrize("case", some(list(CASES), ["all of the vocabulary", "the largest, reverse, warm, mixed"]))
def test_equal_to_plain_pytorch_with_state_on_a_path(given: Path, tmp_path: Path, case: str) -> None:
    loss, more = CASES[case]
    plain = distilled.train(given, load_work(given), STEPS, loss, epsilon=EPSILON)
    assert train(given, tmp_path / "ours", *FP32, *more, *real_runs.on_path(tmp_path / "storage")) == 0
    same(tmp_path / "ours", plain)


def test_heads_that_cap_their_logits_equal_plain_pytorch(given: Path, tmp_path: Path) -> None:
    """In slices of the vocabulary that differ between the teacher and the model."""
    from transformers import AutoModelForCausalLM, Gemma2Config

    for name, width, seed in (("model", 16, 3), ("teacher", 32, 4)):
        tiny.model_directory(tmp_path / name)
        torch.manual_seed(seed)
        config = Gemma2Config(
            vocab_size=320, hidden_size=width, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0, attn_implementation="eager",
        )  # fmt: skip
        made = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            made.get_input_embeddings().weight.mul_(20.0)
        made.save_pretrained(tmp_path / name)
    (tmp_path / "train.jsonl").write_text((given / "train.jsonl").read_text())
    work = load_work(tmp_path, max_steps=3)
    loss = distilled.Loss(top_k=16, temperature=2.0, alpha=0.5)
    plain = distilled.train(tmp_path, work, 3, loss, epsilon=1e-4)
    more = ["--teacher_top_k", "16", "--temperature", "2", "--distill_alpha", "0.5", "--max_steps", "3"]
    more += ["--model", str(tmp_path / "model"), "--teacher", str(tmp_path / "teacher")]
    assert train(given, tmp_path / "ours", *FP32[:2], "--adam_epsilon", "1e-4", *more) == 0
    same(tmp_path / "ours", plain)


def test_adapters_and_evaluations_equal_plain_pytorch(given: Path, tmp_path: Path) -> None:
    peft = package("peft", "LoRA is PEFT's")
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    torch.manual_seed(42)
    base = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    model = peft.get_peft_model(base, peft.LoraConfig(**asked))
    loss = distilled.Loss(top_k=16, alpha=0.5)
    plain = distilled.train(given, load_work(given), STEPS, loss, model, epsilon=1e-4)
    expected = distilled.evaluate(given, load_work(given, eval_dataset=given / "held_out.jsonl"), loss, model)
    more = ["--teacher_top_k", "16", "--distill_alpha", "0.5", "--method", "lora", "--lora_r", "4", "--lora_alpha", "8"]
    more += ["--lora_dropout", "0", "--lora_target_modules", "q_proj", "--lora_target_modules", "up_proj"]
    more += ["--eval_dataset", str(given / "held_out.jsonl"), "--per_device_eval_batch_size", "2"]
    assert train(given, tmp_path / "ours", *FP32[:2], "--adam_epsilon", "1e-4", *more) == 0
    plain.weights = {name.replace(".default", ""): tensor for name, tensor in plain.weights.items()}
    same(tmp_path / "ours", plain, "adapter_model.safetensors")
    evaluated = [row for row in rows_of(tmp_path / "ours" / "metrics.jsonl") if "eval_loss" in row]
    assert len(evaluated) == 4 and "eval_perplexity" not in evaluated[-1]
    assert abs(evaluated[-1]["eval_loss"] - expected) <= CLOSE


@pytest.mark.parametrize("more", [["--packing"], ["--virtual_ranks", "2"]])
def test_packed_rows_and_virtual_ranks_equal_plain_pytorch(given: Path, tmp_path: Path, more: list[str]) -> None:
    """Plain PyTorch sees each row by itself, so packed rows are compared with those of positions that begin anew."""
    loss = distilled.Loss(top_k=16)
    assert train(given, tmp_path / "ours", *FP32, "--teacher_top_k", "16", "--max_steps", "3", *more) == 0
    work = load_work(given, max_steps=3, **({"packing": True} if more == ["--packing"] else {}))
    same(tmp_path / "ours", distilled.train(given, work, 3, loss, epsilon=EPSILON))


DURABLE = ("--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2", "--num_train_epochs", "2")
STORED = "spillway/teacher-train.bin"


@pytest.fixture(scope="module")
def whole(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run with its state on a path, in bf16."""
    place = tmp_path_factory.mktemp("whole")
    assert train(given, place / "out", *DURABLE, *real_runs.on_path(place / "storage")) == 0
    return place


def kill(given: Path, place: Path, method: str, calls: int = 1) -> None:
    """A run that ends by an alarm right after the session's call of `method` of this number."""
    more = real_runs.words(given, place / "out", *words(given, *DURABLE, *real_runs.on_path(place / "storage")))
    real_runs.kill_after(method, more, calls)


MOMENTS = {"during the teacher": ("top_tokens", 3), "at the start": ("commit", 1), "during the model": ("update", 5)}


@pytest.mark.parametrize("moment", some(list(MOMENTS), ["during the teacher", "during the model"]))
def test_killed_and_resumed_bit_by_bit(given: Path, whole: Path, tmp_path: Path, moment: str) -> None:
    kill(given, tmp_path, *MOMENTS[moment])
    stored = tmp_path / "out" / STORED
    before = stored.read_bytes()
    assert (len(before) == len((whole / "out" / STORED).read_bytes())) == (moment != "during the teacher")
    written = stored.stat().st_mtime_ns
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(whole / "out")
    for name in ("model.safetensors", STORED):
        assert (tmp_path / "out" / name).read_bytes() == (whole / "out" / name).read_bytes()
    if moment != "during the teacher":
        assert stored.stat().st_mtime_ns == written  # the teacher was not asked again


def test_a_signal_during_the_teacher_keeps_what_is_stored(given: Path, whole: Path, tmp_path: Path) -> None:
    script = """
import os, signal, sys
from spillway.cli import main
from spillway.run.session import EngineSession
top_tokens, calls = EngineSession.top_tokens, 0
def interrupted(*given):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return top_tokens(*given)
EngineSession.top_tokens = interrupted
sys.exit(main())
"""
    more = real_runs.words(given, tmp_path / "out", *words(given, *DURABLE, *real_runs.on_path(tmp_path / "storage")))
    process = real_runs.apart("-c", script, *more)
    said = " ".join(" ".join(process.communicate(timeout=240)).split())
    assert process.returncode == 143, said
    assert "interrupted: the teacher has done 8 of 23 rows, which are stored; go on with: spillway resume" in said
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(whole / "out")


def test_a_run_begun_again_uses_what_the_teacher_gave_unless_it_overwrites(given: Path, tmp_path: Path) -> None:
    more = ("--teacher_top_k", "8", "--max_steps", "1")
    kill(given, tmp_path, "commit")
    stored = tmp_path / "out" / STORED
    written = stored.stat().st_mtime_ns
    storage = real_runs.on_path(tmp_path / "storage")
    assert train(given, tmp_path / "out", *DURABLE, *storage, "--resume_from_checkpoint", "auto") == 0
    assert stored.stat().st_mtime_ns == written
    assert train(given, tmp_path / "out", *DURABLE, *storage, *more, "--overwrite") == 0
    assert stored.stat().st_mtime_ns != written


def refused(capsys: pytest.CaptureFixture[str], code: int, expected: int = 2) -> str:
    assert code == expected
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--objective", "sft"], "teacher: it is for objective distill, and the objective is sft"),
        (["--teacher", "nowhere"], "teacher: nowhere is no directory; expects a model as transformers saves it"),
        (["--teacher_top_k", "321"], "teacher_top_k: 321 are more than the 320 entries of the vocabulary; give 320"),
        (["--loss_type", "sigmoid"], "loss_type: objective distill has no sigmoid; expects one of forward_kl, rev"),
        (["--temperature", "0"], "temperature: got '0', expects a number above 0"),
        (["--distill_alpha", "1.5"], "distill_alpha: got '1.5', expects a number from 0 to 1"),
        (["--beta", "0.1"], "beta: it is for objective dpo"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert said in refused(capsys, train(given, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_teachers_of_other_tokens_are_refused(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    larger = distilled.make_teacher(tmp_path / "larger", vocab_size=384)
    other = distilled.make_teacher(tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"<pad>"', '"<fill>"'))
    empty = distilled.make_teacher(tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    for place, said in (
        (larger, "has a vocabulary of 384 entries, and"),
        (other, "name a teacher with the model's tokenizer"),
        (empty, "has no model.safetensors and no model.safetensors.index.json"),
    ):
        for verb in ("train", "plan"):
            code = train(given, tmp_path / "out", "--teacher", str(place), verb=verb)
            assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


def test_a_resume_wants_what_the_teacher_gave(
    given: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state lies where a teacher would stream, so a lost or damaged file is refused by its name."""
    kill(given, tmp_path, "update", 5)
    stored = tmp_path / "out" / STORED
    content = stored.read_bytes()
    for spoiled in (None, content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        stored.unlink() if spoiled is None else stored.write_bytes(spoiled)
        code = real_runs.main(["resume", str(tmp_path / "out")])
        words_of = refused(capsys, code)
        assert (
            f"teacher: {stored} does not hold what the run's teacher gave" in words_of
            and "put the file back" in words_of
        )
    stored.write_bytes(content)
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(whole / "out")


def test_a_checkpoint_that_stands_alone_asks_the_teacher_again(given: Path, whole: Path, tmp_path: Path) -> None:
    alone, checkpoint = tmp_path / "alone", whole / "out" / "checkpoint-2"
    assert real_runs.main(["export", str(whole / "out"), "--to", str(alone), "--checkpoint", str(checkpoint)]) == 0
    assert train(given, tmp_path / "out", "--resume_from_checkpoint", str(alone), *DURABLE[:4], *DURABLE[-2:]) == 0
    found, expected = (steps_of(out) for out in (tmp_path / "out", whole / "out"))
    assert [row["loss"] for row in found] == [row["loss"] for row in expected[2:]]
    assert (tmp_path / "out" / STORED).read_bytes() == (whole / "out" / STORED).read_bytes()


def test_what_has_no_teacher_refuses_the_objective(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"model": given / "model", "objective": "distill", "teacher": given / "teacher"}
    with pytest.raises(InputError, match="objective: distill is for `spillway train` alone in this release"):
        spillway.Session({key: str(value) for key, value in values.items()})
    more = [word for word in words(given, *FP32) if word != "--output_dir"]
    code = real_runs.main(["check", "--model", str(given / "model"), "--dataset", str(given / "train.jsonl"), *more])
    assert "check: the plain way has no teacher" in refused(capsys, code)
    several = Ranks(rank=0, world=2, local_rank=0, local_world=2)
    config = resolve({}, {key: str(value) for key, value in values.items()}).over(several)
    with pytest.raises(InputError, match="objective: distill runs in one process in this release, and there are 2"):
        check_objective(config)


def test_the_plan_counts_the_teacher(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(given, tmp_path / "out", *FP32, *real_runs.on_path(tmp_path / "storage"), verb="plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Teacher: the 64 largest logits of each of 1,221 label tokens take" in said
    assert "6 forward passes before step 1 compute them" in said and "of path:0" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_a_teacher_larger_than_the_budget_streams_and_is_refused_without_storage(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is written."""
    large = distilled.make_teacher(
        tmp_path / "large", hidden_size=512, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=8
    )
    for verb in ("plan", "train"):
        code = train(given, tmp_path / "out", *FP32, "--teacher", str(large), "--dram_budget", "640MiB", verb=verb)
        assert f"teacher: {large} does not fit" in refused(capsys, code, 3)
        assert not (tmp_path / "out").exists()
    more = ["--teacher", str(large), "--dram_budget", "640MiB", "--max_steps", "2"]
    assert train(given, tmp_path / "out", *FP32, *more, *real_runs.storage_in(tmp_path / "storage")) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (
        large / "model.safetensors"
    ).stat().st_size > 290_000_000  # the process alone takes two thirds of the budget
    assert summary["process_peak"] <= 640 << 20
