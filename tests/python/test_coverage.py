"""Every key, verb and file that people rely on is used by a test: one that is added without any is named here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spillway.aliases import ALIASES
from spillway.cli import VERBS
from spillway.config import resolve
from spillway.errors import InputError
from spillway.keys import KEYS

TESTS = Path(__file__).parent
# tables of names, and defaults of sessions made by hand: there a key is written down, not tried
TABLES = ("test_interface.py", "test_coverage.py", "test_config.py", "native.py")
LATER: dict[str, dict[str, object]] = {
    "lora_": {"method": "lora"},
    "lsp_": {"method": "lsp"},
    "trainable": {"trainable": ["x"]},
    "frozen": {"frozen": ["x"]},
}  # keys of what a release may refuse as a whole
FILES = (
    "config.yaml", "plan.json", "metrics.jsonl", "summary.json", "timeline.json.gz", "loss.png", "report.html",
    "model.safetensors", "generation_config.json", "trainer_state.json", "manifest.bin",
)  # fmt: skip
ROWS = ("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens", "step_seconds", "path_bytes", "eval_loss")


def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in TESTS.glob("*.py") if path.name not in TABLES}


def used(name: str) -> bool:
    """As an option, as a key of a mapping or a keyword, or in a configuration file."""
    found = re.compile(rf"--{name}\b|[\"']{name}[\"']|\b{name}=(?!=)|\b{name}: ")
    return any(found.search(text) for text in texts().values())


def is_here(name: str) -> bool:
    for prefix, asked in LATER.items():
        if name.startswith(prefix):
            try:
                resolve(asked, {})
            except InputError:
                return False
    return True


@pytest.mark.parametrize("name", [name for name in (*KEYS, *ALIASES) if is_here(name)])
def test_a_key_is_tried(name: str) -> None:
    assert used(name), f"no test gives {name}"


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_is_called(verb: str) -> None:
    called = re.compile(rf"main\(\[\"{verb}\"|verb=\"{verb}\"|\[\"{verb}\", |\"{verb}\",? ")
    assert any(called.search(text) for text in texts().values()), f"no test calls {verb}"


@pytest.mark.parametrize("name", [*FILES, *ROWS])
def test_what_a_run_leaves_is_looked_at(name: str) -> None:
    assert any(re.search(rf"[\"'/]{re.escape(name)}[\"' ]", text) for text in texts().values())


def test_what_is_not_used_is_found() -> None:
    assert not used("no_such" + "_key") and used("max_steps")
