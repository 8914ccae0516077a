"""TensorBoard, Weights & Biases and the others, through the callbacks that transformers has for them.

They see what they would see in a Trainer: arguments, state, logs. What they log of a row are its numbers, the bytes of
every path and tokens/s (without padding) among them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from spillway.config import Config
from spillway.config.hub_keys import SECRET
from spillway.errors import InputError


class Trackers:
    """None are made where `report_to` names none; nothing of transformers is imported then."""

    def __init__(self, config: Config, output_dir: Path) -> None:
        """InputError where a tracker that was named is not installed."""
        self._callbacks: list[Any] = []
        if not config.report_to:
            return
        if importlib.util.find_spec("accelerate") is None:
            raise InputError("report_to: transformers' callbacks need the package accelerate: pip install accelerate")
        from transformers import TrainerControl, TrainerState

        self._callbacks = [make_tracker(name) for name in names(config.report_to)]
        self._arguments = arguments(config, output_dir)
        self._state, self._control = TrainerState(), TrainerControl()

    def start(self, step: int, steps: int, model_config: Any = None) -> None:
        """`steps`: of the whole run. `model_config`: transformers' own, shown by some."""
        if not self._callbacks:
            return
        self._state.global_step, self._state.max_steps = step, steps
        model = _Model(model_config) if model_config is not None else None
        self._call("on_train_begin", **({"model": model} if model else {}))

    def log(self, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl."""
        if not self._callbacks:
            return
        self._state.global_step = row["step"]
        self._state.epoch = row.get("epoch")
        self._call("on_log", logs=numbers(row))

    def stop(self) -> None:
        if self._callbacks:
            self._call("on_train_end")
            self._callbacks = []

    def _call(self, event: str, **named: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, event)(self._arguments, self._state, self._control, **named)


class _Model:
    """The attributes that some trackers read from a model."""

    def __init__(self, config: Any) -> None:
        self.config = config


def names(report_to: list[str]) -> list[str]:
    """`all`: those that are installed."""
    if report_to != ["all"]:
        return report_to
    from transformers.integrations import get_available_reporting_integrations

    return list(get_available_reporting_integrations())


def make_tracker(name: str) -> Any:
    from transformers.integrations import get_reporting_integration_callbacks

    try:
        return get_reporting_integration_callbacks([name])[0]()
    except (RuntimeError, ImportError, ValueError) as error:
        raise InputError(f"report_to: {name} cannot be used here: {str(error).partition(chr(10))[0]}") from None


def arguments(config: Config, output_dir: Path) -> Any:
    """TrainingArguments as far as the keys are theirs; shown with all keys of the run."""
    from transformers import TrainingArguments

    class Shown(TrainingArguments):
        def to_dict(self) -> dict[str, Any]:
            shown = {key: plain(value) for key, value in config.values().items() if key not in SECRET}
            return {**super().to_dict(), **shown}

        def to_sanitized_dict(self) -> dict[str, Any]:
            return {key: plain(value) for key, value in self.to_dict().items()}

    return Shown(output_dir=str(output_dir), run_name=output_dir.name, report_to="none", use_cpu=True)


def plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Flat, and nothing that is no number; tokens/s besides."""
    values = {key: value for key, value in row.items() if key != "step" and isinstance(value, int | float)}
    for path, moved in row.get("path_bytes", {}).items():
        for way, count in moved.items():
            values[f"{path.replace(':', '_')}_{way}_bytes"] = count
    for node, done in row.get("node_updates", {}).items():
        values[f"{node.replace(':', '_')}_update_seconds"] = done["seconds"]
    if row.get("step_seconds") and "tokens" in row:
        values["tokens_per_second"] = row["tokens"] / row["step_seconds"]
    return values
