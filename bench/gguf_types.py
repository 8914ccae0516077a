"""Log-probabilities of a model from llama.cpp's server, by type of the GGUF file and of its keys and values, beside
transformers in fp32.

    gguf_types.py MODEL [--top 1000] [--json FILE]

`llama-server` and `convert_hf_to_gguf.py` are those on PATH. MODEL is the directory of a model in bf16. Each difference
is the largest over the --top likeliest tokens after each of four prompts. --json writes all of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from figures import machine
from transformers import AutoModelForCausalLM, AutoTokenizer

from spillway.integrations.server import Server

PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return a",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. How many",
    "Once upon a time",
)
FILES, CACHES = ("f32", "bf16"), ("f16", "f32")


def compute_plain(model: Path, ids: list[list[int]], dtype: torch.dtype) -> list[torch.Tensor]:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    with torch.no_grad():
        return [network(torch.tensor([each])).logits[0, -1].float().log_softmax(-1) for each in ids]


def ask_server(file: Path, cache: str, ids: list[list[int]], vocabulary: int) -> list[torch.Tensor]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["llama-server", "--model", str(file), "--host", "127.0.0.1", "--port", str(port), "--ctx-size", "128",
             "--parallel", "1", "--cache-type-k", cache, "--cache-type-v", cache, "--threads", "2",
             "--flash-attn", "off" if cache == "f32" else "auto"]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}")
    try:
        server.wait()
        body = {"n_predict": 1, "n_probs": vocabulary, "temperature": 1.0, "cache_prompt": False}
        return [read_answer(server.ask("/completion", {**body, "prompt": each}), vocabulary) for each in ids]
    finally:
        process.kill()
        process.wait()


def read_answer(answer: Any, vocabulary: int) -> torch.Tensor:
    values = torch.full((vocabulary,), -torch.inf)
    for each in answer["completion_probabilities"][0]["top_logprobs"]:
        values[each["id"]] = each["logprob"]
    return values


def compare(values: list[torch.Tensor], exact: list[torch.Tensor], top: int) -> float:
    likeliest = [each.topk(top).indices for each in exact]
    return max(float((a[n] - b[n]).abs().max()) for a, b, n in zip(values, exact, likeliest, strict=True))


def convert(model: Path, place: Path, kind: str) -> Path:
    file = place / f"{kind}.gguf"
    words = ["convert_hf_to_gguf.py", str(model), "--outfile", str(file), "--outtype", kind]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--top", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if lacking := [name for name in ("llama-server", "convert_hf_to_gguf.py") if not shutil.which(name)]:
        print(f"{' and '.join(lacking)} of llama.cpp: not on PATH", file=sys.stderr)
        return 2
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    ids = [tokenizer(each)["input_ids"] for each in PROMPTS]
    exact = compute_plain(arguments.model, ids, torch.float32)
    rounded = compute_plain(arguments.model, ids, torch.bfloat16)
    rows = [{"file": "transformers", "cache": "bf16", "largest": compare(rounded, exact, arguments.top)}]
    with tempfile.TemporaryDirectory() as place:
        for kind in FILES:
            file = convert(arguments.model, Path(place), kind)
            for cache in CACHES:
                values = ask_server(file, cache, ids, len(exact[0]))
                rows.append({"file": kind, "cache": cache, "largest": compare(values, exact, arguments.top)})
    for row in rows:
        print(f"{row['file']:12} {row['cache']:5} {row['largest']:.5f}")
    if arguments.json:
        content = {"prompts": len(PROMPTS), "top": arguments.top, "differences": rows, "machine": machine()}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
