"""The stub of the C++ engine names what the extension has, and no more."""

from __future__ import annotations

import ast
import enum
from pathlib import Path
from typing import Any

import pytest

from spillway import _engine

STUB = ast.parse((Path(__file__).parents[3] / "python" / "spillway" / "_engine.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
STRUCTS = [name for name, node in CLASSES.items() if node.decorator_list]


def list_public(value: Any) -> set[str]:
    return {name for name in vars(value) if not name.startswith("_")}


def list_members(node: ast.ClassDef) -> set[str]:
    values = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
    entries = (target for each in node.body if isinstance(each, ast.Assign) for target in each.targets)
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    names = functions | {each.id for each in (*values, *entries) if isinstance(each, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_module_and_stub_have_the_same_names() -> None:
    functions = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    assert list_public(_engine) == functions | CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_class_and_stub_have_the_same_members(name: str) -> None:
    value = getattr(_engine, name)
    members = list_members(CLASSES[name])
    if issubclass(value, enum.Enum):
        assert value.__members__.keys() <= members
        assert all(hasattr(value, each) for each in members)
    else:
        assert list_public(value) == members


@pytest.mark.parametrize("name", STRUCTS)
def test_fields_of_a_struct_have_the_defaults_of_the_stub(name: str) -> None:
    fields = [each for each in CLASSES[name].body if isinstance(each, ast.AnnAssign)]
    made = getattr(_engine, name)()
    for field in fields:
        assert isinstance(field.target, ast.Name)
        value = getattr(made, field.target.id)
        if isinstance(field.value, ast.Constant) and field.value.value is not ...:
            assert value == field.value.value, field.target.id
        elif isinstance(field.value, ast.Attribute):
            assert ast.unparse(field.value) == f"{type(value).__name__}.{value.name}"
        again = getattr(_engine, name)(**{field.target.id: value})
        assert again == made
