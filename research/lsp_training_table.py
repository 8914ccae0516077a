"""Tables and plots of what research/lsp_training.py measured: bench/results/lsp-training.md and .png.

python research/lsp_training_table.py [--lines FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import lsp_over_time
from figures import RESULTS
from lsp_training import LIKE_OURS, LINES, METHODS, TASKS, Found

Line = dict[str, Any]
KINDS = ("full", "ours", *LIKE_OURS, *METHODS[2:])
CASES = [("full", 0.5), *((method, share) for share in (0.5, 0.25) for method in KINDS[1:])]
LIMITS = {0.5: 1, 0.25: 3}  # percent that ours may be above full


def name_of(method: str, share: float) -> str:
    return method if method == "full" else f"{method}, d = n/{round(1 / share)}"


def lines_of(found: Found, task: str, method: str, share: float, times: int = 1) -> dict[int, Line]:
    """By seed, at the rate that is best for seed 0 and d = n/2."""
    if not found.rates(task, "ours" if method in LIKE_OURS else method):
        return {}
    wanted = {"task": task, "method": method, "share": share, "steps": TASKS[task].steps * times,
              "rate": found.best_rate(task, method)}  # fmt: skip
    return {it["seed"]: it for it in found.lines if all(it[key] == value for key, value in wanted.items())}


def against(lines: dict[int, Line], full: dict[int, Line]) -> list[float]:
    """Percent above full training, by seeds that both have."""
    return [100 * (lines[seed]["final"] / full[seed]["final"] - 1) for seed in sorted(lines.keys() & full.keys())]


def row(found: Found, task: str, method: str, share: float, times: int) -> str | None:
    lines, full = (lines_of(found, task, *it, times) for it in ((method, share), ("full", 0.5)))
    if not lines:
        return None
    finals = [lines[seed]["final"] for seed in sorted(lines)]
    each, beside = ", ".join(f"{it:.4f}" for it in finals), against(lines, full)
    above = f"{statistics.mean(beside):+.2f} %" if beside else ""
    begin = lines[min(lines)]["held_out"][0][1]
    return (
        f"| {name_of(method, share)} | {found.best_rate(task, method):g} | {each} | {statistics.mean(finals):.4f} | "
        f"{above} | {begin - statistics.mean(finals):.4f} |"
    )


def table(found: Found, task: str, times: int) -> str:
    rows = [it for it in (row(found, task, *case, times) for case in CASES) if it is not None]
    head = "| | rate of the matrices | held-out loss, by seed | mean | above full | gained |\n|---|---|---|---|---|---|"
    return f"## {task}, {TASKS[task].steps * times} steps\n\n" + "\n".join([head, *rows])


def rates_table(found: Found, task: str) -> str:
    lines = [f"## {task}: rates tried, seed 0, d = n/2\n", "| | rate: held-out loss |", "|---|---|"]
    for method in ("joint", *METHODS):
        tried = sorted(found.rates(task, method).items())
        if tried:
            lines.append(f"| {method} | " + ", ".join(f"{rate:g}: {loss:.4f}" for rate, loss in tried) + " |")
    return "\n".join(lines)


def verdicts(found: Found, task: str) -> list[str]:
    out, full = [], lines_of(found, task, "full", 0.5)
    for method in ("ours", "anew"):
        for share, limit in LIMITS.items():
            beside = against(lines_of(found, task, method, share), full)
            if not beside:
                continue
            mean = statistics.mean(beside)
            word = "within" if mean <= limit else "**outside**"
            under, over = [], []
            for other in ("lora", "galore"):
                (under if below(found, task, other, share, mean, full) else over).append(other)
            seeds = f"{len(beside)} seed" + "s" * (len(beside) > 1)
            said = "".join(
                f", {word} {' and '.join(them)}" for word, them in (("below", under), ("above", over)) if them
            )
            out.append(f"- {task}, {name_of(method, share)}: {mean:+.2f} % ({seeds}), {word} {limit} %{said}")
    return out


def below(found: Found, task: str, rival: str, share: float, mean: float, full: dict[int, Line]) -> bool:
    beside = against(lines_of(found, task, rival, share), full)
    return bool(beside) and mean < statistics.mean(beside)


def page(found: Found) -> str:
    parts = ["# Training in a subspace beside full training\n\n<!-- Made by research/lsp_training_table.py. -->"]
    parts.append("\n".join(line for task in TASKS for line in verdicts(found, task)))
    parts.append("![Held-out loss by step](lsp-training.png)")
    for task in TASKS:
        parts += [table(found, task, times) for times in (1, 3) if lines_of(found, task, "full", 0.5, times)]
        parts.append(rates_table(found, task))
    parts += lsp_over_time.sections(found)
    return "\n\n".join(parts) + "\n"


def draw(found: Found, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(TASKS), figsize=(12, 9), dpi=110, layout="constrained", squeeze=False)
    for column, task in enumerate(TASKS):
        for panel, times in zip(panels[:, column], (1, 3), strict=True):
            for method, share in CASES:
                draw_case(panel, list(lines_of(found, task, method, share, times).values()), method, share)
            panel.set(title=f"{task}, {TASKS[task].steps * times} steps", xlabel="step", ylabel="held-out loss")
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7) if panel.lines else panel.set_axis_off()
    figure.savefig(path)
    pyplot.close(figure)


def draw_case(panel: Any, lines: list[Line], method: str, share: float) -> None:
    """The mean over the seeds there are."""
    if not lines:
        return
    steps = [step for step, _ in lines[0]["held_out"]]
    means = [statistics.mean(line["held_out"][i][1] for line in lines) for i in range(len(steps))]
    names = (
        "black",
        "tab:red",
        "tab:pink",
        "tab:purple",
        "tab:brown",
        "tab:olive",
        "tab:blue",
        "tab:green",
        "tab:orange",
    )
    colors = dict(zip(KINDS, names, strict=True))
    style = "-" if share == 0.5 else "--"
    panel.plot(steps[1:], means[1:], style, color=colors[method], label=name_of(method, share), marker=".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, default=LINES)
    found = Found(parser.parse_args().lines)
    (RESULTS / "lsp-training.md").write_text(page(found))
    draw(found, RESULTS / "lsp-training.png")
    lsp_over_time.write(found)
    print(page(found))


if __name__ == "__main__":
    main()
