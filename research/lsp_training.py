"""What training in a subspace costs in quality, beside full training, LSP as published, LoRA and GaLore.

    python research/lsp_training.py --model DIR --questions TRAIN.jsonl --held-out TEST.jsonl --text FILE [--seconds N]
    python research/lsp_training_table.py

Two short tasks (`--tasks short`): `gsm8k`, the model of --model fine-tuned on the questions from --first-row on (it has
seen earlier ones), and `shakespeare`, a small Llama with its tokenizer from random weights on all but the last tenth of
a text. The methods are those of research/lsp_methods.py; all of them see the same tokens in the same order, rates rise
over the first twentieth of the steps and fall to 0 in a line, norms are clipped to 1, nothing decays.

Rates: powers of 2 around a first guess, for seed 0 and d = n/2, until the best one has a worse neighbour on either
side; other seeds, shares and lengths run at it. First one rate for all of a model in full (`joint`): what is not a
matrix of a layer trains at the best of these with every method, and each method's grid, that of `full` too, is of the
matrices alone.

Long tasks have 500 steps, and d = n/4 first. `shakespeare-500`, `gsm8k-500` and `manual-500` (the language reference
that Python's pydoc carries) train the models of the short tasks. `real-gsm8k-500` and `real-shakespeare-500` train
that of --real-model. Trials of 100 steps at d = n/4, seed 0, pick a method's rate: the best rate of the short task
first, then the double and the half of the best one, until both are worse. Everything beside the matrices of layers
trains at the best rate of `joint` in the short task.

Every run that ends is a line of bench/results/lsp-training.jsonl, and is not done again; so the program may be stopped
at any time, and --seconds begins no run after that many. The most telling ones come first.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import torch
from figures import RESULTS, rounded
from lsp_methods import Setting, trained_by
from torch import Tensor, nn

LINES = RESULTS / "lsp-training.jsonl"
SMALL = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip


@dataclass(frozen=True)
class Task:
    steps: int
    batch: int  # windows a step
    length: int  # tokens of a window
    evaluations: int
    held_out: int  # windows
    guesses: dict[str, float]


TASKS = {
    "shakespeare": Task(240, 16, 64, 8, 64, {
        "joint": 4e-3, "ours": 2.5e-4, "published": 5e-4, "lora": 2e-3, "galore": 5e-4}),
    "gsm8k": Task(60, 8, 128, 3, 48, {
        "joint": 1e-4, "ours": 2e-4, "published": 2e-4, "lora": 1e-3, "galore": 2e-4}),
}  # fmt: skip
METHODS = ("full", "ours", "published", "lora", "galore")


@dataclass(frozen=True)
class LongTask:
    data: str
    shape: Task
    begin: str  # the short task whose best rates the trials begin at
    real: bool = False  # the model of --real-model
    first_row: int | None = None  # of the questions; --first-row without


LONG_STEPS = 500
LONG_SHAPE = Task(LONG_STEPS, 8, 128, 10, 48, {})
LONG = {
    "shakespeare-500": LongTask("shakespeare", Task(LONG_STEPS, 16, 64, 10, 64, {}), "shakespeare"),
    "gsm8k-500": LongTask("gsm8k", LONG_SHAPE, "gsm8k"),
    "manual-500": LongTask("manual", LONG_SHAPE, "gsm8k"),
    "real-gsm8k-500": LongTask("gsm8k", LONG_SHAPE, "gsm8k", real=True, first_row=0),
    "real-shakespeare-500": LongTask("shakespeare", LONG_SHAPE, "gsm8k", real=True),
}
LONG_BY_DEFAULT = [name for name, task in LONG.items() if not task.real]
SHORT_STEPS = 230  # of full training, in the time of 500 steps in a subspace over the path of lsp-steps-path.json
LONG_ORDER = (
    ("full", LONG_STEPS), ("anew", LONG_STEPS), ("full", SHORT_STEPS), ("published", LONG_STEPS),
    ("lora", LONG_STEPS), ("galore", LONG_STEPS), ("ours", LONG_STEPS),
)  # fmt: skip
LONG_SEEDS, LONG_SHARES, TRIAL_STEPS = (0, 1), (0.25, 0.5), 100
JOINT = "joint"  # `full` with one rate for all
SEEDS = (0, 1, 2)
LIKE_OURS = ("ours-16", "rotating", "anew", "anew-16")  # at its rate
PLATEAU = (("full", 0.5), ("ours", 0.5), ("ours", 0.25), ("anew", 0.5), ("anew", 0.25))  # three times the steps


@dataclass(frozen=True)
class Run:
    task: str
    method: str
    share: float
    seed: int
    rate: float
    steps: int


class Found:
    """The lines of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [json.loads(line) for line in path.read_text().splitlines()]

    def of(self, run: Run) -> dict[str, Any] | None:
        return next((it for it in self.lines if all(it[key] == value for key, value in asdict(run).items())), None)

    def add(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        with self.path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(rounded(line)) + "\n")

    def rates(self, task: str, method: str) -> dict[float, float]:
        """Held-out loss by rate, of seed 0 at the task's own steps and d = n/2."""
        return self.finals(task, method, 0.5, TASKS[task].steps)

    def finals(self, task: str, method: str, share: float, steps: int) -> dict[float, float]:
        """Held-out loss by rate, of seed 0."""
        same = {"task": task, "method": method, "share": share, "seed": 0, "steps": steps}
        return {it["rate"]: it["final"] for it in self.lines if all(it[key] == same[key] for key in same)}

    def trials(self, task: str, method: str) -> dict[float, float]:
        """Held-out loss by rate of the trials of a long task."""
        return self.finals(task, method, trial_share(method), TRIAL_STEPS)

    def next_trial(self, task: str, method: str) -> float | None:
        """The best rate of the short task comes first."""
        return untried(self.trials(task, method), self.best_rate(LONG[task].begin, method))

    def picked_rate(self, task: str, method: str) -> float:
        tried = self.trials(task, method)
        return min(tried, key=lambda it: tried[it])

    def next_rate(self, task: str, method: str) -> float | None:
        """One that is still to be tried; None when the best has neighbours on either side."""
        return untried(self.rates(task, method), TASKS[task].guesses[method])

    def begin_full(self, task: str) -> None:
        """The best of `joint` is one of `full`, too."""
        if not self.rates(task, "full"):
            best = self.of(Run(task, JOINT, 0.5, 0, self.best_rate(task, JOINT), TASKS[task].steps))
            assert best is not None
            self.add({**best, "method": "full"})

    def best_rate(self, task: str, method: str) -> float:
        tried = self.rates(task, "ours" if method in LIKE_OURS else method)
        return min(tried, key=lambda it: tried[it])


def untried(tried: dict[float, float], first: float) -> float | None:
    """The next rate: the double and the half of the best one, until both are worse."""
    if not tried:
        return first
    best = min(tried, key=lambda it: tried[it])
    return next((rate for rate in (best * 2, best / 2) if not any(near(rate, it) for it in tried)), None)


def near(a: float, b: float) -> bool:
    return abs(a / b - 1) < 1e-3


def rates(found: Found, task: str, *methods: str) -> Iterator[Run]:
    """A first guess of each method before their neighbours."""
    while missing := [(it, rate) for it in methods if (rate := found.next_rate(task, it)) is not None]:
        for method, rate in missing:
            yield Run(task, method, 0.5, 0, rate, TASKS[task].steps)


def chosen(found: Found, task: str, method: str, share: float, seed: int, times: int = 1) -> Run:
    return Run(task, method, share, seed, found.best_rate(task, method), TASKS[task].steps * times)


def all_runs(found: Found) -> Iterator[Run]:
    """What comes later may ask for the lines of what came before."""
    for task in TASKS:
        yield from rates(found, task, JOINT)
        found.begin_full(task)
        yield from rates(found, task, "full", "ours")
        yield chosen(found, task, "ours", 0.25, 0)
        yield from rates(found, task, *METHODS[2:])
    for seed in SEEDS:
        for task in TASKS:
            for method in (*METHODS, "anew"):
                for share in (0.5,) if method == "full" else (0.5, 0.25):
                    yield chosen(found, task, method, share, seed)
    for task in TASKS:
        for method, share in PLATEAU:
            yield chosen(found, task, method, share, 0, times=3)
        if task == "shakespeare":
            for method in ("full", "anew"):
                yield chosen(found, task, method, 0.5, 1, times=3)
        for share in (0.5, 0.25):
            for method in LIKE_OURS:
                yield chosen(found, task, method, share, 0)


def trial_share(method: str) -> float:
    return 0.5 if method == "full" else LONG_SHARES[0]


def is_trial(run: Run) -> bool:
    return run.task in LONG and run.steps == TRIAL_STEPS


def long_runs(found: Found, task: str, share: float) -> Iterator[Run]:
    """The trials of a method precede its first run. A seed's runs precede those of the next seed."""
    for seed in LONG_SEEDS:
        for method, steps in LONG_ORDER:
            while (rate := found.next_trial(task, method)) is not None:
                yield Run(task, method, trial_share(method), 0, rate, TRIAL_STEPS)
            own = 0.5 if method == "full" else share
            yield Run(task, method, own, seed, found.picked_rate(task, method), steps)


def runs_of(found: Found, tasks: list[str]) -> Iterator[Run]:
    if "short" in tasks:
        yield from all_runs(found)
    for share in LONG_SHARES:
        for task in LONG:
            if task in tasks:
                yield from long_runs(found, task, share)


# ---- a run


def windows(tokens: list[int], length: int) -> Tensor:
    return torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)


Sides = tuple[list[str], list[str]]


class Data:
    def __init__(self, model: Path, text: Path, questions: Sides | None = None) -> None:
        """`questions`: to train on, and held-out ones."""
        from transformers import AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.texts: dict[str, Sides] = {"shakespeare": cut(text.read_text()), "manual": cut(manual())}
        if questions is not None:
            self.texts["gsm8k"] = questions

    def of(self, task: str) -> tuple[Tensor, Tensor]:
        """Windows to train on, and held-out ones."""
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        train, test = (
            [i for text in side for i in (begin, *self.tokenizer(text, add_special_tokens=False)["input_ids"], end)]
            for side in self.texts[LONG[task].data if task in LONG else task]
        )
        it = shape_of(task)
        return windows(train, it.length), windows(test, it.length)[: it.held_out]


def shape_of(task: str) -> Task:
    return LONG[task].shape if task in LONG else TASKS[task]


def begin_of(task: str) -> str:
    return LONG[task].begin if task in LONG else task


def cut(words: str) -> Sides:
    """All but the last tenth, and the last tenth."""
    place = len(words) * 9 // 10
    return [words[:place]], [words[place:]]


def manual() -> str:
    """Python's language reference as `pydoc` carries it, one section after the other."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def questions(path: Path) -> list[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows]


def start(task: str, seed: int, model: Path) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    if begin_of(task) == "gsm8k":
        pretrained: nn.Module = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        return pretrained
    config = AutoConfig.from_pretrained(model)
    config.update(SMALL)
    fresh: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return fresh


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=rows, labels=rows).loss
    return loss


@torch.no_grad()
def held_out(model: nn.Module, rows: Tensor) -> float:
    parts = rows.split(8)
    return sum(float(loss_of(model, part)) * len(part) for part in parts) / len(rows)


def order_of(rows: int, count: int, seed: int) -> Tensor:
    """`count` rows: every one of them once before any of them again, each time in another order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(rows, generator=generator) for _ in range(count // rows + 1)])[:count]


def done(run: Run, setting: Setting, data: Data, model_path: Path) -> dict[str, Any]:
    task, (train, test) = shape_of(run.task), data.of(run.task)
    model = start(run.task, run.seed, model_path)
    trained = trained_by(run.method, model, setting)
    order = order_of(len(train), run.steps * task.batch, run.seed).view(run.steps, task.batch)
    every = run.steps // (1 if is_trial(run) else task.evaluations)
    points, losses, began = [(0, held_out(model, test))], [], time.process_time()
    for step in range(1, run.steps + 1):
        loss = loss_of(model, train[order[step - 1]])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(trained.parameters, 1.0, error_if_nonfinite=True)
        trained.step(min(20 * step / run.steps, 1) * (1 - (step - 1) / run.steps))
        losses.append(float(loss.detach()))
        if step % every == 0:
            points.append((step, held_out(model, test)))
    tail = losses[-run.steps // 6 :]
    return {**asdict(run), "final": points[-1][1], "train": sum(tail) / len(tail), "others_rate": setting.others,
            "cpu_seconds": time.process_time() - began, "held_out": points}  # fmt: skip


def model_and_data(options: argparse.Namespace, task: str) -> tuple[Path, Data]:
    long = LONG.get(task)
    model = options.real_model if long is not None and long.real else options.model
    first_row = options.first_row if long is None or long.first_row is None else long.first_row
    return model, Data(model, options.text, (questions(options.questions)[first_row:], questions(options.held_out)))


def run_all(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    found, began = Found(options.lines), time.monotonic()
    for run in runs_of(found, options.tasks):
        if found.of(run) is not None:
            continue
        if options.seconds and time.monotonic() - began > options.seconds:
            return
        others = run.rate if run.method == JOINT else found.best_rate(begin_of(run.task), JOINT)
        model, data = model_and_data(options, run.task)
        line = done(run, Setting(run.rate, others, run.share, seed=run.seed), data, model)
        found.add(line)
        said = f"{run.task} {run.method} d = {run.share} n, seed {run.seed}, {run.steps} steps at {run.rate:g}"
        print(f"{said}: {line['final']:.4f} ({line['cpu_seconds']:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--model", "--questions", "--held-out", "--text"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--real-model", type=Path, help="a model of real weights, for the tasks that begin with real-")
    parser.add_argument("--tasks", nargs="+", choices=("short", *LONG), default=["short", *LONG_BY_DEFAULT])
    parser.add_argument("--first-row", type=int, default=6000)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lines", type=Path, default=LINES)
    options = parser.parse_args()
    real = [task for task in options.tasks if task in LONG and LONG[task].real]
    if real and options.real_model is None:
        parser.error(f"{', '.join(real)}: no model to train. Name its directory with --real-model.")
    run_all(options)


if __name__ == "__main__":
    main()
