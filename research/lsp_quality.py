"""What training in a subspace costs in quality, in plain PyTorch: choices of `subspace`, measured before it was built.

    python research/lsp_quality.py --model DIR --text FILE [--methods A,B] [--out FILE]
    python research/lsp_quality.py --model DIR --questions TRAIN.jsonl --held-out TEST.jsonl [--methods A,B]

With --text a small Llama with the model's tokenizer is trained from random weights on all but the last tenth of a
text; else the model itself is fine-tuned on questions and answers. Every method below starts from the same weights and
sees the same rows; only the matrices of the layers go through a subspace of d x d, all else trains in full. Written for
clarity: projectors are dense matrices with zeros in them, and every method forms the whole gradient that a real run
never has.

    full            AdamW
    published       Chen et al. (arXiv 2406.10181) as the paper's code does it: r values per row at random positions,
                    the first period random, one pair for all matrices of a shape; each period new positions, values
                    learned by gradient descent; moments zeroed while the count of steps runs on
    fixed           groups of neighbouring rows, each with r orthonormal columns of its own, learned before the first
                    update and never again
    fixed-unbiased  the same with rows of norm 1: the update of an element is as large as AdamW's
    rotate-zero, rotate-carry, rotate-filled
                    `fixed`, re-fitted to the newest gradient every --period steps; moments zeroed, carried over by the
                    transfer matrices, or carried over with what the new subspace had no second moment for filled in by
                    its mean
    feedback        `rotate-carry`, what the projectors miss is kept and added to the next gradient (an m x n buffer;
                    with `fixed` it would do nothing: what orthonormal projectors miss they miss again)
    channel         `fixed`, and 1/32 of the rows in turn, exactly, by the sign of their gradient
    galore          Zhao et al. (arXiv 2403.03507): one side, top singular vectors, every --period steps, equal memory
    lora            Hu et al. (arXiv 2106.09685), equal memory

Each method runs at each of --rates: a subspace changes the size of updates, not only their direction.

    python research/lsp_quality.py --table A.json B.json ...     files of --out, one a seed
    python research/lsp_quality.py --errors --model DIR --questions TRAIN.jsonl

The first puts the best rate of each method and seed side by side, in bench/results/lsp-quality.json and .png. The
second says how much of the gradient of four batches each kind of projector misses, |P P' G Q Q' - G| / |G| over all
matrices of the layers, when it was refitted from these batches and when it was refitted from four others.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import torch
from figures import RESULTS, machine, save
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.999), 1e-8
METHODS = ("full", "published", "fixed", "fixed-unbiased", "rotate-zero", "rotate-carry", "rotate-filled", "feedback",
           "channel", "galore", "lora")  # fmt: skip
SMALL = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip
Rows = list[list[int]]


# ---- projectors, [rows, d]


def grouped(gradient: Tensor, d: int, r: int) -> Tensor:
    """Neighbouring rows in d / r groups; of each group the r leading directions of its rows of the gradient."""
    rows, groups = gradient.shape[0], d // r
    out = torch.zeros(rows, d)
    for group in range(groups):
        mine = slice(rows * group // groups, rows * (group + 1) // groups)
        vectors = torch.linalg.eigh(gradient[mine] @ gradient[mine].T)[1]
        out[mine, group * r : (group + 1) * r] = vectors[:, -r:]
    return out


def scattered(rows: int, d: int, r: int, generator: torch.Generator) -> Tensor:
    """r values of variance 1 / r at random places of each row."""
    places = torch.rand(rows, d, generator=generator).topk(r, dim=1).indices
    values = torch.randn(rows, r, generator=generator) / math.sqrt(r)
    return torch.zeros(rows, d).scatter_(1, places, values)


def learned(p: Tensor, q: Tensor, gradient: Tensor, steps: int = 60) -> tuple[Tensor, Tensor]:
    """The values at given places, by gradient descent on the estimate's error."""
    places, target = (p != 0, q != 0), gradient / gradient.norm()
    values = [(0.5 * it).clone().requires_grad_() for it in (p, q)]
    optimizer = torch.optim.Adam(values, lr=0.02)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            a, b = (value * place for value, place in zip(values, places, strict=True))
            (a @ (a.T @ target @ b) @ b.T - target).square().sum().backward()
            optimizer.step()
    a, b = (value.detach() * place for value, place in zip(values, places, strict=True))
    return a, b


# ---- methods: how one matrix is updated from its gradient


class Moments:
    """Adam's direction; the count of steps is the caller's."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first, self.second = torch.zeros(shape), torch.zeros(shape)

    def direction(self, gradient: Tensor, step: int) -> Tensor:
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        root = (self.second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
        return self.first / (1 - BETAS[0] ** step) / root


class Full:
    def __init__(self, weight: Tensor) -> None:
        self.moments = Moments(tuple(weight.shape))

    def update(self, gradient: Tensor, step: int) -> Tensor:
        return self.moments.direction(gradient, step)


class Subspace:
    """`method` names what the module's docstring tells."""

    def __init__(self, weight: Tensor, method: str, options: argparse.Namespace, seed: int) -> None:
        self.method, self.options, self.shape = method, options, tuple(weight.shape)
        self.generator = torch.Generator().manual_seed(seed)
        self.d = int(min(weight.shape) * options.share) // options.nonzeros * options.nonzeros
        self.moments = Moments((self.d, self.d))
        self.pair: tuple[Tensor, Tensor] | None = None
        self.missed = torch.zeros_like(weight) if method == "feedback" else None
        self.error = 0.0

    def fit(self, gradient: Tensor) -> None:
        r, (m, n) = self.options.nonzeros, self.shape
        if self.method == "published":
            first = self.pair is None
            self.pair = scattered(m, self.d, r, self.generator), scattered(n, self.d, r, self.generator)
            if not first:
                self.pair = learned(*self.pair, gradient)
        else:
            before = self.pair
            p, q = grouped(gradient, self.d, r), grouped(gradient.T, self.d, r)
            if self.method == "fixed-unbiased":
                p, q = (nn.functional.normalize(it, dim=1) for it in (p, q))
            self.pair = p, q
            if before is not None and self.method in ("rotate-carry", "rotate-filled", "feedback"):
                self.carry(before)
                return
        self.moments.first.zero_(), self.moments.second.zero_()

    def carry(self, before: tuple[Tensor, Tensor]) -> None:
        assert self.pair is not None
        a, b = self.pair[0].T @ before[0], self.pair[1].T @ before[1]
        second, aa, bb = self.moments.second, a.square(), b.square()
        self.moments.first = a @ self.moments.first @ b.T
        carried = aa @ second @ bb.T
        if self.method == "rotate-filled":
            carried += (1 - torch.outer(aa.sum(1), bb.sum(1))).clamp_(min=0) * second.mean()
        self.moments.second = carried

    def update(self, gradient: Tensor, step: int) -> Tensor:
        turns = self.method in ("published", "feedback") or self.method.startswith("rotate")
        if self.pair is None or (turns and step % self.options.period == 0):
            self.fit(gradient)
        assert self.pair is not None
        p, q = self.pair
        if self.missed is not None:
            gradient = gradient + self.missed
        inside = p.T @ gradient @ q
        estimate = p @ inside @ q.T
        self.error = float((estimate - gradient).norm() / gradient.norm())
        if self.missed is not None:
            self.missed = 0.9 * (gradient - estimate)
        out = p @ self.moments.direction(inside, step) @ q.T
        if self.method == "channel":
            turn = slice(step % 32, None, 32)
            out[turn] += (gradient - estimate)[turn].sign()
        return out


class Galore:
    def __init__(self, weight: Tensor, options: argparse.Namespace) -> None:
        d = int(min(weight.shape) * options.share)
        self.rank, self.period = max(1, d * d // max(weight.shape)), options.period
        self.flat = weight.shape[0] > weight.shape[1]  # projects the shorter side
        self.moments = Moments((self.rank, max(weight.shape)))
        self.basis: Tensor | None = None

    def update(self, gradient: Tensor, step: int) -> Tensor:
        g = gradient.T if self.flat else gradient
        if self.basis is None or step % self.period == 0:
            self.basis = torch.linalg.svd(g, full_matrices=False)[0][:, : self.rank]
        out = self.basis @ self.moments.direction(self.basis.T @ g, step)
        return out.T if self.flat else out


class Lora:
    """W + B A, B zero at the start; the gradients of both follow from that of W."""

    def __init__(self, weight: Tensor, options: argparse.Namespace, seed: int) -> None:
        m, n = weight.shape
        rank = max(1, int(min(m, n) * options.share) ** 2 // (m + n))
        generator = torch.Generator().manual_seed(seed)
        self.a = torch.randn(rank, n, generator=generator) / math.sqrt(n)
        self.b = torch.zeros(m, rank)
        self.moments = Moments((rank, n)), Moments((m, rank))

    def product(self, gradient: Tensor, step: int, rate: float) -> Tensor:
        """What W changes by."""
        before, down, up = self.b @ self.a, self.b.T @ gradient, gradient @ self.a.T
        self.a = self.a - rate * self.moments[0].direction(down, step)
        self.b = self.b - rate * self.moments[1].direction(up, step)
        return self.b @ self.a - before


# ---- the run


def encoded(path: Path, tokenizer: Any, length: int) -> Rows:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [tokenizer(f"{it['question']}\n{it['answer']}{tokenizer.eos_token}")["input_ids"][:length] for it in rows]


def windows(path: Path, tokenizer: Any, length: int, options: argparse.Namespace) -> tuple[Rows, Rows]:
    """Pieces of a text, the last tenth held out."""
    text = path.read_text()
    cut = len(text) * 9 // 10
    ids = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text[:cut], text[cut:])]
    train, test = ([part[i : i + length] for i in range(0, len(part) - length + 1, length)] for part in ids)
    return train, test[: options.rows]


def loss_of(model: nn.Module, rows: Rows) -> Tensor:
    most = max(map(len, rows))
    ids = torch.tensor([row + [0] * (most - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (most - len(row)) for row in rows])
    loss: Tensor = model(input_ids=ids, attention_mask=(labels != -100).long(), labels=labels).loss
    return loss


@torch.no_grad()
def held_out(model: nn.Module, rows: Rows) -> float:
    parts = [rows[i : i + 8] for i in range(0, len(rows), 8)]
    counts = [sum(len(row) - 1 for row in part) for part in parts]
    return sum(float(loss_of(model, part)) * n for part, n in zip(parts, counts, strict=True)) / sum(counts)


def makers(method: str, options: argparse.Namespace) -> Callable[[Tensor, int], Any]:
    if method == "galore":
        return lambda weight, _: Galore(weight, options)
    if method == "lora":
        return lambda weight, seed: Lora(weight, options, seed)
    # The published projectors belong to a shape, ours to a matrix.
    shared = method == "published"
    return lambda weight, seed: Subspace(weight, method, options, sum(weight.shape) if shared else seed)


def parts_of(model: nn.Module, method: str, options: argparse.Namespace) -> Iterator[tuple[Tensor, Any]]:
    make = makers(method, options)
    for index, (name, weight) in enumerate(model.named_parameters()):
        inside = method != "full" and weight.dim() == 2 and ".layers." in name
        yield weight, make(weight, options.seed * 1000 + index) if inside else Full(weight)


def start(options: argparse.Namespace) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(options.seed)
    if options.text is None:
        pretrained: nn.Module = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        return pretrained
    config = AutoConfig.from_pretrained(options.model)
    config.update(SMALL)
    fresh: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return fresh


def run(method: str, rate: float, data: tuple[Rows, Rows], options: Any) -> dict[str, Any]:
    model = start(options)
    rows, test = data
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(options.seed)).tolist()
    parts, losses, began = list(parts_of(model, method, options)), [], time.time()
    points, errors = [], []
    for step in range(1, options.steps + 1):
        at = (step - 1) * options.batch
        loss = loss_of(model, [rows[order[(at + i) % len(rows)]] for i in range(options.batch)])
        model.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert norm.isfinite()
        now = rate * min(step / 5, 1) * (1 - (step - 1) / options.steps)
        with torch.no_grad():
            for weight, part in parts:
                assert weight.grad is not None
                if isinstance(part, Lora):
                    weight.add_(part.product(weight.grad, step, now))
                else:
                    weight.sub_(now * part.update(weight.grad, step))
        losses.append(float(loss.detach()))
        errors.append([part.error for _, part in parts if isinstance(part, Subspace)])
        if step % options.evaluate == 0 or step == options.steps:
            points.append([step, held_out(model, test)])
    last = [sum(it) / len(it) for it in errors if it][-options.period :]
    error = sum(last) / len(last) if last else None
    return {"rate": rate, "train": losses, "held_out": points, "final": points[-1][1], "error": error,
            "seconds": time.time() - began}  # fmt: skip


# ---- what projectors miss


def missed(p: Tensor, q: Tensor, gradient: Tensor) -> float:
    return float((p @ (p.T @ gradient @ q) @ q.T - gradient).norm() / gradient.norm())


def by_chance(gradient: Tensor, d: int, r: int, generator: torch.Generator) -> Tensor:
    """`grouped`, with rows in groups by chance."""
    order = torch.randperm(gradient.shape[0], generator=generator)
    return grouped(gradient[order], d, r)[torch.argsort(order)]


def by_turns(gradient: Tensor, d: int, r: int, turns: int) -> tuple[Tensor, Tensor]:
    """subspace::fit(): each side for what the other one keeps."""
    q = grouped(gradient.T, d, r)
    p = grouped(gradient @ q, d, r)
    for _ in range(1, turns):
        q = grouped((p.T @ gradient).T, d, r)
        p = grouped(gradient @ q, d, r)
    return p, q


def print_errors(model: nn.Module, rows: Rows, options: argparse.Namespace) -> None:
    gradients = []
    for first in (0, 4):
        model.zero_grad(set_to_none=True)
        for i in range(first, first + 4):
            loss_of(model, rows[i * options.batch : (i + 1) * options.batch]).backward()
        named = model.named_parameters()
        gradients.append([p.grad for name, p in named if p.dim() == 2 and ".layers." in name and p.grad is not None])
    generator = torch.Generator().manual_seed(options.seed)
    r, found = options.nonzeros, {}
    for mine, other in zip(*gradients, strict=True):
        m, n = mine.shape
        d = int(min(m, n) * options.share) // r * r
        scatter = scattered(m, d, r, generator), scattered(n, d, r, generator)
        pairs = {
            "random": scatter,
            "places by chance, values by descent": learned(*scatter, mine, 100),
            "groups by chance": tuple(by_chance(it, d, r, generator) for it in (mine, mine.T)),
            "groups of neighbours": tuple(grouped(it, d, r) for it in (mine, mine.T)),
            **{f"groups of neighbours, {turns} turns": by_turns(mine, d, r, turns) for turns in (1, 2, 3)},
        }
        for kind, pair in pairs.items():
            found.setdefault(kind, []).append((missed(*pair, mine), missed(*pair, other)))
    for kind, values in found.items():
        own, others = (sum(it) / len(it) for it in zip(*values, strict=True))
        print(f"{kind:36} {own:.3f} of its own batches, {others:.3f} of others")


# ---- the table


def best_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return min(runs, key=lambda it: float(it["final"]))


def tabulate(files: list[Path]) -> None:
    seeds = [json.loads(file.read_text()) for file in files]
    methods = [method for method in METHODS if all(method in seed for seed in seeds)]
    found: dict[str, Any] = {}
    for method in methods:
        runs = [best_of(seed[method]) for seed in seeds]
        against = [run["final"] / best_of(seed["full"])["final"] - 1 for run, seed in zip(runs, seeds, strict=True)]
        found[method] = {
            "rates": [run["rate"] for run in runs],
            "final": [run["final"] for run in runs],
            "against_full": against,
            "error": [run["error"] for run in runs],
            "held_out": [run["held_out"] for run in runs],
        }
        mean = sum(found[method]["final"]) / len(runs)
        spread = f"{min(against):+.2%} to {max(against):+.2%}"
        print(f"{method:16} {mean:.4f} against full {sum(against) / len(against):+.2%} ({spread})")
    save("lsp-quality", {"machine": machine(), "seeds": len(seeds), "methods": found})
    draw(found)


def draw(found: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 5), dpi=120, layout="constrained")
    for method, it in found.items():
        curves = it["held_out"]
        steps = [step for step, _ in curves[0]]
        means = [sum(curve[i][1] for curve in curves) / len(curves) for i in range(len(steps))]
        panel.plot(steps, means, marker="o", markersize=3, label=method, linewidth=2 if method == "full" else 1)
    panel.set(xlabel="step", ylabel="held-out loss (nats per token), mean over seeds")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.savefig(RESULTS / "lsp-quality.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--errors", action="store_true")
    for name in ("--text", "--questions", "--held-out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--rates", default="3e-4,6e-4,1.2e-3")
    parser.add_argument("--first-row", type=int, default=0, help="of the questions, the first one used")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--evaluate", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=48, help="held-out questions")
    parser.add_argument("--share", type=float, default=0.5, help="d as a share of the smaller side")
    parser.add_argument("--nonzeros", type=int, default=4)
    parser.add_argument("--period", type=int, default=20)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.table:
        return tabulate(options.table)
    torch.set_num_threads(options.threads)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if options.text is not None:
        train, test = windows(options.text, tokenizer, options.length, options)
    else:
        train = encoded(options.questions, tokenizer, options.length)[options.first_row :]
        held = options.questions if options.errors else options.held_out
        test = encoded(held, tokenizer, options.length)[: options.rows]
    if options.errors:
        return print_errors(start(options), train, options)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    for method in options.methods.split(","):
        for rate in map(float, options.rates.split(",")):
            if any(it["rate"] == rate for it in found.get(method, [])):
                continue
            it = run(method, rate, (train, test), options)
            found.setdefault(method, []).append(it)
            error = f", gradient error {it['error']:.2f}" if it["error"] else ""
            print(f"{method:16} rate {rate:g}: held-out {it['final']:.4f}{error}, {it['seconds']:.0f} s", flush=True)
            if options.out:
                options.out.write_text(json.dumps(found))
    best = {method: min(it["final"] for it in runs) for method, runs in found.items()}
    for method, loss in best.items():
        against = f"{loss / best['full'] - 1:+.2%} against full" if "full" in best else ""
        print(f"{method:16} best {loss:.4f} {against}")


if __name__ == "__main__":
    main()
