"""What a plan says beside where everything lives: what would help, what fits."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from spillway.base.sizes import decimal, duration, pace, size

Plan = dict[str, Any]


def show_speed(console: Console, plan: Plan) -> None:
    """Shows the speed of a plan for a profile's machine; of other plans nothing."""
    if "next_bottleneck" not in plan:
        return
    console.print(speed(plan), soft_wrap=True)
    if words := cluster(plan):
        console.print(words, soft_wrap=True)


def show_answers(console: Console, plan: Plan) -> None:
    """Shows the answers of `spillway plan` for other settings; nothing of a run's plan."""
    if "what_if" in plan:
        console.print(what_if_table(plan))
    if "fit_table" not in plan:
        return
    parts = (longest(plan), attention(plan), accumulation(plan), more_memory(plan))
    console.print(" ".join(filter(None, parts)), soft_wrap=True)
    console.print(fit_table(plan))


def speed(plan: Plan) -> str:
    alone = sorted(plan["seconds_alone"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {duration(seconds)}" for name, seconds in alone if seconds >= 0.005)
    words = f"On {plan['machine']}: {pace(plan['tokens_per_second'])} tokens/s. Bottleneck: {plan['bottleneck']}"
    if plan["next_bottleneck"]:
        words += f", next {plan['next_bottleneck']}"
    return f"{words}. Time that each would need by itself: {parts}."


def cluster(plan: Plan) -> str:
    """What machines that train one model send each other, and when that would be the limit; empty of one machine."""
    found = plan.get("cluster")
    if found is None or found["machines"] < 2:
        return ""
    crossing, has = (decimal(found[key]) for key in ("between_machines_per_step", "network"))
    words = (
        f"{found['machines']} machines, processes on each: {found['processes']}. In a step {crossing} cross the "
        f"network of each machine, which carries {has}/s each way"
    )
    if plan["bottleneck"] == "network":
        words += ". The network is the bottleneck"
    if needed := found.get("network_needed"):
        words += f". With more than {decimal(needed)}/s it would take less time than everything else"
    if (least := found.get("network_bound_from", 0)) > found["machines"]:
        words += f". From {least} machines on, the network would take longer than the storage paths"
    elif least:
        words += ". The network takes longer than the storage paths"
    return words + "."


def what_if_table(plan: Plan) -> Table:
    table = Table(title="What would help", title_justify="left")
    for name in ("", "step", "tokens/s", "change"):
        table.add_column(name, justify="left" if name == "" else "right")
    now = plan["tokens_per_second"]
    for change in plan["what_if"]:
        if not change["fits"]:
            table.add_row(change["what"], "does not fit", "", "")
            continue
        rate = change["tokens_per_second"]
        table.add_row(change["what"], duration(change["step_seconds"]), pace(rate), f"{100 * (rate / now - 1):+.1f} %")
    return table


def longest(plan: Plan) -> str:
    found = plan["longest_sequence"]
    rows = plan["fit_table"]["batches"][-2]
    shape = f"{rows} row{'s' * (rows != 1)} in a pass"
    if not found:
        return f"No sequence fits with {shape}."
    if found >= plan["fit_table"]["sequences"][-1]:
        return f"Sequences of {found} tokens fit with {shape}; the plan tries no longer ones."
    return f"The longest sequence that fits with {shape}: {found} tokens."


def attention(plan: Plan) -> str:
    """Where it is the limit; empty where nobody knows what attention takes."""
    found = plan.get("attention")
    if found is None:
        return ""
    share, length = 100 * found["share"], found["half_at"]
    words = f"Attention takes {share:.1f} % of the time of passes at {found['sequence']} tokens a row"
    if found["share"] >= 0.5:
        return f"{words}, more than all other operations; with rows of less than {length} tokens it would take less."
    return f"{words}; with rows of more than {length} tokens it would take more than all other operations."


def accumulation(plan: Plan) -> str:
    """What one step of gradient accumulation more costs."""
    more = plan.get("a_micro_batch_more")
    if more is None:
        return ""
    if not more["fits"]:
        return "One more accumulation step does not fit."
    seconds, now = more["predicted_step_seconds"], plan["predicted_step_seconds"]
    return (
        f"One more accumulation step: a step takes {duration(seconds)} instead of {duration(now)}, at "
        f"{pace(more['tokens_per_second'])} tokens/s instead of {pace(plan['tokens_per_second'])}."
    )


def more_memory(plan: Plan) -> str:
    """The gain of a GiB more where layers can keep what autograd saves."""
    more = plan.get("a_gib_more")
    if not more:
        return ""
    saved = plan["predicted_step_seconds"] - more["predicted_step_seconds"]
    gain = f"a step would take {duration(saved)} less" if saved >= 0.0005 else "a step would not be shorter"
    keeping = f"{more['keep']} layers would keep saved activations, and " if more["keep"] else ""
    return f"One more GiB of {more['tier']}: {keeping}{gain}."


def fit_table(plan: Plan) -> Table:
    """Rows: a DRAM budget and the rows in a pass. Columns: sequences. Cells: tokens per second, if it fits."""
    found = plan["fit_table"]
    sequences, batches = found["sequences"], found["batches"]
    table = Table(title="What fits: tokens/s by DRAM budget, rows in a pass and sequence", title_justify="left")
    for name in ("dram_budget", "rows", *map(str, sequences)):
        table.add_column(name, justify="right")
    rates = iter(found["tokens_per_second"])
    for budget in found["dram_budgets"]:
        cells = [[next(rates) for _ in batches] for _ in sequences]
        for b, batch in enumerate(batches):
            table.add_row(
                size(budget) if b == 0 else "", str(batch), *(pace(row[b]) if row[b] else "-" for row in cells)
            )
    return table
