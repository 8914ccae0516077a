"""Drawings as SVG text. Colours are the page's variables, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from spillway.report.timeline import KINDS, TRANSFERS, Step, union

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 960, 76, 24, 14, 34
CLASSES = {
    "weight": "c5", "window": "c1", "state": "c6", "staging": "c4", "grad": "c7", "activation": "c8", "scratch": "c2",
    "undo": "c3", "spilled activations": "c8",
    "vision features": "c8",
}  # fmt: skip


class Frame:
    """Axes: data to pixels, ticks, labels."""

    def __init__(self, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.height = height
        self.x0, self.x1 = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)
        self.y0, self.y1 = y if y[1] > y[0] else (y[0] - 0.5, y[0] + 0.5)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)
        down = TOP + (self.y1 - y) / (self.y1 - self.y0) * (self.height - TOP - BOTTOM)
        return round(across, 2), round(down, 2)

    def axes(
        self, x_words: Callable[[float], str], y_words: Callable[[float], str], x_label: str, y_unit: float = 1
    ) -> str:
        """Ticks of the y axis are round numbers of `y_unit`."""
        parts = []
        for value in (tick * y_unit for tick in ticks(self.y0 / y_unit, self.y1 / y_unit, 5)):
            _, y = self.at(self.x0, value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{y_words(value)}</text>')
        base = self.height - BOTTOM
        for value in ticks(self.x0, self.x1, 8):
            x, _ = self.at(value, self.y0)
            parts.append(f'<text class="tick" x="{x}" y="{base + 16}" text-anchor="middle">{x_words(value)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text class="tick" x="{middle}" y="{self.height - 5}" text-anchor="middle">{x_label}</text>')
        return "".join(parts)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from low to high."""
    rough = (high - low) / max(1, about)
    if rough <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(height: int, label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">{body}</svg>'


def loss_curve(train: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]]) -> str:
    """Loss of every logged step, and of the evaluations."""
    finite = [value for _, value in (*train, *held_out) if math.isfinite(value)]
    if not finite:
        return ""
    steps = [step for step, _ in (*train, *held_out)]
    low, high = min(finite), max(finite)
    room = (high - low or abs(high) or 1) * 0.06
    frame = Frame(280, (min(steps), max(steps)), (low - room, high + room))
    body = frame.axes(lambda value: f"{value:g}", lambda value: f"{value:.4g}", "step")
    body += line(frame, train, "train")
    if held_out:
        body += line(frame, held_out, "held")
        for point in held_out:
            x, y = frame.at(*point)
            body += (
                f'<circle class="held" cx="{x}" cy="{y}" r="3"><title>step {point[0]}: {point[1]:.5g}</title></circle>'
            )
    return svg(280, "loss over the steps", body)


def missed(layers: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """What is missed of the gradients of each layer, over the steps; the least and the most of all layers
    stand out."""
    steps = [step for points in layers.values() for step, _ in points]
    frame = Frame(240, (min(steps), max(steps)), (0.0, 1.0))
    body = frame.axes(lambda value: f"{value:g}", lambda value: f"{value:.2g}", "step")
    for name, points in layers.items():
        shown = " ".join("{},{}".format(*frame.at(x, y)) for x, y in points)
        body += f'<polyline class="line soft" points="{shown}"><title>{escape(name)}</title></polyline>'
    for choose, kind in ((min, "train"), (max, "held")):
        by_step: dict[int, list[float]] = {}
        for points in layers.values():
            for step, value in points:
                by_step.setdefault(step, []).append(value)
        body += line(frame, [(step, choose(values)) for step, values in sorted(by_step.items())], kind)
    return svg(240, "relative error of the layers' gradients over the steps", body)


def line(frame: Frame, points: Sequence[tuple[float, float]], kind: str) -> str:
    shown = [frame.at(x, y) for x, y in points if math.isfinite(y)]
    if len(shown) == 1:
        return f'<circle class="{kind}" cx="{shown[0][0]}" cy="{shown[0][1]}" r="3"/>'
    return f'<polyline class="line {kind}" points="{" ".join(f"{x},{y}" for x, y in shown)}"/>'


def lanes(step: Step) -> str:
    """One step, a row for each lane, over the share of its time; what lies closer than half a pixel is drawn as one."""
    row, rows = 34, len(step.lanes)
    height = TOP + rows * row + BOTTOM
    first = step.first
    whole = step.seconds or 1
    frame = Frame(height, (0, 100), (0, 1))
    gap = 100 / (WIDTH - LEFT - RIGHT) / 2
    body = ""
    for place, (name, spans) in enumerate(step.lanes.items()):
        y = TOP + place * row
        body += f'<text class="tick" x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{name}</text>'
        body += f'<rect class="lane" x="{LEFT}" y="{y + 2}" width="{WIDTH - LEFT - RIGHT}" height="{row - 6}"/>'
        kinds = sorted({span.kind for span in spans})
        for index, kind in enumerate(kinds):
            beside = name in TRANSFERS  # transfers overlap
            share = (row - 6) / len(kinds) if beside else row - 6
            top = y + 2 + (index * share if beside else 0)
            own = [span.over(first, whole / 100) for span in spans if span.kind == kind]
            for start, end in union(own, gap):
                body += bar(frame, kind, start, end, top, share)
    for value in ticks(0, 100, 8):
        x, _ = frame.at(value, 0)
        body += f'<text class="tick" x="{x}" y="{height - 16}" text-anchor="middle">{value:g} %</text>'
    return svg(height, "what each lane did over the step", body)


def bar(frame: Frame, kind: str, start: float, end: float, top: float, height: float) -> str:
    start, end = max(start, frame.x0), min(end, frame.x1)
    if end <= start:
        return ""
    left, right = frame.at(start, 0)[0], frame.at(end, 0)[0]
    return (
        f'<rect fill="var(--{KINDS[kind]})" x="{left}" y="{top:.2f}" width="{max(0.6, right - left):.2f}" '
        f'height="{height:.2f}"><title>{kind}: {start:.4g} to {end:.4g} %</title></rect>'
    )


def memory(step: Step, base: Sequence[tuple[str, int]], budget: int, words: Callable[[float], str]) -> str:
    """DRAM over the step: what is there anyway (`base`), then the arena by class, under the budget."""
    if not step.memory:
        return ""
    first, percent = step.first, (step.seconds or 1) / 100
    names = [name for name in CLASSES if any(held.get(name) for _, held in step.memory)]
    under = sum(count for _, count in base)
    highest = max(under + sum(held.values()) for _, held in step.memory)
    frame = Frame(300, (0, 100), (0, max(highest, min(budget, 2 * highest)) * 1.06))
    unit = next(unit for unit in (1 << 30, 1 << 20, 1 << 10, 1) if unit <= max(1, frame.y1))
    body = frame.axes(lambda value: f"{value:g} %", words, "", unit)
    levels = [under] * len(step.memory)
    body += area(frame, [(0.0, 0), (100.0, 0)], [under, under], "c0", "interpreter, libraries, PyTorch's working set")
    moments = [min(max((at - first) / percent, 0.0), 100.0) for at, _ in step.memory]
    for name in names:
        lower = list(levels)
        levels = [level + held.get(name, 0) for level, (_, held) in zip(levels, step.memory, strict=True)]
        body += stairs(frame, moments, lower, levels, CLASSES[name], name, 100.0)
    if budget <= frame.y1:
        _, y = frame.at(0, budget)
        body += f'<line class="budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        body += f'<text class="tick" x="{WIDTH - RIGHT}" y="{y - 4}" text-anchor="end">budget {words(budget)}</text>'
    return svg(300, "memory over the step", body)


def area(frame: Frame, lower: Sequence[tuple[float, float]], upper: Sequence[float], color: str, title: str) -> str:
    over = [(x, high) for (x, _), high in zip(lower, upper, strict=True)]
    points = [frame.at(*point) for point in [*lower, *reversed(over)]]
    text = " ".join(f"{x},{y}" for x, y in points)
    return f'<polygon fill="var(--{color})" points="{text}"><title>{escape(title)}</title></polygon>'


def stairs(
    frame: Frame,
    at: Sequence[float],
    lower: Sequence[float],
    upper: Sequence[float],
    color: str,
    title: str,
    end: float,
) -> str:
    """An area whose height holds from one moment to the next."""
    below: list[tuple[float, float]] = []
    above: list[float] = []
    for place, start in enumerate(at):
        until = at[place + 1] if place + 1 < len(at) else end
        for moment in (start, until):
            below.append((moment, lower[place]))
            above.append(upper[place])
    return area(frame, below, above, color, title)


def shares(parts: Sequence[tuple[str, float, str]]) -> str:
    """One bar, cut by (name, seconds, colour)."""
    whole = sum(seconds for _, seconds, _ in parts) or 1
    body, x = "", 0.0
    for name, seconds, color in parts:
        width = seconds / whole * WIDTH
        body += (
            f'<rect fill="var(--{color})" x="{x:.2f}" y="0" width="{width:.2f}" height="28">'
            f"<title>{escape(name)}: {100 * seconds / whole:.1f} %</title></rect>"
        )
        x += width
    return svg(28, "where the time of a step went", body)
