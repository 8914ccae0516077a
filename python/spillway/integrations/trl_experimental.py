"""Trainers of `trl.experimental` whose losses are computed over a streamed model."""

from __future__ import annotations

from trl.experimental import cpo, orpo

from spillway.integrations.trainer import StreamedTraining


class ORPOTrainer(StreamedTraining, orpo.ORPOTrainer):  # type: ignore[misc]
    """trl.experimental.orpo.ORPOTrainer, over a model that `spillway.hf.load` made."""


class CPOTrainer(StreamedTraining, cpo.CPOTrainer):  # type: ignore[misc]
    """trl.experimental.cpo.CPOTrainer, over a model that `spillway.hf.load` made."""
