"""TRL's trainer of judged answers over a streamed model."""

from __future__ import annotations

import trl

from spillway.integrations.trainer import StreamedTraining


class KTOTrainer(StreamedTraining, trl.KTOTrainer):  # type: ignore[misc]
    """trl.KTOTrainer, over a model that `spillway.hf.load` made, which is its own reference before the first step."""
