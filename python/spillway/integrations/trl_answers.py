"""TRL's trainer of judged answers over a streamed model."""

from __future__ import annotations

import trl

from spillway.errors import InputError
from spillway.integrations.trainer import StreamedTraining

if not hasattr(trl, "KTOTrainer"):
    raise InputError(
        f"KTOTrainer: TRL {trl.__version__} has it among its experiments alone, with other columns; install a version "
        "that has trl.KTOTrainer"
    )


class KTOTrainer(StreamedTraining, trl.KTOTrainer):  # type: ignore[misc]
    """trl.KTOTrainer, over a model that `spillway.hf.load` made, which is its own reference before the first step."""
