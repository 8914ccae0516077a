"""The picture of equality.py: fp32 differences against the limit, bf16 curves and their distance from the mean."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

SMALLEST = 1e-9  # a difference of zero is drawn here


def plot(found: dict[str, Any], limit: float, path: Path) -> None:
    settings = found["settings"]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5), constrained_layout=True)
    figure.suptitle(
        f"Spillway's engine beside plain PyTorch: {settings['model']}, AdamW, rate {settings['rate']:g}, "
        f"{settings['steps']} steps, {settings['path_share']} % of the engine's state on storage"
    )
    draw_fp32(left, found["fp32"], limit)
    draw_losses(middle, found["bf16"])
    draw_spread(right, found["bf16"], settings["share"])
    for axes in (left, middle, right):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def numbers(curve: list[float]) -> range:
    return range(1, len(curve) + 1)


def draw_fp32(axes: Any, cases: dict[str, Any], limit: float) -> None:
    for (name, case), marker in zip(cases.items(), "os", strict=False):
        values = [max(value, SMALLEST) for value in case["relative"]]
        label = f"{name} embeddings, largest {case['largest']:.1e}"
        axes.semilogy(numbers(values), values, marker=marker, markersize=4, label=label)
    axes.axhline(limit, color="tab:red", linestyle="--", label=f"limit {limit:.0e}")
    axes.set_title("fp32 compute: engine against one plain loop")
    axes.set_ylabel("relative difference of the loss")
    axes.legend()


def draw_losses(axes: Any, case: dict[str, Any]) -> None:
    for number, curve in enumerate(case["plain"]):
        axes.plot(numbers(curve), curve, color="tab:gray", linewidth=1, label=None if number else "plain runs")
    axes.plot(numbers(case["engine"]), case["engine"], color="tab:blue", linewidth=1.5, label="engine")
    axes.set_title("bf16 compute: the curves")
    axes.set_ylabel("training loss")
    axes.legend()


def draw_spread(axes: Any, case: dict[str, Any], share: float) -> None:
    steps = list(zip(*case["plain"], strict=True))
    means = [statistics.fmean(step) for step in steps]

    def distance(curve: Any) -> list[float]:
        return [loss / mean - 1 for loss, mean in zip(curve, means, strict=True)]

    low, high = distance([min(step) for step in steps]), distance([max(step) for step in steps])
    axes.fill_between(numbers(means), low, high, color="tab:gray", alpha=0.25, label="range of the plain runs")
    for curve in case["plain"]:
        axes.plot(numbers(curve), distance(curve), color="tab:gray", linewidth=0.7)
    outside = case["steps_outside"]
    label = f"engine: {outside['engine']} steps outside (equals: {outside['expected']:.0f} expected)"
    axes.plot(numbers(means), distance(case["engine"]), color="tab:blue", marker="o", markersize=3, label=label)
    axes.set_title(f"bf16 compute: distance from the mean of {len(case['plain'])} plain runs\n"
                   f"({share:.0%} of their initial weights moved by one bf16 ulp)")  # fmt: skip
    axes.set_ylabel("loss relative to the mean, less 1")
    axes.legend()
