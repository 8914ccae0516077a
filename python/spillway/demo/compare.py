"""Whether two runs computed the same, bit for bit."""

from dataclasses import dataclass
from pathlib import Path

from spillway.demo.command import metrics

NUMBERS = ("loss", "grad_norm", "learning_rate", "tokens")


@dataclass(frozen=True)
class Comparison:
    steps: int  # steps that both runs logged
    first_difference: int | None  # the first step whose numbers differ, or that one run lacks
    weights_equal: bool  # every byte of every weight file

    @property
    def equal(self) -> bool:
        return self.steps > 0 and self.first_difference is None and self.weights_equal

    def words(self) -> str:
        losses = (
            f"losses and gradient norms of {self.steps} steps bit-identical"
            if self.first_difference is None
            else f"numbers differ from step {self.first_difference} on"
        )
        return f"{losses}; weight files {'equal' if self.weights_equal else 'DIFFER'} byte for byte"


def compare(one: Path, other: Path) -> Comparison:
    """Compares the metrics and the final weights of two output directories."""
    a, b = logged(one), logged(other)
    differing = [step for step in sorted(a.keys() | b.keys()) if a.get(step) != b.get(step)]
    return Comparison(len(a.keys() & b.keys()), differing[0] if differing else None, weights(one) == weights(other))


def logged(output_dir: Path) -> dict[int, list[str]]:
    """Step to its numbers. Python prints the shortest digits that read back as the same bits."""
    return {row["step"]: [repr(row[name]) for name in NUMBERS] for row in metrics(output_dir) if "loss" in row}


def weights(output_dir: Path) -> dict[str, bytes]:
    files = sorted(output_dir.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{output_dir} holds no model*.safetensors")
    return {file.name: file.read_bytes() for file in files}
