"""`virtual_ranks`: equal to the averaging of so many processes, bit-identical wherever the state lies, killed and
resumed, refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import real_runs
import seeds
from breadth import some
from hf_models import batch, random_ids, tiny_config, tiny_model
from native import opened
from real_runs import apart, here, on_path, result, words
from spillway.model.batches.batch import WorkShape
from spillway.model.batches.microbatch import IGNORED, arrange
from spillway.model.meta.describe import decay_names
from test_engine import CLIP, DECAY, PLACEMENTS, assert_same_bits, bits, rate, save
from test_recovery import KILLED, LIMIT
from test_stream import loss_of

RANKS = 4
SHAPE = WorkShape(micro_batches=9, batch=2, length=12, eval_batch=2, eval_length=12)
STEPS = 20
LAST = 3  # micro-batches of the last step: fewer than ranks
EPSILON = 1e-4  # where a gradient is zero but for rounding, Adam is not to make a whole step of that
FORMATS = [("bf16", "exact"), ("bf16", "int8"), ("fp32", "bf16")]


def steps_of(steps: int) -> list[list[Any]]:
    """Nine micro-batches of different size, which four ranks share unevenly; the last step has fewer."""
    counts = [9] * (steps - 1) + [LAST]
    return [
        [batch(random_ids(1 + place % 2, 7 + place % 6, 50 * step + place)) for place in range(count)]
        for step, count in enumerate(counts)
    ]


def tree(ranks: Sequence[list[torch.Tensor]]) -> list[torch.Tensor]:
    """The sums of what the ranks have, two by two."""
    if len(ranks) == 1:
        return ranks[0]
    half = 1 << ((len(ranks) - 1).bit_length() - 1)
    return [one + other for one, other in zip(tree(ranks[:half]), tree(ranks[half:]), strict=True)]


def train_ranks(model: PreTrainedModel, steps: list[list[Any]]) -> tuple[list[float], list[float]]:
    """What RANKS processes would do: each one the gradient of its own micro-batches, of the loss of all label tokens
    multiplied by their number, which is averaged then."""
    decaying, parameters = set(decay_names(model)), list(model.parameters())
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in decaying) == decays], "weight_decay": decay}
        for decays, decay in ((True, DECAY), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, eps=EPSILON)
    losses, norms = [], []
    for number, step in enumerate(steps):
        tokens = sum(int((piece.labels[:, 1:] != IGNORED).sum()) for piece in step)
        ranks, total = [], 0.0
        for rank in range(min(RANKS, len(step))):
            optimizer.zero_grad()
            for piece in step[rank::RANKS]:
                loss = loss_of(model, piece)
                (loss * RANKS / tokens).backward()
                total += float(loss.detach().double())
            ranks.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters])
        for parameter, gradient in zip(parameters, tree(ranks), strict=True):
            parameter.grad = gradient / RANKS
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = rate(number)
        optimizer.step()
        losses.append(total)
    return losses, norms


@pytest.mark.parametrize(("kind", "tied"), [("qwen2", True), ("phi", False)])
def test_equal_to_the_averaging_of_as_many_processes(tmp_path: Path, kind: str, tied: bool) -> None:
    """phi's head has a bias, whose gradient comes by another way."""
    model, steps = tiny_model(tiny_config(kind, tied)), steps_of(STEPS)
    model.save_pretrained(tmp_path / "model")
    session = opened(
        tmp_path / "model", SHAPE, storage=tmp_path, placement="state=50%,grad=0%", virtual_ranks=RANKS,
        adam_epsilon=EPSILON,
    )  # fmt: skip
    found = [session.step(step, rate(number)) for number, step in enumerate(steps)]
    masters = session.masters()
    session.close()
    losses, norms = train_ranks(model, steps)
    assert [each.loss_sum for each in found] == pytest.approx(losses, rel=1e-6)
    assert [each.grad_norm for each in found] == pytest.approx(norms, rel=1e-5)
    weights = dict(model.named_parameters())
    assert masters.keys() <= weights.keys()
    for name, found_weight in masters.items():
        expected = weights[name].detach()
        torch.testing.assert_close(found_weight, expected, rtol=0, atol=5e-6 * float(expected.abs().max()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks") / "model"
    tiny_model(tiny_config("qwen2", tied=True)).save_pretrained(path)
    return path


@pytest.mark.parametrize("placement", some(["path", "thirds", "half"], ["thirds"]))
@pytest.mark.parametrize(("dtype", "form"), some(FORMATS, FORMATS[:2]))
def test_no_placement_or_resume_changes_a_bit(
    model: Path, tmp_path: Path, dtype: str, form: str, placement: str
) -> None:
    keys, steps = {"compute_dtype": dtype, "state_format": form, "virtual_ranks": RANKS}, steps_of(4)
    expected = bits(opened(model, SHAPE, **keys), tmp_path / "dram", steps)
    path = opened(model, SHAPE, storage=tmp_path, **PLACEMENTS[placement], **keys)
    assert_same_bits(bits(path, tmp_path / "path", steps), expected)
    first = opened(model, SHAPE, storage=tmp_path, placement="path", **keys)
    losses = [first.step(step, rate(number)).loss_sum for number, step in enumerate(steps[:2])]
    save(first, tmp_path / "half")
    first.close()
    rest = opened(model, SHAPE, resume=tmp_path / "half", **keys)
    losses += [rest.step(step, rate(number + 2)).loss_sum for number, step in enumerate(steps[2:])]
    assert losses == expected.losses
    rest.close()


def test_it_says_in_which_order_gradients_are_added(model: Path, tmp_path: Path) -> None:
    steps = steps_of(3)
    found = {
        ranks: bits(opened(model, SHAPE, virtual_ranks=ranks), tmp_path / str(ranks), steps) for ranks in (1, 2, 4)
    }
    for one, other in ((1, 2), (1, 4), (2, 4)):
        assert found[one].losses[1:] == pytest.approx(found[other].losses[1:], rel=1e-6)
        assert found[one].files != found[other].files


def test_micro_batches_are_taken_rank_by_rank() -> None:
    pieces = [batch(random_ids(1, 3 + number, number)) for number in range(7)]
    work = arrange(pieces, virtual_ranks=3)
    assert [each.number for each in work.micro_batches] == [0, 3, 6, 1, 4, 2, 5]
    assert [each.index for each in work.micro_batches] == list(range(7))
    assert [each.rank for each in work.micro_batches] == [0, 0, 0, 1, 1, 2, 2]
    assert [each.index for each in work.micro_batches if each.ends_rank] == [2, 4, 6]
    assert work.counts == [3 + each.number for each in work.micro_batches] and work.ranks == 3
    for each in work.micro_batches:
        assert torch.equal(work.ids_of(each), pieces[each.number].input_ids.view(-1))
    assert [each.number for each in arrange(pieces).micro_batches] == list(range(7))
    assert arrange(pieces[:2], virtual_ranks=5).ranks == 2


def test_killed_and_resumed_from_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = real_runs.inputs(tmp_path / "given")
    keys = ["--virtual_ranks", "4", "--gradient_accumulation_steps", "5", "--max_steps", "8"]
    assert here(given, tmp_path / "whole", *keys) == 0
    assert "virtual_ranks: 4" in (tmp_path / "whole" / "config.yaml").read_text()
    instants = seeds.instants("virtual ranks")
    durable = [*keys, *on_path(tmp_path / "storage"), "--resume_from_checkpoint", "auto"]
    monkeypatch.setenv("DIES_AFTER", str(instants.uniform(0.005, 0.3)))
    process = apart("-c", KILLED, *words(given, tmp_path / "out", *durable))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode in (0, -14), (error, seeds.said())  # 0: it was done before
    monkeypatch.delenv("DIES_AFTER")
    assert here(given, tmp_path / "out", *durable) == 0, capfd.readouterr().err
    assert result(tmp_path / "out") == result(tmp_path / "whole"), seeds.said()
    another = [*durable, "--virtual_ranks", "2", "--max_steps", "9"]
    assert here(given, tmp_path / "out", *another) == 2
    assert "virtual_ranks: the run was started with 4" in capfd.readouterr().err
