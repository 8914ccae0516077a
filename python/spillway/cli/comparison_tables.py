"""The tables of `spillway check`: losses, norms and weights of the streamed run beside those of plain PyTorch."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from spillway.run.comparison import Comparison


def show_comparison(console: Console, found: Comparison) -> None:
    """Every step both ways, then the largest differences beside what rounding explains."""
    table = Table(title="Both ways", title_justify="left")
    for name in ("step", "loss, engine", "loss, plain", "gradient norm, engine", "gradient norm, plain"):
        table.add_column(name, justify="right")
    ways = (found.engine.losses, found.plain.losses, found.engine.norms, found.plain.norms)
    for step, row in enumerate(zip(*ways, strict=True), start=1):
        table.add_row(str(step), *(f"{value:.8g}" for value in row))
    console.print(table)
    for difference in found.differences:
        verdict = "within" if difference.within else "BEYOND"
        console.print(
            f"{difference.what}: differs by {difference.largest:.2g} of itself at most, {verdict} the tolerance of "
            f"{difference.allowed:g}",
            soft_wrap=True,
        )
    console.print(f"weights that differ most: {found.worst}", soft_wrap=True)
    console.print("The two ways are equal but for rounding." if found.equal else "The two ways differ.")
