"""`spillway merge`: base and adapters as one model, with the bits of PEFT's merge, in the memory of a layer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
)

import both_ways
import real_runs
import tiny
from hf_models import tiny_config
from memory_group import limited
from needs import package
from spillway.cli import main
from spillway.demo.memory_limit import MemoryLimit

peft = package("peft", "LoRA is PEFT's")
LORA = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "24", "--lora_target_modules", "all-linear"]
TRAIN = [*LORA, "--learning_rate", "1e-2", "--compute_dtype", "bf16"]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16}
KILLED = real_runs.dying("step") + "\nfrom spillway.cli import main\nsys.exit(main())"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("merge"))


@pytest.fixture(scope="module")
def lora_run(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output_dir of a run that has ended."""
    out = tmp_path_factory.mktemp("trained") / "out"
    assert real_runs.here(given, out, *TRAIN, "--max_steps", "3") == 0
    return out


def save_adapters(base: Path, directory: Path, dtype: torch.dtype = torch.float32, **asked: Any) -> Path:
    """As a user of PEFT does, with adapters that are far from their beginning."""
    torch.manual_seed(3)
    made = peft.LoraConfig(**{"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM", **asked})
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), made)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


def merge_by_peft(base: Path, adapters: Path, dtype: str) -> Tensors:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=DTYPES[dtype])
    merged = peft.PeftModel.from_pretrained(model, adapters).merge_and_unload()
    return {name: tensor.clone() for name, tensor in merged.state_dict().items()}


def load_merged(directory: Path) -> Tensors:
    return dict(AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict())


def require_equal(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(ours[name], tensor), name


def merged(place: Path, to: Path, *more: str) -> Path:
    assert main(["merge", str(place), "--to", str(to), *more]) == 0
    return to


ALL = {"target_modules": "all-linear"}
KINDS = [
    pytest.param("llama", ALL, id="llama"),
    pytest.param("llama", {**ALL, "use_rslora": True}, id="rslora"),
    pytest.param("llama", {**ALL, "use_dora": True}, id="dora"),
    pytest.param("llama", {**ALL, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 40}}, id="patterns"),
    pytest.param("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}, id="conv1d"),
    pytest.param("mixtral", {"target_modules": ["q_proj", "o_proj"]}, id="experts"),
]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("kind", "asked"), KINDS)
def test_adapters_of_peft_merge_to_the_bits_of_peft(
    kind: str, asked: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    both_ways.save(tiny_config(kind, kind == "gpt2"), base, 7)
    before = AutoModelForCausalLM.from_pretrained(base, dtype=DTYPES[dtype]).state_dict()
    adapters = save_adapters(base, tmp_path / "adapters", **asked)
    found = load_merged(merged(adapters, tmp_path / "merged", "--weight_dtype", dtype))
    require_equal(found, merge_by_peft(base, adapters, dtype))
    assert sum(not torch.equal(found[name], tensor) for name, tensor in before.items()) >= 4
    assert load_file(tmp_path / "merged" / "model.safetensors").keys() == load_file(base / "model.safetensors").keys()


@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_a_finished_run_merges_to_the_bits_of_peft(
    dtype: str | None, given: Path, lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "merged").mkdir()  # an empty directory is taken
    to = merged(lora_run, tmp_path / "merged", *(["--weight_dtype", dtype] if dtype else []))
    require_equal(load_merged(to), merge_by_peft(given / "model", lora_run, dtype or "bf16"))
    assert f"their base {given / 'model'} are one model in {to}" in capsys.readouterr().out
    assert not list(tmp_path.glob(".tmp-*"))


def test_the_directory_is_complete(given: Path, tmp_path: Path) -> None:
    """What transformers and vLLM read: weights, configurations, tokenizer and chat template."""
    model = tmp_path / "model"
    shutil.copytree(given / "model", model)
    (model / "chat_template.jinja").write_text(tiny.PLAIN)
    GenerationConfig(temperature=0.5, do_sample=True, eos_token_id=2).save_pretrained(model)
    assert real_runs.here(given, tmp_path / "out", *TRAIN, "--max_steps", "1", "--model", str(model)) == 0
    to = merged(tmp_path / "out", tmp_path / "merged")
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
            "chat_template.jinja"} <= set(real_runs.names(to))  # fmt: skip
    assert json.loads((to / "config.json").read_text())["dtype"] == "bfloat16"
    assert GenerationConfig.from_pretrained(to).temperature == 0.5
    assert AutoTokenizer.from_pretrained(to).chat_template == tiny.PLAIN
    assert main(["verify", str(to)]) == 0
    weights = to / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x55")
    assert main(["verify", str(to)]) == 1


def test_an_interrupted_run_merges_its_newest_durable_step(given: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "out", [*TRAIN, *real_runs.on_path(tmp_path / "path"), "--max_steps", "6"]
    process = real_runs.apart(
        "-c", KILLED, *real_runs.words(given, out, *more), env_more={"DIES_AFTER": "0.001", "DIES_IN": "4"}
    )
    process.communicate()
    assert process.returncode < 0 and not (out / "adapter_model.safetensors").exists()
    found = load_merged(merged(out, tmp_path / "merged"))
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0
    require_equal(found, merge_by_peft(given / "model", tmp_path / "alone", "bf16"))


def test_a_named_checkpoint_is_merged(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert real_runs.here(given, out, *TRAIN, "--max_steps", "4", "--save_steps", "2") == 0
    first = load_merged(merged(out, tmp_path / "first", "--checkpoint", str(out / "checkpoint-2")))
    require_equal(first, merge_by_peft(given / "model", out / "checkpoint-2", "bf16"))
    last = load_merged(merged(out, tmp_path / "last"))
    assert any(not torch.equal(last[name], tensor) for name, tensor in first.items())


@pytest.mark.parametrize(("key", "bits"), [("load_in_4bit", "4"), ("load_in_8bit", "8")])
def test_a_rounded_base_is_told(
    key: str, bits: str, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert real_runs.here(given, out, *TRAIN, "--max_steps", "1", f"--{key}") == 0
    to = merged(out, tmp_path / "merged")
    said = capsys.readouterr().err
    assert f"trained over a base rounded to {bits} bits, and are merged into the unrounded weights" in said
    assert f"{given / 'model'}: the merged model differs from the trained one by that rounding" in said
    require_equal(load_merged(to), merge_by_peft(given / "model", out, "bf16"))


def refuse(words: list[str], capsys: pytest.CaptureFixture[str], pattern: str) -> None:
    capsys.readouterr()
    code, said = main(["merge", *words]), capsys.readouterr().err
    assert code == 2, said
    assert re.search(pattern, said), said
    assert said.count("\n") == 1, said


def test_a_merge_that_cannot_be_is_one_sentence_and_writes_nothing(
    given: Path, lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to, held, full = tmp_path / "to", tmp_path / "held", tmp_path / "full"
    held.mkdir()
    (held / "mine").write_text("kept")
    assert real_runs.here(given, full, "--max_steps", "1") == 0
    refuse([str(lora_run)], capsys, "to: merge needs the directory to write: --to DIR")
    refuse([str(lora_run), "--to", str(held)], capsys, "held exists already; name an empty directory")
    assert real_runs.names(held) == ["mine"]
    refuse([str(full), "--to", str(to)], capsys, "full is a run with `method: full`, which has no adapters")
    refuse([str(held), "--to", str(to)], capsys, "held has neither config.yaml.* nor adapter_config.json")
    refuse([str(lora_run), "--to", str(to), "--model", str(tmp_path / "gone")], capsys, "there is no directory .*gone")
    refuse([str(lora_run), "--to", str(to), "--weight_dtype", "int8"], capsys, "weight_dtype: got 'int8'")
    assert not to.exists() and not list(tmp_path.glob(".tmp-*"))


def test_adapters_of_another_base_are_refused(
    given: Path, lora_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the fingerprint of a run's base; by names and shapes where PEFT saved the adapters."""
    to, other = tmp_path / "to", tmp_path / "other"
    both_ways.save(tiny_config("llama", False, hidden_size=64), other, 7)
    refuse([str(lora_run), "--to", str(to), "--model", str(other)], capsys, "is not the file that the run was started")
    adapters = save_adapters(other, tmp_path / "adapters", target_modules=["q_proj"])
    refuse([str(adapters), "--to", str(to), "--model", str(given / "model")], capsys, "has shape .* the base needs")
    path = adapters / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "base_model.model.lm_head.weight": torch.ones(2, 64)}, path)
    refuse([str(adapters), "--to", str(to)], capsys, "the vocabulary has 2 entries there and .* in the base")
    save_file({**tensors, "base_model.model.model.norm.weight": torch.ones(64)}, path)
    refuse([str(adapters), "--to", str(to)], capsys, "norm.weight belongs to no adapter of a linear layer")
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, path)
    refuse([str(adapters), "--to", str(to)], capsys, "it is missing")
    assert not to.exists() and not list(tmp_path.glob(".tmp-*"))


def test_a_sum_that_is_not_finite_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both_ways.save(tiny_config("llama", False), tmp_path / "base", 7)
    adapters = save_adapters(tmp_path / "base", tmp_path / "adapters", target_modules=["v_proj"])
    path = adapters / "adapter_model.safetensors"
    save_file({name: tensor * 1e4 for name, tensor in load_file(path).items()}, path)
    words = [str(adapters), "--to", str(tmp_path / "to"), "--weight_dtype", "fp16"]
    refuse(words, capsys, r"v_proj.weight: the merged weight is not finite in float16")
    assert not (tmp_path / "to").exists() and not list(tmp_path.glob(".tmp-*"))


def test_a_merge_that_is_killed_leaves_nothing_that_looks_whole(lora_run: Path, tmp_path: Path) -> None:
    """Killed before each of its files, and at last let through."""
    script = """
import os, signal, sys
from spillway.base import files
from spillway.cli import main
from spillway.model.source import tensor_files
written, left = tensor_files.pieces, int(sys.argv[2])
def pieces(tensor):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return written(tensor)
from spillway.model.adapters import merging
merging.pieces = pieces
sys.exit(main(["merge", sys.argv[1], "--to", sys.argv[3]]))
"""
    to = tmp_path / "to"
    for number in (1, 5):
        process = real_runs.apart("-c", script, str(lora_run), str(number), str(to))
        process.communicate()
        assert process.returncode == -9 and not to.exists()
        assert not list(tmp_path.rglob("model*.safetensors")) and not list(tmp_path.rglob("config.json"))
    require_equal(load_merged(merged(lora_run, to)), load_merged(merged(lora_run, tmp_path / "again")))
    assert not list(tmp_path.glob(".tmp-*"))


LIMITED = """
import re, resource, sys
from spillway.cli import main
warm, free, *words = sys.argv[1:]
assert main(["merge", warm, "--to", warm + "-merged"]) == 0
import peft, transformers
used = int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + int(free),) * 2)
"""
STREAMED = "sys.exit(main(words))"
IN_MEMORY = """
model = transformers.AutoModelForCausalLM.from_pretrained(words[0])
peft.PeftModel.from_pretrained(model, words[1]).merge_and_unload()
"""


def run_limited(script: str, warm: Path, free: int, *words: Path | str) -> tuple[int, str]:
    """The script's exit code and words, in a process that may take so many bytes more than the merge of `warm`, a
    directory of its own, has left it with."""
    shutil.rmtree(warm.with_name(f"{warm.name}-merged"), ignore_errors=True)
    process = real_runs.apart("-c", LIMITED + script, str(warm), str(free), *map(str, words), cold=True)
    return process.wait(), "".join(process.communicate())


def save_base(given: Path, directory: Path, **more: int) -> int:
    """A model of 24 layers with a tokenizer. Returns its bytes."""
    shape = {"num_hidden_layers": 24, "hidden_size": 512, "intermediate_size": 1536, "vocab_size": 320, **more}
    both_ways.save(tiny_config("llama", False, **shape), directory, 7)
    for path in (given / "model").glob("tokenizer*"):
        shutil.copyfile(path, directory / path.name)
    return (directory / "model.safetensors").stat().st_size


def test_a_merge_takes_the_memory_of_a_layer(given: Path, lora_run: Path, tmp_path: Path) -> None:
    """In a process that may take a quarter of the model's bytes besides, where merging in memory does not fit."""
    base, to, warm = tmp_path / "base", tmp_path / "to", tmp_path / "warm"
    free = save_base(given, base) // 4
    adapters = save_adapters(base, tmp_path / "adapters", target_modules="all-linear")
    shutil.copytree(lora_run, warm)
    code, said = run_limited(STREAMED, warm, free, "merge", adapters, "--to", to)
    assert code == 0, said
    require_equal(load_merged(to), merge_by_peft(base, adapters, "fp32"))
    code, said = run_limited(IN_MEMORY, warm, free, base, adapters)
    assert code == 1 and "allocate memory" in said, said


@pytest.mark.nightly
def test_a_cgroup_that_cannot_hold_the_model_holds_its_merge(given: Path, tmp_path: Path) -> None:
    """The kernel counts the whole process, the interpreter and the libraries too. It kills the merge by PEFT."""
    base, to = tmp_path / "base", tmp_path / "to"
    size = save_base(given, base, num_hidden_layers=12, hidden_size=1024, intermediate_size=4096)
    adapters = save_adapters(base, tmp_path / "adapters", target_modules="all-linear")
    with limited(size * 9 // 10) as group:
        words = ["-m", "spillway", "merge", str(adapters), "--to", str(to)]
        ended = run_in(group, *words)
        assert (ended.returncode, group.killed()) == (0, 0), ended.stderr
        ended = run_in(group, "-c", f"import peft, sys, transformers\nwords = sys.argv[1:]{IN_MEMORY}", base, adapters)
        assert (ended.returncode, group.killed()) == (-9, 1), ended.stderr
    require_equal(load_merged(to), merge_by_peft(base, adapters, "fp32"))


def run_in(group: MemoryLimit, *words: Path | str) -> subprocess.CompletedProcess[str]:
    """`python WORDS`, all of which the group holds."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, preexec_fn=group.enter, capture_output=True, text=True)


@pytest.mark.nightly
def test_a_step_on_a_path_is_merged_in_the_memory_of_a_layer(given: Path, lora_run: Path, tmp_path: Path) -> None:
    """Of a run that was killed, whose base and state lie on a path, in half of the model's bytes: the engine that reads
    the path has tables of its own."""
    base, to, warm, out = (tmp_path / name for name in ("base", "to", "warm", "out"))
    free = save_base(given, base) // 2
    place = ["--placement", "weight=path,state=path", *real_runs.storage_in(tmp_path / "path")]
    words = real_runs.words(given, out, *TRAIN, *place, "--max_steps", "4", "--model", str(base))
    process = real_runs.apart("-c", KILLED, *words, env_more={"DIES_AFTER": "0.001", "DIES_IN": "3"})
    process.communicate()
    assert process.returncode < 0
    shutil.copytree(lora_run, warm)
    code, said = run_limited(STREAMED, warm, free, "merge", out, "--to", to)
    assert code == 0, said
    assert main(["export", str(out), "--to", str(tmp_path / "alone")]) == 0
    require_equal(load_merged(to), merge_by_peft(base, tmp_path / "alone", "bf16"))


def save_whole(base: Path, directory: Path, kind: Any = AutoModelForCausalLM, **asked: Any) -> Path:
    """Adapters, and modules that are saved whole, as a user of PEFT leaves them."""
    torch.manual_seed(3)
    made = peft.LoraConfig(**{"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"], **asked})
    more = {} if kind is AutoModelForCausalLM else {"num_labels": 3}
    model = peft.get_peft_model(kind.from_pretrained(base, dtype=torch.float32, **more), made)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(directory)
    return directory


WHOLE = [
    pytest.param(AutoModelForCausalLM, {"modules_to_save": ["embed_tokens", "lm_head"]}, id="tables"),
    pytest.param(AutoModelForCausalLM, {"modules_to_save": ["norm", "layers.1.mlp"], "target_modules": ["q_proj"]},
                 id="norms"),
    pytest.param(AutoModelForSequenceClassification, {"task_type": "SEQ_CLS"}, id="rows"),
    pytest.param(AutoModelForTokenClassification, {"task_type": "TOKEN_CLS"}, id="words"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("kind", "asked"), WHOLE)
def test_whole_modules_merge_to_the_bits_of_peft(kind: Any, asked: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    """Onto a base that predicts tokens; a head of labels is new there."""
    base = tmp_path / "base"
    both_ways.save(tiny_config("llama", False), base, 7)
    adapters = save_whole(base, tmp_path / "adapters", kind, **asked)
    merged(adapters, tmp_path / "merged", "--weight_dtype", dtype)
    loaded, told = kind.from_pretrained(tmp_path / "merged", dtype="auto", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    more = {} if kind is AutoModelForCausalLM else {"num_labels": 3}
    plain = kind.from_pretrained(base, dtype=DTYPES[dtype], **more)
    expected = peft.PeftModel.from_pretrained(plain, adapters).merge_and_unload()
    require_equal(dict(loaded.state_dict()), dict(expected.state_dict()))
    saved = load_file(tmp_path / "merged" / "model.safetensors")
    assert ("lm_head.weight" in saved) == (kind is AutoModelForCausalLM)


@pytest.mark.parametrize("named", [True, False], ids=["modules_to_save", "resized alone"])
def test_a_vocabulary_that_was_resized_merges_to_the_bits_of_peft(named: bool, tmp_path: Path) -> None:
    """PEFT saves both tables with the adapters, whether they were trained or only resized."""
    base, entries = tmp_path / "base", 341
    both_ways.save(tiny_config("llama", False), base, 7)
    asked = {"modules_to_save": ["embed_tokens", "lm_head"]} if named else {}
    torch.manual_seed(3)
    resized = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    resized.resize_token_embeddings(entries)
    made = peft.LoraConfig(r=4, lora_alpha=12, target_modules=["q_proj", "down_proj"], **asked)
    model = peft.get_peft_model(resized, made)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(tmp_path / "adapters", save_embedding_layers=True)
    merged(tmp_path / "adapters", tmp_path / "merged")
    loaded, told = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    assert loaded.config.vocab_size == len(loaded.model.embed_tokens.weight) == entries
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    plain.resize_token_embeddings(entries)
    expected = peft.PeftModel.from_pretrained(plain, tmp_path / "adapters").merge_and_unload()
    require_equal(dict(loaded.state_dict()), dict(expected.state_dict()))


def test_a_table_of_another_size_than_the_other_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base"
    both_ways.save(tiny_config("llama", False), base, 7)
    adapters = save_whole(base, tmp_path / "adapters", modules_to_save=["embed_tokens"])
    path, name = adapters / "adapter_model.safetensors", "base_model.model.model.embed_tokens.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name][1:].clone()}, path)
    refuse([str(adapters), "--to", str(tmp_path / "to")], capsys, "lm_head.weight does not fit it; save both tables")


def test_a_run_with_a_head_of_labels_merges(given: Path, tmp_path: Path) -> None:
    """The merged classifier has the head, the names of labels and the padding token, and gives PEFT's scores."""
    rows = tiny.jsonl(tmp_path / "rows.jsonl", [{**row, "label": i % 2} for i, row in enumerate(tiny.text_rows(8))])
    words = ["--objective", "text-classification", "--id2label", '["no", "yes"]', "--dataset", str(rows)]
    assert real_runs.here(given, tmp_path / "out", *LORA, *words, "--compute_dtype", "fp32", "--max_steps", "3") == 0
    merged(tmp_path / "out", tmp_path / "merged")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged", dtype="auto")
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert model.config.pad_token_id == tiny.tokenizer().pad_token_id
    base = AutoModelForSequenceClassification.from_pretrained(given / "model", num_labels=2, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, tmp_path / "out").merge_and_unload()
    require_equal(dict(model.state_dict()), dict(expected.state_dict()))


def test_whole_modules_of_another_base_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, tied, to = tmp_path / "base", tmp_path / "tied", tmp_path / "to"
    both_ways.save(tiny_config("llama", False), base, 7)
    both_ways.save(tiny_config("llama", True), tied, 7)
    adapters = save_whole(base, tmp_path / "adapters", modules_to_save=["embed_tokens", "lm_head"])
    path = adapters / "adapter_model.safetensors"
    refuse([str(adapters), "--to", str(to), "--model", str(tied)], capsys, "is shared with another layer of the base")
    tensors = load_file(path)
    name = "base_model.model.lm_head.weight"
    save_file({**tensors, name: tensors[name][:, 1:].clone()}, path)
    refuse([str(adapters), "--to", str(to)], capsys, r"lm_head.weight has shape .* the base needs")
    save_file({each: tensor for each, tensor in tensors.items() if each != name}, path)
    refuse([str(adapters), "--to", str(to)], capsys, r"lm_head.weight has shape none, it is missing; the base needs")
    assert not to.exists()
    assert not list(tmp_path.glob(".tmp-*"))
