"""From a configuration to a finished run: look at everything first, start second, write last."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from spillway import checkpoints, directory, state, tables
from spillway.checks import check
from spillway.config import Config, normalised, read_file, resolve
from spillway.directory import Start
from spillway.errors import InputError
from spillway.interruption import Interruption
from spillway.plot import plot_apart
from spillway.progress import Display
from spillway.protocol import Session, WorkShape
from spillway.records import METRICS, replace_text, write_json
from spillway.state import RunState
from spillway.trainer import Trainer, Work

Tell = Callable[[str], None]


def train(config: Config | Mapping[str, Any] | str | Path, **values: Any) -> dict[str, Any]:
    """What `spillway train` does; `values` are keys beside the file's. Returns the content of summary.json.

    Raises errors.InputError, errors.DoesNotFit, errors.Interrupted (state saved) or errors.SpillwayError.
    """
    if isinstance(config, Config):
        config = config.values()
    file_values = normalised(config, "config") if isinstance(config, Mapping) else read_file(Path(config))
    name = "config" if isinstance(config, Mapping) else str(config)
    return train_config(resolve(file_values, normalised(values, "train()"), name), Console())


def train_config(config: Config, console: Console) -> dict[str, Any]:
    display = Display(console)
    check(config)
    start = directory.decide(config)
    saved = RunState.load(start.resume) if start.resume else None
    if saved:
        state.check_keys(saved.fixed, config)
    with Interruption() as interruption:
        return Run(config, start, saved, display, interruption).go()


def plan_config(config: Config, tell: Tell) -> dict[str, Any]:
    """The plan that `train` would follow. Nothing is started or written; raises DoesNotFit with the refused plan."""
    check(config, required=("model", "dataset"))
    config = config.replaced(output_dir=config.output_dir or str(Path.cwd()))  # nothing is written there
    work = load_work(config, tell)
    session = open_session(config, work.shape)
    try:
        return session.plan
    finally:
        session.close()


@dataclass
class Run:
    """One call of train, its arguments checked as far as they can be without reading data."""

    config: Config
    start: Start
    saved: RunState | None
    display: Display
    interruption: Interruption

    def go(self) -> dict[str, Any]:
        work = load_work(self.config, self.display.note)
        self.state = self.saved or RunState(fixed=state.fixed_keys(self.config))
        if self.saved:
            state.check_data(self.saved.fixed, self.config, work.train)
        else:
            self.state.fixed["data"] = work.train.fingerprint()
        trainer = Trainer(self.config, work, self.state, self.display, self.interruption, self.start.output_dir)
        if self.start.resume and trainer.complete():
            return self.already_complete(work)
        session = open_session(self.config, work.shape)
        try:
            return self.train(trainer, session)
        finally:
            session.close()

    def already_complete(self, work: Work) -> dict[str, Any]:
        assert self.start.resume is not None
        output_dir = self.start.output_dir
        self.display.say(f"The run is complete: step {self.state.step} of {work.steps} is in {self.start.resume}.")
        if self.start.resume.resolve().parent == output_dir.resolve():
            checkpoints.publish(self.start.resume, output_dir)
        summary = output_dir / "summary.json"
        return dict(json.loads(summary.read_text(encoding="utf-8"))) if summary.exists() else {}

    def train(self, trainer: Trainer, session: Session) -> dict[str, Any]:
        tables.show_plan(self.display.console, session.plan)
        session.start(self.start.resume)
        for notice in session.notices():
            self.display.note(notice)
        self.interruption.finish_steps()
        self.prepare(session)
        trainer.run(session, saved=self.start.resume)
        return self.finish(trainer, session)

    def prepare(self, session: Session) -> None:
        """The first writes of the run."""
        for removed in directory.prepare(self.start, self.state.step):
            self.display.note(f"removed {removed}")
        if self.start.resume:
            self.display.say(f"going on after step {self.state.step}, from {self.start.resume}")
        replace_text(self.start.output_dir / "config.yaml", self.config.text())
        write_json(self.start.output_dir / "plan.json", session.plan)

    def finish(self, trainer: Trainer, session: Session) -> dict[str, Any]:
        output_dir = self.start.output_dir
        summary = trainer.summary(session)
        write_json(output_dir / "summary.json", summary)
        session.write_timeline(output_dir / "timeline.json.gz")
        tables.show_summary(self.display.console, summary)
        if reason := plot_apart(output_dir / METRICS, output_dir / "loss.png", f"Training loss: {output_dir.name}"):
            self.display.note(f"no loss.png: {reason}")
        self.display.say(f"The model is in {output_dir}.")
        return summary


def load_work(config: Config, tell: Tell) -> Work:
    """Everything the session's plan depends on, and all that bad data can be refused for."""
    from spillway import data, rates
    from spillway.events import Events
    from spillway.hf.source import load_config, resolve_directory
    from spillway.order import Order

    for notice in config.notices:
        tell(notice)
    load_config(resolve_directory(config.model))  # before the tokenizer, which complains of the same file less clearly
    tokenizer = data.load_tokenizer(config)
    train_rows = data.load(config, tokenizer, "dataset", tell)
    held_out = data.load(config, tokenizer, "eval_dataset", tell) if config.eval_dataset else None
    for name, rows in (("dataset", train_rows), ("eval_dataset", held_out)):
        if rows is not None:
            check_vocabulary(config, name, rows.largest_token)
    order = Order(
        len(train_rows), config.per_device_train_batch_size, config.gradient_accumulation_steps, config.data_seed
    )
    steps = order.steps(config.max_steps, config.num_train_epochs)
    shape = WorkShape(
        micro_batches=min(config.gradient_accumulation_steps, order.micro_batches_per_epoch),
        batch=min(config.per_device_train_batch_size, len(train_rows)),
        length=train_rows.longest,
        eval_batch=min(config.per_device_eval_batch_size, len(held_out)) if held_out else 0,
        eval_length=held_out.longest if held_out else 0,
    )
    return Work(
        train_rows, held_out, tokenizer, order, rates.schedule(config, steps), Events(config, order, steps), shape
    )


def check_vocabulary(config: Config, key: str, largest: int) -> None:
    path = Path(config.model, "config.json")
    if not path.is_file():
        return
    try:
        size = json.loads(path.read_text(encoding="utf-8")).get("vocab_size")
    except (ValueError, AttributeError) as error:
        raise InputError(f"model: {path} is not valid JSON: {error}") from None
    if isinstance(size, int) and largest >= size:
        raise InputError(
            f"tokenizer: {config.tokenizer} gives {key} the token {largest}, but the model knows {size} tokens only"
        )


def open_session(config: Config, shape: WorkShape) -> Session:
    """Plans; raises DoesNotFit. The engine is imported here, since that is slow and large."""
    session: Session = import_module("spillway.session").Session(config, shape)
    return session
