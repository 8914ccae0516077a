"""The check of bench/large.py: a saved checkpoint has the loss of the text that it was trained on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import real_runs
import tiny
from folders import REPOSITORY

sys.path.append(str(REPOSITORY / "bench"))
import large  # noqa: E402

LENGTH = 64


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model."""
    return real_runs.inputs(tmp_path_factory.mktemp("large"))


def test_a_trained_checkpoint_passes_and_an_untrained_one_of_its_shape_is_refused(inputs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text, rows = large.write_rows(tmp_path, f"{tiny.SENTENCES[0]} ", LENGTH, 16)
    words = ("--dataset", str(rows), "--max_steps", "16", "--learning_rate", "2e-2",
             "--max_length", str(LENGTH))  # fmt: skip
    assert real_runs.here(inputs, out, *words) == 0
    losses = [row["loss"] for row in large.rows_of(out)]
    assert losses[-1] < 0.8 * losses[0]
    assert 0 < large.check_loss(out, text, LENGTH, losses[-1]) <= large.LOSS_LIMIT * losses[-1]
    refusal = r"model: the loss of the text is [\d.]+, more than 1\.05 times the last training loss, [\d.]+\. The check"
    with pytest.raises(SystemExit, match=refusal):
        large.check_loss(inputs / "model", text, LENGTH, losses[-1])
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit, match="empty cannot be loaded: "):
        large.check_loss(tmp_path / "empty", text, LENGTH, losses[-1])
