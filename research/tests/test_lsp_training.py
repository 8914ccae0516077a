"""The table of training in a subspace, and each of its methods on a small model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "research"))
import lsp_methods  # noqa: E402
import lsp_training_table  # noqa: E402
from figures import RESULTS  # noqa: E402

STEPS, RATE, OTHERS, PERIOD = 30, 1e-2, 1e-3, 10


class Layer(nn.Module):
    """Two matrices of one shape around a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = rows + self.down(torch.relu(self.up(rows)))
        return out


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"layers": nn.ModuleList([Layer(), Layer()])})
        self.head = nn.Linear(32, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for layer in self.body["layers"]:
            rows = layer(rows)
        out: torch.Tensor = self.head(rows)
        return out


def train(method: str, share: float = 0.5) -> tuple[list[float], list[torch.Tensor]]:
    """Losses of the steps, and the changes of the weights of the layers."""
    torch.manual_seed(0)
    model = Model()
    rows, targets = torch.randn(64, 32), torch.randn(64, 4)
    weights = [weight for name, weight in model.named_parameters() if ".layers." in name]
    before = [weight.detach().clone() for weight in weights]
    trained = lsp_methods.trained_by(method, model, lsp_methods.Setting(RATE, OTHERS, share, PERIOD))
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(trained.model(rows), targets)
        loss.backward()
        trained.step(1.0)
        losses.append(loss.item())
    return losses, [after.detach() - old for after, old in zip(weights, before, strict=True)]


def test_page_is_what_its_lines_say() -> None:
    page = (RESULTS / "lsp-training.md").read_text(encoding="utf-8")
    assert page == lsp_training_table.page(lsp_training_table.Found(lsp_training_table.LINES))


@pytest.mark.parametrize("method", lsp_methods.METHODS)
def test_each_method_lowers_the_loss(method: str) -> None:
    losses, changes = train(method)
    assert losses[-1] < 0.8 * losses[0]
    changed = [change.abs().max() > 0 for change in changes]
    assert not any(changed) if method == "lora" else all(changed), "adapters leave the weight alone, others move it"


def test_projectors_that_stay_confine_the_change_of_a_matrix() -> None:
    def ranks(method: str) -> list[int]:
        return [int(torch.linalg.matrix_rank(change, rtol=1e-4)) for change in train(method, share=0.25)[1]]

    assert ranks("ours") == [8] * 4, "d = 8 of 32"
    assert all(rank > 8 for rank in ranks("full"))
    assert all(rank > 8 for rank in ranks("published")), "new projectors each period"
