"""TRL's DPOTrainer over a streamed model: its data, arguments and log; the reference from a first streamed pass.

TRL would load a second model, or run the first one itself, for the reference's log-probabilities. Neither happens here:
its constructor is given a reference that is never called, and the columns that it would have computed come from the
engine before the first step, when the streamed model is the reference.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray
from torch import nn

from spillway.config.objectives import OBJECTIVES
from spillway.data.batches import REFERENCE, pairs_of
from spillway.errors import InputError
from spillway.integrations.sizes import row_count
from spillway.model.batch import Batch
from spillway.output import identity
from spillway.run.reference import Pass, Reference, begun, computed, known

LOSSES = OBJECTIVES["dpo"].losses
ROWS = ("prompt_ids", "chosen_ids", "rejected_ids")
# argument, the value that asks for nothing, and why another is not done
PLAIN = (
    ("f_divergence_type", "reverse_kl", "the reward is the log-ratio"),
    ("ld_alpha", None, "every token of a completion counts alike"),
    ("use_weighting", False, "every pair counts alike"),
    ("sync_ref_model", False, "the reference is the model before the first step"),
)


def is_dpo(kind: type) -> bool:
    """Whether it is TRL's DPOTrainer."""
    return any(base.__name__ == "DPOTrainer" and base.__module__.startswith("trl.") for base in kind.__mro__)


class NoModel(nn.Module):
    """Stands where TRL keeps a reference model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, *_: Any, **__: Any) -> Any:
        raise InputError("ref_model: the engine computes the reference's log-probabilities before the first step")


def prepared(positional: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of TRL's constructor with a reference that nobody calls. InputError where one was given."""
    names = ("model", "ref_model", "args")
    given = {**dict(zip(names, positional, strict=False)), **named}
    if given.get("ref_model") is not None:
        raise InputError(
            "ref_model: the reference is the streamed model as it is before the first step, of adapters their base; "
            "leave it out"
        )
    args = given.get("args") or default_arguments(given["model"])
    check(args)
    args.precompute_ref_log_probs = True
    others = {name: value for name, value in named.items() if name not in names}
    return (given["model"], NoModel(given["model"].config), args, *positional[len(names) :]), others


def default_arguments(model: Any) -> Any:
    import trl

    return trl.DPOConfig(f"{Path(model.config._name_or_path).name}-DPO")


def check(args: Any) -> None:
    for name, plain, why in PLAIN:
        if getattr(args, name, plain) != plain:
            raise InputError(f"{name}: {getattr(args, name)} is not computed over a streamed model: {why}")
    kind, weights = loss_type(args), getattr(args, "loss_weights", None)
    if kind not in LOSSES or weights not in (None, [1.0]):
        asked = ", ".join(args.loss_type) if isinstance(args.loss_type, list) else args.loss_type
        raise InputError(
            f"loss_type: {asked} is not computed over a streamed model; expects one of {', '.join(LOSSES)}"
        )


def loss_type(args: Any) -> str:
    """Empty where there are several."""
    found = args.loss_type
    if isinstance(found, list):
        return str(found[0]) if len(found) == 1 else ""
    return str(found)


def keys(args: Any) -> dict[str, Any]:
    """Those of the configuration."""
    kind = loss_type(args)
    return {
        "objective": "dpo",
        "loss_type": kind,
        "beta": args.beta,
        "label_smoothing": args.label_smoothing if kind == "robust" else 0.0,
        "disable_dropout": args.disable_dropout,
    }


class Collated:
    """The pairs of a dataset of TRL's, through its collator; see preferences.Preferences."""

    def __init__(self, rows: Any, trainer: Any) -> None:
        if row_count(rows) is None:
            raise InputError(
                "train_dataset: the reference looks at every pair before the first step, by its number, and this one "
                "is iterated; give a dataset that can be indexed, as load_dataset(...) without streaming makes it"
            )
        missing = [name for name in ROWS if name not in (getattr(rows, "column_names", None) or ())]
        if missing:
            raise InputError(
                "train_dataset: the reference looks at every pair before the first step, by its number; this one has "
                f"no column {missing[0]}, as TRL makes it of a dataset that can be indexed"
            )
        self._rows, self._trainer = rows, trainer

    def __len__(self) -> int:
        return len(self._rows)

    def fingerprint(self) -> str:
        collator = self._trainer.data_collator
        cut = [getattr(collator, name, None) for name in ("max_length", "truncation_mode")]
        digest = hashlib.sha256(json.dumps(cut).encode())
        for row in self._rows.select_columns(list(ROWS)):
            digest.update(json.dumps([row[name] for name in ROWS]).encode())
        return "trl-" + digest.hexdigest()

    def batch(self, pairs: NDArray[np.int64]) -> Batch:
        found: Batch = self._trainer._batch(self._trainer.data_collator([self._rows[int(place)] for place in pairs]))
        return found


class Pairs:
    """What a streamed DPOTrainer keeps beside the session."""

    def __init__(self) -> None:
        self._references: list[Reference] = []
        self._referred = False

    def keys(self, args: Any) -> dict[str, Any]:
        return keys(args)

    def batch(self, inputs: Any) -> Batch:
        return pairs_of(inputs, referred=False)

    def save(self, checkpoint: Path) -> None:
        for each in self._references:
            each.copy(checkpoint)

    def refer(self, trainer: Any, began_in: Path | None, began: bool, durable: bool) -> None:
        """Gives the trainer's data what the reference model makes of it, as columns, once. `began`: the run has made
        steps, so that this is known already: in `output_dir`, or in the checkpoint `began_in`. What a run that is not
        `durable` left there may be of another model."""
        if self._referred and not durable:
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
        data = Collated(rows, trainer)
        if began:
            found = known(trainer._world, name, data, places, None)
        else:
            found = begun(trainer._world, places[0], name, data)
            if not found.whole:
                if trainer._world.leads:
                    tell(f"reference log-probabilities of {len(data)} pairs: a first pass computes them")
                found.compute(trainer.session, data, how(trainer, name), lambda done: None)
        self._references.append(found)
        return with_columns(rows, found.values)


def of_rows(trainer: Any, rows: Any) -> Any:
    """`rows` of one evaluation, with columns; nothing is kept."""
    if trainer.state.global_step:
        raise InputError(
            "eval_dataset: the reference is the model before the first step, and it is another one now; give these "
            "rows to the DPOTrainer when it is made"
        )
    parts = computed(trainer.session, Collated(rows, trainer), how(trainer, "eval"))
    return with_columns(rows, np.array([value for part in parts for value in part]))


def how(trainer: Any, name: str) -> Pass:
    args = trainer.args
    pairs = args.per_device_train_batch_size if name == "train" else args.per_device_eval_batch_size
    return Pass(pairs, args.gradient_accumulation_steps * trainer._world.ranks.world)


def with_columns(rows: Any, values: NDArray[np.float64]) -> Any:
    for name, own in zip(REFERENCE, (values[::2], values[1::2]), strict=True):
        rows = (rows.remove_columns(name) if name in rows.column_names else rows).add_column(name, own.tolist())
    return rows


def tell(words: str) -> None:
    transformers.logging.get_logger("spillway").warning(words)
