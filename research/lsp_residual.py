"""What becomes of what projectors miss: choices of `lsp_residual` and `lsp_nonzeros`, measured before they were built.

    python research/lsp_residual.py --model DIR --text FILE [--share D] [--times N] KIND[:OPTION=VALUE,...] ...

The task `shakespeare` of research/lsp_training.py, seed 0, everything besides the matrices at its rate there, the
matrices at 5e-4; every run is a line of bench/results/lsp-residual.jsonl. Written for clarity: whole gradients,
projectors as dense matrices with zeros in them. Options: r, nonzeros of a row (4); every, steps from one time that
projectors are learned to the next, the matrices in turn (20).

    fixed       refitted from the first gradient, and never again
    carried     learned again, moments carried over by the transfer matrices (arXiv 2406.10181, section 3.4)
    normalised  the same, second moments divided by the weights that they were carried with
    kept        first moments carried over, second moments left as they are, as GaLore's
    anew        moments begin anew at 0, with their own count of steps
    rows        `fixed`, and 1/16 of the rows of what is missed in turn, exactly, by an AdamW of their own for `every`
                steps (a sixteenth of the matrix's moments and gradients on top)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import lsp_methods
import lsp_training
import torch
from figures import RESULTS, rounded
from lsp_methods import BETAS, EPSILON, Setting, Trained, rank_of
from torch import Tensor

LINES = RESULTS / "lsp-residual.jsonl"
RATE, OTHERS, BLOCK, BLOCK_BETA = 5e-4, 4e-3, 1 / 16, 0.99
KINDS = ("fixed", "carried", "normalised", "kept", "anew", "rows")


def learned(lines: Tensor, d: int, r: int) -> Tensor:
    """[width, d], block by block the leading eigenvectors of what the lines [count, width] are in its rows."""
    width, groups = lines.shape[1], d // r
    out = torch.zeros(width, d)
    for group in range(groups):
        part = slice(group * width // groups, (group + 1) * width // groups)
        _, vectors = torch.linalg.eigh((lines[:, part].T @ lines[:, part]).double())
        out[part, group * r : (group + 1) * r] = vectors.flip(1)[:, :r].float()
    return out


class Inside:
    """One matrix."""

    def __init__(self, number: int, shape: tuple[int, ...], kind: str, share: float, r: int, every: int) -> None:
        self.number, self.kind, self.r, self.every = number, kind, r, every
        self.d = rank_of(shape, share) // r * r
        self.p, self.q = torch.empty(0), torch.empty(0)
        self.first, self.second = torch.zeros(self.d, self.d), torch.zeros(self.d, self.d)
        self.steps = 0  # since the moments began
        self.generator = torch.Generator().manual_seed(number)

    def due(self, count: int) -> bool:
        again = self.kind not in ("fixed", "rows") and count > 3 and (count + self.number) % self.every == 0
        return count == 1 or again

    def learn(self, gradient: Tensor, again: bool) -> None:
        before = self.p, self.q
        self.q = learned(gradient, self.d, self.r)
        self.p = learned((gradient @ self.q).T, self.d, self.r)
        if again:
            self.carry(self.p.T @ before[0], self.q.T @ before[1])

    def carry(self, a: Tensor, b: Tensor) -> None:
        mean, weights = self.second.mean(), a.square().sum(1)[:, None] * b.square().sum(1)[None, :]
        self.first = a @ self.first @ b.T
        if self.kind in ("carried", "normalised"):
            self.second = a.square() @ self.second @ b.square().T
        if self.kind == "normalised":
            self.second = (self.second + 0.05 * mean) / (weights + 0.05)
        if self.kind == "anew":
            self.first.zero_(), self.second.zero_()
            self.steps = 0

    def step(self, weight: Tensor, gradient: Tensor, rate: float, count: int) -> None:
        if self.due(count):
            self.learn(gradient, count > 1)
        s = self.p.T @ gradient @ self.q
        self.steps += 1
        self.first.lerp_(s, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(s, s, value=1 - BETAS[1])
        root = (self.second / (1 - BETAS[1] ** self.steps)).sqrt() + EPSILON
        delta = self.first / (1 - BETAS[0] ** self.steps) / root
        weight.sub_(rate * math.sqrt(weight.numel()) / self.d * (self.p @ delta @ self.q.T))
        if self.kind == "rows":
            self.rows(weight, gradient - self.p @ s @ self.q.T, rate, (count - 1) % self.every)

    def rows(self, weight: Tensor, missed: Tensor, rate: float, step: int) -> None:
        if step == 0:
            some = max(1, int(len(weight) * BLOCK))
            self.chosen = torch.randperm(len(weight), generator=self.generator)[:some]
            self.moments = torch.zeros(2, some, weight.shape[1])
        part, (first, second) = missed[self.chosen], self.moments
        first.lerp_(part, 1 - BETAS[0])
        second.mul_(BLOCK_BETA).addcmul_(part, part, value=1 - BLOCK_BETA)
        root = (second / (1 - BLOCK_BETA ** (step + 1))).sqrt() + EPSILON
        weight[self.chosen] -= rate * first / (1 - BETAS[0] ** (step + 1)) / root


def run(kind: str, options: dict[str, int], arguments: argparse.Namespace, data: Any) -> dict[str, Any]:
    class Choice(Trained):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            self.inside = {
                name: Inside(number, tuple(weight.shape), kind, arguments.share, **options)
                for number, (name, weight) in enumerate(self.matrices.items())
            }

        @torch.no_grad()
        def update(self, rate: float) -> None:
            for name, weight in self.matrices.items():
                assert weight.grad is not None
                self.inside[name].step(weight, weight.grad, rate, self.count)

    lsp_methods.METHODS[kind] = Choice
    steps = lsp_training.TASKS["shakespeare"].steps * arguments.times
    asked = lsp_training.Run("shakespeare", kind, arguments.share, 0, RATE, steps)
    return lsp_training.done(asked, Setting(RATE, OTHERS, arguments.share), data, arguments.model) | options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("choices", nargs="+", help=", ".join(KINDS))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.5, help="d as a share of the smaller side")
    parser.add_argument("--times", type=int, default=1, help="the task's steps so many times")
    parser.add_argument("--lines", type=Path, default=LINES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = lsp_training.Data(arguments.model, arguments.text)
    for choice in arguments.choices:
        kind, _, words = choice.partition(":")
        if kind not in KINDS:
            parser.error(f"{kind} is none of {', '.join(KINDS)}")
        options = {"r": 4, "every": 20} | {
            name: int(value) for name, _, value in (w.partition("=") for w in words.split(",") if w)
        }
        line = run(kind, options, arguments, data)
        with arguments.lines.open("a") as file:
            file.write(json.dumps(rounded(line)) + "\n")
        print(f"{choice} d = {arguments.share} n: {line['final']:.4f}", flush=True)


if __name__ == "__main__":
    main()
