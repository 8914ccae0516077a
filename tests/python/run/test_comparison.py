"""`spillway check`: both ways agree, a wrong one is found, and a model too large is told with its bytes."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from itertools import product
from pathlib import Path

import pytest

import pairs
import real_runs
import tiny
from both_ways import replace_model
from breadth import some
from needs import package
from spillway import _engine
from spillway._engine import StepUpdate
from spillway.model.head.preference import Compared
from spillway.model.head.row_losses import Preference
from spillway.run.session import EngineSession


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("check"))


def check(given: Path, tmp_path: Path, *more: str) -> int:
    return real_runs.here(given, tmp_path / "out", "--max_steps", "3", *more, verb="check")


@pytest.mark.parametrize(
    ("where", "dtype"), some(product(["dram", "path"], ["fp32", "bf16"]), [("dram", "fp32"), ("path", "bf16")])
)
def test_both_ways_are_equal(
    given: Path, tmp_path: Path, dtype: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = real_runs.on_path(tmp_path / "storage") if where == "path" else []
    assert check(given, tmp_path, "--compute_dtype", dtype, "--weight_decay", "0.1", *places) == 0
    shown = capsys.readouterr().out
    assert "equal but for rounding" in shown
    if dtype == "fp32":
        found = re.search(r"movement of the weights: differs by (\S+)", shown)
        assert found and float(found[1]) < 1e-3
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("storage/*"))  # nothing is left


def test_settings_of_the_update_and_other_names(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plain way has them from the same keys: equal movement says that the engine's update took them, too."""
    words = {"adam_beta1": "0.8", "adam_beta2": "0.9", "adam_epsilon": "1e-5", "warmup_ratio": "0.5",
             "max_grad_norm": "0.3", "activation_checkpointing": "true"}  # fmt: skip
    given_words = [word for name, value in words.items() for word in (f"--{name}", value)]
    assert check(given, tmp_path, "--compute_dtype", "fp32", *given_words) == 0
    shown = capsys.readouterr()
    assert "activation_checkpointing: true means activation_recompute: all" in shown.out + shown.err
    found = re.search(r"movement of the weights: differs by (\S+)", shown.out)
    assert found and float(found[1]) < 1e-3


@pytest.mark.parametrize("dtype", some(["fp32", "bf16"], ["fp32"]))
def test_adapters_as_peft_has_them(given: Path, tmp_path: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    package("peft", "LoRA is PEFT's")
    words = ["--method", "lora", "--lora_r", "4", "--lora_dropout", "0.2", "--weight_decay", "0.1"]
    assert check(given, tmp_path, "--compute_dtype", dtype, "--learning_rate", "1e-2", *words) == 0
    assert "equal but for rounding" in capsys.readouterr().out


@pytest.fixture(scope="module")
def preferred(given: Path) -> list[str]:
    """Words for objective dpo over pairs."""
    tiny.jsonl(given / "pairs.jsonl", pairs.texts(11))
    return ["--objective", "dpo", "--dataset", str(given / "pairs.jsonl"), "--beta", "0.5"]


@pytest.mark.parametrize(
    ("where", "dtype"), some(product(["dram", "path"], ["fp32", "bf16"]), [("dram", "bf16"), ("path", "fp32")])
)
def test_preferences_both_ways(
    given: Path, preferred: list[str], tmp_path: Path, dtype: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = real_runs.on_path(tmp_path / "storage") if where == "path" else []
    assert check(given, tmp_path, "--compute_dtype", dtype, *preferred, *places) == 0
    shown = capsys.readouterr().out
    assert "equal but for rounding" in shown and " 0.69314718 " in shown  # no pair is preferred before a step
    if dtype == "fp32":
        found = re.search(r"movement of the weights: differs by (\S+)", shown)
        assert found and float(found[1]) < 1e-3
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob("storage/*"))


def test_preferences_by_adapters(given: Path, preferred: list[str], tmp_path: Path) -> None:
    package("peft", "LoRA is PEFT's")
    more = ["--method", "lora", "--lora_r", "4", "--loss_type", "ipo"]
    assert check(given, tmp_path, "--compute_dtype", "fp32", *preferred, *more) == 0


def test_preferences_with_what_routers_add(given: Path, preferred: list[str], tmp_path: Path) -> None:
    shutil.copytree(given / "model", tmp_path / "model")
    replace_model(tmp_path / "model", "mixtral")
    path = tmp_path / "model/config.json"
    asked = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    words = ["--compute_dtype", "fp32", "--model", str(tmp_path / "model"), *preferred]
    assert check(given, tmp_path, *words) == 0


def test_a_wrong_preference_is_found(
    given: Path,
    preferred: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spillway.run.session.objective_of", lambda config: partial(Compared, Preference(beta=0.4)))
    assert check(given, tmp_path, "--compute_dtype", "fp32", *preferred) == 1
    assert "BEYOND" in capsys.readouterr().out


def test_a_wrong_update_is_found(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = EngineSession.rates

    def spoil(session: EngineSession, learning_rate: float) -> StepUpdate:
        update = right(session, learning_rate)
        update.hyperparameters = update.hyperparameters | {"beta1": 0.5}
        return update

    monkeypatch.setattr(EngineSession, "rates", spoil)
    assert check(given, tmp_path, "--compute_dtype", "fp32") == 1
    shown = capsys.readouterr().out
    assert "BEYOND" in shown and "The two ways differ." in shown


def test_a_few_layers_where_the_whole_does_not_fit(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = _engine.dram_available
    monkeypatch.setattr(_engine, "dram_available", lambda: 300_000)
    assert check(given, tmp_path, "--compute_dtype", "fp32") == 3
    told = capsys.readouterr().err
    assert re.search(r"needs 3\d\d(\.\d)? KiB for 1\d,\d{3} parameters", told) and "--layers 1" in told
    monkeypatch.setattr(_engine, "dram_available", free)
    assert check(given, tmp_path, "--compute_dtype", "fp32", "--layers", "1") == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--layers", "none"], "layers"),
        (["--state_format", "int8"], "state_format"),
        (["--init", "random"], "init"),
    ],
)
def test_refused(given: Path, tmp_path: Path, words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(given, tmp_path, *words) == 2
    assert part in capsys.readouterr().err
