"""What a person sees: sizes, tables, the bar, the plot."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fake_session import PLAN
from spillway.base import sizes
from spillway.report import machine_tables, plot, tables
from spillway.run.progress import Display
from spillway.run.protocol import StepResult


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (2048, "2.00 KiB"), (15 * 2**20, "15.0 MiB"), (3.25 * 2**30, "3.25 GiB"),
     (2**41, "2.00 TiB")],
)  # fmt: skip
def test_size(count: float, text: str) -> None:
    assert sizes.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "250 ms"), (12.34, "12.3 s"), (245, "4 min 05 s"), (7380, "2 h 03 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert sizes.duration(seconds) == text


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plan_table_sums_what_shares_a_class_and_a_tier() -> None:
    console = Console(file=io.StringIO(), width=100)
    doubled = {**PLAN, "bytes": [*PLAN["bytes"], PLAN["bytes"][0]]}
    tables.show_plan(console, doubled)
    (weight,) = [line for line in shown(console).splitlines() if "weight" in line]
    assert "8.00 GiB" in weight
    (used,) = [line for line in shown(console).splitlines() if "used" in line]
    assert "75 %" in used and "31 %" in used


def test_what_is_kept_of_every_parameter() -> None:
    assert tables.state(PLAN) == ""
    rule = {"optimizer": "lion", "state_format": "int8", "bytes_per_parameter": 5.02}
    assert tables.state(PLAN | rule) == "Weights and lion state take 5.0 bytes per parameter (state_format int8)."


def test_a_plan_that_does_not_fit_says_so() -> None:
    assert tables.prediction({**PLAN, "fits": False}).startswith("It does not fit.")


def test_tokens_and_what_a_drive_takes_stand_beside_the_seconds() -> None:
    life = {"rated": 600 * 10**12, "assumed": True, "written_per_day": 5.42e12, "days": 110.7}
    plan = {**PLAN, "tokens_per_second": 173.4, "drive_life": {"path:0": life}}
    assert tables.pace_and_wear(plan) == (
        "At this pace: 173 tokens/s; 5.42 TB a day are written to path:0, and a drive rated for 600 TB lasts 111 days "
        "of training."
    )
    plan["drive_life"]["path:0"] = life | {"rated": 75 * 10**13, "assumed": False}
    assert "and the drive (rated for 750 TB) lasts" in tables.pace_and_wear(plan)
    assert tables.pace_and_wear(PLAN) == ""


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1234"), (36.2, "36"), (5.66, "5.7"), (0.421, "0.42")])
def test_tokens_per_second_have_two_digits(value: float, text: str) -> None:
    assert sizes.pace(value) == text


@pytest.mark.parametrize(
    ("written", "text"), [(0, "less than 0.01 %"), (25e9, "2.50 %"), (5e9, "0.50 %"), (1.2e12, "120 %")]
)
def test_endurance(written: float, text: str) -> None:
    assert sizes.used_up(written, 1e12) == f"{text} of its rated endurance"


def test_decisions_are_listed_with_what_their_alternatives_would_cost() -> None:
    def value(words: str, seconds: float | None, chosen: bool = False) -> dict[str, object]:
        out: dict[str, object] = {"value": words, "fits": seconds is not None, "chosen": chosen}
        return out if seconds is None else out | {"predicted_step_seconds": seconds, "bytes_per_step": 0}

    assert tables.decisions_table(PLAN) is None
    compared = [value("28 layers kept", None), value("0 layers kept", 4.0), value("3 layers kept", 2.0, True)]
    compared += [value(f"{layers} layers kept", 3.0 + layers) for layers in (4, 5, 6)]
    decision = {"name": "saved_activations", "title": "saved activations", "reason": "It skips recomputation."}
    plan = PLAN | {"decisions": [decision | {"compared": compared}]}
    console = Console(width=120, record=True, file=io.StringIO())
    tables.show_plan(console, plan)
    text = console.export_text()
    assert "3 layers kept: 2.0 s │ 0 layers kept: 4.0 s" in text
    assert "1 more in plan.json" in text, "four of five are listed"
    assert "It skips recomputation." in text, "the axis has a reason"
    assert tables.alternatives(compared[:2]) == "0 layers kept: 4.0 s\n28 layers kept: does not fit"


def test_what_layers_keep_and_what_a_gib_more_would_save() -> None:
    assert tables.saved_activations(PLAN) == ""
    found = {"layers": 24, "keep": 12, "bytes": 3 << 30, "tier": "dram", "why": "as asked"}
    plan = PLAN | {"saved_activations": found, "predicted_step_seconds": 2.0}
    assert tables.saved_activations(plan) == (
        "Saved activations: 12 of 24 layers keep them from forward to backward, 3.00 GiB of dram, 12 compute them "
        "again in backward (as asked)."
    )
    plan["a_gib_more"] = {"tier": "dram", "keep": 16, "predicted_step_seconds": 1.75}
    assert machine_tables.more_memory(plan) == (
        "One more GiB of dram: 16 layers would keep saved activations, and a step would take 250 ms less."
    )
    plan["saved_activations"] = found | {"keep": 0, "why": ""}
    plan["a_gib_more"] = {"tier": "dram", "keep": 0, "predicted_step_seconds": 2.0}
    assert "0 of 24 layers keep them from forward to backward; 24 compute" in tables.saved_activations(plan)
    assert machine_tables.more_memory(plan) == "One more GiB of dram: a step would not be shorter."
    del plan["a_gib_more"]
    assert machine_tables.more_memory(plan) == ""
    plan["saved_activations"] = found | {
        "spill": 8,
        "spilled_bytes": 2 << 30,
        "spill_tier": "numa:2",
        "spill_why": "of a layer it takes 1 s",
    }
    assert tables.saved_activations(plan) == (
        "Saved activations: 12 of 24 layers keep them from forward to backward, 3.00 GiB of dram, 8 send them to "
        "numa:2 and have them back, 2.00 GiB, 4 compute them again in backward (as asked). Spilling: of a layer it "
        "takes 1 s."
    )


def test_what_durability_gives_and_takes() -> None:
    assert tables.durability(PLAN) == "" == tables.durability(PLAN | {"durability": "none"})
    room = [{"class": "durability", "tier": "path:0", "bytes": 3 << 30}]
    plan = {**PLAN, "bytes": [*PLAN["bytes"], *room]}
    words = tables.durability(plan | {"durability": "checkpoint"})
    assert (
        words
        == "Durability checkpoint: the last checkpoint survives a kill or a power cut. It takes 3.00 GiB of the paths."
    )
    cost = {"durability": "step", "durability_per_step": {"written": 5 << 20, "seconds": 0.25}}
    words = tables.durability(plan | cost)
    assert "the last finished step survives" in words and "adds 5.00 MiB of writes and 250 ms to a step." in words
    console = Console(file=io.StringIO(), width=100)
    tables.show_plan(console, plan | cost)
    assert words in shown(console) and "3.00 GiB" in shown(console)


def test_wear_beside_what_was_moved() -> None:
    result = StepResult(1.0, 1, 1.0, 1.0, {"path:0": {"read": 0, "written": 9}}, written={"path:0": 4 << 20})
    text = Display(Console(), {"path:0": 8 << 20}).describe(result, 1, 1e-3)
    assert "9 B written (4.00 MiB in all, 50 % of its rated endurance)" in text
    assert "9 B written (4.00 MiB in all)" in Display(Console()).describe(result, 1, 1e-3)


RESULT = StepResult(20.0, 10, 1.25, 0.5, {"path:0": {"read": 2048, "written": 0}}, skipped=True)


def test_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=200, force_terminal=terminal)
        display = Display(console)
        display.start(0, 4)
        display.step(1, RESULT, tokens=100, learning_rate=1e-3, logged=True)
        display.step(2, RESULT, tokens=100, learning_rate=1e-3, logged=False)
        display.stop()
        text = shown(console)
        assert "loss 2.0000" in text and "200 tokens/s" in text and "lr 0.001" in text and "(skipped)" in text
        assert ("step 1/4" in text) is not terminal
        assert "step 2/4" not in text
        assert ("2/4" in text) is terminal


@pytest.mark.parametrize("count", [0, 1, 10, 200])
def test_plot_of_any_number_of_rows(tmp_path: Path, count: int) -> None:
    metrics = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "loss": 5 / step} for step in range(1, count + 1)]
    lines += [{"step": count, "eval_loss": 1.0}] if count else []
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot.draw(metrics, tmp_path / "loss.png", "Training loss")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_plot_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    assert plot.plot_apart(tmp_path / "metrics.jsonl", tmp_path / "loss.png", "Title") == ""
    assert (tmp_path / "loss.png").exists()
    assert "Error" in plot.plot_apart(tmp_path / "metrics.jsonl", tmp_path / "none" / "loss.png", "Title")


def test_running_mean() -> None:
    assert plot.running_mean((1.0, 3.0, 5.0, 7.0), 2) == [1.0, 2.0, 4.0, 6.0]


def test_far_drives_are_told_with_what_they_cost() -> None:
    assert tables.remote_drives(PLAN) == ""
    found = {"paths": [{"name": "path:1", "node": 1}], "seconds": 0.2, "why": "path:1: 0.2 s longer"}
    assert tables.remote_drives(PLAN | {"far_drives": found}) == "Remote drives: path:1: 0.2 s longer."
