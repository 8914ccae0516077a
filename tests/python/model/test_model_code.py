"""Calls of a model's own code on text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from spillway.model.source.model_code import call_model

IDS = torch.arange(6).view(2, 3)


class Asking(nn.Module):
    """Refuses to train without one argument, as some multimodal classes do."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, input_ids: Any, mm_token_type_ids: Any = None, labels: Any = None, use_cache: bool = True) -> Any:
        given = {"mm_token_type_ids": mm_token_type_ids, "labels": labels}
        if self.training and given.get(self.name) is None:
            raise ValueError(f"`{self.name}` is required as a model input when training")
        return input_ids, mm_token_type_ids, use_cache


def test_types_of_tokens_are_zero_where_they_are_asked_for() -> None:
    ids, types, use_cache = call_model(Asking("mm_token_type_ids"), IDS)
    assert torch.equal(ids, IDS) and torch.equal(types, torch.zeros_like(IDS)) and use_cache is False


def test_nothing_is_added_to_what_a_model_does_not_ask_for() -> None:
    assert call_model(Asking("mm_token_type_ids").eval(), IDS)[1] is None
    given = torch.ones_like(IDS)
    assert call_model(Asking("mm_token_type_ids"), IDS, mm_token_type_ids=given)[1] is given


@pytest.mark.parametrize("name", ["labels", "token_type_ids"])
def test_other_refusals_of_a_model_are_its_own(name: str) -> None:
    """Another argument, and one that its forward does not take."""
    with pytest.raises(ValueError, match=f"`{name}` is required"):
        call_model(Asking(name), IDS)
