"""Every figure of README, docs and the table of results is held by a file: this tree keeps to it, and what does not is
found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from folders import REPOSITORY

sys.path += [str(REPOSITORY / "scripts"), str(REPOSITORY / "bench")]
import recorded  # noqa: E402
import table  # noqa: E402

import check_figures  # noqa: E402

DECLARED = """
[made]
[apart]
"notes.md" = "history"
[[figure]]
page = "README.md"
text = "A step takes {own} s"
own = { of = "steps-path.json:rounds[*].spillway.median", how = "each" }
"""
HELD = "A step takes 14.7 and 14.4 s."


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=REPOSITORY, check=False)


def complaints(place: Path, readme: str, more: str = "", declared: str = DECLARED) -> str:
    """Of a tree with this README."""
    (place / "docs").mkdir(exist_ok=True)
    (place / check_figures.DECLARED).write_text(declared + more)
    (place / "README.md").write_text(readme)
    (place / "notes.md").write_text("It took 3.4 s once.")
    return "\n".join(check_figures.wrong(place))


def test_every_figure_of_this_tree_is_held_or_declared() -> None:
    done = run("scripts/check_figures.py")
    assert done.returncode == 0, done.stderr


def test_the_table_is_what_its_files_say() -> None:
    done = run("bench/table.py", "--check")
    assert done.returncode == 0, done.stderr
    quoted = {row["file"] for row in table.rows()}
    assert {*quoted, *table.others()} == {path.name for path in table.RESULTS.iterdir() if path.suffix != ".md"}


def test_what_the_file_holds_passes(tmp_path: Path) -> None:
    assert complaints(tmp_path, HELD) == ""
    assert complaints(tmp_path, HELD.replace(" ", "\n", 3)) == "", "lines may break anywhere"
    assert complaints(tmp_path, f"{HELD} `--dram_budget 4GiB` takes it, see arXiv 2406.10181 and version 1.2.3.") == ""


@pytest.mark.parametrize("text", ["A step takes 14.6 and 14.4 s.", "A step takes 14.4 s.", "A step takes 14.9 s."])
def test_a_figure_that_is_not_the_files_is_found(tmp_path: Path, text: str) -> None:
    found = complaints(tmp_path, text)
    assert "'A step takes 14.7 and 14.4 s', as docs/figures.toml has it from the files, is not on the page" in found


@pytest.mark.parametrize(
    "text",
    [
        "14.9 s", "2.9 GiB", "13.6 %", "13.6%", "206 MB", "1.14 of it", "a ratio of 0.76", "70 tokens a second",
        "53375 tokens/s", "400 MB/s", "12.7, 13.0 and 14 s", "18 ms", "3.6e-7 at most", "1.02 G params/s",
        "100 billion updates a second", "three quarters of the time", "twice as fast", "in two weeks", "five seconds",
        "eleven times", "6 bytes", "29 minutes", "+1.17 %", "1 TFLOPS",
    ],
)  # fmt: skip
def test_a_figure_that_nothing_declares_is_found(tmp_path: Path, text: str) -> None:
    found = complaints(tmp_path, f"{HELD}\n\nIt is {text}, as a rule.\n")
    assert found.startswith("README.md: ") and "is declared by nothing in docs/figures.toml" in found
    table_row = complaints(tmp_path, f"{HELD}\n\n| a | b |\n|---|---|\n| `x` | {text} |\n")
    assert "is declared by nothing" in table_row


def test_what_a_declaration_may_say(tmp_path: Path) -> None:
    def declared(*lines: str, readme: str = "Pieces have 4 KiB.") -> str:
        entry = "\n".join(("[[figure]]", 'page = "README.md"', *lines))
        return complaints(tmp_path, f"{HELD}\n{readme}", entry + "\n")

    text = 'text = "4 KiB"'
    assert declared(text, 'is = "setting"') == ""
    assert "says neither which file holds it" in declared(text)
    assert "`is` is one of setting" in declared(text, 'is = "measured by me"')
    assert "`held` names the test" in declared(text, 'is = "tested"')
    assert "does not hold '5 KiB'" in declared(text, 'is = "setting"', 'held = "README.md: 5 KiB"')
    assert "is not on the page" in declared('text = "8 KiB"', 'is = "setting"')
    own = 'own = { of = "steps-path.json:rounds[*].spillway.median", how = "each" }'
    twice = declared('text = "{own} s"', own, readme=f"{HELD} 4 KiB")
    assert "is there 2 times" in twice


def test_durability_typed_beside_a_figure_is_refused(tmp_path: Path) -> None:
    entry = """
[[figure]]
page = "README.md"
text = "7B, durability {WORD}, took {own} s"
own = { of = "large.json:runs[shape=7B].step_seconds[*]", how = "max" }
"""
    readme = "A step takes 14.7 and 14.4 s. 7B, durability none, took 61.5 s."
    assert "its durability is typed" in complaints(tmp_path, readme, entry.replace("{WORD}", "none"))
    entry = entry.replace("{WORD}", "{kind}") + 'kind = "large.json:runs[shape=7B].durability"\n'
    assert complaints(tmp_path, readme, entry) == ""
    assert "is not on the page" in complaints(tmp_path, readme.replace("none", "step"), entry)


def test_a_figure_typed_into_the_table_is_found(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    row = '[[row]]\nclaim = "A step under 3 GiB"\nnumber = "14.9 s beside {own}"\n'
    (tmp_path / check_figures.TABLE).write_text(row)
    found = complaints(tmp_path, HELD)
    assert "'3 GiB' of 'A step under 3 GiB'" in found and "'14.9 s' of '14.9 s beside {own}'" in found
    (tmp_path / check_figures.TABLE).write_text(row + 'set = ["3 GiB"]\n')
    assert "3 GiB" not in complaints(tmp_path, HELD)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ({"of": "nothing.json:a"}, "bench/results has no such file"),
        ({"of": "steps-path.json:rounds[*].spilway.median"}, "there is no '.spilway'|there is no 'spilway'"),
        ({"of": "steps-path.json:rounds[*].spillway.median"}, "nothing says which"),
        ({"of": "steps-path.json:rounds[0].spillway.median"}, "is one of 2"),
        ({"of": "steps-path.json:median_ratio", "show": ".2f", "best": 1}, "best is none of"),
        ({"of": "steps-path.json:rounds[*].spillway.plan.bottleneck", "how": "each"}, "is not a number"),
    ],
)
def test_a_place_that_holds_no_figure_is_refused(figure: dict[str, object], words: str) -> None:
    with pytest.raises(recorded.NotHeld, match=words):
        recorded.shown(figure)


def test_no_repeat_is_left_out_of_predictions() -> None:
    """What was measured again is kept beside, and the summary counts all of it."""
    held = json.loads((REPOSITORY / "bench/results/prediction.json").read_text())
    errors = [abs(row["error"]) for row in (*held["rows"], *held["earlier"])]
    assert held["summary"]["measurements"] == len(errors) > len(held["rows"])
    assert held["summary"]["worst"] == max(errors)
