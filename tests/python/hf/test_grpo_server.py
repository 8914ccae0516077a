"""TRL's GRPOTrainer over a streamed model that samples on a server: equal to itself in memory where the server has the
weights that it was handed, killed and resumed, and servers that are refused."""

from __future__ import annotations

import functools
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import completions
import real_runs
import rollouts
import spillway.hf
from breadth import some
from durable_trainers import PLACEMENT, SAVES
from needs import package
from spillway.errors import InputError, SpillwayError
from spillway.hf import Server, load
from spillway.integrations.server import check_server
from spillway.integrations.server_sampling import MARK, name_run
from test_grpo import close, same_weights
from test_grpo_trainer import CASES, MORE, STEPS, Watched, prompts, storage_keys
from test_grpo_trainer import given as given  # a fixture
from test_trainer_durable import LIMIT, told

trl = package("trl", "TRL is not installed")
DIFFERENCE = "sampling/sampling_logp_difference/max"
RESTART = """
import json, sys, urllib.request
body = json.dumps({"path": sys.argv[2]}).encode()
urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/restart", body)).read()
"""


def streamed(given: Path, out: Path, server: Server, more: Any = None, reward: Any = None, **keys: Any) -> Any:
    from transformers import AutoTokenizer

    keys = {"dtype": "float32", "device": "cpu", **keys}
    return spillway.hf.GRPOTrainer(
        model=load(given / "model", profile=str(given / "profile.json"), generation=server, **keys),
        reward_funcs=reward or Watched(),
        args=rollouts.arguments(out, **{**MORE, **(more or {})}),
        train_dataset=prompts(),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )


def in_memory(given: Path, out: Path, more: Any, reward: Any, model: Any = None) -> Any:
    """TRL's trainer, whose model samples as the server does."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = model or AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    model.generate = functools.partial(completions.generate_by_seeds, model)
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=rollouts.arguments(out, **{**MORE, **more}),
        train_dataset=prompts(),
        processing_class=AutoTokenizer.from_pretrained(given / "model"),
    )
    trainer.train()
    trainer.save_model()
    return trainer


def rows(trainer: Any) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "loss" in row]


def same_rows(ours: Any, plain: Any) -> None:
    assert len(rows(ours)) == len(rows(plain)) == STEPS
    for one, other in zip(rows(ours), rows(plain), strict=True):
        for name in ("loss", "grad_norm", "reward", "entropy", "completions/mean_length"):
            assert close(one[name], other[name]), (one["step"], name, one[name], other[name])


@pytest.mark.parametrize("case", some(["dapo", "grpo"], ["dapo"]))
def test_a_server_samples_with_the_weights_of_each_step(given: Path, tmp_path: Path, case: str) -> None:
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", CASES[case], theirs)
    with completions.serving(given / "model") as server:
        keys = storage_keys(tmp_path / "storage")
        trainer = streamed(given, tmp_path / "ours", Server(server.url), CASES[case], ours, **keys)
        trainer.train()
        trainer.save_model()
    assert ours.tokens == theirs.tokens
    assert len(ours.tokens) == STEPS * rollouts.STEP
    asks = CASES[case].get("temperature", 1.0) != 1.0  # once, for the kind of the server's log-probabilities
    assert len(server.bodies) == len(ours.tokens) + asks
    same_rows(trainer, plain)
    same_weights(*(tmp_path / way / "model.safetensors" for way in ("ours", "plain")))
    assert [Path(place).name for place in server.handed] == [f"step-{step}" for step in range(STEPS)]
    assert [place.name for place in (tmp_path / "ours" / "for-server").iterdir()] == [f"step-{STEPS - 1}"]
    assert all(row[DIFFERENCE] < 1e-4 for row in rows(trainer))


@pytest.mark.parametrize("processed", [False, True])
def test_log_probabilities_of_both_kinds_are_compared_alike(given: Path, tmp_path: Path, processed: bool) -> None:
    with completions.serving(given / "model", processed=processed) as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url), {"temperature": 0.6, "max_steps": 2})
        trainer.train()
    assert len(rows(trainer)) == 2
    assert all(0 < row[DIFFERENCE] < 1e-4 for row in rows(trainer))


MODELS = [
    ({"data": []}, "lists no model: its answer is .*'data'.*; name the one that is trained: Server"),
    ("Not what was asked", "lists no model: its answer is 'Not what was asked'"),
    ({"data": {"id": "a"}}, "lists no model"),
    ({"data": ["a", {"name": "b"}]}, "lists no model"),
    ({"data": [{"id": "a"}, {"id": "b"}, {"id": "c", "parent": "a"}]}, "lists several models: a, b; name the one"),
]


@pytest.mark.parametrize(("answer", "said"), MODELS)
def test_a_server_without_one_model_is_refused(given: Path, tmp_path: Path, answer: Any, said: str) -> None:
    with completions.serving(given / "model", listed=answer) as server:
        with pytest.raises(InputError, match=said):
            streamed(given, tmp_path / "out", Server(server.url))
        streamed(given, tmp_path / "out", Server(server.url, model="a"))


class Refusing(BaseHTTPRequestHandler):
    """Answers each request with one status and these bytes."""

    status, content = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "content", "said"),
    [
        (401, b"no key", r"/v1/models answers with an error: 401 no key; give its key: Server\(..., key=KEY\)"),
        (500, b"it is full", "/v1/models answers with an error: 500 it is full; start one"),
        (200, b"\xff\xfe", "lists no model"),
        (200, b'{"data": [{"id": "a"}, {"id": "b"}, {"id": "a"}]}', "lists several models: a, b; name"),
    ],
)
def test_an_answer_that_is_no_list_of_one_model_is_told(status: int, content: bytes, said: str) -> None:
    handler = type("Handler", (Refusing,), {"status": status, "content": content})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(InputError, match=said):
            check_server(Server(f"http://127.0.0.1:{server.server_port}"), None)
        server.shutdown()


def test_a_server_that_keeps_its_weights_is_seen_in_the_log(given: Path, tmp_path: Path) -> None:
    """The command has loaded nothing: completions are those of other weights, and the figure says so."""
    ours, theirs = Watched(), Watched()
    in_memory(given, tmp_path / "plain", {}, theirs)
    with completions.serving(given / "model") as server:
        trainer = streamed(given, tmp_path / "ours", Server(server.url, update=lambda place: None), reward=ours)
        trainer.train()
    assert ours.tokens != theirs.tokens
    differences = [row[DIFFERENCE] for row in rows(trainer)]
    assert differences[0] < 1e-4
    assert differences[-1] > 1e-2


def test_adapters_are_handed_over_alone(given: Path, tmp_path: Path) -> None:
    peft = package("peft", "LoRA is PEFT's")
    import torch
    from transformers import AutoModelForCausalLM

    asked = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"]}
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype="float32")
    torch.manual_seed(42)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **asked))
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", {}, theirs, adapted)
    keys = {"method": "lora", "lora_r": 4, "lora_alpha": 8, "lora_target_modules": asked["target_modules"]}
    with completions.serving(given / "model") as server:
        trainer = streamed(given, tmp_path / "ours", Server(server.url), None, ours, lora_dropout=0.0, **keys)
        trainer.train()
        trainer.save_model()
    assert ours.tokens == theirs.tokens
    same_rows(trainer, plain)
    same_weights(*(tmp_path / way / "adapter_model.safetensors" for way in ("ours", "plain")))
    (last,) = server.adapters
    assert last.startswith("spillway-") and last.endswith(f"-{STEPS - 1}")
    (place,) = (tmp_path / "ours" / "for-server").iterdir()
    assert not (place / "model.safetensors").exists()


def test_a_directory_of_the_user_s_keeps_all_that_spillway_did_not_make(given: Path, tmp_path: Path) -> None:
    """Directories of a run that was killed are removed, and those with the same form of name stay."""
    shared = tmp_path / "shared" / name_run(str(tmp_path / "out"))
    killed = shared / "step-7"
    for name in ("step-7", "step-8", "step-best"):
        (shared / name).mkdir(parents=True)
        (shared / name / "model.safetensors").write_text("weights")
    (killed / "original").mkdir()
    for name in ("step-7", "step-best"):  # the second one is a copy
        (shared / name / MARK).write_text(killed.name)
    (shared / "step-9").symlink_to(killed)
    (shared / "step-0").mkdir()  # a run was killed before it had the mark
    with completions.serving(given / "model") as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url, directory=shared.parent), {"max_steps": 2})
        trainer.train()
    assert sorted(place.name for place in shared.iterdir()) == ["step-1", "step-8", "step-9", "step-best"]
    assert (shared / "step-8" / "model.safetensors").read_text() == "weights"
    assert (shared / "step-best" / "model.safetensors").read_text() == "weights"


def test_runs_that_share_a_directory_keep_the_weights_of_each_other(given: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with completions.serving(given / "model") as server:
        for name in ("one", "other"):
            trainer = streamed(given, tmp_path / name, Server(server.url, directory=shared), {"max_steps": 2})
            trainer.train()
    folders = {name_run(str(tmp_path / name)) for name in ("one", "other")}
    assert {place.name for place in shared.iterdir()} == folders and len(folders) == 2
    assert all((shared / name / "step-1" / "model.safetensors").is_file() for name in folders)


@pytest.mark.parametrize("kind", ["directory", "file", "link"])
def test_a_place_that_spillway_did_not_make_is_refused(given: Path, tmp_path: Path, kind: str) -> None:
    shared, kept = tmp_path / "shared", tmp_path / "kept"
    place = shared / name_run(str(tmp_path / "out")) / "step-0"
    place.parent.mkdir(parents=True)
    if kind == "file":
        place.write_text("weights")
    else:
        directory = place if kind == "directory" else kept
        directory.mkdir()
        (directory / "model.safetensors").write_text("weights")
    if kind == "link":
        place.symlink_to(kept)
    with completions.serving(given / "model") as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url, directory=shared))
        with pytest.raises(InputError, match="step-0 exists and is not a directory that Spillway made.* directory="):
            trainer.train()
    assert (place if kind == "file" else place / "model.safetensors").read_text() == "weights"


@pytest.mark.parametrize("way", ["command", "function"])
def test_another_server_is_told_by_a_command_or_a_function(given: Path, tmp_path: Path, way: str) -> None:
    """llama.cpp's words, and a server that takes a while to come back."""
    ours, theirs = Watched(), Watched()
    plain = in_memory(given, tmp_path / "plain", {"max_steps": 2}, theirs)
    with completions.serving(given / "model", form="llama.cpp", unready=3) as server:
        update: Any = (
            [sys.executable, "-c", RESTART, server.url] if way == "command" else lambda at: server.load(str(at))
        )
        trainer = streamed(given, tmp_path / "ours", Server(server.url, update=update), {"max_steps": 2}, ours)
        trainer.train()
    assert ours.tokens == theirs.tokens
    assert len(server.handed) == 2
    assert close(rows(trainer)[-1]["loss"], rows(plain)[-1]["loss"])
    assert (Path(server.handed[-1]) / "tokenizer_config.json").exists()


def test_texts_without_token_ids_are_tokenized_again(given: Path, tmp_path: Path, caplog: Any) -> None:
    with completions.serving(given / "model", form="texts") as server:
        update = functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1})
        trainer.train()
    assert "tokenized again" in caplog.text
    assert DIFFERENCE not in rows(trainer)[0]


def test_a_server_of_texts_alone_gets_texts_of_the_same_tokens(given: Path, tmp_path: Path) -> None:
    """The server of llama-cpp-python, which gives no log-probabilities either."""
    with completions.serving(given / "model", form="texts alone") as server:
        update = functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1})
        trainer.train()
    expected = [trainer.processing_class(row["prompt"])["input_ids"] for row in prompts()]
    assert len(server.bodies) == 1 + rollouts.STEP
    assert all(body["prompt"] in expected for body in server.bodies[1:])
    assert DIFFERENCE not in rows(trainer)[0]


def test_a_text_of_fewer_tokens_than_were_sampled_is_taken(given: Path, tmp_path: Path) -> None:
    """Bytes that are no characters leave the text. The server's own count says that the completion is whole."""
    reward = Watched()
    with completions.serving(given / "model", form="texts") as server:
        answer = server.answer

        def leave_bytes_out(path: str, body: Any) -> tuple[int, Any]:
            if path != "/v1/completions":
                return answer(path, body)
            whole = {"usage": {"completion_tokens": body["max_tokens"]}}
            return 200, {"choices": [{"text": "rain", "finish_reason": "length"}], **whole}

        server.answer = leave_bytes_out  # type: ignore[method-assign]
        update = functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1}, reward)
        trainer.train()
    assert len(reward.tokens) == rollouts.STEP
    assert all(0 < len(ids) < MORE["max_completion_length"] for ids in reward.tokens)


class Spaced:
    """A tokenizer of the server that makes other tokens of each text with a space."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def __call__(self, text: str, **named: Any) -> Any:
        return self.tokenizer(text.replace(" ", "  "), **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("refuses", [3, 1000])
def test_a_text_that_the_server_refuses_is_sampled_again(
    given: Path, tmp_path: Path, caplog: Any, refuses: int
) -> None:
    with completions.serving(given / "model", form="llama.cpp") as server:
        server.refuses, update = refuses, functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1})
        if refuses > STEPS:
            with pytest.raises(SpillwayError, match="does not match the expected Content-only format"):
                trainer.train()
            return
        trainer.train()
    assert len(server.bodies) == refuses + rollouts.STEP  # the first asks which requests the server takes
    assert "refused a completion of its own" in caplog.text
    assert DIFFERENCE in rows(trainer)[0]


def test_a_server_of_texts_alone_with_other_tokens_is_refused(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model", form="texts alone") as server:
        update = functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1})
        server.tokenizer = Spaced(server.tokenizer)
        with pytest.raises(SpillwayError, match="takes prompts as texts alone, and of .* it makes other tokens"):
            trainer.train()


def test_a_server_that_completes_nothing_is_refused(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model", form="texts") as server:
        answer = server.answer
        server.answer = lambda path, body: (  # type: ignore[method-assign]
            (500, "no slot is free") if path == "/v1/completions" else answer(path, body)
        )
        update = functools.partial(real_load, server)
        trainer = streamed(given, tmp_path / "out", Server(server.url, update=update), {"max_steps": 1})
        with pytest.raises(InputError, match="gives no completion of .*: 500 .*no slot is free.*llama-server"):
            trainer.train()


def real_load(server: completions.Completions, place: Path) -> None:
    server.load(str(place))


KILLED = """
from pathlib import Path
import test_grpo_server as tests
tests.train_durably(*map(Path, sys.argv[1:4]), sys.argv[4])
"""


def train_durably(given: Path, out: Path, storage: Path, url: str) -> None:
    storage.mkdir(exist_ok=True)
    keys = {"storage": f"{storage},capacity=256MiB", "placement": PLACEMENT, "durability": "step"}
    more = {**SAVES, "logging_steps": 2, "max_steps": 7}
    trainer = streamed(given, out, Server(url), more, **keys)
    trainer.train(resume_from_checkpoint="auto")
    trainer.save_model()
    trainer.close()


@pytest.mark.parametrize("method", some(["save_model", "gradients", "update"], ["gradients"]))
def test_a_kill_after_the_rollouts_changes_no_bit(given: Path, tmp_path: Path, method: str) -> None:
    """`gradients` is called when the server has sampled. It then has the weights of a later step than the run."""
    with completions.serving(given / "model") as server:
        train_durably(given, tmp_path / "whole", tmp_path / "storage_whole", server.url)
        there = (str(given), str(tmp_path / "out"), str(tmp_path / "storage"), server.url)
        words = [real_runs.dying(method) + KILLED, *there]
        killed = real_runs.apart("-c", *words, env_more={"DIES_AFTER": "1e-6", "DIES_IN": "5"})
        _, error = killed.communicate(timeout=LIMIT)
        assert killed.returncode == -14, error[-3000:]
        resumed = real_runs.apart("-c", *words)
        _, error = resumed.communicate(timeout=LIMIT)
        assert resumed.returncode == 0, error[-3000:]
    expected, found = told(tmp_path / "whole"), told(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name


# ---- refusals


def test_no_server_is_refused_with_what_to_install(given: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no server answers at http://127.0.0.1:9 .*pip install vllm.*llama-server"):
        streamed(given, tmp_path / "out", Server("http://127.0.0.1:9"))


class Bytes:
    """A tokenizer without merges."""

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


def test_a_model_of_another_vocabulary_is_refused(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model") as server:
        server.tokenizer = Bytes()
        with pytest.raises(InputError, match="another vocabulary: of 'The sum .* Serve the model that is trained"):
            streamed(given, tmp_path / "out", Server(server.url))


def test_a_server_that_does_not_reload_is_named(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model", form="llama.cpp") as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url))
        with pytest.raises(
            SpillwayError, match="not taken the weights of step 0: 404 .*VLLM_SERVER_DEV_MODE=1; for an"
        ):
            trainer.train()


def test_a_short_context_is_named(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model", ends_after=3) as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url))
        with pytest.raises(SpillwayError, match="ended a completion after 3 tokens, and max_completion_length is 12"):
            trainer.train()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": None, "token_ids": None}, "127.* answers /v1/completions with .* no choice with `text`"),
        ({"token_ids": [5, None]}, "answers /v1/completions with .*5, None"),
        ({"logprobs": [1.0]}, "answers /v1/completions with "),
        ({"finish_reason": "abort"}, "finish_reason 'abort'; expects stop or length"),
        ({"finish_reason": None}, "finish_reason None; expects stop or length"),
        ({"token_ids": [5] * 13, "finish_reason": "length"}, "127.* gave 13 tokens .* it ignores max_tokens"),
    ],
)
def test_an_answer_that_is_no_completion_is_named(
    given: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with completions.serving(given / "model") as server:
        complete = server.complete
        server.complete = lambda body: {**complete(body), **changes}  # type: ignore[method-assign]
        trainer = streamed(given, tmp_path / "out", Server(server.url))
        with pytest.raises(SpillwayError, match=said):
            trainer.train()


def test_a_connection_cut_inside_an_answer_names_the_way_to_resume(given: Path, tmp_path: Path) -> None:
    with completions.serving(given / "model", cuts=True) as server:
        trainer = streamed(given, tmp_path / "out", Server(server.url))
        with pytest.raises(
            SpillwayError, match=r"ended inside the answer to /v1/completions.*train\(resume_from_checkpoint=True\)"
        ):
            trainer.train()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"generation_kwargs": {"num_beams": 2}}, "generation_kwargs: num_beams is not for a server"),
        ({"use_vllm": True}, "use_vllm: True is not computed .* load\\(..., generation=Server"),
    ],
)
def test_arguments_for_another_way_to_sample_are_refused(
    given: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        streamed(given, tmp_path / "out", Server("http://127.0.0.1:9"), more)


def test_a_server_is_for_trainers_that_generate(given: Path, tmp_path: Path) -> None:
    import transformers

    with pytest.raises(InputError, match="generation='http://a' is not taken: expects spillway.hf.Server"):
        load(given / "model", generation="http://a")
    with pytest.raises(InputError, match="Server: 'localhost:8000' is no address"):
        Server("localhost:8000")
    model = load(given / "model", device="cpu", generation=Server("http://127.0.0.1:9"))
    with pytest.raises(InputError, match="generation: of the trainers GRPOTrainer alone generates"):
        spillway.hf.Trainer(model, transformers.TrainingArguments(str(tmp_path / "out"), use_cpu=True))
