"""The report: figures as a browser shows them, light and dark, and that its words follow from what was measured."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import real_runs
import spillway
from breadth import some
from browser import FLAGS, PROGRAM
from needs import needs
from real_runs import here, on_path
from spillway import report
from spillway._engine import task_kinds
from spillway.base.sizes import duration, pace, size
from spillway.errors import InputError
from spillway.output import identity
from spillway.output.records import rows
from spillway.output.summary import quartiles
from spillway.report import advice, charts, timeline
from spillway.report.causes import causes
from spillway.report.facts import read
from spillway.report.timeline import KINDS, Span, steps, union
from spillway.run.loop import Loop


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with most of its state on a path, and evaluations."""
    given = real_runs.inputs(tmp_path_factory.mktemp("given"))
    storage = given / "storage"
    storage.mkdir()
    words = [*on_path(storage)[2:], "--storage", f"{storage},capacity=512MiB,endurance=1GB"]
    held_out = ["--eval_dataset", str(given / "held_out.jsonl"), "--max_steps", "6"]
    assert here(given, given / "out", *words, *held_out) == 0
    return given / "out"


def summary(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "summary.json").read_text()))


class Figures(HTMLParser):
    """Text of every element with an id, as a browser laid the page out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._open: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "line", "rect", "circle", "polyline", "polygon"):
            name = dict(attrs).get("id")
            self._open.append(name)
            if name:
                assert name not in self.found, f"two elements are called {name}"
                self.found[name] = ""

    def handle_endtag(self, tag: str) -> None:
        if self._open and tag not in ("meta", "line", "rect", "circle", "polyline", "polygon"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for name in self._open:
            if name:
                self.found[name] += data


def browser(*words: str) -> str:
    needs("chromium", PROGRAM, "no Chromium here (apt-get install chromium): the page is not opened in a browser")
    command = [PROGRAM, *FLAGS, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def check_figures(found: dict[str, str], run: Path) -> None:
    told, logged = summary(run), list(rows(run / "metrics.jsonl"))
    losses = [row["loss"] for row in logged if "loss" in row]
    assert found["steps"] == "6" and found["loss"] == f"{losses[-1]:.4f}"
    assert found["step-measured"] == duration(told["step_seconds"]["measured"])
    assert found["step-predicted"] == duration(told["step_seconds"]["predicted"])
    here = [row for row in logged if "loss" in row]
    speed = sum(row["tokens"] for row in here) / len(here) / told["step_seconds"]["measured"]
    assert found["tokens-per-second"] == pace(speed)
    assert duration(told["step_seconds"]["measured"]) in found["about-times"]
    dram = next(tier for tier in told["tiers"] if tier["name"] == "dram")
    assert found["planned-dram"] == size(dram["planned_peak"]) and found["peak-dram"] == size(dram["measured_peak"])
    assert found["written-path-0"] == size(told["written"]["path:0"])
    assert found["advice"].startswith("This run is bound by")


def test_figures_as_a_browser_shows_them(finished: Path, tmp_path: Path) -> None:
    page = browser("--dump-dom", f"file://{finished / report.NAME}")
    check_figures(Figures(page).found, finished)
    for shape in ("polyline", "polygon"):
        assert f"<{shape} " in page
    assert page.count("<svg") >= 5


@pytest.mark.parametrize("scheme", some(["light", "dark"], ["dark"]))
def test_it_is_drawn_in_light_and_dark(finished: Path, tmp_path: Path, scheme: str) -> None:
    """The page's own background in a corner of the picture: both schemes are the page's, not the browser's."""
    from matplotlib import pyplot

    picture = Path(os.environ.get("SPILLWAY_SCREENSHOTS", tmp_path)) / f"report-{scheme}.png"
    dark = (
        ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else ["--blink-settings=preferredColorScheme=1"]
    )
    browser(
        "--hide-scrollbars",
        "--window-size=1100,2600",
        *dark,
        f"--screenshot={picture}",
        f"file://{finished / report.NAME}",
    )
    pixels = pyplot.imread(picture)
    corner = [round(255 * float(value)) for value in pixels[2, 2][:3]]
    assert corner == ([251, 251, 250] if scheme == "light" else [20, 24, 28])
    assert len({tuple(row) for row in (pixels[::7, ::7, :3] * 255).astype(int).reshape(-1, 3)}) > 10


def test_figures_without_a_browser(finished: Path) -> None:
    page = (finished / report.NAME).read_text()
    check_figures(Figures(page).found, finished)
    for outside in ("http://", "https://", "<script", "@import", "url("):
        assert outside not in page, "the page stands alone"


def test_the_verb_and_a_place_of_ones_own(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert real_runs.main(["report", str(finished), "--to", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert real_runs.main(["report", str(tmp_path)]) == 2


def test_a_place_that_cannot_be_written_is_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path / "none" / "page.html", tmp_path):
        assert real_runs.main(["report", str(finished), "--to", str(place)]) == 2
        assert f"to: {place} cannot be written" in capsys.readouterr().err


def test_a_run_that_goes_on_has_a_page_too(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    for name in ("summary.json", "timeline.json.gz"):
        (tmp_path / "out" / name).unlink()
    found = Figures(report.write(tmp_path / "out").read_text()).found
    assert found["steps"] == "6" and found["advice"].startswith("Nothing is measured yet")
    (tmp_path / "out/metrics.jsonl").write_text("")
    assert "No step has been logged yet" in report.write(tmp_path / "out").read_text()
    with pytest.raises(InputError, match="no run"):
        report.write(tmp_path)


def test_a_running_runs_page_knows_what_is_known_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written between two steps, as another process would."""
    given = real_runs.inputs(tmp_path / "given")
    out, pages = tmp_path / "out", {}
    step = Loop.step

    def reported(trainer: Loop) -> None:
        step(trainer)
        pages[trainer.state.step] = report.write(out, tmp_path / "page.html", advise=False).read_text()

    monkeypatch.setattr(Loop, "step", reported)
    assert here(given, out, *on_path(tmp_path / "storage"), "--max_steps", "3") == 0
    first, third = Figures(pages[1]).found, Figures(pages[3]).found
    assert first["steps"] == "1" and "seconds-compute" not in first and "Known after the second step" in pages[1]
    assert third["steps"] == "3" and "still running" in pages[3]
    assert "seconds-compute" in third and third["step-measured"] != "-"
    assert "The step" in pages[3] and "<svg" in pages[3].split("<h2>The step</h2>")[1]
    assert not (out / identity.SO_FAR).exists() and not (out / identity.TIMELINE).exists()
    assert "still running" not in report.write(out).read_text()


def test_a_loop_of_ones_own_has_a_running_page_too(tmp_path: Path) -> None:
    given, out, pages = real_runs.inputs(tmp_path / "given"), tmp_path / "out", []
    keys = {
        "model": str(given / "model"), "profile": str(given / "profile.json"), "output_dir": str(out), "max_length": 24,
        "per_device_train_batch_size": 2, "learning_rate": 1e-3, "lr_scheduler_type": "constant",
    }  # fmt: skip
    ids = torch.arange(3, 51).view(2, 24)
    with spillway.Session(keys) as session:
        for _ in range(3):
            session.step({"input_ids": ids, "labels": ids})
            pages.append(report.write(out, tmp_path / "page.html", advise=False).read_text())
    first, third = Figures(pages[0]).found, Figures(pages[2]).found
    assert first["steps"] == "1" and "seconds-compute" not in first
    assert third["steps"] == "3" and "seconds-compute" in third and "still running" in pages[2]
    assert "<svg" in pages[2].split("<h2>The step</h2>")[1]
    assert not (out / identity.SO_FAR).exists() and not (out / identity.TIMELINE).exists()
    assert "still running" not in report.write(out).read_text()


def test_causes_sum_to_the_median_step(finished: Path) -> None:
    facts = read(finished)
    found = causes(facts)
    assert sum(cause.seconds for cause in found) == pytest.approx(facts.step_seconds)
    assert found[0].name == "compute"


SECONDS = (9.0, 1.0, 1.6, 2.0, 1.0, 1.2)  # median 1.4, mean 2.63, the middle half 1.05 to 1.9


def with_seconds(run: Path, place: Path) -> Path:
    """The same run with steps that took `SECONDS`, of which half was waiting for reads."""
    shutil.copytree(run, place)
    changed = [dict(row) for row in rows(place / "metrics.jsonl")]
    for row, seconds in zip((row for row in changed if "loss" in row), SECONDS, strict=True):
        row["step_seconds"] = seconds
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    told = summary(place)
    told["step_seconds"] |= {"measured": 1.4, "measured_quartiles": quartiles(SECONDS)}
    told |= {"stall_seconds": {"read": sum(SECONDS) / 2}, "waits": {"path:0": {"read": sum(SECONDS) / 2}}}
    (place / "summary.json").write_text(json.dumps(told))
    return place


def test_the_page_has_one_step_time(finished: Path, tmp_path: Path) -> None:
    """The median, with its spread; no mean beside it, and the advice is about the same step."""
    run = with_seconds(finished, tmp_path / "run")
    command = [sys.executable, "-m", "spillway", "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (run / report.NAME).read_text()
    found = Figures(page).found
    assert found["step-measured"] == "1.4 s" and "the middle half of the steps took 1.1 s to 1.9 s" in page
    assert found["advice"].startswith(
        "This run is bound by compute: 50 % of the median step of 1.4 s is PyTorch computing."
    )
    assert found["seconds-compute"] == found["seconds-read-path:0"] == "700 ms"
    tokens = [row["tokens"] for row in rows(run / "metrics.jsonl") if "loss" in row]
    assert found["tokens-per-second"] == f"{sum(tokens) / len(tokens) / 1.4:.0f}"
    assert "2.6 s" not in page and "on average" not in page, "the mean is no second step time"
    assert not re.search(r"\d (ms|s)\b", found["busy-measured"] + found["busy-predicted"]), "nor is the last step"
    best = advice.help_words(read(run), [advice.Option("x", "y", read(run).predicted_seconds / 2)])
    assert "the median step would take 700 ms instead of 1.4 s, 50 % less" in best


def test_waits_are_told_by_path_and_sum_to_their_causes(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    given, words = real_runs.inputs(tmp_path / "given"), []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        words += ["--storage", f"{tmp_path / name},capacity=256MiB"]
    assert here(given, tmp_path / "out", *words, "--placement", "path", "--max_steps", "3") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    waits, by_cause = summary["waits"], summary["stall_seconds"]
    assert set(waits) <= {"path:0", "path:1", "dram"} and set(waits) & {"path:0", "path:1"}
    for cause in ("read", "write", "update"):
        assert sum(tier.get(cause, 0) for tier in waits.values()) == pytest.approx(by_cause[cause]), cause
    facts = read(tmp_path / "out")
    found = {cause.name: cause for cause in causes(facts)}
    assert facts.step_seconds is not None
    part = facts.step_seconds / sum(row["step_seconds"] for row in facts.here)
    page = Figures(report.write(tmp_path / "out").read_text()).found
    for tier in set(waits) & {"path:0", "path:1"}:
        for way, words_of in (("read", "reads of"), ("write", "writes to")):
            if waits[tier].get(way):
                assert found[f"{way} {tier}"].words == f"waiting for {words_of} {tier}"
                assert found[f"{way} {tier}"].seconds == pytest.approx(part * waits[tier][way])
                assert f"seconds-{way}-{tier}" in page
    assert "read" not in found and "write" not in found


def test_kinds_of_tasks_are_the_engines_own_list() -> None:
    assert {name: KINDS[name] for name, _ in task_kinds()} == dict(task_kinds())
    assert Span("embedding backward embed 0", 0, 1).kind == "embedding backward"
    assert Span("download grad layer chunks 3 to 5", 0, 1).kind == "download grad"
    assert Span("what no engine says", 0, 1).kind == "other"
    for page in Path(timeline.__file__).parent.glob("*.py"):
        repeated = [name for name, _ in task_kinds() if " " in name and f'"{name}' in page.read_text()]
        assert not repeated, f"{page.name} has a list of its own: {repeated}"


def test_the_timeline_is_read_as_it_was_written(finished: Path) -> None:
    two = steps(read(finished).trace)
    assert set(two) == {"measured", "predicted"}
    for step in two.values():
        assert {span.kind for span in step.lanes["compute"]} >= {"embedding", "forward", "head loss", "backward"}
        assert {span.kind for span in step.lanes["read"]} >= {"read state"}
        assert 0 < step.busy("compute") <= step.seconds * (1 + 1e-9)
        assert step.memory and all(sum(held.values()) > 0 for _, held in step.memory)
    assert not any(span.kind == "other" for step in two.values() for lane in step.lanes.values() for span in lane)


def test_projectors_that_are_learned_are_in_the_picture(tmp_path: Path) -> None:
    """In each step after the first a matrix in two learns."""
    given, out = real_runs.inputs(tmp_path), tmp_path / "out"
    words = ["--method", "lsp", "--lsp_rotate_every", "2", "--max_steps", "3"]
    assert real_runs.here(given, out, *words) == 0
    assert "<title>fit: " in (out / "report.html").read_text()


def test_memory_stays_under_what_was_planned(finished: Path) -> None:
    facts = read(finished)
    dram = next(tier for tier in facts.plan["tiers"] if tier["name"] == "dram")
    most = max(sum(held.values()) for _, held in steps(facts.trace)["measured"].memory)
    assert 0 < most < dram["planned_peak"] <= dram["capacity"]


def test_every_option_is_planned_and_the_best_one_is_told(finished: Path) -> None:
    facts = read(finished)
    found = advice.options(facts)
    assert {option.setting.partition(":")[0] for option in found} >= {"durability", "storage", "state_format"}
    assert [option.seconds for option in found] == sorted(option.seconds for option in found)
    assert facts.predicted_seconds is not None
    best = advice.Option("durability: checkpoint", "why", facts.predicted_seconds / 2)
    told = advice.help_words(facts, [best])
    assert "durability: checkpoint" in told and "50 % less" in told
    none = advice.help_words(facts, [advice.Option("x", "y", facts.predicted_seconds)])
    assert none.startswith("The planner found no setting")


def test_the_plan_of_an_option_is_the_planners(finished: Path) -> None:
    """Unchanged, the settings that were kept give the plan that was followed."""
    facts = read(finished)
    assert facts.description is not None and facts.settings is not None
    seconds = advice.predicted(advice.native_engine(), facts.description, facts.settings)
    assert seconds == pytest.approx(facts.predicted_seconds)
    refused = copy.copy(facts.settings)
    refused.dram_budget = 1 << 20
    assert advice.predicted(advice.native_engine(), facts.description, refused) is None


def test_predictions_for_another_machine(finished: Path, tmp_path: Path) -> None:
    """With a path a million times slower the path bounds the step, however slow this machine was when a layer of it was
    measured: its kilobytes take minutes."""
    slow = json.loads((finished.parent / "profile.json").read_text())
    for name in ("read", "write", "mixed"):
        slow["paths"][0][f"{name}_bytes_per_second"] = 1e3
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    words = ["report", str(finished), "--to", str(tmp_path / "page.html"), "--profile", str(tmp_path / "slow.json")]
    assert real_runs.main(words) == 0
    page = (tmp_path / "page.html").read_text()
    found = Figures(page).found
    told = summary(finished)["step_seconds"]
    assert "predicted for the machine of" in page and found["step-measured"] == duration(told["measured"])
    assert found["step-predicted"] != duration(told["predicted"])
    assert advice.elsewhere(read(finished), str(tmp_path / "slow.json")).plan["bottleneck"] == "path:0"


def test_ticks_are_round_and_inside() -> None:
    assert charts.ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert charts.ticks(3.17, 3.29, 5) == pytest.approx([3.2, 3.25])
    assert charts.ticks(3.17, 3.29, 8) == pytest.approx([3.18, 3.2, 3.22, 3.24, 3.26, 3.28])
    assert charts.ticks(5, 5, 3) == [5]


def test_spans_that_touch_are_drawn_as_one() -> None:
    spans = [Span("a", 3, 4), Span("a", 0, 1), Span("a", 0.5, 2), Span("a", 2.05, 2.5)]
    assert union(spans) == [(0, 2), (2.05, 2.5), (3, 4)]
    assert union(spans, gap=0.1) == [(0, 2.5), (3, 4)]


@pytest.mark.parametrize("losses", [[], [2.0], [2.0, 2.0], [2.0, float("nan"), 1.0]], ids=len)
def test_any_curve_can_be_drawn(losses: list[float]) -> None:
    drawn = charts.loss_curve(list(enumerate(losses)), [])
    assert bool(drawn) == bool(losses) and not re.search(r"nan|inf", drawn)


def test_small_rates_have_two_digits() -> None:
    assert [pace(rate) for rate in (173.4, 36.2, 9.97, 5.68, 1.04, 0.4, 0)] == [
        "173", "36", "10", "5.7", "1.0", "0.40", "0"
    ]  # fmt: skip
