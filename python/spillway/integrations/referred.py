"""TRL's DPOTrainer and KTOTrainer over a streamed model: their data and arguments; the reference's log-probabilities.

TRL would load a second model, or run the first one itself, for these. Neither happens here: its constructor is given a
reference that is never called. Each step computes the reference by the base of new adapters. Or the columns that TRL
would have computed come from the engine before the first step, when the streamed model is the reference.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from spillway.config.objectives import OBJECTIVES, REFERRED
from spillway.config.resolve import begins_from_base
from spillway.data.batches import ANSWER_REFERENCE, REFERENCE, answers_of, join_answers, pairs_of
from spillway.data.preferences import interleave
from spillway.errors import InputError
from spillway.integrations.loading import LOGGER, origin_of
from spillway.integrations.sizes import row_count
from spillway.model.batches.batch import Batch
from spillway.output import identity
from spillway.run.reference import Pass, Reference, compute_probabilities, load_known, open_stored

NO_SYNC = ("sync_ref_model", False, "the reference is the model before the first step")


@dataclass(frozen=True)
class Form:
    """Properties of one of TRL's trainers."""

    objective: str
    rows: tuple[str, ...]  # columns of TRL's rows that decide what the reference makes of them
    columns: tuple[str, str]  # of the reference's log-probabilities
    batch: Callable[[Any, bool], Batch]  # of a collator's micro-batch; whether the reference has to be in it
    plain: tuple[tuple[str, Any, str], ...]  # argument, the value that asks for nothing, why another is not done
    join: Callable[[Any], Any] | None = None  # what follows the collator

    @property
    def losses(self) -> tuple[str, ...]:
        return OBJECTIVES[self.objective].losses

    def keys(self, args: Any) -> dict[str, Any]:
        """The configuration's keys for this trainer."""
        entry = OBJECTIVES[self.objective]
        own = entry.defaults.keys() - REFERRED.keys()
        keys = {name: getattr(args, name) for name in sorted(own)} | {"loss_type": read_loss(args)}
        if "label_smoothing" in keys and keys["loss_type"] not in entry.smoothed:
            keys["label_smoothing"] = 0.0
        return {"objective": self.objective, **keys}


FORMS = {
    "DPOTrainer": Form(
        "dpo",
        ("prompt_ids", "chosen_ids", "rejected_ids"),
        REFERENCE,
        pairs_of,
        (
            ("f_divergence_type", "reverse_kl", "the reward is the log-ratio"),
            ("ld_alpha", None, "every token of a completion counts alike"),
            ("use_weighting", False, "every pair counts alike"),
            NO_SYNC,
        ),
    ),
    "KTOTrainer": Form(
        "kto",
        ("prompt_ids", "completion_ids", "KL_completion_ids", "label"),
        ANSWER_REFERENCE,
        answers_of,
        (NO_SYNC,),
        join_answers,
    ),
}


def find_form(kind: type) -> Form | None:
    """The form of TRL's trainer that `kind` is; None: it is another one."""
    names = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("trl.")]
    return next((FORMS[name] for name in names if name in FORMS), None)


class NoModel(nn.Module):
    """Stands where TRL keeps a reference model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, *_: Any, **__: Any) -> Any:
        raise InputError("ref_model: the engine computes the reference's log-probabilities before the first step")


def prepare_arguments(
    form: Form, positional: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The arguments of TRL's constructor with a reference that nobody calls, and whether they ask for a first pass.
    InputError where a reference was given."""
    names = ("model", "ref_model", "args")
    given = {**dict(zip(names, positional, strict=False)), **named}
    if given.get("ref_model") is not None:
        raise InputError(
            "ref_model: the reference is the streamed model as it is before the first step, of adapters their base; "
            "leave it out"
        )
    args = given.get("args") or default_arguments(form, given["model"])
    check(form, args)
    others = {name: value for name, value in named.items() if name not in names}
    return (
        (given["model"], NoModel(given["model"].config), args, *positional[len(names) :]),
        others,
        bool(args.precompute_ref_log_probs),
    )


@contextmanager
def run_no_reference(pairs: Any, positional: tuple[Any, ...]) -> Iterator[None]:
    """TRL's constructor runs no reference model while this is open, whatever the arguments ask for. `positional`: as
    `prepare_arguments` returns them."""
    if not isinstance(pairs, Referred):
        yield
        return
    args = positional[2]
    args.precompute_ref_log_probs = True
    try:
        yield
    finally:
        args.precompute_ref_log_probs = pairs.precomputes


def default_arguments(form: Form, model: Any) -> Any:
    import trl

    name = form.objective.upper()
    return getattr(trl, f"{name}Config")(f"{Path(model.config._name_or_path).name}-{name}")


def check(form: Form, args: Any) -> None:
    for name, plain, why in form.plain:
        if getattr(args, name, plain) != plain:
            raise InputError(f"{name}: {getattr(args, name)} is not computed over a streamed model: {why}")
    kind, weights = read_loss(args), getattr(args, "loss_weights", None)
    if kind not in form.losses or weights not in (None, [1.0]):
        asked = ", ".join(args.loss_type) if isinstance(args.loss_type, list) else args.loss_type
        raise InputError(
            f"loss_type: {asked} is not computed over a streamed model; expects one of {', '.join(form.losses)}"
        )


def read_loss(args: Any) -> str:
    """Empty where there are several."""
    loss_types = args.loss_type
    if isinstance(loss_types, list):
        return str(loss_types[0]) if len(loss_types) == 1 else ""
    return str(loss_types)


class Collated:
    """The pairs of a dataset of TRL's, through its collator; see preferences.Preferences."""

    def __init__(self, form: Form, rows: Any, trainer: Any) -> None:
        if row_count(rows) is None:
            raise InputError(
                "train_dataset: the reference looks at every pair before the first step, by its number, and this one "
                "is iterated; give a dataset that can be indexed, as load_dataset(...) without streaming makes it"
            )
        missing = [name for name in form.rows if name not in (getattr(rows, "column_names", None) or ())]
        if missing:
            raise InputError(
                "train_dataset: the reference looks at every pair before the first step, by its number; this one has "
                f"no column {missing[0]}, as TRL makes it of a dataset that can be indexed"
            )
        self._form, self._rows, self._trainer = form, rows, trainer

    def __len__(self) -> int:
        return len(self._rows)

    def fingerprint(self) -> str:
        given = self._trainer.data_collator
        collator = given.collate if isinstance(given, Joined) else given
        cut = [getattr(collator, name, None) for name in ("max_length", "truncation_mode")]
        digest = hashlib.sha256(json.dumps(cut).encode())
        for row in self._rows.select_columns(list(self._form.rows)):
            digest.update(json.dumps([row[name] for name in self._form.rows]).encode())
        return "trl-" + digest.hexdigest()

    def value_starts(self) -> NDArray[np.int64]:
        return 2 * np.arange(len(self) + 1, dtype=np.int64)

    def order_values(self, values: list[float]) -> list[float]:
        return interleave(values)

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        batch: Batch = self._trainer._batch(self._trainer.data_collator([self._rows[int(place)] for place in pairs]))
        return batch


@dataclass(frozen=True)
class Joined:
    """TRL's collator, and what turns its micro-batches into those of `Form.batch`."""

    collate: Callable[[list[Any]], Any]
    join: Callable[[Any], Any]

    def __call__(self, rows: list[Any]) -> Any:
        return self.join(self.collate(rows))


class Referred:
    """State that a streamed trainer whose loss has a reference keeps beside the session."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.precomputes = False  # a first pass computes the reference, else each step does
        self._references: list[Reference] = []
        self._referred = False

    def keys(self, args: Any) -> dict[str, Any]:
        return {**self.form.keys(args), "precompute_ref_log_probs": self.precomputes}

    def batch(self, inputs: Any) -> Batch:
        return self.form.batch(inputs, False)

    def fit(self, trainer: Any) -> None:
        """Changes TRL's trainer when its constructor has returned."""
        trainer.ref_model = None
        origin = origin_of(trainer.model)
        assert origin is not None
        self.precomputes |= not begins_from_base(origin.config.values())
        if self.form.join is not None:
            trainer.data_collator = Joined(trainer.data_collator, self.form.join)

    def save(self, checkpoint: Path) -> None:
        for each in self._references:
            each.copy(checkpoint)

    def refer(self, trainer: Any, began_in: Path | None, began: bool, durable: bool) -> None:
        """Gives the trainer's data what the reference model makes of it, as columns, once. `began`: the run has made
        steps, so that this is known already: in `output_dir`, or in the checkpoint `began_in`. What a run that is not
        `durable` left there may be of another model."""
        if not self.precomputes or (self._referred and not durable):
            return
        place = Path(trainer.args.output_dir)
        if not self._referred and not began and not durable and trainer._world.leads:
            for path in place.glob(identity.REFERENCES):
                path.unlink()
        if not self._referred:
            places = [place, *([began_in] if began_in else [])]
            trainer.train_dataset = self._columns(trainer, trainer.train_dataset, "train", places, began)
            sets = trainer.eval_dataset
            if isinstance(sets, dict):
                trainer.eval_dataset = {
                    name: self._columns(trainer, rows, f"eval-{number}", places, began)
                    for number, (name, rows) in enumerate(sets.items())
                }
            elif sets is not None:
                trainer.eval_dataset = self._columns(trainer, sets, "eval", places, began)
        self._referred = True
        for each in self._references:
            each.keep(place)

    def _columns(self, trainer: Any, rows: Any, name: str, places: list[Path], began: bool) -> Any:
        data = Collated(self.form, rows, trainer)
        if began:
            reference = load_known(trainer._world, name, data, places, None)
        else:
            reference = open_stored(trainer._world, places[0], name, data)
            if not reference.whole:
                if trainer._world.leads:
                    LOGGER.warning(f"reference log-probabilities of {len(data)} pairs: a first pass computes them")
                reference.compute(trainer.session, data, how(trainer, name), lambda done: None)
        self._references.append(reference)
        return add_columns(self.form, rows, reference.values)


def refer_rows(trainer: Any, rows: Any) -> Any:
    """`rows` of one evaluation, with columns; nothing is kept."""
    form = trainer._pairs.form
    if not trainer._pairs.precomputes:
        return rows
    if trainer.state.global_step:
        raise InputError(
            "eval_dataset: the reference is the model before the first step, and it is another one now; give these "
            "rows to the trainer when it is made"
        )
    parts = compute_probabilities(trainer.session, Collated(form, rows, trainer), how(trainer, "eval"))
    return add_columns(form, rows, np.array([value for part in parts for value in part]))


def how(trainer: Any, name: str) -> Pass:
    args = trainer.args
    pairs = args.per_device_train_batch_size if name == "train" else args.per_device_eval_batch_size
    return Pass(pairs, args.gradient_accumulation_steps * trainer._world.ranks.world)


def add_columns(form: Form, rows: Any, values: NDArray[np.float64]) -> Any:
    for name, own in zip(form.columns, (values[::2], values[1::2]), strict=True):
        rows = (rows.remove_columns(name) if name in rows.column_names else rows).add_column(name, own.tolist())
    return rows
