"""Interfaces of transformers that are private to it and change: which releases are taken, and one way to ask them all.

Public ones are used where they are wanted. The releases named by OLDEST and BELOW have been tried over the types that
differ in kind (`scripts/sweep_models.py` with the release installed); another one is refused by name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import transformers

from spillway.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OLDEST, BELOW = (5, 6), (6, 0)


def check_version(found: str = transformers.__version__) -> None:
    """InputError for a release whose interfaces are other ones."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not OLDEST <= numbers < BELOW:
        raise InputError(
            f"transformers: release {found} is installed; Spillway works with {version_text(OLDEST)} up to, not "
            f"including, {version_text(BELOW)}: "
            f"pip install 'transformers>={version_text(OLDEST)},<{version_text(BELOW)}'"
        )


def version_text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# ---- names and forms of tensors in checkpoints


def conversions(model: PreTrainedModel, legacy: bool) -> list[Any]:
    """The conversions that the library applies to a checkpoint of this model while it loads it; `legacy`: older names,
    too."""
    from transformers.conversion_mapping import get_model_conversion_mapping

    return list(get_model_conversion_mapping(model, add_legacy=legacy))


def without_prefixes(entries: Iterable[Any]) -> list[Any]:
    """The entries for saving a model that was loaded from no checkpoint."""
    from transformers.core_model_loading import PrefixChange

    return [entry for entry in entries if not isinstance(entry, PrefixChange)]


def parted(entries: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Renamings, and converters, of which at most one takes a tensor."""
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    known = list(entries)
    renamings = [entry for entry in known if isinstance(entry, WeightRenaming)]
    return renamings, [entry for entry in known if isinstance(entry, WeightConverter)]


def loaded_name(
    name: str, renamings: list[Any], converters: list[Any], prefix: str, held: dict[str, Any]
) -> tuple[str, str | None]:
    """The name of a file's tensor in a model with tensors `held`, and the converter's pattern it matched."""
    from transformers.core_model_loading import rename_source_key

    return rename_source_key(name, renamings, converters, prefix, held)  # type: ignore[no-any-return]


def renamed(name: str, renamings: Iterable[Any]) -> str:
    for entry in renamings:
        name, _ = entry.rename_source_key(name)
    return name


def converted_name(name: str, converters: Iterable[Any]) -> tuple[str, str | None]:
    """The name after the first converter that matches, and the pattern that matched; None: none has."""
    for entry in converters:
        converted, pattern = entry.rename_source_key(name)
        if pattern is not None:
            return converted, pattern
    return name, None


def natural_order(name: str) -> Any:
    """A key to sort names by, numbers in them as numbers."""
    from transformers.core_model_loading import dot_natural_key

    return dot_natural_key(name)


# ---- what classes say of themselves


def multimodal_classes() -> list[Any]:
    """The automatic class of models that take anything and make text, where the release has it."""
    auto_class = getattr(transformers, "AutoModelForMultimodalLM", None)
    return [] if auto_class is None else [auto_class]


def recorded_as_router_logits(model: PreTrainedModel) -> list[Any]:
    """Which modules' outputs are router logits: OutputRecorder, a class, or the end of a module's name."""
    recorded = (getattr(model.base_model, "_can_record_outputs", None) or {}).get("router_logits", [])
    return recorded if isinstance(recorded, list) else [recorded]


def find_fp32_names(model: PreTrainedModel, dtype: torch.dtype) -> re.Pattern[str]:
    """Names that `from_pretrained` loads as fp32 whatever a model computes in, by the classes' own lists."""
    wanted = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ()) if dtype != torch.float32 else set()
    if dtype == torch.float16:
        wanted |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    parts = "|".join(re.escape(name).replace(r"\*", r"[^.]*") for name in sorted(wanted))
    return re.compile(rf"(?:^|\.)(?:{parts})(?:\.|$)" if wanted else r"(?!)")


# ---- what a mask of attention says


@dataclass(frozen=True)
class Reach:
    """Which tokens a token sees: of those up to itself, those that all of these let it see."""

    window: int | None = None  # the last so many, itself among them; None: all of them
    chunk: int | None = None  # those of its own chunk of so many positions
    rows: torch.Tensor | None = None  # [sequences, tokens]: those with its own number; a row's tokens lie together
    positions: torch.Tensor | None = None  # [sequences, tokens]: by which chunks are counted; None: 0, 1, ...


def reach(mask_function: Any) -> Reach | None:
    """The reach of a mask function of the library. None: it is composed of others than these."""
    facts: dict[str, Any] = {}
    if not read_mask(mask_function, facts) or not facts.pop("causal", False):
        return None
    if "positions" in facts and "rows" not in facts:  # then positions may jump within a row
        return None
    return Reach(**facts)


def read_mask(function: Any, facts: dict[str, Any]) -> bool:
    """Adds to `facts` what a function of masks says; False: it is not known, or says something twice."""
    if getattr(function, "__module__", None) != "transformers.masking_utils":
        return False
    held = inspect.getclosurevars(function).nonlocals
    said: dict[str, Any] = {}
    inner: Iterable[Any] = ()
    try:
        match function.__qualname__.partition(".")[0]:
            case "causal_mask_function":
                said = {"causal": True}
            case "sliding_window_overlay":
                said = {"window": held["sliding_window"]}
            case "chunked_overlay" if not held["left_padding"].any():
                said = {"chunk": held["chunk_size"]}
            case "packed_sequence_mask_function":
                said = {"rows": held["packed_sequence_mask"]}
            case "remap_positions_for_packed_sequence":
                said, inner = {"positions": held["position_ids"]}, [held["mask_function"]]
            case "and_masks":
                inner = held["mask_functions"]
            case _:
                return False
    except KeyError:  # another release calls it otherwise
        return False
    if said.keys() & facts.keys():
        return False
    facts |= said
    return all(read_mask(each, facts) for each in inner)
