"""Completions from a server: the current weights are handed to it, and it samples with them.

Each completion is a request with a seed of its own, which PyTorch's random state gives. So a run that was killed asks
for the same completions again.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spillway.errors import InputError, SpillwayError, first_line
from spillway.integrations.loading import LOGGER
from spillway.integrations.server import PROBE, QUOTED, Form, Refused, Server, check_server, find_form, write_text

if TYPE_CHECKING:
    from spillway.integrations.streamed_session import StreamedSession

FOLDER = "for-server"  # in output_dir
MARK = ".spillway-weights"  # file that holds the name of the directory around it, which Spillway made
ADAPTER = "spillway"  # begins the name of an adapter on the server
AT_ONCE = 64  # requests that wait for an answer
ENDS = ("stop", "length")  # values of finish_reason
SEEDS = 2**31 - 1
TRIES = 8  # of a completion that the server refuses for its text
CERTAIN = 1e-9  # of a log-probability that is 0
# of a GenerationConfig: the value that changes nothing, and the names that servers have for it
SAMPLING: dict[str, tuple[float, tuple[str, ...]]] = {
    "temperature": (1.0, ("temperature",)),
    "top_p": (1.0, ("top_p",)),
    "top_k": (0, ("top_k",)),
    "min_p": (0.0, ("min_p",)),
    "repetition_penalty": (1.0, ("repetition_penalty", "repeat_penalty")),
}
TAKEN = (*SAMPLING, "max_new_tokens", "do_sample", "pad_token_id", "bos_token_id", "eos_token_id")
RELOADING = "vLLM reloads weights where it was started with VLLM_SERVER_DEV_MODE=1"
ADAPTING = "vLLM loads adapters where it was started with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
OTHER_SERVER = 'for another server give Server(..., update=["command", ...]), which gets the directory of the weights'
RETOKENIZED = (
    "generation: the server gives texts without token ids. They are tokenized again, and now and then a text gets "
    "other tokens than those that were sampled"
)


@dataclass(frozen=True)
class Completion:
    """Tokens that were sampled after a prompt."""

    tokens: list[int]
    log_probabilities: list[float] | None  # as the server has them; None: it does not tell


class ServerSampler:
    """The server of one trainer."""

    def __init__(self, server: Server, trainer: StreamedSession) -> None:
        """InputError for a server that cannot sample for this model."""
        check_server(server, trainer.processing_class)
        self._server, self._trainer = server, trainer
        self._delivered: tuple[Any, int] | None = None  # the session and the step of the weights that the server has
        self._name = ""  # of the model or the adapter, in requests
        self._form: Form | None = None if server.update is not None else Form()  # None: not known yet
        self._warned: set[str] = set()  # kinds of warnings
        self.divides = True  # its log-probabilities are of logits that were divided by the temperature
        self._is_known = False  # that it divides them, or not
        # by prompt and completion, of the last call
        self._sampled: dict[tuple[tuple[int, ...], tuple[int, ...]], list[float] | None] = {}

    def generate(
        self, input_ids: torch.Tensor, attention_mask: Any = None, generation_config: Any = None, **named: Any
    ) -> torch.Tensor:
        """As the library's method: [rows, length] of prompts that are padded on the left, with their completions."""
        self._trainer._require_whole_step("the model")
        config = copy.deepcopy(generation_config or self._trainer.model.generation_config)
        config.update(**named)
        self._hand_over()
        if self._form is None:
            self._form = find_form(self._server, self._name, self._trainer.processing_class)
        if config.temperature != 1.0 and not self._is_known:
            self._look_for_division(config)
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [row[kept.bool()].tolist() for row, kept in zip(input_ids.cpu(), seen.cpu(), strict=True)]
        seeds = torch.randint(SEEDS, (len(prompts),)).tolist()
        with ThreadPoolExecutor(min(AT_ONCE, len(prompts))) as pool:
            completions = list(pool.map(self._complete, prompts, seeds, [config] * len(prompts)))
        self._sampled = {
            (tuple(prompt), tuple(each.tokens)): each.log_probabilities
            for prompt, each in zip(prompts, completions, strict=True)
        }
        rows = [torch.tensor(each.tokens, dtype=torch.int64) for each in completions]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id or 0)
        return torch.cat([input_ids, padded.to(input_ids.device)], dim=1)

    def log_probabilities(self, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Tensor | None:
        """fp64 [tokens]: as the server sampled them; None: unknown."""
        values = self._sampled.get((tuple(prompt.tolist()), tuple(completion.tolist())))
        return None if values is None else torch.tensor(values, dtype=torch.float64)

    # ---- the weights

    def _hand_over(self) -> None:
        """Gives the server the weights of this step, if it has others."""
        session, step = self._trainer.session, int(self._trainer.state.global_step)  # type: ignore[attr-defined]
        if self._delivered is not None and self._delivered[0] is session and self._delivered[1] == step:
            return
        own, shared = self._trainer.args.output_dir, self._server.directory
        folder = (Path(shared) / name_run(own) if shared else Path(own) / FOLDER).absolute()
        place = folder / f"step-{step}"
        make_own_directory(place)
        self._trainer.write_for_server(place)
        try:
            self._tell(place, step)
        except (OSError, Refused, subprocess.CalledProcessError) as error:
            raise SpillwayError(
                f"generation: the server has not taken the weights of step {step}: {first_line(error)}. "
                f"{ADAPTING if self._trainer._adapted else RELOADING}; {OTHER_SERVER}"
            ) from error
        for other in folder.glob("step-*"):
            if other != place and is_own_directory(other):
                with contextlib.suppress(OSError):  # the server may hold a file of it open
                    remove_own_directory(other)
        self._delivered = (session, step)

    def _tell(self, place: Path, step: int) -> None:
        server, update = self._server, self._server.update
        if update is not None:
            if callable(update):
                update(place)
            else:
                subprocess.run([*update, str(place)], check=True)
            server.wait()
            self._name = server.name_model()
        elif self._trainer._adapted:
            self._load_adapter(place, step)
        else:
            server.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place)}})
            server.ask("/reset_prefix_cache", {})  # keys and values of the weights before
            self._name = server.name_model()

    def _load_adapter(self, place: Path, step: int) -> None:
        """Under a name of its own, so that the server mixes it up with none before."""
        server, before = self._server, self._name
        self._name = f"{ADAPTER}-{name_run(self._trainer.args.output_dir)}-{step}"
        for name in {before, self._name} - {""}:
            with contextlib.suppress(Refused):  # of a process that was killed, or none
                server.ask("/v1/unload_lora_adapter", {"lora_name": name})
        server.ask("/v1/load_lora_adapter", {"lora_name": self._name, "lora_path": str(place)})

    # ---- completions

    def _complete(self, prompt: list[int], seed: int, config: Any, checks: bool = True) -> Completion:
        ends = config.eos_token_id
        ends = list(ends) if isinstance(ends, list | tuple) else [ends] if ends is not None else []
        server, form = self._server, self._form
        assert form is not None
        try:
            told = (
                prompt if form.takes_tokens else write_text(server, self._name, self._trainer.processing_class, prompt)
            )
            body = {
                "model": self._name,
                "max_tokens": config.max_new_tokens,
                "seed": seed,
                "stop_token_ids": ends,
                **form.write(told),
                **find_sampling(config),
            }
            answer = self._ask(body)
        except (OSError, Refused, ValueError) as error:
            raise SpillwayError(
                f"generation: {self._server.url} gave no completion: {first_line(error)}. Steps that were saved are "
                "there; when the server answers again, train(resume_from_checkpoint=True) goes on"
            ) from error
        choice = find_choice(self._server.url, answer)
        tokens = find_tokens(choice)
        if tokens is None:
            self._warn_once("tokens", RETOKENIZED)
            tokens = self._trainer.processing_class(choice["text"], add_special_tokens=False)["input_ids"]
            tokens = tokens[: config.max_new_tokens - (choice.get("finish_reason") == "stop")]
        sampled = count_sampled(answer, len(tokens))
        values = find_log_probabilities(choice, len(tokens))
        if choice.get("finish_reason") == "stop" and ends and (not tokens or tokens[-1] not in ends):
            tokens, values = [*tokens, ends[0]], None  # left out of the answer
        if checks:
            self._check(tokens, sampled, choice, config)
        return Completion(tokens, values)

    def _ask(self, body: dict[str, Any]) -> Any:
        """The answer to a request. llama-server may refuse the text that it sampled. The request then gets the next
        seed. Raises Refused and OSError."""
        for seed in range(body["seed"], body["seed"] + TRIES):
            try:
                return self._server.ask("/v1/completions", {**body, "seed": seed})
            except Refused as error:
                if not error.is_of_text:
                    raise
                refusal = error
                words = f"generation: the server refused a completion of its own, so another was sampled: {error}"
                self._warn_once("refusal", words)
        raise refusal

    def _look_for_division(self, config: Any) -> None:
        """Asks for the likeliest token alone. What is left of the distribution when the server has processed the logits
        is that token, whose log-probability is 0; else it is that of the model."""
        alone = copy.deepcopy(config)
        alone.update(top_k=1, max_new_tokens=1)
        prompt = self._trainer.processing_class(PROBE, add_special_tokens=False)["input_ids"]
        values = self._complete(prompt, 0, alone, checks=False).log_probabilities
        self.divides = not values or abs(values[0]) < CERTAIN
        self._is_known = True

    def _check(self, tokens: list[int], sampled: int, choice: Mapping[str, Any], config: Any) -> None:
        """SpillwayError for a completion that cannot be trained on. `sampled`: tokens by the server's count."""
        size = self._trainer.model.config.get_text_config().vocab_size
        if wrong := [token for token in tokens if not 0 <= token < size]:
            raise SpillwayError(f"generation: the server's token {wrong[0]} is none of the model's {size}")
        if len(tokens) > config.max_new_tokens:
            raise SpillwayError(
                f"generation: {self._server.url} gave {len(tokens)} tokens for max_tokens {config.max_new_tokens}: it "
                "ignores max_tokens of /v1/completions; use a server that has it"
            )
        if not tokens or (choice.get("finish_reason") == "length" and sampled < config.max_new_tokens):
            raise SpillwayError(
                f"generation: the server ended a completion after {sampled} tokens, and max_completion_length is "
                f"{config.max_new_tokens}: give it a longer context (vLLM: --max-model-len, llama-server: --ctx-size)"
            )

    def _warn_once(self, kind: str, words: str) -> None:
        """Warns once of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            LOGGER.warning(words)


def name_run(output_dir: str | None) -> str:
    """A name of the run in this directory, which a process that resumes it uses again, and no other run."""
    return hashlib.sha256(str(Path(output_dir or "").absolute()).encode()).hexdigest()[:12]


def is_own_directory(place: Path) -> bool:
    """True for a directory that a run of Spillway made for a server; False for a link to it, or a copy of it."""
    try:
        return not place.is_symlink() and (place / MARK).read_text() == place.name
    except (OSError, UnicodeDecodeError):
        return False


def make_own_directory(place: Path) -> None:
    """An empty directory with the mark. InputError where `place` exists and has none, unless it is empty."""
    if is_own_directory(place):
        remove_own_directory(place)
    try:
        place.mkdir(parents=True, exist_ok=True)
        has_files = place.is_symlink() or any(place.iterdir())
    except FileExistsError:
        has_files = True
    if has_files:
        raise InputError(
            f"generation: {place} exists and is not a directory that Spillway made, so no weights are saved in its "
            "place. Move it, or name another directory: Server(..., directory=...)"
        )
    (place / MARK).write_text(place.name)


def remove_own_directory(place: Path) -> None:
    """Removes the mark last, so that a removal that was cut off can be repeated."""
    for each in place.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != MARK:
            each.unlink()
    (place / MARK).unlink()
    place.rmdir()


def find_sampling(config: Any) -> dict[str, float]:
    """The fields of a request that say how tokens are drawn. A field that is missing would get the server's default."""
    fields: dict[str, float] = {}
    for name, (neutral, names) in SAMPLING.items():
        value = getattr(config, name, None)
        fields |= dict.fromkeys(names, neutral if value is None else value)
    if not config.do_sample:
        fields["temperature"] = 0.0
    return fields


def find_choice(url: str, answer: Any) -> Mapping[str, Any]:
    """The completion in an answer of /v1/completions. SpillwayError where it has another form, or was not finished."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, dict) or not has_completion(choice):
        raise SpillwayError(
            f"generation: {url} answers /v1/completions with {answer!r:.{QUOTED}}, which has no choice with `text` or "
            "`token_ids`; use a server of OpenAI's completions"
        )
    if choice.get("finish_reason", "stop") not in ENDS:
        raise SpillwayError(
            f"generation: {url} ended a completion with finish_reason {choice['finish_reason']!r}; expects "
            f"{' or '.join(ENDS)}. train(resume_from_checkpoint=True) goes on"
        )
    return choice


def count_sampled(answer: Mapping[str, Any], tokens: int) -> int:
    """The tokens that the server has sampled. A text has fewer, `tokens`, if some are bytes of no character."""
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return max(count, tokens) if type(count) is int else tokens


def has_completion(choice: Mapping[str, Any]) -> bool:
    """True if the parts of a choice that are read have their types."""
    tokens, told = choice.get("token_ids"), choice.get("logprobs")
    content = told.get("content") if isinstance(told, dict) else None
    if not isinstance(told, dict | None) or not isinstance(content, list | None):
        return False
    if not all(isinstance(each, dict) for each in content or ()):
        return False
    if tokens is not None:
        return isinstance(tokens, list) and all(type(token) is int for token in tokens)
    return isinstance(choice.get("text"), str)


def find_tokens(choice: Mapping[str, Any]) -> list[int] | None:
    """The token ids of an answer, as vLLM or llama.cpp gives them; None: it has none."""
    if choice.get("token_ids") is not None:
        return [int(token) for token in choice["token_ids"]]
    content = (choice.get("logprobs") or {}).get("content")
    if content and all("id" in each for each in content):
        return [int(each["id"]) for each in content]
    return None


def find_log_probabilities(choice: Mapping[str, Any], count: int) -> list[float] | None:
    """The log-probability of each token of an answer; None where they are not there."""
    told = choice.get("logprobs") or {}
    values: Sequence[Any] = (
        [each.get("logprob") for each in told.get("content") or ()] or told.get("token_logprobs") or ()
    )
    if len(values) != count or any(value is None for value in values):
        return None
    return [float(value) for value in values]
