"""Modules that are not transformers' own in a Session: beside a plain loop, what is refused, the example."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn
from torch.nn import functional

import spillway
import warm
from folders import REPOSITORY
from native import profile
from spillway.errors import InputError
from spillway.model.checkpoint import initialise

EXAMPLE = REPOSITORY / "examples/module"
VOCABULARY = 97


def decoder_module() -> Any:
    spec = importlib.util.spec_from_file_location("example_decoder", EXAMPLE / "decoder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Decoder, Block = decoder_module().Decoder, decoder_module().Block


class Mixer(nn.Module):
    """A causal mean over what came before: another kind of block, with a buffer that no checkpoint holds."""

    def __init__(self, width: int, longest: int = 128) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        mean = torch.ones(longest, longest).tril() / torch.arange(1, longest + 1)[:, None]
        self.register_buffer("mean", mean, persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        length = hidden.shape[1]
        return hidden + self.mean[:length, :length] @ self.up(hidden).tanh()


class Mixed(nn.Module):
    """Nothing tied, blocks of two kinds in a Sequential, a head with a bias and a scale; returns a tuple."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"words": nn.Embedding(VOCABULARY, width)})
        blocks = [Block(width, 2) if place % 2 else Mixer(width) for place in range(depth)]
        self.body["blocks"] = nn.Sequential(*blocks)
        self.head = nn.Linear(width, VOCABULARY)
        self.scale = 0.5

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.head(self.body["blocks"](self.body["words"](ids))) * self.scale, None


class PartlyFrozen(Mixed):
    """Its own code says that the words and the first block do not learn."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.body["words"].requires_grad_(False)
        self.body["blocks"][0].requires_grad_(False)


class OnlyLast(Decoder):  # type: ignore[misc, valid-type]
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids[:, -1:])


class Between(Decoder):  # type: ignore[misc, valid-type]
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(input_ids)
        for block in self.blocks:
            hidden = block(hidden * 2)
        return self.head(hidden)


def tied(width: int, depth: int) -> nn.Module:
    return Decoder(VOCABULARY, width, 2, depth)  # type: ignore[no-any-return]


TIED = spillway.Blocks(partial(tied, 32, 3), partial(tied, 16, 2), "blocks", "words", "head")
KINDS = {
    "tied": TIED,
    "two kinds": spillway.Blocks(partial(Mixed, 32, 5), partial(Mixed, 16, 2), "body.blocks", "body.words", "head"),
    "partly frozen": spillway.Blocks(
        partial(PartlyFrozen, 32, 5), partial(PartlyFrozen, 16, 2), "body.blocks", "body.words", "head"
    ),
}


def saved(build: Callable[[], nn.Module], place: Path) -> Path:
    place.mkdir()
    torch.manual_seed(3)
    save_model(build(), place / "model.safetensors", {"format": "pt"})
    profile(place)
    return place


def session(blocks: spillway.Blocks, place: Path, **more: Any) -> spillway.Session:
    keys = {
        "model": str(place), "profile": str(place / "profile.json"), "compute_dtype": "fp32", "learning_rate": 1e-3,
        "lr_scheduler_type": "constant", "max_length": 24, "per_device_train_batch_size": 2, "adam_epsilon": 1e-4,
        "gradient_accumulation_steps": 2, **more,
    }  # fmt: skip
    return spillway.Session(module=blocks, **keys)


def steps(count: int) -> list[list[dict[str, torch.Tensor]]]:
    generator = torch.Generator().manual_seed(5)
    ids = [torch.randint(0, VOCABULARY, (2, length), generator=generator) for _ in range(count) for length in (24, 17)]
    return [[{"input_ids": i, "labels": i} for i in ids[2 * step : 2 * step + 2]] for step in range(count)]


def plain_step(model: Any, optimizer: Any, batches: list[dict[str, torch.Tensor]]) -> float:
    count = sum(batch["labels"][:, 1:].numel() for batch in batches)
    total = 0.0
    for batch in batches:
        logits = model(batch["input_ids"])
        logits = logits[0] if isinstance(logits, tuple) else getattr(logits, "logits", logits)
        targets = batch["labels"][:, 1:].flatten()
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_plain_loop(kind: str, tmp_path: Path) -> None:
    blocks = KINDS[kind]
    place = saved(blocks.build, tmp_path / "weights")
    plain = blocks.build()
    load_model(plain, place / "model.safetensors")
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0, eps=1e-4)
    with session(blocks, place) as ours:
        for step in steps(5):
            assert ours.step(step)["loss"] == pytest.approx(plain_step(plain, optimizer, step), rel=1e-5)
        ids = steps(1)[0][0]["input_ids"]
        logits = plain(ids)
        expected = logits[0] if isinstance(logits, tuple) else logits
        torch.testing.assert_close(ours.model(ids).logits, expected.detach(), rtol=1e-4, atol=1e-5)
        ours.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved/model.safetensors").keys() == load_file(place / "model.safetensors").keys()
    again = blocks.build()
    load_model(again, tmp_path / "saved/model.safetensors")
    for one, other in zip(again.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_and_computes_in_bf16(tmp_path: Path) -> None:
    place = saved(TIED.build, tmp_path / "weights")
    keys = {"compute_dtype": "bf16"}
    with session(TIED, place, **keys) as whole:
        expected = [whole.step(step)["loss"] for step in steps(4)]
    with session(TIED, place, **keys) as first:
        found = [first.step(step)["loss"] for step in steps(4)[:2]]
        first.save(tmp_path / "half")
    again = {"output_dir": str(tmp_path / "out"), "resume_from_checkpoint": str(tmp_path / "half")}
    with session(TIED, place, **keys, **again) as second:
        found += [second.step(step)["loss"] for step in steps(4)[2:]]
    assert found == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": "layers"}, "no part 'layers'; it has words, places, blocks"),
        ({"embedding": "norm"}, "no embedding table and linear head"),
        ({"build": partial(OnlyLast, 97, 32, 2, 3)}, "OnlyLast"),
        ({"build": partial(Between, 97, 32, 2, 3)}, "changes the hidden state between its layers"),
        ({"small": lambda: None}, "build and small return an nn.Module"),
    ],
)
def test_what_cannot_be_streamed_is_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    place = saved(TIED.build, tmp_path / "weights")
    with pytest.raises(InputError, match=words):
        session(spillway.Blocks(**{**vars(TIED), **change}), place)


def test_packing_asks_for_a_model_that_keeps_rows_apart(tmp_path: Path) -> None:
    place = saved(TIED.build, tmp_path / "weights")
    with pytest.raises(InputError, match="packing: module does not keep the rows of a packed sequence apart"):
        session(TIED, place, packing=True)


class Shifted(Mixer):
    """With a buffer that checkpoints hold, drawn like weights."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("shift", torch.randn(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + self.shift


class Buffered(Mixed):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.body["blocks"][0] = Shifted(width)


BUFFERED = spillway.Blocks(partial(Buffered, 32, 5), partial(Buffered, 16, 2), "body.blocks", "body.words", "head")


@pytest.mark.parametrize("blocks", [TIED, KINDS["two kinds"], BUFFERED], ids=["tied", "two kinds", "a buffer"])
def test_random_weights_are_the_constructors(blocks: spillway.Blocks, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    profile(tmp_path / "empty")
    torch.manual_seed(11)
    plain = blocks.build()
    with session(blocks, tmp_path / "empty", init="random", seed=11) as ours:
        ours.save(tmp_path / "saved")
        at_once = initialise.work_bytes(ours._engine._spec.meta_model)
    assert at_once == 4 * sum(p.numel() for p in plain.parameters()), "all of it is drawn at once, and planned"
    save_model(plain, tmp_path / "expected.safetensors", {"format": "pt"})
    found, expected = (load_file(tmp_path / name) for name in ("saved/model.safetensors", "expected.safetensors"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_keys_without_effect_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place, keys = saved(TIED.build, tmp_path / "weights"), {"save_steps": 2, "save_whole_steps": 2, "max_steps": 5}
    session(TIED, place, **keys, eval_strategy="no").close()
    told = " ".join(capfd.readouterr().err.split())
    assert "save_steps, save_whole_steps: no effect in a Session" in told and "eval_strategy" not in told
    session(TIED, place, max_steps=5).close()
    assert "no effect" not in capfd.readouterr().err


def run(script: str, *words: Path) -> list[float]:
    process = warm.python(EXAMPLE / script, *words)
    shown, error = process.communicate()
    assert process.returncode == 0, error[-2000:]
    return [float(line.split()[1]) for line in shown.splitlines() if line.startswith("loss")]


def test_the_example_before_and_after(tmp_path: Path) -> None:
    place = saved(partial(Decoder, vocabulary=300, width=64, heads=4, depth=3), tmp_path / "weights")
    (tmp_path / "storage").mkdir()
    before = run("plain.py", place, tmp_path / "before")
    after = run("streamed.py", place, tmp_path / "after", tmp_path / "storage")
    assert len(before) == 6 and after == pytest.approx(before, rel=1e-6)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("before", "after"))
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=5e-5)  # they move 6e-3
