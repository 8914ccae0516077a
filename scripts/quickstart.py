"""A tour of Spillway for a skeptical person: from nothing to a checkpoint, with most of the training state on disk.

Makes a small Llama model with random weights, teaches it Shakespeare through the `spillway` command, and checks each
thing that the README promises on the way. Exits non-zero if one of them did not hold.
"""

import argparse
import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tour import command
from tour.bigram import bigram_loss
from tour.command import Outcome
from tour.compare import compare
from tour.configuration import LENGTH, SHORT_STEPS, bf16_is_fast, comparison, training
from tour.memory_limit import MemoryLimit, Unavailable
from tour.screen import Screen, mebibytes

ROOT = Path(__file__).resolve().parent.parent
TRAIN = ROOT / "samples" / "shakespeare.train.txt"
HELD_OUT = ROOT / "samples" / "shakespeare.heldout.txt"
PROMPT = "ROMEO:\n"
STATE = ("weight", "state", "grad", "activation")  # the classes of bytes that training spreads over its tiers
INTERRUPT_AFTER = 4
SHORT_RUNS = ("short-dram", "short-disk", "short-resumed")


class Stopped(Exception):
    """The tour cannot go on."""


@dataclass
class Tour:
    steps: int
    out: Path
    disk: Path
    screen: Screen = field(default_factory=Screen)
    budget: int = 0  # bytes, from the plan

    @property
    def start(self) -> Path:
        return self.out / "start"

    @property
    def config(self) -> Path:
        return self.out / "shakespeare.yaml"

    @property
    def short(self) -> Path:
        return self.out / "short.yaml"

    @property
    def run(self) -> Path:
        return self.out / "shakespeare"

    def storage(self, name: str) -> list[str]:
        """Options that put a run's bytes into a storage directory of its own."""
        directory = self.disk / name
        directory.mkdir(parents=True, exist_ok=True)
        return ["--storage", str(directory), "--placement", "path"]

    def spillway(self, *words: str, live: bool = False, limit: MemoryLimit | None = None) -> Outcome:
        """Shows and runs a command."""
        self.screen.command(["spillway", *(shown(word) for word in words)])
        return command.run(list(words), live=live, limit=limit)

    def must(self, outcome: Outcome, code: int = 0) -> Outcome:
        if outcome.code != code:
            self.screen.quote(outcome.message())
            raise Stopped(f"the command ended with {outcome.code}; {code} was expected")
        return outcome


def shown(word: str) -> str:
    """A path as short as it can be said from here."""
    path = Path(word)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else word


def prepare(tour: Tour) -> None:
    """The model, its tokenizer, the configuration."""
    from tour.sample_model import make_model

    say = tour.screen.line
    say("Spillway quickstart: a small model learns Shakespeare, most of its training state on disk.")
    if tour.out.exists():
        if not tour.config.is_file():
            raise Stopped(f"{tour.out} exists and is not of an earlier quickstart; name another by --out")
        shutil.rmtree(tour.out)
    for name in (tour.run.name, *SHORT_RUNS):  # an earlier quickstart's, on a disk that lies elsewhere
        shutil.rmtree(tour.disk / name, ignore_errors=True)
    tour.out.mkdir(parents=True)
    dtype = "bf16" if bf16_is_fast() else "fp32"
    tour.config.write_text(training(tour.start, TRAIN, HELD_OUT, tour.run, tour.steps, dtype))
    tour.short.write_text(comparison(tour.start, TRAIN, dtype))
    parameters = make_model(tour.start, TRAIN.read_text(), seed=1)
    where = shown(str(tour.start))
    say(f"Model: Llama architecture, {parameters / 1e6:.1f} million parameters, random weights, in {where}.")
    say(f"Plain training would hold 16 bytes for each: {mebibytes(16 * parameters)} beside activations.")


def refused_plan(tour: Tour) -> None:
    tour.screen.heading("A budget that is too small is refused before anything starts")
    fitting = tour.must(command.run(["plan", str(tour.config), *tour.storage("shakespeare"), "--json"]))
    plan = json.loads(fitting.output)
    memory = [tier for tier in plan["tiers"] if not tier["name"].startswith("path:")]
    tour.budget = sum(tier["planned_peak"] for tier in memory)
    half = f"{tour.budget // 2**21}MiB"
    refused = tour.spillway("plan", str(tour.config), *tour.storage("shakespeare"), "--dram_budget", half)
    tour.screen.quote(refused.message())
    tour.screen.promise(refused.code == 3, f"exit code 3 (does not fit): it was {refused.code}")
    tour.screen.promise(not tour.run.exists(), "nothing was written")


def limited_training(tour: Tour) -> None:
    tour.screen.heading("Training, held to its budget by the kernel")
    limit = memory_limit(tour)
    budget = f"{-(-tour.budget // 2**20)}MiB"
    words = ["train", str(tour.config), *tour.storage("shakespeare")]
    try:
        outcome = tour.spillway(*words, "--dram_budget", budget, live=True, limit=limit)
        killed = limit.killed() if limit else 0
    finally:
        if limit:
            limit.close()
    if outcome.code != 0:
        raise Stopped("the kernel stopped it at the limit" if killed else f"training ended with {outcome.code}")
    plan = command.content(tour.run / "plan.json")
    on_disk, total = state_bytes(plan)
    tour.screen.promise(on_disk > total / 2, f"most of its state on disk: {mebibytes(on_disk)} of {mebibytes(total)}")
    if limit:
        tour.screen.promise(killed == 0, "the process stayed below the limit")


def memory_limit(tour: Tour) -> MemoryLimit | None:
    limit = tour.budget + tour.budget // 50
    try:
        group = MemoryLimit(limit)
    except Unavailable as reason:
        tour.screen.line(f"No limit can be set here, so none is: {reason}.")
        return None
    tour.screen.line(f"A control group will stop the process above {mebibytes(limit)}: the plan's total and 2 %.")
    return group


def state_bytes(plan: dict[str, Any]) -> tuple[int, int]:
    """Bytes of training state on paths, and on all tiers."""
    entries = [entry for entry in plan["bytes"] if entry["class"] in STATE]
    on_disk = sum(entry["bytes"] for entry in entries if entry["tier"].startswith("path:"))
    return on_disk, sum(entry["bytes"] for entry in entries)


def planned_and_measured(tour: Tour) -> None:
    tour.screen.heading("What was planned beside what was measured")
    summary = command.content(tour.run / "summary.json")
    step = summary["step_seconds"]
    tour.screen.line(f"step    planned {step['predicted']:.3f} s, measured {step['measured']:.3f} s")
    for tier in summary["tiers"]:
        peaks = f"planned {mebibytes(tier['planned_peak'])}, measured {mebibytes(tier['measured_peak'] or 0)}"
        tour.screen.line(f"{tier['name']:7} {peaks}")
    peak = summary["process_peak"]
    tour.screen.promise(
        peak <= tour.budget * 1.02, f"the whole process peaked at {mebibytes(peak)}, planned {mebibytes(tour.budget)}"
    )


def same_everywhere(tour: Tour) -> None:
    tour.screen.heading("Where the bytes lie changes nothing")
    short = ["train", str(tour.short), "--output_dir"]
    tour.must(tour.spillway(*short, str(tour.out / "short-dram"), "--placement", "dram"))
    tour.must(tour.spillway(*short, str(tour.out / "short-disk"), *tour.storage("short-disk")))
    result = compare(tour.out / "short-dram", tour.out / "short-disk")
    tour.screen.promise(result.equal, f"DRAM and disk: {result.words()}")


def interruption(tour: Tour) -> None:
    tour.screen.heading("Ctrl-C loses nothing")
    output_dir = tour.out / "short-resumed"
    words = ["train", str(tour.short), "--output_dir", str(output_dir), *tour.storage("short-resumed")]
    tour.screen.command(["spillway", *(shown(word) for word in words)])
    tour.screen.line(f"(Ctrl-C after step {INTERRUPT_AFTER} of {SHORT_STEPS})")
    outcome = command.run_and_interrupt(words, output_dir, INTERRUPT_AFTER)
    tour.screen.quote(outcome.message())
    if outcome.code == 0:
        raise Stopped("the run had ended before it could be interrupted")
    tour.must(outcome, 130)
    tour.must(tour.spillway("resume", str(output_dir)))
    result = compare(tour.out / "short-disk", output_dir)
    tour.screen.promise(result.equal, f"never interrupted and resumed: {result.words()}")


def reloaded(tour: Tour) -> None:
    from transformers import AutoTokenizer

    from tour.reload import ask, pieces

    tour.screen.heading("An ordinary checkpoint, read by transformers' from_pretrained")
    tokenizer = AutoTokenizer.from_pretrained(tour.start)
    end = [tokenizer.eos_token_id]
    train, held_out = ([*tokenizer(file.read_text())["input_ids"], *end] for file in (TRAIN, HELD_OUT))
    parts = pieces(held_out, LENGTH)
    before = ask(tour.start, parts, PROMPT, 40)
    after = ask(tour.run, parts, PROMPT, 80)
    bigram = bigram_loss(train, parts, len(tokenizer))
    tour.screen.line("text before:")
    tour.screen.quote(before.text, 4)
    tour.screen.line("text after:")
    tour.screen.quote(after.text, 8)
    fall = 1 - after.loss / before.loss
    seen = [row["eval_loss"] for row in command.metrics(tour.run) if "eval_loss" in row]
    tour.screen.line(f"held-out loss by the engine      {seen[0]:.3f} -> {seen[-1]:.3f}")
    tour.screen.line(f"held-out loss by transformers    {before.loss:.3f} -> {after.loss:.3f}")
    tour.screen.promise(fall >= 1 / 3, f"it fell by a third at least: by {fall:.0%}")
    tour.screen.promise(after.loss < bigram, f"it is below that of a bigram model of the same tokens, {bigram:.3f}")


def bounds(tour: Tour) -> None:
    tour.screen.heading("What bounded the step, and what the disk was asked to do")
    summary = command.content(tour.run / "summary.json")
    tour.screen.line(f"the step was bound by {summary['bottleneck']}")
    stalls = {cause: seconds for cause, seconds in summary.get("stall_seconds", {}).items() if seconds >= 0.01}
    waits = ", ".join(f"{cause} {seconds:.1f} s" for cause, seconds in stalls.items())
    tour.screen.line(f"compute waited for: {waits or 'nothing'}")
    for name, moved in summary["path_bytes"].items():
        each = f"{mebibytes(moved['written'] / summary['steps_here'])} a step"
        tour.screen.line(f"{name}: {mebibytes(moved['written'])} written ({each}), {mebibytes(moved['read'])} read")


def leave(tour: Tour) -> int:
    """Keeps the run that has learned and its state on the disk; what was only compared goes."""
    for name in SHORT_RUNS:
        shutil.rmtree(tour.disk / name, ignore_errors=True)
        shutil.rmtree(tour.out / name, ignore_errors=True)
    where, say = shown(str(tour.run)), tour.screen.line
    say()
    say(f"Left behind: {where}/ (the model, loss.png, report.html, metrics.jsonl, timeline.json.gz for Perfetto),")
    say(f"and {shown(str(tour.disk / tour.run.name))}/, its training state.")
    say("What to try next:")
    for words, use in next_commands(tour):
        say(f"  {' '.join(words):72} # {use}")
    say()
    say(f"{tour.screen.seconds():.0f} seconds. {verdict(tour.screen.broken)}")
    return 1 if tour.screen.broken else 0


def next_commands(tour: Tour) -> list[tuple[list[str], str]]:
    """Commands to type, in this order or another, and what each is for."""
    spillway, python = shown(str(command.SPILLWAY)), shown(sys.executable)
    run, more = shown(str(tour.run)), tour.steps + max(1, tour.steps // 3)
    return [
        ([spillway, "verify", run], "reads back what lies on the disk"),
        ([spillway, "export", run, "--to", f"{run}-alone"], "a checkpoint that needs no disk of its own"),
        ([spillway, "resume", run, "--max_steps", str(more)], f"goes on, to step {more}"),
        ([spillway, "report", run], "the run as one HTML page"),
        ([python, shown(str(ROOT / "scripts" / "tour" / "reload.py")), run, "JULIET:"], "more text by the model"),
    ]


def verdict(broken: list[str]) -> str:
    return "Not kept: " + "; ".join(broken) if broken else "Every promise was kept."


SECTIONS = (refused_plan, limited_training, planned_and_measured, same_everywhere, interruption, reloaded, bounds)


def main() -> int:
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # PyTorch's threads sleep rather than spin: see spillway/cli.py
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "quickstart-run", help="folder of the run")
    parser.add_argument("--disk", type=Path, help="folder on the disk to use (default: in --out)")
    parser.add_argument("--steps", type=int, default=150, help="steps of training")
    options = parser.parse_args()
    out = options.out.resolve()
    disk = (options.disk or out).resolve() / "disk"
    tour = Tour(options.steps, out, disk)
    try:
        prepare(tour)
        for section in SECTIONS:
            section(tour)
        return leave(tour)
    except Stopped as reason:
        tour.screen.line(f"Stopped: {reason}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
