"""Engine settings of layers that may keep what autograd saves of them."""

from __future__ import annotations

from spillway._engine import SavedActivations
from spillway.model.measure.saved_profile import SavedProfile
from spillway.model.spec import ModelSpec
from spillway.model.stream.saved_layers import able
from spillway.run.profiled import Profiled

BY_TOKEN = ("token_bytes", "spilled_token_bytes", "graph_token_bytes")


def saved_settings(profiled: Profiled) -> SavedActivations:
    """Which layers can keep, what that takes, and how many are to."""
    made = settings_of(profiled.spec, profiled.dry_run.saved, profiled.verified.not_kept, profiled.compute.place.on_gpu)
    share = share_of_tokens(profiled)
    for name in BY_TOKEN:
        setattr(made, name, getattr(made, name) * share)
    return made


def settings_of(spec: ModelSpec, saved: SavedProfile, not_kept: str, on_device: bool) -> SavedActivations:
    """The settings for as many tokens as a step has. `saved`: measured or traced; `not_kept`: as of `Verified`."""
    config, meta_model = spec.config, spec.meta_model
    layers = len(meta_model.layers)
    keep = count_kept_layers(config.activation_recompute, layers)
    made = SavedActivations(layers=layers, on_device=on_device, keep=keep)
    if config.activation_recompute == "all":
        return made
    if why := not_kept or saved.why:
        made.why = f"every layer recomputes: {why}"
        return made
    made.blocks = [place + 1 for place in able(meta_model)]
    if len(made.blocks) < layers:
        made.why = (
            f"{layers - len(made.blocks)} of {layers} layers run with what comes before or after them and recompute"
        )
    made.spill = config.activation_spill
    made.token_bytes = saved.token_bytes
    made.spilled_token_bytes = saved.spilled_token_bytes
    made.graph_token_bytes = saved.graph_token_bytes
    return made


def count_kept_layers(recompute: str | int, layers: int) -> int | None:
    """Layers that are to keep; None: as many as is fastest."""
    if recompute == "auto":
        return None
    recomputing = {"all": layers, "none": 0}.get(str(recompute))
    return layers - min(layers, int(recompute) if recomputing is None else recomputing)


def share_of_tokens(profiled: Profiled) -> float:
    """The share that a step has at most of the tokens that the engine counts: evaluations may have more, and keep
    nothing."""
    shape = profiled.shape
    tokens = shape.batch * shape.length
    return tokens / max(tokens, shape.eval_batch * shape.eval_length)


def saved_notice(profiled: Profiled) -> list[str]:
    """Notices for a user who asked for saved activations."""
    why = saved_settings(profiled).why
    recompute = profiled.spec.config.activation_recompute
    return [f"activation_recompute: {recompute}: {why}"] if why and recompute not in ("auto", "all") else []
