"""llama.cpp itself, where it is installed: it reads exported models, and its servers sample for GRPOTrainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import llama_cpp_servers
import real_runs
from breadth import some
from needs import package
from spillway.cli import main
from test_gguf import save_byte_tokenizer

PROMPT = "the rain is in"
NEW = 12  # tokens
KINDS = ("llama-server", "llama_cpp.server")
SAMPLED = (*((kind, 2) for kind in KINDS), ("llama-server", 20))  # servers and steps
F32 = 0  # llama.cpp's number of the type
LOGITS = 1e-3  # most that logits may differ
NATS = 2e-2  # most that log-probabilities may differ: the servers keep keys and values in 16 bits
DIFFERENCE = "sampling/sampling_logp_difference/max"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer llama.cpp knows."""
    place = real_runs.inputs(tmp_path_factory.mktemp("llama_cpp"))
    for path in (place / "model").glob("tokenizer*"):
        path.unlink()
    save_byte_tokenizer(place / "model", prepends=True)
    return place


def read_model(directory: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(directory, dtype="float32"), AutoTokenizer.from_pretrained(directory)


def test_an_exported_file_computes_as_the_model_does(given: Path, tmp_path: Path) -> None:
    """Logits of a prompt, and the tokens of greedy decoding."""
    llama_cpp = package("llama_cpp", "llama-cpp-python is not installed")
    llama_cpp_servers.find_converter()
    out, to = tmp_path / "out", tmp_path / "to"
    assert real_runs.here(given, out, "--max_steps", "2", "--compute_dtype", "fp32") == 0
    assert main(["export", str(out), "--to", str(to), "--gguf", "--outtype", "f32"]) == 0
    model, tokenizer = read_model(to)
    theirs = llama_cpp.Llama(
        str(to / "model.gguf"), n_ctx=64, logits_all=True, type_k=F32, type_v=F32, n_threads=1, verbose=False
    )
    ids = tokenizer(PROMPT)["input_ids"]
    assert theirs.tokenize(PROMPT.encode()) == ids
    theirs.eval(ids)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    found = torch.tensor(theirs.scores[: len(ids)])
    assert (found - expected).abs().max() < LOGITS
    greedy = model.generate(torch.tensor([ids]), max_new_tokens=NEW, do_sample=False)[0, len(ids) :].tolist()
    stream = theirs.generate(ids, temp=0.0)
    assert [token for token, _ in zip(stream, greedy, strict=False)] == greedy


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind, steps", some(SAMPLED, SAMPLED[:2]))
def test_a_server_of_llama_cpp_samples_with_the_weights_of_each_step(
    given: Path, tmp_path: Path, kind: str, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    package("trl", "TRL is not installed")
    import test_grpo_server
    from test_grpo_trainer import Watched

    llama_cpp_servers.find_converter()
    reward = Watched()
    with llama_cpp_servers.serving(kind, given / "model", tmp_path) as server:
        more = {"max_steps": steps, "max_completion_length": NEW, "learning_rate": 1e-3}
        trainer = test_grpo_server.streamed(given, tmp_path / "out", server.describe(), more, reward)
        trainer.train()
    rows = test_grpo_server.rows(trainer)
    assert [place.name for place in server.handed] == ["first", *(f"step-{step}" for step in range(steps))]
    assert len(reward.tokens) == 8 * steps and len({tuple(ids) for ids in reward.tokens}) > 4 * steps
    if kind == "llama_cpp.server":
        assert "tokenized again" in caplog.text
    else:
        assert all(row[DIFFERENCE] < NATS for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_completion_again(given: Path, tmp_path: Path, kind: str) -> None:
    llama_cpp_servers.find_converter()
    with llama_cpp_servers.serving(kind, given / "model", tmp_path) as server:
        asked = server.describe()
        words = {"model": asked.name_model(), "prompt": PROMPT, "max_tokens": NEW, "temperature": 1.0}
        texts = [asked.ask("/v1/completions", {**words, "seed": seed})["choices"][0]["text"] for seed in (5, 6, 5)]
    assert texts[0] == texts[2] != texts[1]
