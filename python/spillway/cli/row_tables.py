"""The output of `spillway rows`: text with the trained parts marked, then the counts of all rows."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from spillway.base.counts import counted
from spillway.data.preview import Part
from spillway.run.rows import ShownRows

TRAINED = ("\u00ab", "\u00bb")  # they stand around text that carries loss, since colours are lost in files


def show(console: Console, found: ShownRows) -> None:
    counts = found.preview
    for part in counts.parts:
        console.print(title_of(part, counts.cuts), style="bold", markup=False, soft_wrap=True)
        console.print(mark(part.spans(found.tokenizer)), soft_wrap=True)
        if part.targets is not None:
            console.print(f"labels: {part.targets}", markup=False, soft_wrap=True)
        console.print()
    console.print(f"The text between {TRAINED[0]} and {TRAINED[1]} carries loss.")
    console.print(
        f"{found.source}: {counted(counts.rows, 'row')} with {counted(counts.tokens, 'token')}. Loss on "
        f"{counts.trained} of them. The longest row has {counted(counts.longest, 'token')}.",
        markup=False,
        soft_wrap=True,
    )
    if counts.cut:
        words = f"max_length: {counts.length} cuts {counts.cut} of {counted(counts.sequences, 'sequence')}."
        console.print(words, soft_wrap=True)
    if found.left_out:
        console.print(f"Left out, because nothing of them carries loss: {found.left_out}.", soft_wrap=True)
    if found.packing:
        console.print(f"Packing makes {counted(found.pieces, 'piece')} of max_length: {counts.length}.", soft_wrap=True)


def title_of(part: Part, cuts: bool) -> str:
    name = f" ({part.name})" if part.name else ""
    more = f", {part.more} more {'are cut' if cuts else 'follow'}" if part.more else ""
    return f"{part.where}{name}: {counted(len(part.ids), 'token')}, loss on {part.trained}{more}"


def mark(spans: list[tuple[bool, str]]) -> Text:
    """The text of the spans in one line of styles: those that carry loss in green, between marks."""
    found = Text()
    for trained, words in spans:
        if trained:
            found.append(f"{TRAINED[0]}{words}{TRAINED[1]}", style="green")
        else:
            found.append(words)
    return found
