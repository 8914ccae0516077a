"""What the engine is told of layers that may keep what autograd saves of them; see _engine.pyi."""

from __future__ import annotations

from typing import Any

from spillway.model.saved_profile import able
from spillway.run.profiled import Profiled


def saved_settings(profiled: Profiled) -> dict[str, Any]:
    """Which layers can keep, what that takes, and how many are to."""
    config, meta_model = profiled.spec.config, profiled.spec.meta_model
    layers = len(meta_model.layers)
    keep = asked(config.activation_recompute, layers)
    found: dict[str, Any] = {"layers": layers, "on_device": profiled.compute.place.on_gpu, "keep": keep}
    measured = profiled.dry_run.saved
    why = profiled.verified.not_kept or measured.why
    if config.activation_recompute == "all":
        return found
    if why:
        return found | {"why": f"every layer recomputes: {why}"}
    blocks = [place + 1 for place in able(meta_model)]
    if len(blocks) < layers:
        found["why"] = (
            f"{layers - len(blocks)} of {layers} layers run with what comes before or after them and recompute"
        )
    return found | {"blocks": blocks, "token_bytes": measured.token_bytes * share_of_tokens(profiled)}


def asked(recompute: str | int, layers: int) -> int | None:
    """Layers that are to keep; None: as many as is fastest."""
    if recompute == "auto":
        return None
    recomputing = {"all": layers, "none": 0}.get(str(recompute))
    return layers - min(layers, int(recompute) if recomputing is None else recomputing)


def share_of_tokens(profiled: Profiled) -> float:
    """Of the tokens that the engine counts, those that a step has at most: evaluations may have more, and keep
    nothing."""
    shape = profiled.shape
    tokens = shape.batch * shape.length
    return tokens / max(tokens, shape.eval_batch * shape.eval_length)


def saved_notice(profiled: Profiled) -> list[str]:
    """What a person who asked for it should know."""
    why = saved_settings(profiled).get("why")
    recompute = profiled.spec.config.activation_recompute
    return [f"activation_recompute: {recompute}: {why}"] if why and recompute not in ("auto", "all") else []
