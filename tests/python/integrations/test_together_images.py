"""TRL's SFTTrainer on rows with images in two processes: the bits of one process over the same micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import native
from breadth import some
from image_models import image_directory
from needs import package
from test_together import BEGINNING, ranks, same_files, told, well

package("accelerate", "transformers' Trainer needs accelerate")
package("trl", "the trainer for rows with images is TRL's")

TRAINER = (
    BEGINNING
    + """
import test_image_trainers as tests
from spillway.hf import SFTTrainer

keys = json.loads(sys.argv[3])
model = tests.load_streamed(given, virtual_ranks=2, **keys)
parts = tests.parts(given, place / f"of-{world}", max_steps=3, gradient_accumulation_steps=2 // world)
trainer = SFTTrainer(model=model, **parts)
trainer.train()
trainer.save_model()
trainer.close()
rows = [{name: row[name] for name in ("loss", "grad_norm") if name in row} for row in trainer.state.log_history]
Path(place, f"told-{world}-{rank}.json").write_text(json.dumps(rows))
"""
)
TRAINED = {"freeze_vision_tower": False, "freeze_multi_modal_projector": False}


@pytest.mark.parametrize("keys", some([{}, TRAINED], [TRAINED]), ids=["frozen", "trained"])
def test_a_trainer_of_two_makes_what_one_makes(keys: dict[str, bool], tmp_path: Path) -> None:
    """With the vision tower frozen, and trained."""
    given = image_directory(tmp_path / "given", "gemma3")
    native.profile(given)
    for world in (1, 2):
        well(ranks(TRAINER, world, given, tmp_path, json.dumps(keys)))
    assert told(tmp_path, 1) == told(tmp_path, 2)
    assert sum("grad_norm" in row for row in told(tmp_path, 1)) == 3
    same_files(tmp_path / "of-2" / "model.safetensors", tmp_path / "of-1" / "model.safetensors")
