"""The part of a request to a described machine that follows from configuration and shape alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway.config import Config

if TYPE_CHECKING:
    from spillway._engine import EngineSettings, MachineRequest


def request_of(config: Config, on_gpu: bool) -> MachineRequest:
    """The request to the machine, beside settings and work."""
    from spillway import _engine
    from spillway.machine import device

    return _engine.MachineRequest(
        gpu_memory=config.gpu_memory or 0,
        gpu=on_gpu,
        simulated=1 / device.SHARE if config.device == "simulated" else 0.0,
    )


def settings_of(config: Config, on_gpu: bool) -> EngineSettings:
    """The settings asked of the machine."""
    from spillway import _engine
    from spillway.machine import process_memory
    from spillway.run.settings import placement_shares

    return _engine.EngineSettings(
        durability=config.durability,
        dram_budget=config.dram_budget or 0,
        process_bytes=process_memory.resident(),
        placement=placement_shares(config.placement),
        window=config.window or 0,
        update_schedule=config.update_schedule,
        speculative_updates=config.speculative_updates,
        clipping=config.max_grad_norm > 0,
        keeps_logits=not on_gpu,
        nodes=[_engine.NodeSettings(id=share.node, capacity=share.capacity) for share in config.node],
    )


def widths(model: Any) -> tuple[int, int, int]:
    """The widths of queries, of keys, and of the feed-forward network."""
    hidden = int(model.hidden_size)
    heads = int(getattr(model, "num_attention_heads", None) or 1)
    size = int(getattr(model, "head_dim", None) or hidden // heads)
    keys = int(getattr(model, "num_key_value_heads", None) or heads)
    inner = int(getattr(model, "intermediate_size", None) or 4 * hidden)
    return heads * size, keys * size, inner
