"""The server that a streamed GRPOTrainer samples on: its address, and requests to it."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillway.errors import InputError, SpillwayError, first_line

PROBE = "The sum of 17 and 25 is 42, and so it was."
ENGINES = (
    "start one that has OpenAI's endpoint /v1/completions: vLLM (`pip install vllm`, `vllm serve MODEL`), or "
    "llama.cpp's llama-server"
)
PAUSE = 0.2  # seconds between two looks at a server that is starting
QUOTED = 300  # characters of a server's refusal
LOOK_SECONDS = 10.0  # for a question that takes no computing
UNREADABLE = "output that does not match the expected"  # words of llama-server about bytes of no character


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status} {words}")
        self.status = status

    @property
    def is_of_text(self) -> bool:
        """True if the server took the request, and refuses the text that it sampled."""
        return UNREADABLE in str(self)


@dataclass(frozen=True)
class Server:
    """A server for `load(..., generation=Server("http://localhost:8000"))`, which has OpenAI's /v1/completions.

    After each update the weights are saved in a directory, or of a LoRA run the adapters, and the server is told to
    load them. By default that is done through vLLM's endpoints: /collective_rpc with `reload_weights`, or
    /v1/load_lora_adapter. For another server, give `update`: a command that gets the directory as its last word, or a
    function of the directory. When either has ended, the trainer waits for the server's /health.
    """

    url: str
    update: Callable[[Path], Any] | Sequence[str] | None = None
    model: str | None = None  # as requests name it; None: the only one that the server lists
    directory: str | Path | None = None  # where weights are saved, in a folder of each run; None: inside output_dir
    key: str | None = None  # sent as a bearer token
    timeout: float = 600.0  # seconds for a completion, an update, and a start

    def __post_init__(self) -> None:
        if not str(self.url).startswith(("http://", "https://")):
            raise InputError(f"Server: {self.url!r} is no address; expects http://HOST:PORT")

    def ask(self, path: str, body: Any = None, timeout: float | None = None) -> Any:
        """The answer to a GET, or with `body` to a POST: JSON where it is that, else text. Raises Refused for an error
        of the server's, and OSError where nothing answers."""
        request = urllib.request.Request(self.url.removesuffix("/").removesuffix("/v1") + path)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self.key is not None:
            request.add_header("Authorization", f"Bearer {self.key}")
        try:
            with urllib.request.urlopen(request, timeout=timeout or self.timeout) as answer:
                text = answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")[:QUOTED]) from None
        except http.client.HTTPException as error:  # of which IncompleteRead is one
            raise ConnectionError(f"the connection ended inside the answer to {path} ({first_line(error)})") from error
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    def name_model(self) -> str:
        """The name of the model in requests. InputError where the server lists none or several."""
        if self.model is not None:
            return self.model
        answer = self.ask("/v1/models", timeout=LOOK_SECONDS)
        names = list_models(answer)
        if len(names) == 1:
            return names[0]
        said = f"several models: {', '.join(names)}" if names else f"no model: its answer is {answer!r:.{QUOTED}}"
        raise InputError(
            f"generation: {self.url}/v1/models lists {said}; name the one that is trained: Server(..., model=NAME)"
        )

    def wait(self) -> None:
        """Returns when the server is ready. SpillwayError where it is not within `timeout`."""
        end = time.monotonic() + self.timeout
        while True:
            try:
                self.ask("/health", timeout=LOOK_SECONDS)
                return
            except Refused as error:
                if error.status == 404:  # it answers, and has no such endpoint
                    return
                words = str(error)
            except OSError as error:
                words = first_line(error)
            if time.monotonic() > end:
                raise SpillwayError(f"generation: {self.url} is not ready after {self.timeout:g} s: {words}")
            time.sleep(PAUSE)


@dataclass(frozen=True)
class Form:
    """The requests for completions that a server takes."""

    takes_tokens: bool = True  # False: prompts are texts
    tells: bool = True  # gives log-probabilities

    def write(self, prompt: Any) -> dict[str, Any]:
        """The fields of a request that depend on the form."""
        return {"prompt": prompt, **({"logprobs": 1, "return_token_ids": True} if self.tells else {})}


FORMS = (Form(), Form(tells=False), Form(takes_tokens=False), Form(takes_tokens=False, tells=False))


def find_form(server: Server, model: str, tokenizer: Any) -> Form:
    """The first form that the server answers in. InputError where it answers in none."""
    words = ""
    for form in FORMS:
        prompt = tokenizer(PROBE, add_special_tokens=False)["input_ids"] if form.takes_tokens else PROBE
        try:
            server.ask("/v1/completions", {"model": model, "max_tokens": 1, **form.write(prompt)})
            return form
        except (Refused, OSError) as error:
            if isinstance(error, Refused) and error.is_of_text:
                return form
            words = words or str(error)
    raise InputError(f"generation: {server.url} gives no completion of {PROBE!r}: {words}; {ENGINES}")


def write_text(server: Server, model: str, tokenizer: Any, prompt: list[int]) -> str:
    """The text of which the server makes these tokens. It may add the first token of every text itself. SpillwayError
    where there is none."""
    for first in (0, 1):
        text = tokenizer.decode(prompt[first:], clean_up_tokenization_spaces=False)
        try:
            answer = server.ask("/extras/tokenize", {"model": model, "input": text})
        except Refused:  # another server than llama-cpp-python's
            break
        if isinstance(answer, dict) and answer.get("tokens") == prompt:
            return str(text)
    raise SpillwayError(
        f"generation: {server.url} takes prompts as texts alone, and of {tokenizer.decode(prompt)!r} it makes other "
        "tokens than the tokenizer here; use llama.cpp's llama-server or vLLM, which take tokens"
    )


def list_models(answer: Any) -> list[str]:
    """The models in an answer of /v1/models, without adapters, which vLLM lists with the model that they belong to."""
    listed = answer.get("data") if isinstance(answer, dict) else None
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    names = [each["id"] for each in entries if isinstance(each.get("id"), str) and not each.get("parent")]
    return list(dict.fromkeys(names))


def check_server(server: Server, tokenizer: Any) -> None:
    """InputError where no server answers, and where its model has other tokens than `tokenizer`."""
    try:
        name = server.name_model()
    except Refused as error:
        advice = "give its key: Server(..., key=KEY)" if error.status in (401, 403) else ENGINES
        raise InputError(f"generation: {server.url}/v1/models answers with an error: {error}; {advice}") from None
    except OSError as error:
        raise InputError(f"generation: no server answers at {server.url} ({first_line(error)}); {ENGINES}") from None
    expected = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    # vLLM's words, and llama.cpp's
    words = {"model": name, "prompt": PROBE, "add_special_tokens": False, "content": PROBE, "add_special": False}
    try:
        answer = server.ask("/tokenize", words)
    except Refused as error:
        if error.status in (404, 405):
            return  # it has no such endpoint, and the tokens of its completions are looked at
        raise InputError(f"generation: {server.url} cannot tokenize: {error}") from None
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if tokens != expected:
        raise InputError(
            f"generation: the model of {server.url} has another vocabulary: of {PROBE!r} it makes the tokens {tokens}, "
            f"and the tokenizer here {expected}. Serve the model that is trained"
        )
