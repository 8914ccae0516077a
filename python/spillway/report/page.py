"""The page: one file without scripts, fonts or anything to fetch. Every figure has an id, by which tests read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from spillway import __version__
from spillway.base.sizes import duration, pace, size, used_up
from spillway.report import charts, device_passes, experts, ranks, reductions
from spillway.report.causes import Cause, causes
from spillway.report.facts import DAMAGE, Facts
from spillway.report.tables import device_blocks
from spillway.report.timeline import KINDS, Step, steps

CAUSES = {"compute": "c1", "read": "c5", "write": "c6", "update": "c4", "commit": "c7"}


RUNNING = {True: "still running", False: "interrupted", None: "still running, or interrupted"}


def text(facts: Facts, words: str) -> str:
    """`words`: what bounds the run and what would help."""
    return document(facts.output_dir.name, body(facts, words))


def document(name: str, content: str, head_more: str = "") -> str:
    """The HTML around the body of a run of that name."""
    title = escape(f"{name}: Spillway")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style>{head_more}</head><body><main>{content}</main></body></html>\n"
    )


def body(facts: Facts, words: str) -> str:
    """All parts of the page, each an element."""
    two = steps(facts.trace)
    bodies: dict[str, Callable[[], str]] = {
        "Loss": lambda: loss(facts),
        reductions.MISSED: lambda: missed(facts),
        "Where the time of a step went": lambda: times(facts),
        "The processes": lambda: processes(facts),
        "Prediction beside measurement": lambda: beside(facts),
        "Blocks on the device": lambda: blocks(facts),
        "The step": lambda: timeline(two),
        "Memory over the step": lambda: memory(facts, two),
        "Memory and storage by tier": lambda: tiers(facts),
        "What was written": lambda: wear(facts),
        "Settings": lambda: settings(facts),
    }
    parts = [
        render_guarded(lambda: head(facts)),
        section("Damaged files", list_damage(facts)),
        f'<p class="advice" id="advice">{escape(words)}</p>',
        *(section(title, render_guarded(body)) for title, body in bodies.items()),
    ]
    return f"{''.join(filter(None, parts))}<footer>Spillway {escape(__version__)}</footer>"


def render_guarded(body: Callable[[], str]) -> str:
    """A part of the page, or the reason why it is missing. Other parts do not depend on it."""
    try:
        return body()
    except DAMAGE as error:
        return f"<p>This part cannot be shown: the run's files are damaged ({escape(repr(error))}).</p>"


def list_damage(facts: Facts) -> str:
    """The damaged files, each with its damage."""
    lines = "".join(f"<li>{escape(words)}</li>" for words in facts.damaged)
    return f'<ul id="damaged">{lines}</ul>' if lines else ""


def blocks(facts: Facts) -> str:
    """The blocks on a device, as `plan` says it."""
    words = device_blocks(facts.plan)
    return f'<p id="device-blocks">{escape(words)}</p>' if words else ""


def section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def figure(name: str, label: str, value: str) -> str:
    return f'<div class="figure"><b id="{name}">{escape(value)}</b><span>{escape(label)}</span></div>'


def head(facts: Facts) -> str:
    config = facts.config
    done = facts.summary.get("steps", 0) if facts.finished else 0
    done = done or (facts.steps[-1]["step"] if facts.steps else 0)
    last = facts.steps[-1]["loss"] if facts.steps else None
    figures = [
        figure("steps", "steps" if facts.finished else "steps so far", str(done)),
        figure("loss", "last loss", f"{last:.4f}" if last is not None else "none yet"),
        figure("step-measured", "a step, measured: " + spread(facts), optional(facts.step_seconds, duration)),
        figure("step-predicted", "a step, predicted", optional(facts.predicted_seconds, duration)),
        figure("tokens-per-second", "tokens/s, padding not counted", optional(facts.tokens_per_second, pace)),
    ]
    state = "" if facts.finished else f" · {RUNNING[facts.is_running]}"
    if facts.machine:
        state += f" · predicted for the machine of {escape(facts.machine)}, computing as fast as here"
    return (
        f"<header><h1>{escape(facts.output_dir.name)}</h1><p>{escape(str(config.get('model')))} on "
        f"{escape(str(config.get('dataset') or 'data of its own loop'))}{state}</p>"
        f'<div class="figures">{"".join(figures)}</div></header>'
    )


def spread(facts: Facts) -> str:
    """What the measured step time is, and how the steps lie about it."""
    if facts.step_spread is None:
        return "the median"
    low, high = (duration(seconds) for seconds in facts.step_spread)
    return f"the median; the middle half of the steps took {low} to {high}"


def loss(facts: Facts) -> str:
    train = [(row["step"], row["loss"]) for row in facts.steps]
    held_out = [(row["step"], row["eval_loss"]) for row in facts.evaluations]
    if not train and not held_out:
        return "<p>No step has been logged yet.</p>"
    legend = keys([("train", "training")] + ([("held", "held out")] if held_out else []))
    return charts.loss_curve(train, held_out) + legend


def missed(facts: Facts) -> str:
    """The section about reduced gradients."""
    if (found := reductions.missed(facts)) is None:
        return ""
    layers, words = found
    legend = keys([("train", "the layer that misses least"), ("held", "most")])
    return charts.missed(layers) + legend + f'<p id="{reductions.ID}">{escape(words)}</p>'


def times(facts: Facts) -> str:
    found = causes(facts)
    if not found:
        return "<p>Known after the second step.</p>"
    whole = sum(cause.seconds for cause in found) or 1
    bar = charts.shares([(cause.words, cause.seconds, colour(cause)) for cause in found])
    table = rows_of(
        ("", "of the median step", "share"),
        [
            (
                swatch(colour(cause)) + escape(cause.words),
                cell(f"seconds-{cause.name.replace(' ', '-')}", duration(cause.seconds)),
                f"{100 * cause.seconds / whole:.1f} %",
            )
            for cause in found
        ],
    )
    about = (
        '<p id="about-times">Shares of the time of all steps of this process, as seconds of the median step '
        f"({escape(optional(facts.step_seconds, duration))}).</p>"
    )
    on_device = device_passes.describe(facts.summary)
    return bar + table + about + (f'<p id="device-passes">{escape(on_device)}.</p>' if on_device else "")


def processes(facts: Facts) -> str:
    """How the processes of a run waited for each other."""
    late = "" if facts.finished else "; ".join(ranks.late_now(facts.output_dir))
    now = f'<p id="late-now">Late now: {escape(late)}</p>' if late else ""
    if not (found := ranks.rows(facts)):
        return now
    table = rows_of(
        ("", "others waited for it", "it waited for others", "and for what is its own"),
        [
            (
                escape(row.name),
                cell(f"late-{number}", duration(row.kept_waiting)),
                cell(f"waited-{number}", duration(row.waited)),
                escape(", ".join(f"{words} {duration(seconds)}" for words, seconds in row.own[:3]) or "nothing"),
            )
            for number, row in enumerate(found)
        ],
    )
    words = ranks.latest(found)
    about = (
        "<p>Seconds of all steps of these processes. Others waited for one as long as transfers whose last bytes were "
        "its own took beyond the fastest of as many bytes.</p>"
    )
    return now + (f'<p id="latest">{escape(words)}</p>' if words else "") + table + about


def colour(cause: Cause) -> str:
    """That of its kind, whichever tier it is about."""
    return CAUSES.get(cause.name.partition(" ")[0], "c8")


def beside(facts: Facts) -> str:
    rows = [("a step (median)", optional(facts.predicted_seconds, duration), optional(facts.step_seconds, duration))]
    for tier in facts.summary.get("tiers", []):
        rows.append((f"peak of {tier['name']}", size(tier["planned_peak"]), optional(tier["measured_peak"], size)))
    for path, moved in (facts.plan.get("path_bytes_per_step") or {}).items():
        for way in ("read", "written"):
            rows.append(
                (f"{path}: {way} a step", size(moved[way]), optional(facts.moved_per_step(path, way), whole_size))
            )
    rows += experts.compare(facts.plan, facts.summary)
    return rows_of(("", "predicted", "measured"), [(escape(name), one, other) for name, one, other in rows])


def whole_size(count: float) -> str:
    return size(int(count))


def timeline(two: dict[str, Step]) -> str:
    if not two:
        return "<p>The timeline is written when the run has ended.</p>"
    parts = ["<p>Each is one step, the measured one the last; shares are of its own time.</p>"]
    for name, step in two.items():
        busy = ", ".join(f"{lane} {share(step.busy(lane), step.seconds)}" for lane in step.lanes if step.lanes[lane])
        parts.append(f"<h3>{name}</h3>")
        parts.append(charts.lanes(step))
        parts.append(f'<p id="busy-{name}">busy: {escape(busy)}</p>')
    kinds = {span.kind for step in two.values() for spans in step.lanes.values() for span in spans}
    groups: dict[str, list[str]] = {}
    for kind, color in KINDS.items():
        if kind in kinds:
            groups.setdefault(color, []).append(kind)
    return "".join(parts) + keys([(color, ", ".join(group)) for color, group in groups.items()])


def share(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.0f} %" if whole else "-"


def memory(facts: Facts, two: dict[str, Step]) -> str:
    step = two.get("measured") or two.get("predicted")
    nodes = [tier for tier in facts.plan["tiers"] if not tier["name"].startswith("path")]
    if step is None or not nodes or not step.memory:
        return ""
    planned, budget = (sum(tier[key] for tier in nodes) for key in ("planned_peak", "capacity"))
    most = max(sum(held.values()) for _, held in step.memory)
    base = [("process", max(0, planned - most))]
    names = [(color, name) for name, color in charts.CLASSES.items() if any(h.get(name) for _, h in step.memory)]
    drawing = charts.memory(step, base, budget, whole_size)
    return drawing + keys([("c0", "interpreter, libraries, PyTorch's working set"), *names])


def tiers(facts: Facts) -> str:
    peaks = {tier["name"]: tier.get("measured_peak") for tier in facts.summary.get("tiers", [])}
    rows = []
    for tier in facts.plan["tiers"]:
        name = tier["name"]
        held = ", ".join(
            f"{escape(entry['class'])} {size(entry['bytes'])}"
            for entry in facts.plan["bytes"]
            if entry["tier"] == name and entry["bytes"]
        )
        used = cell(f"planned-{slug(name)}", size(tier["planned_peak"]))
        peak = cell(f"peak-{slug(name)}", optional(peaks.get(name), size))
        rows.append((escape(name), size(tier["capacity"]), used, peak, held))
    return rows_of(("tier", "budget", "planned peak", "measured peak", "what lives there"), rows)


def wear(facts: Facts) -> str:
    totals = facts.summary.get("written") or {}
    moved = facts.summary.get("path_bytes") or {}
    rows = []
    for path in facts.paths:
        total = totals.get(path, moved.get(path, {}).get("written", 0))
        share = (facts.summary.get("endurance_used") or {}).get(path)
        told = used_up(share, 1) if share is not None else "give its rating: storage: DIR,endurance=600TB"
        here = size(moved.get(path, {}).get("written", 0))
        rows.append((escape(path), here, cell(f"written-{slug(path)}", size(total)), escape(told)))
    if not rows:
        return "<p>Nothing: all of it stays in DRAM.</p>"
    return rows_of(("path", "by this process", "by the run", "of the drive's rated life"), rows)


def settings(facts: Facts) -> str:
    shown = {key: value for key, value in facts.config.items() if value not in (None, [], False)}
    lines = "".join(f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in shown.items())
    return f"<details><summary>{len(shown)} keys</summary><dl>{lines}</dl></details>"


def rows_of(head_row: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head_row)
    body = "".join("<tr>" + "".join(f"<td>{value}</td>" for value in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def cell(name: str, value: str) -> str:
    return f'<span id="{name}">{escape(value)}</span>'


def slug(name: str) -> str:
    return name.replace(":", "-")


def swatch(color: str) -> str:
    return f'<i style="background:var(--{color})"></i>'


def keys(pairs: list[tuple[str, str]]) -> str:
    colors = {"train": "c1", "held": "c3"}
    words = "".join(f"<span>{swatch(colors.get(color, color))}{escape(name)}</span>" for color, name in pairs)
    return f'<p class="keys">{words}</p>'


def optional(value: Any, render: Any) -> str:
    return "" if value is None else str(render(value))


STYLE = """
:root{color-scheme:light dark;--bg:#fbfbfa;--fg:#1d2329;--soft:#5b6670;--rule:#dfe3e6;--lane:#eef0f2;--note:#eaf2fb;
--c0:#b9c1c8;--c1:#3b76c4;--c2:#7a5cc0;--c3:#d1603d;--c4:#c99a1e;--c5:#2e8f7e;--c6:#8a9a2b;--c7:#b8457e;--c8:#6f7f8f}
@media(prefers-color-scheme:dark){:root{--bg:#14181c;--fg:#e4e8eb;--soft:#9aa5af;--rule:#2c343b;--lane:#1e252b;
--note:#182838;--c0:#4b555e;--c1:#6ea5ea;--c2:#a78bea;--c3:#ef8a68;--c4:#e3bb4c;--c5:#53bfa9;--c6:#b4c653;--c7:#e07bab;
--c8:#8f9fae}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}h1{margin:0;font-size:26px}h2{font-size:18px;margin:0 0 10px}
h3{font-size:15px;margin:14px 0 4px;font-weight:600}header p{margin:2px 0 16px;color:var(--soft);overflow-wrap:anywhere}
section{margin-top:34px}svg{width:100%;height:auto;display:block}p{margin:6px 0}
.figures{display:flex;flex-wrap:wrap;gap:12px 34px}.figure b{display:block;font-size:22px;font-weight:600}
.figure span{color:var(--soft);font-size:13px}.advice{background:var(--note);padding:12px 16px;border-radius:6px;
margin-top:22px}.grid{stroke:var(--rule)}.tick{fill:var(--soft);font-size:12px}.line{fill:none;stroke-width:1.6}
.soft{stroke:var(--rule);stroke-width:1}.train{stroke:var(--c1)}.held{stroke:var(--c3)}circle.train{fill:var(--c1)}circle.held{fill:var(--c3)}
.lane{fill:var(--lane)}.budget{stroke:var(--c3);stroke-width:1.5;stroke-dasharray:6 4}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;margin-top:8px;font-variant-numeric:tabular-nums}
td:not(:last-child),th{white-space:nowrap}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top}
th{color:var(--soft);font-weight:500;font-size:13px}.keys{color:var(--soft);font-size:13px;display:flex;flex-wrap:wrap;
gap:2px 16px}i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 18px;font-size:13px}dt{color:var(--soft)}dd{margin:0;
overflow-wrap:anywhere}summary{cursor:pointer;color:var(--soft)}footer{margin-top:40px;color:var(--soft);font-size:12px}
"""
