"""A value keeps one name from the key of a run to the engine's C++."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from folders import REPOSITORY
from spillway import _engine
from spillway.config.keys import KEYS
from spillway.config.optimizers import OPTIMIZERS

# Keys that the engine gets under their own names, and the struct.
SAME = {
    "EngineSettings": ["dram_budget", "durability", "erase", "overwrite", "placement", "profile", "speculative_updates",
                       "storage", "update_schedule", "window"],
    "Description": ["compute_dtype", "seed", "shard_frozen", "state_format", "virtual_ranks", "weight_dtype"],
    "StepUpdate": ["learning_rate", "max_grad_norm", "weight_decay"],
}  # fmt: skip
# Keys that it gets under another name, with the reason.
OTHER = {
    "activation_recompute": ("SavedActivations.keep", "the key counts the other layers"),
    "activation_spill": ("SavedActivations.spill", "the struct is named"),
    "device": ("DeviceSettings.name", "the struct is named"),
    "gpu_memory": ("DeviceSettings.memory", "the struct is named"),
    "gradient_accumulation_steps": ("Description.accumulation", "the engine counts those of all processes"),
    "lsp_check_every": ("RefitRule.check_every", "the method is named in the key"),
    "lsp_master": ("TensorSpec.form", "the key has one of the forms"),
    "lsp_nonzeros": ("TensorSpec.nonzeros", "the method is named in the key"),
    "lsp_projectors": ("TensorSpec.reduction", "each word of the key is a reduction"),
    "lsp_rank": ("TensorSpec.rank", "the method is named in the key"),
    "lsp_rotate_every": ("RefitRule.rotate_every", "the method is named in the key"),
    "lsp_threshold": ("RefitRule.threshold", "the method is named in the key"),
    "memory_file": ("EngineSettings.nodes", "the key gives one of them"),
    "node": ("EngineSettings.nodes", "the key gives one of them"),
    "optim": ("Description.optimizer", "transformers' name"),
    "save_only_model": ("Saving.model_only", "the struct is named"),
    "save_total_limit": ("Saving.limit", "the struct is named"),
    "storage_device": ("EngineSettings.storage", "the key gives one of them"),
}  # fmt: skip
FIELD = re.compile(r'Field\(\s*"(\w+)",\s*&(?:\w+::)*(\w+)')
VIEW = re.compile(r'View<\w+::(\w+), [\w:]+>\{\s*"(\w+)"')


def has_field(struct: str, field: str) -> bool:
    made: Any = getattr(_engine, struct)()
    return hasattr(made, field)


@pytest.mark.parametrize(("struct", "key"), [(struct, key) for struct, keys in SAME.items() for key in keys])
def test_key_has_its_name_in_the_engine(struct: str, key: str) -> None:
    assert key in KEYS and has_field(struct, key)


@pytest.mark.parametrize("key", OTHER)
def test_key_with_another_name_in_the_engine_is_listed(key: str) -> None:
    (place, reason), own = OTHER[key], [key for keys in SAME.values() for key in keys]
    assert key in KEYS and reason and key not in own
    assert has_field(*place.split("."))
    for struct in ("EngineSettings", "Description", "StepUpdate"):
        assert key in ("device", "storage") or not has_field(struct, key), f"{struct}.{key} is a better place"


def test_hyperparameters_have_the_names_that_optimizers_declare() -> None:
    """Keys of AdamW and Adam begin with `adam_`, as in transformers."""
    for optimizer in OPTIMIZERS.values():
        for each in optimizer.hyperparameters:
            assert each.key in ("", each.name) or each.key.endswith(f"_{each.name}"), (optimizer.name, each.key)


def bound_names() -> Iterator[tuple[str, str]]:
    """The names of fields in Python and in files, and those of C++."""
    for path in [*(REPOSITORY / "spillway").rglob("*_fields.h"), *(REPOSITORY / "python/bindings").glob("*.cc")]:
        yield from FIELD.findall(path.read_text(encoding="utf-8"))


def test_fields_have_the_names_of_their_members() -> None:
    names = list(bound_names())
    assert len(names) > 500
    assert [pair for pair in names if pair[0].rstrip("_") != pair[1].rstrip("_")] == []


def test_fields_that_python_has_as_words_have_the_names_of_their_members() -> None:
    views = VIEW.findall((REPOSITORY / "spillway/plan/description_fields.h").read_text(encoding="utf-8"))
    headers = {"Description": "plan/description.h", "TensorSpec": "state/layout.h"}
    assert {struct for struct, _ in views} == set(headers) and len(views) == 5
    for struct, name in views:
        header = (REPOSITORY / "spillway" / headers[struct]).read_text(encoding="utf-8")
        assert re.search(rf"\b{name} = ", header), name


def test_rule_of_an_update_has_the_words_of_the_description() -> None:
    rule = (REPOSITORY / "spillway/state/rule.h").read_text(encoding="utf-8")
    members = rule[rule.index("struct UpdateRule {") :]
    for name in ("optimizer", "state_format"):
        assert re.search(rf"^  .*\b{name} = ", members[: members.index("friend")], re.MULTILINE), name
