"""A server of completions on this machine, with the endpoints of vLLM or of llama.cpp that a trainer asks. A model of
transformers answers, which is loaded from what the trainer has handed over."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

from spillway.integrations.server import UNREADABLE

SEEDS = 2**31 - 1
DEFAULTS = {"seed": 0, "stop_token_ids": [], "temperature": 1.0, "top_k": 0}  # of a request


@dataclass
class Completions:
    """What tests set and see."""

    base: Path  # directory of the model that it starts with
    # or "llama.cpp", or "texts": an answer without token ids; or "texts alone": as llama-cpp-python's server, which
    # refuses prompts of tokens, and requests for log-probabilities unless it was started for them
    form: str = "vllm"
    handed: list[str] = field(default_factory=list)  # directories, in the order in which they were loaded
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of completions
    unready: int = 0  # answers that it is not ready, after each loading
    ends_after: int | None = None  # tokens that its context has room for
    processed: bool = False  # log-probabilities are those of the distribution that tokens are drawn from
    listed: Any = None  # answer of /v1/models; None: the model and its adapters
    refuses: int = 0  # completions, whose texts llama-server refuses after it sampled them
    cuts: bool = False  # True: closes the connection inside a completion's answer
    model: Any = None
    adapters: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    left: int = 0

    def __post_init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(self.base)
        self.model = self.read(self.base)

    def read(self, place: Path | str) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(place, dtype="float32").eval()

    def load(self, place: str) -> None:
        self.model = self.read(place)
        self.handed.append(place)
        self.left = self.unready

    def load_adapter(self, name: str, place: str) -> None:
        from peft import PeftModel

        with torch.random.fork_rng():  # the trainer of this process draws from the same one
            self.adapters[name] = PeftModel.from_pretrained(self.read(self.base), place).eval()
        self.handed.append(place)

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/health":
            self.left -= 1
            return (503, {"error": "Loading model"}) if self.left >= 0 else (200, {"status": "ok"})
        if path == "/v1/models":
            adapters = [{"id": name, "parent": str(self.base)} for name in self.adapters]
            return 200, {"data": [{"id": str(self.base)}, *adapters]} if self.listed is None else self.listed
        if path == "/tokenize":
            text = body["prompt"] if self.form == "vllm" else body["content"]
            return 200, {"tokens": self.tokenizer(text, add_special_tokens=False)["input_ids"]}
        if path == "/extras/tokenize" and self.form == "texts alone":
            return 200, {"tokens": self.tokenizer(body["input"])["input_ids"]}
        if path == "/v1/completions":
            if self.form == "texts alone":
                if not isinstance(body["prompt"], str) or "logprobs" in body:
                    return 500, {"error": {"message": "logprobs is not supported for models created without them"}}
                body = {**body, "prompt": self.tokenizer(body["prompt"])["input_ids"]}
            body = {**DEFAULTS, **body}
            self.bodies.append(body)
            if len(self.bodies) <= self.refuses:
                return 500, {"error": {"message": f"The model produced {UNREADABLE} Content-only format"}}
            return 200, {"choices": [self.complete(body)]}
        if path == "/restart":
            self.load(body["path"])
            return 200, {}
        return self.load_by_vllm(path, body) if self.form == "vllm" else (404, {"error": "File Not Found"})

    def load_by_vllm(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            self.load(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, ""
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": "already loaded"}
            self.load_adapter(body["lora_name"], body["lora_path"])
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            return (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, {"error": "not found"})
        return 404, {"detail": "Not Found"}

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        model = self.adapters.get(body["model"], self.model)
        longest = min(body["max_tokens"], self.ends_after or body["max_tokens"])
        words = body["prompt"], body["seed"], longest, body["stop_token_ids"], body
        tokens, values = sample(model, *words, processed=self.processed)
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        ended = tokens[-1] in body["stop_token_ids"]
        answer = {"text": text, "finish_reason": "stop" if ended else "length", "index": 0}
        if self.form == "vllm":
            return {**answer, "token_ids": tokens, "logprobs": {"token_logprobs": values}}
        if self.form == "llama.cpp":
            told = zip(tokens, values, strict=True)
            return {**answer, "logprobs": {"content": [{"id": token, "logprob": value} for token, value in told]}}
        return answer


def sample(
    model: Any,
    prompt: list[int],
    seed: int,
    longest: int,
    ends: list[int],
    fields: Mapping[str, Any],
    processed: bool = False,
) -> tuple[list[int], list[float]]:
    """Tokens after a prompt, drawn by a seed, and the logarithm of each one's probability."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    values: list[float] = []
    while len(tokens) < longest and not (tokens and tokens[-1] in ends):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1].float()
        kept = logits / fields["temperature"]
        if fields["top_k"]:
            kept = kept.masked_fill(kept < kept.topk(fields["top_k"]).values[-1], float("-inf"))
        token = int(torch.multinomial(kept.softmax(-1), 1, generator=generator))
        tokens.append(token)
        values.append(float((kept if processed else logits).log_softmax(-1)[token]))
    return tokens, values


def generate_by_seeds(model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: Any) -> Any:
    """`model.generate` in memory as the server samples: a seed of each completion by PyTorch's random state."""
    config = generation_config
    seeds = torch.randint(SEEDS, (len(input_ids),)).tolist()
    fields = {"temperature": config.temperature, "top_k": config.top_k or 0}
    training = model.training
    model.eval()
    rows = [
        torch.tensor(
            sample(model, row[seen.bool()].tolist(), seed, config.max_new_tokens, config.eos_token_id, fields)[0]
        )
        for row, seen, seed in zip(input_ids, attention_mask, seeds, strict=True)
    ]
    model.train(training)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id)
    return torch.cat([input_ids, padded], dim=1)


@contextmanager
def serving(base: Path, **more: Any) -> Iterator[Completions]:
    state = Completions(base, **more)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            with state.lock:  # one at a time, so that products take the same threads
                status, answer = state.answer(self.path, body)
            content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            cut = state.cuts and self.path == "/v1/completions"
            self.wfile.write(content[: len(content) // 2] if cut else content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
