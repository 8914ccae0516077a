"""The plan before the first step, and prediction beside measurement after the last."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spillway.base.sizes import decimal, duration, pace, size, used_up
from spillway.machine import products
from spillway.report import device_passes, experts, reductions
from spillway.report.machine_tables import show_speed

Plan = dict[str, Any]  # the content of plan.json


def show_plan(console: Console, plan: Plan) -> None:
    console.print(plan_table(plan))
    if table := decisions_table(plan):
        console.print(table)
    if words := state(plan):
        console.print(words, soft_wrap=True)
    console.print(prediction(plan), soft_wrap=True)
    for words in (
        pace_and_wear(plan),
        processes(plan),
        computes_on(plan.get("device_why", "")),
        plan.get("gpu_memory_why", ""),
        products.said(plan.get("compute_dtype", ""), plan.get("compute_why", "")),
        device_blocks(plan),
        boundary_activations(plan),
        saved_activations(plan),
        image_features(plan),
        experts.describe_plan(plan),
        remote_drives(plan),
        reductions.of_plan(plan),
        updates(plan),
        replays(plan),
        durability(plan),
        saving(plan),
        reference(plan),
        teacher(plan),
        plan.get("threads", {}).get("words"),
    ):
        if words:
            console.print(words, soft_wrap=True)
    show_speed(console, plan)


def processes(plan: Plan) -> str:
    """What one of several processes moves; empty where there is one."""
    if plan.get("world", 1) == 1:
        return ""
    sent, received = (size(plan.get(f"network_{way}", 0)) for way in ("sent", "received"))
    words = f"{plan['world']} processes train together, and each of them has such a plan"
    words += f": in a step it sends {sent} to the others and receives {received}"
    if 1 < plan.get("machines", 1) < plan["world"]:
        between = plan["between_machines"]
        words += f"; of that {size(between['sent'])} and {size(between['received'])} go between machines"
    if plan.get("own_weights"):
        words += ". Each keeps its own part of the weights that stay in memory, and passes gather all parts"
    return f"{words}."


def computes_on(why: str) -> str:
    """What computes and why; empty where the configuration said so, or there is nothing to choose from."""
    return f"Layers compute on {why} (device auto)." if why else ""


def device_blocks(plan: Plan) -> str:
    """What the device does with each block, and why; empty where there is none."""
    found = plan.get("device_blocks")
    if not found:
        return ""
    words = (
        f"Blocks on the device: {found['state_and_update']} live there with their states, "
        f"{found['streamed_state_and_update']} upload their states for the update, "
        f"{found['weight']} keep a copy of their weights there, {found['streamed']} stream ({found['why']})."
    )
    if changes := found.get("matrices_that_take_changes"):
        words += f" Copies of {changes} subspace matrices take the update's change in place of the weights."
    if found["durable_bytes_per_step"]:
        words += f" A durable step copies {size(found['durable_bytes_per_step'])} of the resident bytes to the host."
    return words


def boundary_activations(plan: Plan) -> str:
    """Which tiers they lie on; empty where all of them lie on the first."""
    found = plan.get("boundary_activations", {})
    if set(found) <= {plan["tiers"][0]["name"]}:
        return ""
    where = ", ".join(f"{count} on {tier}" for tier, count in found.items())
    return f"Boundary activations from forward to backward: {where}."


def image_features(plan: Plan) -> str:
    """The tier of features of images from forward to backward; empty without any."""
    features = plan.get("image_features")
    if not features:
        return ""
    verb = "are spilled to" if features["tier"] == "paths" else "stay in"
    return f"Features of images from forward to backward: {size(features['bytes'])} {verb} {features['tier']}."


def saved_activations(plan: Plan) -> str:
    """How many layers keep or spill what autograd saves of them, why, and what a GiB more would save; empty where
    nobody said what that is."""
    found = plan.get("saved_activations")
    if not found:
        return ""
    keep, spill, layers = found["keep"], found.get("spill", 0), found["layers"]
    words = f"Saved activations: {keep} of {layers} layers keep them from forward to backward"
    if keep:
        words += f", {size(found['bytes'])} of {found['tier']}"
    if spill:
        words += f"{',' if keep else ';'} {spill} send them to {found['spill_tier']} and have them back"
        words += f", {size(found['spilled_bytes'])}"
    if keep + spill < layers:
        words += f"{',' if keep + spill else ';'} {layers - keep - spill} compute them again in backward"
    words += f" ({found['why']})." if found["why"] else "."
    if found.get("spill_why"):
        words += f" Spilling: {found['spill_why']}."
    return words


def remote_drives(plan: Plan) -> str:
    """Which storage paths are remote from the device, and what that costs; empty where none is."""
    found = plan.get("far_drives")
    return f"Remote drives: {found['why']}." if found else ""


def updates(plan: Plan) -> str:
    """What is updated during backward, and what that takes; empty where nothing is and nobody asked."""
    found = plan.get("updates", {})
    if not found.get("early_chunks"):
        if found.get("asked") != "early":
            return ""
        return (
            "Updates: none during backward, since no memory is left for old versions of chunks whose weights and "
            "states both stay in DRAM; all run behind the next forward pass."
        )
    words = f"Updates: {found['early_chunks']} of {found['chunks']} chunks during backward"
    if found["speculative"]:
        words += ", by a predicted clip factor"
    words += f", with {size(found['undo_bytes'])} of old versions to undo them; the others behind the next forward pass"
    saved = found["seconds_saved"]
    return f"{words}. Predicted to {'save' if saved >= 0 else 'cost'} {duration(abs(saved))} a step."


def replays(plan: Plan) -> str:
    """A sentence with the cost of replayed steps; empty without `replay_steps`."""
    replay = plan.get("replay")
    if not replay:
        return ""
    every, seconds = replay["every"], replay["seconds"]
    which = "Every step is" if every == 1 else f"One of every {every} steps is"
    return (
        f"Replays: {which} computed twice, which adds at most {duration(seconds)} to it, "
        f"{duration(seconds * replay['share'])} to an average step ({replay['share']:.1%} of its passes)."
    )


def plan_table(plan: Plan) -> Table:
    """Classes of bytes down, tiers across; then each tier's peak and its budget."""
    tiers = [tier["name"] for tier in plan["tiers"]]
    table = Table(title="What lives where", title_justify="left")
    table.add_column("")
    for name in tiers:
        table.add_column(name, justify="right")
    amounts: dict[str, dict[str, int]] = {}
    for entry in plan["bytes"]:
        tier = amounts.setdefault(entry["class"], {})
        tier[entry["tier"]] = tier.get(entry["tier"], 0) + entry["bytes"]
    for kind, at in amounts.items():
        table.add_row(kind, *(size(at[name]) if at.get(name) else "" for name in tiers))
    table.add_section()
    table.add_row("planned peak", *(size(tier["planned_peak"]) for tier in plan["tiers"]))
    table.add_row("budget", *(size(tier["capacity"]) for tier in plan["tiers"]))
    table.add_row("used", *(share(tier["planned_peak"], tier["capacity"]) for tier in plan["tiers"]))
    return table


ALTERNATIVES = 4  # that the text lists; plan.json has all


def decisions_table(plan: Plan) -> Table | None:
    """For each decision, the value chosen and what the others would cost; None where nothing was compared."""
    if not plan.get("decisions"):
        return None
    table = Table(title="What was compared, by predicted step", title_justify="left", caption_justify="left")
    table.caption = (
        "Among plans within 1 % of the fastest, Spillway takes the one that moves the fewest bytes. "
        "A plan that spills to drives has to save 2 %."
    )
    for name in ("decision", "chosen", "alternatives"):
        table.add_column(name, overflow="fold")
    for decision in plan["decisions"]:
        chosen = [value for value in decision["compared"] if value["chosen"]]
        title = Text(decision["title"])
        if decision.get("reason"):
            title.append("\n" + decision["reason"], style="dim")
        table.add_row(title, "; ".join(map(compared_value, chosen[:1])), alternatives(decision["compared"]))
    return table


def alternatives(compared: list[dict[str, Any]]) -> str:
    """The values that were not chosen, fastest first."""
    others = [value for value in compared if not value["chosen"]]
    others.sort(key=lambda value: (not value["fits"], value.get("predicted_step_seconds", 0)))
    words = [compared_value(value) for value in others[:ALTERNATIVES]]
    if len(others) > ALTERNATIVES:
        words.append(f"{len(others) - ALTERNATIVES} more in plan.json")
    return "\n".join(words)


def compared_value(value: dict[str, Any]) -> str:
    return f"{value['value']}: " + (duration(value["predicted_step_seconds"]) if value["fits"] else "does not fit")


def state(plan: Plan) -> str:
    """What is kept of every parameter."""
    if "bytes_per_parameter" not in plan:
        return ""
    words = (
        f"Weights and {plan['optimizer']} state take {plan['bytes_per_parameter']:.1f} bytes per parameter "
        f"(state_format {plan['state_format']})."
    )
    learning, every = plan.get("learning_parameters", 0), plan.get("parameters", 0)
    if 0 < learning < every:
        share = f"{100 * learning / every:.2g} %"
        words += f" {learning:,} of {every:,} parameters are trainable ({share}); the others are frozen."
    return words


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def prediction(plan: Plan) -> str:
    words = "It fits." if plan.get("fits", True) else "It does not fit."
    if seconds := plan.get("predicted_step_seconds"):
        words += f" Predicted step: {duration(seconds)}. Bottleneck: {plan.get('bottleneck', 'compute')}."
        for name, moved in plan.get("path_bytes_per_step", {}).items():
            words += f" A step reads {size(moved['read'])} from {name}, and writes {size(moved['written'])} to it."
        if moved := plan.get("device_bytes_per_step") or plan.get("link_bytes_per_step"):
            words += f" A step copies {size(moved['to_device'])} to the device, and {size(moved['from_device'])} back."
    return words


def pace_and_wear(plan: Plan) -> str:
    """Tokens per second, and how long drives last at that pace; empty of a plan without a prediction."""
    if "tokens_per_second" not in plan:
        return ""
    words = [f"{pace(plan['tokens_per_second'])} tokens/s"]
    for name, life in plan.get("drive_life", {}).items():
        rated = f"rated for {decimal(life['rated'])}"
        rated = f"a drive {rated}" if life["assumed"] else f"the drive ({rated})"
        words.append(
            f"{decimal(life['written_per_day'])} a day are written to {name}, and {rated} lasts "
            f"{pace(life['days'])} days of training"
        )
    return f"At this pace: {'; '.join(words)}."


SURVIVES = {"step": "the last finished step", "checkpoint": "the last checkpoint"}


def durability(plan: Plan) -> str:
    """What a kill leaves, and what that takes; empty where nothing is kept."""
    kept = plan.get("durability", "none")
    if kept not in SURVIVES:
        return ""
    room = sum(entry["bytes"] for entry in plan["bytes"] if entry["class"] == "durability")
    words = f"Durability {kept}: {SURVIVES[kept]} survives a kill or a power cut. It takes {size(room)} of the paths"
    if cost := plan.get("durability_per_step"):
        words += f", and adds {size(cost['written'])} of writes and {duration(cost['seconds'])} to a step"
    return words + "."


def saving(plan: Plan) -> str:
    """What checkpoints and the final model take of a file system; empty where nobody knows."""
    found = plan.get("saving")
    if not found:
        return ""
    count = found["checkpoints_at_once"]
    words = f"Saving takes up to {size(found['bytes'])} of {found['file_system']}"
    if count:
        words += f" ({count} checkpoint{'s' * (count != 1)} of {size(found['checkpoint_bytes'])} at once)"
    words += f", which has {size(found['free'])} free"
    return f"{words}; volumes take {size(found['volumes'])} there, too." if found["volumes"] else f"{words}."


def reference(plan: Plan) -> str:
    """What the first pass is; empty where there is none."""
    found = plan.get("reference")
    if not found:
        return ""
    words = (
        f"Reference: log-probabilities of {found['pairs']:,} pairs, by {found['passes']:,} forward passes before step 1"
    )
    seconds = found.get("predicted_seconds")
    return f"{words}, in {duration(seconds)} or less." if seconds else f"{words}."


def teacher(plan: Plan) -> str:
    """The teacher's pass and what it stores; empty without a teacher."""
    found = plan.get("teacher")
    if not found:
        return ""
    words = (
        f"Teacher: the {found['top_k']} largest logits of each of {found['tokens']:,} label tokens take "
        f"{size(found['bytes'])} in output_dir"
    )
    if not found["passes"]:
        return f"{words}, and are stored."
    words += f"; {found['passes']:,} forward passes before step 1 compute them"
    if seconds := found.get("predicted_seconds"):
        words += f", in {duration(seconds)} or less"
    peaks = ", ".join(f"{size(tier['planned_peak'])} of {tier['name']}" for tier in found["tiers"])
    return f"{words}, and take {peaks}."


def show_summary(console: Console, summary: dict[str, Any]) -> None:
    """Step time and peak of every tier: what was planned beside what was measured."""
    table = Table(title="Predicted and measured", title_justify="left")
    for name in ("", "predicted", "measured", "budget"):
        table.add_column(name, justify="right" if name else "left")
    step = summary["step_seconds"]
    table.add_row("step time", optional(step["predicted"], duration), optional(step["measured"], duration), "")
    for tier in summary["tiers"]:
        peaks = (optional(tier[key], size) for key in ("planned_peak", "measured_peak", "capacity"))
        table.add_row(f"peak {tier['name']}", *peaks)
    if summary.get("process_peak"):
        table.add_row("peak of the process", "", size(summary["process_peak"]), "")
    console.print(table)
    for words in (device_passes.describe(summary), experts.describe(summary)):
        if words:
            console.print(words, soft_wrap=True)
    if skipped := summary.get("skipped_steps"):
        steps = "step was" if skipped == 1 else "steps were"
        console.print(f"{skipped} {steps} skipped: the gradient was not finite, nothing was updated", soft_wrap=True)
    for name, moved in (summary.get("path_bytes") or {}).items():
        console.print(
            f"{name}: {size(moved['read'])} read, {size(moved['written'])} written{wear(name, summary)}"
            f"{flushes(name, summary)}{waited(name, summary)}",
            soft_wrap=True,
        )


def flushes(path: str, summary: dict[str, Any]) -> str:
    """What durable steps asked of the drive beside bytes."""
    found = (summary.get("flushes") or {}).get(path)
    return f"; flushed {found['count']} times in {duration(found['seconds'])}" if found and found["count"] else ""


def waited(path: str, summary: dict[str, Any]) -> str:
    """How long compute stood still for it."""
    seconds = sum((summary.get("waits") or {}).get(path, {}).values())
    return f"; compute waited {duration(seconds)} for it" if seconds else ""


def wear(path: str, summary: dict[str, Any]) -> str:
    """Written over the run's life, and what that is of the drive's."""
    if path not in (totals := summary.get("written") or {}):
        return ""
    share = (summary.get("endurance_used") or {}).get(path)
    return f"; {size(totals[path])} written in all" + (f", {used_up(share, 1)}" if share is not None else "")


def optional(value: float | None, render: Any) -> str:
    return "" if value is None else render(value)
