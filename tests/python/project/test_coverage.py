"""Every key, verb and file that people rely on is used by a test: one that is added without any is named here."""

from __future__ import annotations

import re
from functools import cache

from folders import TESTS
from spillway.cli import VERBS
from spillway.config import resolve
from spillway.config.aliases import ALIASES
from spillway.config.keys import KEYS
from spillway.errors import InputError

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


@cache
def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in TESTS.rglob("*.py") if path.name not in TABLES}


def used(name: str) -> bool:
    """As an option, as a key of a mapping or a keyword, or in a configuration file."""
    return found(re.compile(rf"--{name}\b|[\"']{name}[\"']|\b{name}=(?!=)|\b{name}: "))


def found(pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(text) for text in texts().values())


def is_here(name: str) -> bool:
    for prefix, asked in LATER.items():
        if name.startswith(prefix):
            try:
                resolve(asked, {})
            except InputError:
                return False
    return True


def test_all_of_it_is_tried() -> None:
    called = {verb: re.compile(rf"main\(\[\"{verb}\"|verb=\"{verb}\"|\[\"{verb}\", |\"{verb}\",? ") for verb in VERBS}
    looked_at = {name: re.compile(rf"[\"'/]{re.escape(name)}[\"' ]") for name in (*FILES, *ROWS)}
    missing = [f"no test gives {name}" for name in (*KEYS, *ALIASES) if is_here(name) and not used(name)]
    for word, patterns in (("calls", called), ("looks at", looked_at)):
        missing += [f"no test {word} {name}" for name, pattern in patterns.items() if not found(pattern)]
    assert not missing


def test_what_is_not_used_is_found() -> None:
    assert not used("no_such" + "_key") and used("max_steps")
