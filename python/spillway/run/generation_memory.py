"""The memory in which a run samples completions: the whole model in DRAM, or in the memory of the compute device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spillway.base import sizes as words
from spillway.errors import DoesNotFit
from spillway.machine import device, process_memory
from spillway.run.settings import memory_budget

if TYPE_CHECKING:
    from spillway.config import Config

TEMPORARIES = 8  # fp32 rows of the vocabulary that sampling holds for each completion
# Beside the weights, generation is estimated: products of CPUs may keep weights in another order, and the heap has
# holes between keys and values that grow.
MARGIN = 128 << 20
HIDDEN, INNER = 12, 4  # of a token in a layer: hidden states, and those of its MLP
FEWER = "lower per_device_train_batch_size or max_completion_length"


@dataclass(frozen=True)
class Advice:
    """Words of a refusal."""

    name: str  # that generates
    recorded: str  # trains on completions of another program
    on_host: str = ""  # generates on the CPUs beside a compute device; empty: nothing does
    on_server: str = ""  # generates on a server; empty: nothing does

    def list_ways(self, key: str, on_device: bool) -> str:
        """The settings that would fit. `key`: of the budget."""
        *ways, last = filter(None, (f"Raise {key}", FEWER, self.on_host if on_device else "", self.on_server))
        return f"{', '.join(ways)}, or {last}"


@dataclass(frozen=True)
class GenerationMemory:
    """Bytes that generation takes between steps."""

    advice: Advice
    on_host: int = 0
    on_device: int = 0  # of the compute device; 0: generation is on the CPUs, or on a server

    @contextmanager
    def explain_refusals(self) -> Iterator[None]:
        """A refusal of a plan says what generation takes of its memory."""
        try:
            yield
        except DoesNotFit as error:
            if not self.on_host:
                raise
            device = f" and {words.size(self.on_device)} of the device's memory" if self.on_device else ""
            advice = self.advice
            instead = ", or ".join(filter(None, (advice.on_host if self.on_device else "", advice.recorded)))
            raise DoesNotFit(
                f"{error}. (Of the working set {words.size(self.on_host)}{device} are the whole model and the "
                f"completions of a step, which {advice.name} generates. Or {instead})",
                error.plan,
            ) from error


def measure_generation(
    model: Any, config: Config, rows: int, length: int, on_host: bool, advice: Advice
) -> GenerationMemory:
    """The memory to sample `rows` completions at once, which get `length` tokens long with their prompts. DoesNotFit
    where that alone exceeds a budget. `on_host`: beside a compute device, too."""
    (weights, drawing, work), budget = count_parts(model, rows, length), memory_budget(config)
    if config.device == "cpu" or on_host:
        check_memory(weights, weights + work, budget, process_memory.resident(), "DRAM", "dram_budget", advice)
        return GenerationMemory(advice, 2 * weights + work)
    place = device.place(config)
    check_memory(weights, work, device.find_memory(config, budget, place), 0, config.device, "gpu_memory", advice)
    # A simulated device has the host's memory, and the host's products.
    return GenerationMemory(advice, drawing if place.on_gpu else 2 * weights + work, weights + work)


def count_parts(model: Any, rows: int, length: int) -> tuple[int, int, int]:
    """Bytes of the weights, of drawing tokens, and of drawing with keys and values."""
    drawing = MARGIN + 2 * rows * count_drawing_bytes(model.config)
    return count_weight_bytes(model), drawing, drawing + 2 * rows * count_cache_bytes(model.config, length)


def count_weight_bytes(model: Any) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def count_drawing_bytes(config: Any) -> int:
    """Bytes in which the next token of one completion is drawn."""
    return int(TEMPORARIES * 4 * config.get_text_config().vocab_size)


def count_cache_bytes(config: Any, length: int) -> int:
    """Bytes of keys, values and temporaries of one completion that gets `length` tokens long with its prompt."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    cache = 2 * (config.num_hidden_layers + 1) * key_heads * width
    layer = HIDDEN * max(config.hidden_size, heads * width) + INNER * inner
    return int(length * 4 * (cache + layer))


def check_memory(weights: int, rest: int, budget: int, held: int, where: str, key: str, advice: Advice) -> None:
    """DoesNotFit where weights and `rest` exceed what the process leaves of a budget."""
    if weights + rest + held > budget:
        taken = f", of which the process has {words.size(held)} already" if held else ""
        raise DoesNotFit(
            f"does not fit in {where}: {advice.name} generates with the whole model, {words.size(weights)} of weights "
            f"and about {words.size(rest)} to sample the completions of a step. {key} is {words.size(budget)}{taken}. "
            f"{advice.list_ways(key, key == 'gpu_memory')}. Or {advice.recorded}"
        )
