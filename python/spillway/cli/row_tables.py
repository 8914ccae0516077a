"""The output of `spillway rows`: text with the trained parts marked, then the counts of all rows."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from spillway.base.counts import counted
from spillway.run.rows import ShownRows

TRAINED = ("\u00ab", "\u00bb")  # they stand around text that carries loss, since colours are lost in files


def show(console: Console, found: ShownRows) -> None:
    counts = found.preview
    for sequence in found.list_sequences():
        console.print(sequence.title, style="bold", markup=False, soft_wrap=True)
        console.print(mark(sequence.spans), soft_wrap=True)
        if sequence.labels is not None:
            console.print(f"labels: {sequence.labels}", markup=False, soft_wrap=True)
        console.print()
    console.print(f"The text between {TRAINED[0]} and {TRAINED[1]} carries loss.")
    console.print(
        f"{found.source}: {counted(counts.rows, 'row')} with {counted(counts.tokens, 'token')}. Loss on "
        f"{counts.loss_tokens} of them. The longest row has {counted(counts.longest, 'token')}.",
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


def mark(spans: list[tuple[bool, str]]) -> Text:
    """The text of the spans in one line of styles: those that carry loss in green, between marks."""
    text = Text()
    for trained, words in spans:
        if trained:
            text.append(f"{TRAINED[0]}{words}{TRAINED[1]}", style="green")
        else:
            text.append(words)
    return text
