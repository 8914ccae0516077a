"""loss.png from metrics.jsonl. Run as a process of its own, so that its memory is not the run's:

python -m spillway.report.plot METRICS PNG [TITLE]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from spillway.base.files import new_file
from spillway.output.records import rows

SMOOTH_FROM = 50  # rows from which a running mean is drawn too


def plot_apart(metrics: Path, png: Path, title: str) -> str:
    """Draws in another process. Returns why it failed, or nothing: a missing plot is no reason to fail a run."""
    command = [sys.executable, "-m", "spillway.report.plot", str(metrics), str(png), title]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["unknown reason"])[-1]


def draw(metrics: Path, png: Path, title: str) -> None:
    """The loss of every logged step, its running mean where there are many, and the held-out loss."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    train = [(row["step"], row["loss"]) for row in rows(metrics) if "loss" in row]
    held_out = [(row["step"], row["eval_loss"]) for row in rows(metrics) if "eval_loss" in row]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120, layout="constrained")
    draw_training(axes, train)
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color="tab:red", markersize=4, label="held-out loss")
    axes.set(title=title, xlabel="step", ylabel="loss (nats per token)")
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend()
    temporary = png.with_name(f".tmp-{png.name}")
    with open(new_file(temporary), "wb") as stream:
        figure.savefig(stream, format="png")
    os.replace(temporary, png)


def draw_training(axes: Any, points: list[tuple[int, float]]) -> None:
    if not points:
        return
    steps, losses = zip(*points, strict=True)
    many = len(points) >= SMOOTH_FROM
    mark = "-" if len(points) > 1 else "o"
    axes.plot(steps, losses, mark, color="tab:blue", alpha=0.35 if many else 1, linewidth=1, label="training loss")
    if many:
        width = max(len(points) // 25, 2)
        axes.plot(steps, running_mean(losses, width), color="tab:blue", label=f"mean of {width} rows")


def running_mean(values: tuple[float, ...], width: int) -> list[float]:
    """The mean of each value and up to `width` - 1 before it."""
    return [sum(window) / len(window) for window in (values[max(0, i - width + 1) : i + 1] for i in range(len(values)))]


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "Training loss")
