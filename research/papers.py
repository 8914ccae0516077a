"""The papers' machines: simulated beside published, as tables in docs/papers.md, results and a plot.

python research/papers.py BUILD: runs BUILD/research/papers on profiles/, and plans for whole models with `spillway
plan` (--old-plans: those of the results there are; --only TABLE ...: these tables alone anew).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import model_shapes
from figures import RESULTS
from recorded import content, filled

from spillway.base.sizes import pace

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "papers.md"
CLAIMS = Path(__file__).with_name("claims.toml")
PAPERS = ("LSP-Offload", "CXL-aware allocation", "MemAscend", "MLP-Offload")
SHOWN = ("measured", "throttled", "simulated", "planned", "not shown")
MODELS = ("Qwen2.5-1.5B", "Qwen2.5-7B", "Llama-2-13B")
MACHINES = {"workstation": 2048, "laptop": 1024}  # and the sequence planned for
TOLERANCE = 10  # percent

TITLES = {
    "cxl_transfers": ("CXL: transfers of 2 GiB, GiB/s per GPU", "profiles/papers-cxl.json"),
    "cxl_updates": ("CXL: CPU Adam of 671 M elements, ms", "profiles/papers-cxl.json"),
    "cxl_steps": ("CXL: steps of 7B and 12B, 4K to 32K tokens, batch 1 to 16", "profiles/papers-cxl.json"),
    "cxl_seconds": ("CXL: seconds of a step in each case", "profiles/papers-cxl.json"),
    "cxl_bound": ("CXL: what bounds the cases that lose", "profiles/papers-cxl.json"),
    "cxl_rows": ("CXL: boundary activations of rows of 4K to 32K tokens", "profiles/papers-cxl.json"),
    "cxl_saved": ("CXL: saved activations of rows of 4K to 32K tokens", "profiles/papers-cxl.json"),
    "host_memory": ("MemAscend: host memory without activations", "profiles/papers-memascend.json"),
    "long_rows": ("MemAscend: long rows and many rows in 128 GiB", "profiles/papers-memascend.json"),
    "third_level": ("ZeRO-3 with NVMe and MLP-Offload: seconds an iteration", "profiles/papers-mlp-offload.json"),
    "scale": ("175B and 280B on the node of MLP-Offload", "profiles/papers-mlp-offload.json"),
    "cluster": ("70B on four machines of eight GPUs", "profiles/cluster.json"),
    "greedysnake": ("GreedySnake: times as fast as ZeRO-Infinity", "profiles/papers-greedysnake.json"),
    "lohan": ("LoHan: TFLOPS of GPT-13B by number of drives", "profiles/papers-lohan.json"),
    "lsp": ("LSP-Offload: seconds an iteration", "profiles/papers-lsp.json, profiles/papers-lsp-laptop.json"),
    "lsp_links": ("DeepSeek-6.7B over other links", "profiles/papers-lsp.json"),
}
GRIDS = ("cxl_seconds",)
PHASES = (", backward", ", update")
NOT_PLOTTED = (", forward", ", first wait", "speed-up", "times as long", "alone", "or from a machine")
COLORS = {"published": "#9aa5b1", "predicted": "#2f6f9f", "given or fitted": "#b9d3e6", "Spillway's plan": "#d1803d"}
Row = dict[str, Any]
CASE = re.compile(r"(.*Spillway, \d+ x \d+|.*Spillway, (?:exact|bf16) states|.*Spillway), (.*)")
PLANS = ("cxl_bound", "cxl_rows", "cxl_saved", "long_rows", "scale")  # tables of Spillway's plans alone


def error(row: Row) -> float:
    """In percent of the published figure."""
    return 100 * (row["simulated"] / row["published"] - 1)


def points(row: Row) -> str:
    """Of a loss, which is a percentage already and may be none."""
    return f"{row['simulated'] - row['published']:+.1f} points"


def predicted(row: Row) -> bool:
    """Whether a row may count: published as it stands, and neither given to the simulator nor what it was fitted to."""
    return "published" in row and row["source"] != "derived" and not row["how"]


def mark(row: Row) -> str:
    """What the last column says of a published row."""
    if row["how"] or row["source"] == "derived":
        return f"{row['how'] or 'derived'}, does not count"
    return "within 10 %" if abs(error(row)) <= TOLERANCE else "**misses 10 %**"


def table(rows: list[Row]) -> str:
    lines = ["| | published | by | simulated | error | |", "|---|---|---|---|---|---|"]
    for row in rows:
        if "published" not in row:
            lines.append(f"| {row['what']} | | | {row['simulated']:.4g} | | |")
            continue
        off = points(row) if "lost" in row["what"] else f"{error(row):+.1f} %"
        figures = f"{row['published']:.4g} | {row['source']} | {row['simulated']:.4g} | {off}"
        lines.append(f"| {row['what']} | {figures} | {mark(row)} |")
    return "\n".join(lines)


def cell(row: Row) -> str:
    """The value of a row. A dash: no plan fits."""
    return "-" if row["simulated"] is None else f"{row['simulated']:.4g}"


def grid(rows: list[Row]) -> str:
    """Rows named `case: side`, as a line for each case and a column for each side."""
    cases: dict[str, dict[str, str]] = {}
    for row in rows:
        case, side = row["what"].split(": ")
        cases.setdefault(case, {})[side] = cell(row)
    sides = list(next(iter(cases.values())))
    lines = [f"| | {' | '.join(sides)} |", "|---" * (len(sides) + 1) + "|"]
    return "\n".join([*lines, *(f"| {case} | {' | '.join(cells.values())} |" for case, cells in cases.items())])


def plan_values(rows: list[Row]) -> str:
    """Rows named `case, Spillway, quantity`, as a line for each case and a column for each quantity; before them rows
    of the machine."""
    cases: dict[str, dict[str, str]] = {}
    alone = []
    for row in rows:
        parts = CASE.fullmatch(row["what"])
        if parts is None:
            alone.append(f"{row['what']}: {row['simulated']:.4g}\n\n")
            continue
        case = ", ".join(part for part in parts[1].split(", ") if part != "Spillway")
        cases.setdefault(case, {})[parts[2]] = cell(row)
    quantities = list(next(iter(cases.values())))
    lines = [f"| planned | {' | '.join(quantities)} |", "|---" * (len(quantities) + 1) + "|"]
    lines += [f"| {case} | {' | '.join(cells[name] for name in quantities)} |" for case, cells in cases.items()]
    return "".join(alone) + "\n".join(lines)


def read_claims() -> list[dict[str, Any]]:
    claims: list[dict[str, Any]] = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]
    return claims


def figures_of(claim: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: value for name, value in claim.items() if isinstance(value, dict)}


def claim_table() -> str:
    """Claims of the papers, and what Spillway shows, each figure read from its file."""
    lines = ["| paper | claim | Spillway | how shown | file |", "|---|---|---|---|---|"]
    for claim in read_claims():
        ours = filled(claim["ours"], figures_of(claim))
        file = f"[{claim['file']}](../bench/results/{claim['file']})" if "file" in claim else ""
        lines.append(f"| {claim['paper']} | {claim['claim']} | {ours} | {claim['how']} | {file} |")
    return "\n".join(lines)


def verdict(rows: list[Row]) -> str:
    counted = [row for row in rows if predicted(row)]
    if not counted:
        return "No published figure was predicted here, so no row counts."
    good = sum(abs(error(row)) <= TOLERANCE for row in counted)
    return f"{good} of the {len(counted)} published figures that were predicted lie within {TOLERANCE} %."


def comments(profiles: str) -> str:
    """What each of the profiles says of itself."""
    parts = []
    for profile in profiles.split(", "):
        lines = "\n".join(f"- {line}" for line in json.loads((ROOT / profile).read_text())["comment"])
        parts.append(f"`{profile}`:\n\n{lines}")
    return "\n\n".join(parts)


def plans(folder: Path) -> list[dict[str, Any]]:
    out = []
    for machine, sequence in MACHINES.items():
        for name in MODELS:
            words = [
                sys.executable, "-m", "spillway", "plan", "--json", "--model", str(model_shapes.write(folder, name)),
                "--profile", str(ROOT / "profiles" / f"{machine}.json"), "--max_length", str(sequence),
                "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8",
            ]  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
            print(machine, name, done.returncode, flush=True)
            if done.returncode not in (0, 3):
                raise SystemExit(done.stderr)
            plan = json.loads(done.stdout) if done.returncode == 0 else {"refused": done.stderr.strip()}
            out.append({"machine": machine, "model": name, "sequence": sequence, **plan})
    return out


def plan_table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| machine | model | tokens a sequence | tokens/s | step, s | bottleneck | next | GiB by tier | longest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in found:
        start = f"| {plan['machine']} | {plan['model']} | {plan['sequence']} |"
        if "refused" in plan:
            lines.append(f"{start} does not fit | | {plan['refused'].removeprefix('spillway: ')} | | | |")
            continue
        tiers = ", ".join(
            f"{tier['name']}{' each' if tier.get('count', 1) > 1 else ''} {tier['planned_peak'] / 2**30:.0f}"
            for tier in plan["tiers"]
            if tier["planned_peak"]
        )
        lines.append(
            f"{start} {pace(plan['tokens_per_second'])} | {plan['predicted_step_seconds']:.1f} | "
            f"{plan['bottleneck']} | {plan['next_bottleneck']} | {tiers} | {plan['longest_sequence']} |"
        )
    return "\n".join(lines)


HEAD = "# Other systems' papers\n\n<!-- Made by research/papers.py. -->\n"


def notes() -> dict[str, str]:
    """Paragraphs of research/papers.md by title."""
    parts = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").split("\n# ")[1:]
    return {title: words.strip() for title, _, words in (part.partition("\n") for part in parts)}


def page(tables: dict[str, list[Row]], found: list[dict[str, Any]]) -> str:
    said = notes()
    parts = [HEAD, said["intro"], "## Claims of the four papers\n\n" + said["claims"] + "\n\n" + claim_table()]
    parts.append("![Published and simulated](images/papers.png)\n")
    for name, (title, profile) in TITLES.items():
        if name not in tables:  # not made yet
            continue
        if name in GRIDS:
            parts.append(f"## {title}\n\n{grid(tables[name])}")
        elif name in PLANS:
            parts.append(f"## {title}\n\n{plan_values(tables[name])}")
        else:
            parts.append(f"## {title}\n\n{comments(profile)}\n\n{table(tables[name])}\n\n{verdict(tables[name])}")
        if name in said:
            parts.append(said[name])
    if found:
        parts.append("## Plans for whole models\n\n" + said["plans"] + "\n\n" + plan_table(found))
    return "\n\n".join(parts) + "\n"


def plot(tables: dict[str, list[Row]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(4, 2, figsize=(11, 14))
    panels = (
        (axes[0, 0], "cxl_updates", "CPU Adam over DRAM and CXL, ms"),
        (axes[0, 1], "third_level", "seconds an iteration, 4 GPUs"),
        (axes[1, 0], "cxl_steps", "CXL, % lost of DRAM-only throughput; gained over interleaving"),
        (axes[1, 1], "lohan", "TFLOPS by drives, GPT-13B"),
        (axes[2, 0], "lsp", "LSP-Offload, seconds an iteration"),
        (axes[2, 1], "cxl_transfers", "CXL, GiB/s per GPU"),
        (axes[3, 0], "third_level_phases", "seconds of backward and update, 4 GPUs"),
        (axes[3, 1], "greedysnake", "GreedySnake, times as fast as ZeRO-Infinity"),
    )
    for axis, name, title in panels:
        phases = name.endswith("_phases")
        rows = [row for row in tables[name.removesuffix("_phases")] if (row["what"].endswith(PHASES)) == phases]
        draw(axis, [row for row in rows if not any(word in row["what"] for word in NOT_PLOTTED)])
        axis.set_title(title, fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    figure.legend(handles, COLORS, loc="lower center", ncols=len(COLORS), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def kind(row: Row) -> str:
    """What the bar of the simulated figure is."""
    if "published" not in row:
        return "Spillway's plan" if "Spillway" in row["what"] else "predicted"
    return "given or fitted" if row["how"] else "predicted"


def draw(axis: Any, rows: list[Row]) -> None:
    """A bar for each figure, the published one above the simulated one."""
    places = range(len(rows))
    shown = [row.get("published", 0) for row in rows]
    axis.barh([p - 0.2 for p in places], shown, 0.4, color=COLORS["published"])
    axis.barh(
        [p + 0.2 for p in places], [row["simulated"] for row in rows], 0.4, color=[COLORS[kind(row)] for row in rows]
    )
    axis.set_yticks(list(places), [row["what"] for row in rows], fontsize=6)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--old-plans", action="store_true")
    parser.add_argument(
        "--only", nargs="+", choices=sorted({*TITLES} - {"lsp_links"}), default=[], help="tables that are made anew"
    )
    arguments = parser.parse_args()
    program = [arguments.build / "research" / "papers", ROOT / "profiles"]
    old = json.loads((RESULTS / "papers.json").read_text())
    tables = old["tables"] if arguments.only else {}
    for words in [[name] for name in arguments.only] or [[]]:
        done = subprocess.run([*program, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        tables |= json.loads(done.stdout)
    if arguments.old_plans:
        found = [plan for plan in old["plans"] if plan["machine"] in MACHINES]
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = plans(Path(folder))
    keep = ("machine", "model", "sequence", "refused", "predicted_step_seconds", "tokens_per_second", "bottleneck",
            "next_bottleneck", "seconds_alone", "tiers", "longest_sequence", "shares")  # fmt: skip
    short = [{key: plan[key] for key in keep if key in plan} for plan in found]
    if not short:
        raise SystemExit("papers: there are no plans for whole models; leave --old-plans out")
    (RESULTS / "papers.json").write_text(json.dumps({"tables": tables, "plans": short}, indent=1) + "\n")
    content.cache_clear()
    plot(tables, ROOT / "docs" / "images" / "papers.png")
    PAGE.write_text(page(tables, found), encoding="utf-8")
    for name in TITLES:
        print(f"{name}: {verdict(tables[name])}")


if __name__ == "__main__":
    main()
