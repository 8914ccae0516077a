"""The stub of the C++ engine is what its bindings say, with the words of the file; structs keep what they are given."""

from __future__ import annotations

import ast
import copy
import pickle
from typing import Any

import pytest

import make_stubs
from spillway import _engine

PRESENT = make_stubs.FILE.read_text(encoding="utf-8")
PARSED = [node for node in ast.parse(PRESENT).body if isinstance(node, ast.ClassDef)]
FIELDS = {
    node.name: [it.target.id for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)]
    for node in PARSED
}
STRUCTS = [name for name in FIELDS if vars(getattr(_engine, name)).get("__hash__", 0) is None]
ANSWERS = ("PlanSummary", "Fits", "Counters", "MemoryPlaces")


def test_stub_is_what_the_bindings_say() -> None:
    assert make_stubs.make_stub(PRESENT) == PRESENT, "run `make stubs`"


def test_signatures_come_from_the_bindings_and_words_from_the_file() -> None:
    drifted = PRESENT.replace("def counters(self) -> Counters", "def counters(self, again: bool) -> str")
    assert drifted != PRESENT and make_stubs.make_stub(drifted) == PRESENT
    described = PRESENT.replace('"""Waits until every pending update', '"""Returns when every pending update')
    assert described != PRESENT and make_stubs.make_stub(described) == described
    commented = PRESENT.replace("# as in the checkpoint", "# that the checkpoint has")
    assert commented != PRESENT and make_stubs.make_stub(commented) == commented


def test_no_answer_of_the_engine_is_a_dictionary_of_anything() -> None:
    assert "dict[str, Any]" not in PRESENT
    assert {*ANSWERS, "EngineSettings", "Description"} <= set(STRUCTS)


@pytest.mark.parametrize(
    ("given", "shorter"),
    [
        ("@property\ndef a(self) -> int: ...\n@a.setter\ndef a(self, arg: int, /) -> None: ...", "a: int"),
        ("@property\ndef a(self) -> int: ...", "@property\ndef a(self) -> int: ..."),
        ("def __eq__(self, arg: object, /) -> bool: ...\ndef a(self) -> int: ...", "def a(self) -> int: ..."),
        ("def a(self, x: Annotated[NDArray, dict(order='C')] | None) -> object: ...",
         "def a(self, x: Any | None) -> Any: ..."),
    ],
)  # fmt: skip
def test_class_of_a_stub_is_shortened(given: str, shorter: str) -> None:
    def of_class(text: str) -> ast.Module:
        return ast.parse("class It:\n" + "\n".join("    " + line for line in text.splitlines()))

    shortened = ast.fix_missing_locations(make_stubs.Shortened().visit(of_class(given)))
    assert ast.unparse(shortened) == ast.unparse(of_class(shorter))


@pytest.mark.parametrize("name", STRUCTS)
def test_struct_is_made_of_its_fields_and_copied(name: str) -> None:
    kind: Any = getattr(_engine, name)
    made = kind()
    values = {field: getattr(made, field) for field in FIELDS[name]}
    assert kind(**values) == made == copy.deepcopy(made)
    assert repr(made) == f"{name}({', '.join(f'{field}={value!r}' for field, value in values.items())})"


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_go_to_another_process(name: str) -> None:
    made = getattr(_engine, name)()
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError):
        hash(made)
