"""One HTML page about a run: what it reads (`facts`), what the timeline says (`timeline`), what would help (`advice`),
drawings (`charts`), the page itself (`page`), and the page while the run goes on (`live`, `serve`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spillway.errors import InputError

NAME = "report.html"


def write(
    output_dir: Path,
    to: Path | None = None,
    advise: bool = True,
    profile: str | None = None,
    tell: Callable[[str], object] = str,
) -> Path:
    """The page about the run in `output_dir`, finished or going on, as `to` or else there. `advise`: plans anew with
    other settings, which takes a moment. `profile`: predictions are for the machine of that file, computing as here.
    `tell` hears which of the run's files are damaged; the page shows the rest. InputError where there is no run, or no
    place for `to`, DoesNotFit where that machine cannot do it."""
    from spillway.base.files import replace_text
    from spillway.report import advice, page
    from spillway.report.facts import read

    if to is not None and not (to.parent.is_dir() and os.access(to.parent, os.W_OK | os.X_OK) and not to.is_dir()):
        raise InputError(f"to: {to} cannot be written: expects a file in a directory that is there and can be written")
    facts = read(output_dir)
    for words in facts.damaged:
        tell(words)
    if profile is not None:
        facts = advice.elsewhere(facts, profile)
    target = to or output_dir / NAME
    replace_text(target, page.text(facts, advice.describe(facts, advice.options if advise else advice.no_options)))
    return target
