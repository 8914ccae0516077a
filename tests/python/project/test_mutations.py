"""Every edit that `make mutations` makes still has its place in the tree: one that has not breaks nothing, and shows
nothing."""

from __future__ import annotations

import sys

from folders import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))

from mutations import PLACE, mutations  # noqa: E402


def test_every_edit_has_one_place() -> None:
    edits = [(mutation.name, edit) for mutation in mutations() for edit in mutation.edits]
    assert len(edits) > 70
    texts = {edit.file: (REPOSITORY / edit.file).read_text(encoding="utf-8") for _, edit in edits}
    found = {(name, edit.file): texts[edit.file].count(edit.find) for name, edit in edits}
    assert {which: count for which, count in found.items() if count != 1} == {}
    assert all(edit.find != edit.replace for _, edit in edits)


def test_names_tell_them_apart() -> None:
    names = [mutation.name for mutation in mutations()]
    assert len(set(names)) == len(names)
    assert PLACE.is_relative_to(REPOSITORY / "build")  # which git does not know
