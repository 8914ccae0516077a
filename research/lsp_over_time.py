"""The 500-step runs of research/lsp_training.py over steps and over time; lsp_training_table.py writes what it shows.

Time is a number of steps times the seconds of a step. research/lsp_steps.py measured these seconds with 126 M
parameters at d = n/2, on a throttled path and over a simulated link. A step at d = n/4 moves fewer bytes, so the
seconds of d = n/2 are an upper bound. LoRA and GaLore have no measured seconds.

Rates fall to 0 at the end of a run. A point inside a run of full training is therefore worse than the end of a shorter
run. `full_steps` compares ends: it interpolates between runs of full training of 230 and 500 steps.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from figures import RESULTS, rounded
from lsp_training import LONG, LONG_SEEDS, LONG_SHARES, LONG_STEPS, SHORT_STEPS, TRIAL_STEPS, Found, Run

Line = dict[str, Any]
Points = Sequence[Sequence[float]]
RESOURCES = {"path": "throttled path, 400 MB/s", "link": "simulated link, 10 GB/s"}
IN_SUBSPACES = ("anew", "published", "ours")
NAMES = {"full": "full", "anew": "rotating", "published": "published", "ours": "none", "lora": "LoRA"}
NAMES |= {"galore": "GaLore"}
COLORS = {"full": "black", "anew": "tab:red", "published": "tab:blue", "ours": "tab:pink", "lora": "tab:green"}
COLORS |= {"galore": "tab:orange"}
LEAST_CLAIMED = 0.331  # less time to the same accuracy, of the paper; at most 0.625
SHOWN = (50, 100, 200, 300, 400, 500)
NEAR = 0.9  # of full training's gain


@dataclass(frozen=True)
class Case:
    method: str
    share: float
    steps: int = LONG_STEPS

    @property
    def name(self) -> str:
        rank = "" if self.method == "full" else f", d = n/{round(1 / self.share)}"
        return NAMES[self.method] + rank + (f", {self.steps} steps" if self.steps == SHORT_STEPS else "")


FULL, SHORT = Case("full", 0.5), Case("full", 0.5, SHORT_STEPS)
OTHERS = [Case(method, share) for share in LONG_SHARES for method in NAMES if method != "full"]
CASES = (FULL, SHORT, *OTHERS)


def select_lines(found: Found, task: str, case: Case) -> dict[int, Line]:
    """Lines by seed, at the rate that the trials picked."""
    if not found.trials(task, case.method):
        return {}
    rate = found.picked_rate(task, case.method)
    lines = {seed: found.of(Run(task, case.method, case.share, seed, rate, case.steps)) for seed in LONG_SEEDS}
    return {seed: line for seed, line in lines.items() if line is not None}


def select_shown(found: Found, task: str) -> list[tuple[Case, dict[int, Line]]]:
    """The cases that have runs, with the seeds that full training has, too."""
    full = select_lines(found, task, FULL)
    cases = [(case, select_lines(found, task, case)) for case in CASES]
    shown = [(case, {seed: line for seed, line in lines.items() if seed in full}) for case, lines in cases]
    return [(case, lines) for case, lines in shown if lines]


def select_tasks(found: Found) -> list[str]:
    return [task for task in LONG if select_lines(found, task, FULL)]


# ---- figures of runs


def read_step_seconds() -> dict[str, dict[str, float]]:
    """Seconds of a step by resource and method, for the methods that have them."""

    def read(name: str) -> Any:
        return json.loads((RESULTS / f"lsp-steps-{name}.json").read_text(encoding="utf-8"))

    def median(rounds: list[Line]) -> float:
        return statistics.median(it["median"] for it in rounds)

    refits = read("refits")["128 tokens, r = 4"]
    slower = {"anew": max(1.0, refits["rotating"] / refits["never"])}
    rows = {"path": read("path"), "link": read("link")["10 GB/s"]}
    return {
        resource: {"full": median(row["full"])} | {it: median(row["lsp"]) * slower.get(it, 1) for it in IN_SUBSPACES}
        for resource, row in rows.items()
    }


def share_of_gain(loss: float, full: Line) -> float:
    """The part of full training's gain that a loss has."""
    begin: float = full["held_out"][0][1]
    return (begin - loss) / (begin - full["final"])


def step_of(points: Points, loss: float) -> float | None:
    """The first step with this loss, interpolated between evaluations; None if no evaluation is as low."""
    for (step, above), (after, below) in zip(points, points[1:], strict=False):
        if below <= loss:
            return after if above <= below else step + (after - step) * max(0.0, (above - loss) / (above - below))
    return None


def full_steps(loss: float, short: Line, full: Line) -> tuple[float, str]:
    """The steps of a run of full training that ends with this loss, and the kind of the time saved beside such a run.

    Between the ends, the loss is linear in the logarithm of steps. The two runs only bound the steps to other losses.
    """
    if loss >= short["final"]:
        return short["steps"], "at most"
    if loss <= full["final"]:
        return full["steps"], "at least"
    part = (short["final"] - loss) / (short["final"] - full["final"])
    return short["steps"] * (full["steps"] / short["steps"]) ** part, "about"


def compare(line: Line, full: Line, short: Line | None, own: float, others: float) -> Line:
    """`own` and `others`: the seconds of a step in the subspace and in full."""
    begin = full["held_out"][0][1]
    near = begin - NEAR * (begin - full["final"])

    def time_to(points: Points, loss: float, seconds: float) -> float | None:
        step = step_of(points, loss)
        return None if step is None else step * seconds

    row: Line = {
        "gain_share": share_of_gain(line["final"], full),
        "seconds": line["steps"] * own,
        "full_seconds": full["steps"] * others,
        "seconds_to_full_loss": time_to(line["held_out"], full["final"], own),
        "seconds_to_near": time_to(line["held_out"], near, own),
        "full_seconds_to_near": time_to(full["held_out"], near, others),
    }
    if short is None:
        return row | {"full_steps": None, "bound": None, "time_saved": None}
    steps, bound = full_steps(line["final"], short, full)
    return row | {"full_steps": steps, "bound": bound, "time_saved": 1 - row["seconds"] / (steps * others)}


def figures_of(found: Found) -> list[Line]:
    """A row for each run in a subspace, and each resource."""
    rows, seconds = [], read_step_seconds()
    for task in LONG:
        full, short = select_lines(found, task, FULL), select_lines(found, task, SHORT)
        for case, lines in select_shown(found, task):
            for seed, line in lines.items() if case.method in IN_SUBSPACES else ():
                for resource, each in seconds.items():
                    row = {"task": task, "method": case.method, "share": case.share, "seed": seed, "resource": resource}
                    rows.append(row | compare(line, full[seed], short.get(seed), each[case.method], each["full"]))
    return rows


# ---- page

NOTE = """
The columns of steps have the share of full training's gain in held-out loss, in percent, as the mean of the
seeds. Time is steps times the seconds of a step. These were measured with 126 M parameters at d = n/2 and
projectors that are fitted once, over a path that is throttled and a link that is simulated. The published
method has the same seconds, without the time of its fits. LoRA and GaLore have no measured seconds. Rates
fall to 0 at the end of a run. *full's steps to the same loss* therefore interpolates between the ends of
runs of full training of 230 and 500 steps, in the logarithm of steps. *less time* compares 500 steps in a
subspace with that many steps in full. The rows *rotating* and *none* are `anew` and `ours` of the other
tables.
""".strip()


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def mean_shares(lines: dict[int, Line], full: dict[int, Line]) -> dict[int, float]:
    """Means of the seeds, by step."""
    points = zip(*(line["held_out"] for line in lines.values()), strict=True)
    return {
        each[0][0]: statistics.mean(
            share_of_gain(loss, full[seed]) for seed, (_, loss) in zip(lines, each, strict=True)
        )
        for each in points
    }


def over_steps(found: Found, task: str) -> str:
    full = select_lines(found, task, FULL)
    head = " | ".join(f"step {step}" for step in SHOWN)
    rows = [f"## {task}: over steps\n", f"| | rate | held-out loss, by seed | {head} | last step |", "|---" * 10 + "|"]
    for case, lines in select_shown(found, task):
        losses = ", ".join(f"{line['final']:.4f}" for line in lines.values())
        shares = mean_shares(lines, full)
        cells = " | ".join(percent(shares[step]) if step in shares else "" for step in SHOWN)
        rate = next(iter(lines.values()))["rate"]
        rows.append(f"| {case.name} | {rate:g} | {losses} | {cells} | {percent(shares[case.steps])} |")
    return "\n".join(rows)


def over_time(rows: list[Line], task: str) -> str:
    head = (
        "| resource | | seed | seconds | in full | seconds to full's last loss | "
        f"seconds to {100 * NEAR:.0f} % of the gain | in full | full's steps to the same loss | less time, % |"
    )
    out = [f"## {task}: over time\n", head, "|---" * 10 + "|"]
    for row in (it for it in rows if it["task"] == task):
        cells = [RESOURCES[row["resource"]], Case(row["method"], row["share"]).name, str(row["seed"])]
        cells += [f"{row['seconds']:.0f}", f"{row['full_seconds']:.0f}"]
        cells += [
            "never in 500 steps" if row[key] is None else f"{row[key]:.0f}"
            for key in ("seconds_to_full_loss", "seconds_to_near", "full_seconds_to_near")
        ]
        saved = row["time_saved"] is not None
        cells += [f"{row['full_steps']:.0f}", f"{row['bound']} {100 * row['time_saved']:.0f}"] if saved else ["", ""]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def trials_table(found: Found, task: str) -> str:
    out = [f"## {task}: trials of {TRIAL_STEPS} steps, seed 0\n", "| | rate: held-out loss |", "|---|---|"]
    for case in (FULL, *(it for it in OTHERS if it.share == LONG_SHARES[0])):
        tried = sorted(found.trials(task, case.method).items())
        if tried:
            out.append(f"| {case.name} | " + ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in tried) + " |")
    return "\n".join(out)


def verdict(row: Line) -> str:
    word = "meets" if row["time_saved"] >= LEAST_CLAIMED and row["bound"] != "at most" else "misses"
    name, saved = Case(row["method"], row["share"]).name, 100 * row["time_saved"]
    return (
        f"- {row['task']}, {name}, seed {row['seed']}, {RESOURCES[row['resource']]}: {row['bound']} {saved:.0f} % "
        f"less time to the same loss, which {word} the paper's 33 to 62 %"
    )


def sections(found: Found) -> list[str]:
    """Parts of the page; none without a long run of full training."""
    tasks, rows = select_tasks(found), figures_of(found)
    if not tasks:
        return []
    verdicts = [verdict(row) for row in rows if row["time_saved"] is not None]
    parts = ["# 500 steps: over steps and over time", NOTE, *(["\n".join(verdicts)] if verdicts else [])]
    parts.append("![Share of full training's gain over steps and over time](lsp-over-time.png)")
    for task in tasks:
        timed = any(row["task"] == task for row in rows)
        parts += [over_steps(found, task), *([over_time(rows, task)] if timed else []), trials_table(found, task)]
    return parts


# ---- files


def draw(found: Found, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks, seconds = select_tasks(found), read_step_seconds()
    axes = {"step": dict.fromkeys(NAMES, 1.0)} | {f"seconds, {RESOURCES[it]}": each for it, each in seconds.items()}
    size = (6 * len(axes), 5 * len(tasks))
    figure, panels = pyplot.subplots(len(tasks), len(axes), figsize=size, dpi=90, layout="constrained", squeeze=False)
    for row, task in zip(panels, tasks, strict=True):
        for panel, (label, each) in zip(row, axes.items(), strict=True):
            for case, lines in select_shown(found, task):
                if case.method in each:
                    draw_case(panel, case, mean_shares(lines, select_lines(found, task, FULL)), each[case.method])
            panel.set(title=task, xlabel=label, ylabel="share of full training's gain, %", ylim=(0, None))
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)
    figure.savefig(path)
    pyplot.close(figure)


def draw_case(panel: Any, case: Case, shares: dict[int, float], seconds: float) -> None:
    style = ":" if case == SHORT else "-" if case == FULL or case.share == LONG_SHARES[0] else "--"
    times, values = [step * seconds for step in shares], [100 * share for share in shares.values()]
    panel.plot(times, values, style, color=COLORS[case.method], label=case.name, marker=".")


def write(found: Found) -> None:
    """lsp-over-time.json and .png."""
    text = json.dumps(rounded(figures_of(found)), indent=1) + "\n"
    (RESULTS / "lsp-over-time.json").write_text(text, encoding="utf-8")
    if select_tasks(found):
        draw(found, RESULTS / "lsp-over-time.png")
