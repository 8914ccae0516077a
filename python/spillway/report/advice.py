"""What bounds a run, and which other setting its own planner predicts to be faster, told of the median step.

Every option is planned as the run itself was: the same description of the model and the same measured rates, one
setting changed. A prediction, not a promise, and told as one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from spillway._engine import Description, EngineSettings
from spillway.base.calls import EngineType, native_engine, translated
from spillway.base.documents import make_document
from spillway.base.sizes import duration, size
from spillway.errors import InputError
from spillway.report.causes import COMPUTE, causes
from spillway.report.facts import DAMAGE, Facts

WORTH = 0.03  # of a step: less is not worth a sentence


@dataclass(frozen=True)
class Option:
    setting: str  # as a person would give it
    words: str
    seconds: float  # predicted, of a step of the same work


Change = Callable[[Description, EngineSettings], float]  # changes description and settings; returns work per step


def options(facts: Facts, engine_type: EngineType | None = None) -> list[Option]:
    """Those that can be planned, the fastest first; empty where the run kept nothing to plan with, and of several
    processes, which plan together."""
    if facts.description is None or facts.settings is None or facts.predicted_seconds is None:
        return []
    if facts.description.world.size > 1:
        return []
    found = []
    for setting, words, change in changes(facts):
        description, settings = copy.copy(facts.description), copy.copy(facts.settings)
        work = change(description, settings)
        seconds = predicted(engine_type or native_engine(), description, settings)
        if seconds is not None:
            found.append(Option(setting, words, seconds / work))
    return sorted(found, key=lambda option: option.seconds)


def no_options(_: Facts) -> list[Option]:
    return []


def elsewhere(facts: Facts, profile: str, engine_type: EngineType | None = None) -> Facts:
    """The run, planned for the machine of a profile file: its rates and memory, this machine's compute."""
    from spillway.machine.profile import profile as profile_of

    if facts.description is None or facts.settings is None:
        raise InputError(f"profile: {facts.output_dir} kept nothing to plan anew with; its run began before reports")
    if (world := facts.description.world.size) > 1:
        raise InputError(f"profile: {facts.output_dir} was trained by {world} processes, which one does not plan for")
    settings = copy.copy(facts.settings)
    settings.profile = profile_of(profile)
    with translated():
        engine = (engine_type or native_engine())(facts.description, settings)
    plan = make_document(engine.plan())
    engine.close()
    return replace(facts, plan=plan, settings=settings, machine=profile)


def predicted(engine_type: EngineType, description: Description, settings: EngineSettings) -> float | None:
    """Seconds of a step; None where such a plan does not fit or is not allowed."""
    try:
        engine = engine_type(description, settings)
    except (MemoryError, ValueError, OSError, RuntimeError):
        return None
    summary = engine.plan()
    engine.close()
    return summary.predicted_step_seconds


def changes(facts: Facts) -> Iterator[tuple[str, str, Change]]:
    settings, description = facts.settings or EngineSettings(), facts.description or Description()
    for factor in (1.5, 2):
        budget = int(settings.dram_budget * factor) // (1 << 20) * (1 << 20)
        if budget > (settings.profile.dram_total or budget):
            continue  # more than the machine has
        yield f"dram_budget: {size(budget)}", f"{size(budget)} of DRAM for the process", more_memory(budget)
    if settings.storage:
        yield "storage: one more path", "one more path as fast as the first", another_path
    if settings.durability in (None, "step") and settings.storage:
        yield "durability: checkpoint", "losing what came after the last checkpoint in a crash", set_durability
    if description.state_format == "exact" and description.optimizer == "adamw":
        yield "state_format: bf16", "moments in bf16, rounded stochastically (other results)", set_format
    yield (
        f"gradient_accumulation_steps: {2 * (description.accumulation or description.micro_batches)}",
        "twice the micro-batches a step (other results), for each half of it",
        twice_the_work,
    )


def more_memory(budget: int) -> Change:
    def change(_: Description, settings: EngineSettings) -> float:
        factor = budget / settings.dram_budget
        settings.dram_budget, nodes = budget, settings.nodes
        for node in nodes:
            if node.kind == "numa":
                node.capacity = int(node.capacity * factor)
        settings.nodes = nodes
        return 1

    return change


def another_path(_: Description, settings: EngineSettings) -> float:
    settings.storage = [*settings.storage, settings.storage[0]]
    profile = settings.profile
    for further in profile.paths[:1]:
        further.name = str(len(profile.paths))
        profile.paths = [*profile.paths, further]
    settings.profile = profile
    return 1


def set_durability(_: Description, settings: EngineSettings) -> float:
    settings.durability = "checkpoint"
    return 1


def set_format(description: Description, _: EngineSettings) -> float:
    description.state_format = "bf16"
    return 1


def twice_the_work(description: Description, settings: EngineSettings) -> float:
    description.micro_batches *= 2
    description.tokens *= 2
    settings.seconds = settings.seconds.scaled(2)
    return 2


def describe(facts: Facts, find_options: Callable[[Facts], list[Option]]) -> str:
    """The paragraph of advice, or the reason why there is none. `find_options`: plans with other settings."""
    try:
        return paragraph(facts, find_options(facts))
    except DAMAGE as error:
        return f"What bounds this run cannot be said: its files are damaged ({error!r})."


def paragraph(facts: Facts, found: list[Option]) -> str:
    """What bounds this run, and what would help."""
    return " ".join(filter(None, (bound(facts), help_words(facts, found))))


def bound(facts: Facts) -> str:
    where = causes(facts)
    if not where:
        expected = facts.predicted_seconds
        when = f"; the plan expects {duration(expected)} a step" if expected else ""
        return f"Nothing is measured yet{when}, bound by {facts.plan.get('bottleneck', COMPUTE)}."
    whole = sum(cause.seconds for cause in where)
    first = max(where, key=lambda cause: cause.seconds)
    share = f"{100 * first.seconds / whole:.0f} % of the median step of {duration(whole)}"
    if first.name == COMPUTE:
        return f"This run is bound by compute: {share} is PyTorch computing."
    return f"This run is bound by {first.words}: {share}."


def help_words(facts: Facts, found: list[Option]) -> str:
    """About the median step where one is measured: predictions say by what part it would be shorter."""
    expected = facts.predicted_seconds
    if expected is None or not found:
        return ""
    best = found[0]
    if best.seconds > expected * (1 - WORTH):
        return "The planner found no setting that would make a step shorter."
    measured = None if facts.machine else facts.step_seconds  # predictions for another machine are beside each other
    now, whose = (measured, "the median step") if measured else (expected, "the predicted step")
    return (
        f"The setting that would help most is {best.setting} ({best.words}): by the planner's simulation of both "
        f"{whose} would take {duration(now * best.seconds / expected)} instead of {duration(now)}, "
        f"{100 * (1 - best.seconds / expected):.0f} % less."
    )
