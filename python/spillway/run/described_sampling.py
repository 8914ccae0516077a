"""The sampling of completions in the plan of a described machine: its bytes between two steps.

The dataset is not read there, so prompt and completion together have `max_length` tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spillway.base.sizes import size
from spillway.run.generation_memory import GenerationMemory, count_parts
from spillway.run.sampling import ADVICE, count_prompts, describe_model, refuse_multimodal

if TYPE_CHECKING:
    from collections.abc import Callable

    from spillway._engine import DescribedMachine, MachineRequest, Profile
    from spillway.config import Config


def plan_sampling(config: Config, model_config: Any, on_gpu: bool) -> GenerationMemory | None:
    """None: the run samples nothing. InputError for a multimodal model."""
    if not config.reward_funcs:
        return None
    refuse_multimodal(model_config)
    model = describe_model(config, model_config)
    weights, drawing, work = count_parts(model, count_prompts(config) * config.group_size, config.max_length)
    if on_gpu:
        return GenerationMemory(ADVICE, drawing, weights + work)
    return GenerationMemory(ADVICE, 2 * weights + work)


def add_sampling(
    request: MachineRequest, memory: GenerationMemory, machine: DescribedMachine, profile: Profile
) -> None:
    """Sampling takes the memory in which a step computes, and the request gets what it takes beyond that. `machine`: as
    planned without it."""
    work, settings = request.work, machine.settings
    work.host_bytes += max(0, memory.on_host - settings.work_bytes)
    if settings.device is not None:
        work.device_bytes += max(0, memory.on_device + profile.gpus[0].reserved - settings.device.work)
    request.work = work


def tell_of_sampling(memory: GenerationMemory, tell: Callable[[str], None]) -> None:
    device = f" and {size(memory.on_device)} of GPU memory" if memory.on_device else ""
    tell(
        f"reward_funcs: sampling takes {size(memory.on_host)} of DRAM{device} between steps, if prompt and completion "
        "fill max_length. The plan leaves its seconds out"
    )
