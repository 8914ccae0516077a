"""`--gguf`: llama.cpp's converter makes a file of what `export` and `merge` write, or the commands to type are told."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import real_runs
import tiny
from memory_group import limited
from needs import lacks, package
from spillway.cli import main
from spillway.run.gguf import CONVERTERS

# As the converter in llama.cpp's tree is called, it writes every tensor in the type that is asked for.
STAND_IN = f"""#!{sys.executable}
import argparse, numpy, os, sys
from pathlib import Path
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import load_file
parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--outfile", type=Path)
parser.add_argument("--outtype", choices=["auto", "f32", "f16"])
asked = parser.parse_args()
dtype = torch.float32 if asked.outtype == "f32" else torch.float16
writer = GGUFWriter(asked.outfile, "llama")
for name, tensor in load_file(asked.model / "model.safetensors").items():
    writer.add_tensor(name, tensor.to(dtype).numpy())
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""

# A converter that reads one tensor after the other, as llama.cpp's does.
LAZY = f"""#!{sys.executable}
import sys
import numpy
from gguf import GGUFWriter
from safetensors import safe_open
model, to = sys.argv[1], sys.argv[sys.argv.index("--outfile") + 1]
writer, file = GGUFWriter(to, "llama"), safe_open(model + "/model.safetensors", "np")
for name in file.keys():
    shape = file.get_slice(name).get_shape()
    writer.add_tensor_info(name, shape, numpy.dtype("float32"), 4 * int(numpy.prod(shape)))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_ti_data_to_file()
for name in file.keys():
    writer.write_tensor_data(file.get_tensor(name))
writer.close()
"""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module")
def trained(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    assert real_runs.here(given, out, "--max_steps", "1") == 0
    return out


@pytest.fixture(scope="module")
def adapters(given: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    package("peft", "LoRA is PEFT's")
    out = tmp_path_factory.mktemp("adapters") / "out"
    assert real_runs.here(given, out, "--max_steps", "1", "--method", "lora", "--lora_r", "4") == 0
    return out


def install(place: Path, text: str, monkeypatch: pytest.MonkeyPatch, name: str = "convert_hf_to_gguf.py") -> None:
    """The only converter on PATH is a program of this text."""
    place.mkdir()
    (place / name).write_text(text)
    (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}/usr/bin{os.pathsep}/bin")


def read_back(path: Path) -> dict[str, torch.Tensor]:
    reader = package("gguf", "pip's gguf reads the file").GGUFReader(path)
    return {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}


@pytest.mark.parametrize("outtype", [None, "f32"])
@pytest.mark.parametrize("name", ["convert_hf_to_gguf.py", "convert-hf-to-gguf"])
def test_export_adds_the_file_that_the_converter_makes(
    name: str, outtype: str | None, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    package("gguf", "pip's gguf writes the file")
    install(tmp_path / "bin", STAND_IN, monkeypatch, name)
    to = tmp_path / "to"
    asked = ["--outtype", outtype] if outtype else []
    assert main(["export", str(trained), "--to", str(to), "--gguf", *asked]) == 0
    found, dtype = read_back(to / "model.gguf"), torch.float32 if outtype else torch.float16
    expected = load_file(to / "model.safetensors")
    assert found.keys() == expected.keys()
    for each, tensor in expected.items():
        assert torch.equal(found[each].view(tensor.shape), tensor.to(dtype)), each
    assert f"{to / 'model.gguf'} is the same for llama.cpp" in capsys.readouterr().out
    assert not list(to.glob(".tmp-*"))
    assert main(["verify", str(to)]) == 0
    (to / "model.gguf").write_bytes((to / "model.gguf").read_bytes()[:-1])
    assert main(["verify", str(to)]) == 1


def test_merge_adds_the_file_too(adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package("gguf", "pip's gguf writes the file")
    install(tmp_path / "bin", STAND_IN, monkeypatch)
    to = tmp_path / "to"
    assert main(["merge", str(adapters), "--to", str(to), "--gguf"]) == 0
    found = read_back(to / "model.gguf")
    assert found.keys() == load_file(to / "model.safetensors").keys()


def test_a_merged_file_takes_the_memory_of_a_layer(
    given: Path, adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes that may take a quarter of the model's bytes besides, the converter's among them."""
    package("gguf", "pip's gguf writes the file")
    from test_merge import STREAMED, run_limited, save_adapters, save_base

    base, to, warm = tmp_path / "base", tmp_path / "to", tmp_path / "warm"
    free = save_base(given, base) // 4
    many = save_adapters(base, tmp_path / "many", target_modules="all-linear")
    shutil.copytree(adapters, warm)
    install(tmp_path / "bin", LAZY, monkeypatch)
    code, said = run_limited(STREAMED, warm, free, "merge", many, "--to", to, "--gguf")
    assert code == 0, said
    found, expected = read_back(to / "model.gguf"), load_file(to / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name].view(tensor.shape), tensor) for name, tensor in expected.items())


@pytest.mark.nightly
def test_a_cgroup_that_cannot_hold_the_model_holds_its_merge_to_a_file(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts both processes, their interpreters and libraries too."""
    package("gguf", "pip's gguf writes the file")
    from test_merge import run_in, save_adapters, save_base

    base, to = tmp_path / "base", tmp_path / "to"
    size = save_base(given, base, num_hidden_layers=12, hidden_size=1024, intermediate_size=4096)
    many = save_adapters(base, tmp_path / "many", target_modules="all-linear")
    install(tmp_path / "bin", LAZY, monkeypatch)
    with limited(size * 9 // 10) as group:
        ended = run_in(group, "-m", "spillway", "merge", many, "--to", to, "--gguf")
        assert (ended.returncode, group.killed()) == (0, 0), ended.stderr
    assert read_back(to / "model.gguf").keys() == load_file(to / "model.safetensors").keys()


def test_adapters_are_merged_first(adapters: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(adapters), "--to", str(tmp_path / "to"), "--gguf"]) == 2
    assert "holds adapters; `spillway merge` makes a whole model" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("verb", ["export", "merge"])
def test_commands_are_told_where_there_is_no_converter(
    verb: str, trained: Path, adapters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first of them does what it says, as it stands there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    run, to = trained if verb == "export" else adapters, tmp_path / "to"
    assert main([verb, str(run), "--to", str(to), "--gguf"]) == 2
    said = capsys.readouterr().err
    first, second = re.findall("`([^`]+)`", said)
    assert second == f"python llama.cpp/convert_hf_to_gguf.py {to} --outfile {to / 'model.gguf'}"
    assert not to.exists()
    assert main(first.split()[1:]) == 0 and (to / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho Loading >&2\necho no such tokenizer >&2\nexit 7\n", "ended with 7: no such tokenizer"),
        ("#!/bin/sh\nexit 0\n", "wrote no GGUF file"),
        ('#!/bin/sh\nwhile [ "$1" != --outfile ]; do shift; done\necho NONE > "$2"\n', "wrote no GGUF file"),
    ],
)
def test_a_converter_that_fails_leaves_the_checkpoint(
    text: str, words: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    install(tmp_path / "bin", text, monkeypatch)
    to = tmp_path / "to"
    assert main(["export", str(trained), "--to", str(to), "--gguf"]) == 1
    said = capsys.readouterr().err
    assert words in said and f"the checkpoint in {to} is whole" in said
    assert not list(to.glob("*.gguf")) and not list(to.glob(".tmp-*"))
    assert main(["verify", str(to)]) == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [(["--gguf", "--outtype", "q9"], "outtype: got 'q9', expects one of auto, f32, f16"),
     (["--outtype", "f16"], "give --gguf, too")],
)  # fmt: skip
def test_a_type_that_is_none_is_refused(
    asked: list[str], words: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trained), "--to", str(tmp_path / "to"), *asked]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "to").exists()


def save_byte_tokenizer(directory: Path, prepends: bool = False) -> None:
    """One of 320 tokens that falls back to bytes, as Llama 2's does. llama.cpp tells others by their digests.
    `prepends`: texts begin with the first token and a space, as Llama 2's do and llama.cpp's too, and all tokens are
    characters, since llama-server b10434 refuses the texts of others."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    count = 128 if prepends else 256
    words = [*tiny.SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(count))]
    words += map(chr, range(0x2581, 0x2581 + 320 - len(words)))
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    replaced = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replaced]) if prepends else replaced
    if prepends:
        tokenizer.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])
    strip = [decoders.Strip(" ", 1, 0)] if prepends else []
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    tokenizer.decoder = decoders.Sequence(parts)
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(directory)


def test_the_converter_of_llama_cpp_makes_the_file(given: Path, tmp_path: Path) -> None:
    """The published one, where it is installed: names, shapes, values and tokens are those of the model."""
    if not any(map(shutil.which, CONVERTERS)):
        lacks("converter", f"llama.cpp's {CONVERTERS[0]} is not on PATH")
    gguf = package("gguf", "pip's gguf reads the file")
    model, to = tmp_path / "model", tmp_path / "to"
    shutil.copytree(given / "model", model)
    save_byte_tokenizer(model)
    assert real_runs.here(given, tmp_path / "out", "--max_steps", "1", "--model", str(model)) == 0
    assert main(["export", str(tmp_path / "out"), "--to", str(to), "--gguf", "--outtype", "f32"]) == 0
    reader, weights = gguf.GGUFReader(to / "model.gguf"), load_file(to / "model.safetensors")
    assert reader.get_field("general.architecture").contents() == "llama"
    assert reader.get_field("llama.block_count").contents() == tiny.CONFIG["num_hidden_layers"]
    assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == tiny.CONFIG["vocab_size"]
    found = read_back(to / "model.gguf")
    assert len(found) >= len(weights)
    pairs = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
        "blk.1.ffn_up": "model.layers.1.mlp.up_proj",
    }
    for name, own in pairs.items():
        tensor = weights[f"{own}.weight"].float()
        assert torch.equal(found[f"{name}.weight"].view(tensor.shape), tensor), name
