"""Layers that are trained in subspaces in a streamed run: equal to the optimizer for a loop of one's own, resumed bit
by bit, and refused by name where that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import both_ways
import native
import real_runs
from breadth import some
from hf_models import tiny_config
from needs import package
from spillway import subspace
from spillway._engine import DeviceSettings
from spillway.config import resolve
from spillway.errors import InputError
from spillway.machine import device
from spillway.model.meta.describe import decay_names
from spillway.output import state

LSP = {"method": "lsp", "adam_epsilon": both_ways.EPSILON}
MODULES = r"q_proj|down_proj|up_proj"
LEARNED = 1e-2  # AdamW divides slopes by their own size, those that are zero but for rounding, too
RANK = 64  # of a matrix of 256 rows or columns
BITS = 2e-4  # projectors are eigenvectors, which differ by more than a gradient's rounding


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("lsp"))


def plain_run(model: Any, work: Any, **more: Any) -> tuple[list[float], subspace.AdamW]:
    """A loop of one's own: matrices in subspaces, the rest in full, one norm over both."""
    inside = subspace.AdamW(
        model, both_ways.RATE, eps=both_ways.EPSILON, weight_decay=both_ways.DECAY, modules=MODULES, rank=8, nonzeros=2,
        seed=both_ways.RUN_SEED, **more,
    )  # fmt: skip
    decaying = set(decay_names(model))
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for name, p in learning.items() if (name in decaying) == decays], "weight_decay": decay}
        for decays, decay in ((True, both_ways.DECAY), (False, 0.0))
    ]
    others = torch.optim.AdamW(groups, lr=both_ways.RATE, eps=both_ways.EPSILON)
    losses = []
    for step in work:
        labels = sum(int((batch.labels[:, 1:] != -100).sum()) for batch in step)
        total = 0.0
        for batch in step:
            loss = both_ways.plain_loss(model, batch, labels)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        torch.nn.utils.clip_grad_norm_([*inside.parameters(), *learning.values()], both_ways.CLIP)
        for optimizer in (inside, others):
            optimizer.step()
            optimizer.zero_grad()
    return losses, inside


def trained_in_subspaces(tmp_path: Path, place: str, **asked: Any) -> tuple[list[float], dict[str, Any], list[Any]]:
    """Losses, masters, and what the engine tells of projectors: of ten steps of two micro-batches, with clipping and
    decay."""
    both_ways.save(tiny_config("llama", True, num_hidden_layers=3), tmp_path / "model", 7)
    more = asked | ({"placement": "path", "storage": tmp_path} if place == "path" else {})
    session = native.opened(
        tmp_path / "model", both_ways.SHAPE, weight_decay=both_ways.DECAY, max_grad_norm=both_ways.CLIP,
        lsp_modules=[MODULES], lsp_rank=8, lsp_nonzeros=2, **LSP, **more,
    )  # fmt: skip
    work = both_ways.steps_of(session._spec.meta_model.config.vocab_size)
    try:
        losses = [r.loss_sum / r.label_tokens for r in (session.step(step, both_ways.RATE) for step in work)]
        return losses, session.masters(), session._engine.refits()
    finally:
        session.close()


@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
def test_equals_the_optimizer_of_a_plain_loop(place: str, tmp_path: Path) -> None:
    """Losses, norms' effect and every weight."""
    losses, masters, told = trained_in_subspaces(tmp_path, place)
    plain = both_ways.load(tmp_path / "model")
    work = both_ways.steps_of(plain.config.vocab_size)
    assert losses == pytest.approx(plain_run(plain, work)[0], rel=1e-5)
    begun = load_file(tmp_path / "model" / "model.safetensors")
    for name, weight in plain.named_parameters():
        moved = float((weight.detach() - begun[name]).abs().max())
        assert float((masters[name] - weight.detach()).abs().max()) <= BITS * moved, name
    assert len(told) == 9 and all(fits == 1 and 0 <= error < 1 for _, fits, error in told)


@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
def test_published_projectors_are_those_of_a_plain_loop(place: str, tmp_path: Path) -> None:
    """The same pairs are learned at the same steps, from gradients that differ by rounding."""
    asked = {"lsp_projectors": "published", "lsp_residual": "none", "lsp_check_every": 3, "lsp_threshold": 0.9}
    losses, masters, told = trained_in_subspaces(tmp_path, place, **asked)
    plain = both_ways.load(tmp_path / "model")
    work = both_ways.steps_of(plain.config.vocab_size)
    expected, optimizer = plain_run(plain, work, projectors="published", check_every=3, threshold=0.9)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert {name: fits for name, fits, _ in told} == {f"{name}.weight": fits for name, fits in optimizer.fits().items()}
    assert max(fits for _, fits, _ in told) > 1
    begun = load_file(tmp_path / "model" / "model.safetensors")
    for name, weight in plain.named_parameters():
        moved = float((weight.detach() - begun[name]).norm())
        assert float((masters[name] - weight.detach()).norm()) <= LEARNED * moved, name


@pytest.mark.parametrize(("kind", "module"), [("gpt2", r"attn\.c_proj"), ("llama", "o_proj")])
def test_a_space_as_large_as_the_matrix_is_the_matrix(kind: str, module: str, tmp_path: Path) -> None:
    """Gradient descent does not see that S is G in other coordinates: the steps are those of method full."""
    config = tiny_config(kind, True, num_hidden_layers=2)
    both_ways.save(config, tmp_path / "model", 7)
    found = []
    for more in ({}, {**LSP, "lsp_modules": [module], "lsp_rank": config.hidden_size, "lsp_nonzeros": 16}):
        words: dict[str, Any] = {"optim": "sgd", "momentum": 0.5, "weight_decay": 0.0, "max_grad_norm": 1.0}
        session = native.opened(tmp_path / "model", both_ways.SHAPE, **words, **more)
        try:
            work = both_ways.steps_of(config.vocab_size)[:4]
            found.append([session.step(step, 0.1) for step in work])
            told = session._engine.refits()
        finally:
            session.close()
    assert len(told) == 2
    for full, inside in zip(*found, strict=True):
        assert inside.loss_sum == pytest.approx(full.loss_sum, rel=1e-5)
        assert inside.grad_norm == pytest.approx(full.grad_norm, rel=1e-4)


def weights(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


CHECKED = ["--lsp_residual", "none", "--lsp_check_every", "2", "--lsp_threshold", "0.05"]
ROTATING = ["--lsp_rotate_every", "3"]
PUBLISHED = ["--lsp_projectors", "published", "--lsp_check_every", "2", "--lsp_threshold", "0.05"]


@pytest.mark.parametrize(
    ("storage", "state_format", "learning"),
    some(
        [
            (False, "exact", CHECKED),
            (True, "exact", CHECKED),
            (True, "int8", CHECKED),
            (True, "exact", ROTATING),
            (False, "exact", PUBLISHED),
            (True, "int8", PUBLISHED),
        ],
        [(False, "exact", CHECKED), (True, "int8", CHECKED), (True, "exact", ROTATING), (True, "exact", PUBLISHED)],
    ),
)
def test_a_resumed_run_ends_with_the_same_bits(
    storage: bool, state_format: str, learning: list[str], given: Path, tmp_path: Path, capsys: Any
) -> None:
    """In bf16, with projectors refitted; from a checkpoint that stands alone, and from what lies on the path."""
    words = ["--method", "lsp", *learning, "--state_format", state_format]
    words += ["--lr_scheduler_type", "constant", "--save_steps", "2"]
    more = real_runs.on_path(tmp_path / "path") if storage else []
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert real_runs.here(given, whole, *words, "--max_steps", "5") == 0
    assert real_runs.here(given, again, *words, *more, "--max_steps", "3") == 0
    going_on = (*words, *more, "--max_steps", "5", "--resume_from_checkpoint", "true")
    assert real_runs.here(given, again, *going_on, "--lsp_rank", "8") == 2
    assert "lsp_rank: the run was started with None" in capsys.readouterr().err
    assert real_runs.here(given, again, *going_on) == 0
    assert weights(again) == weights(whole) == weights(real_runs.last_checkpoint(again))
    assert real_runs.metrics(again) == real_runs.metrics(whole)
    losses = [row["loss"] for row in real_runs.metrics(whole) if "loss" in row]
    assert losses[-1] < losses[0]


def test_a_killed_run_with_published_projectors_resumes_bit_by_bit(given: Path, tmp_path: Path) -> None:
    words = ["--method", "lsp", *PUBLISHED, "--lr_scheduler_type", "constant", "--max_steps", "6", "--save_steps", "3"]
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    outs = {name: tmp_path / name / "out" for name in ("whole", "killed")}
    every = {name: [*words, *real_runs.on_path(tmp_path / name / "path"), "--durability", "step"] for name in outs}
    assert real_runs.here(given, outs["whole"], *every["whole"]) == 0
    real_runs.kill_after("update", real_runs.words(given, outs["killed"], *every["killed"]), calls=4)
    assert real_runs.main(["resume", str(outs["killed"])]) == 0
    assert weights(outs["killed"]) == weights(outs["whole"])
    assert real_runs.metrics(outs["killed"]) == real_runs.metrics(outs["whole"])
    learned = [row["projectors_learned"] for row in real_runs.metrics(outs["whole"])]
    assert learned[0] == 14 and learned[-1] > 14


def test_published_projectors_take_the_room_that_the_plan_counts(given: Path, tmp_path: Path) -> None:
    """A place of four bytes beside each value, and the work of descent."""
    beside = {}
    for kind in ("fitted", "published"):
        words = ("--method", "lsp", "--lsp_projectors", kind, "--max_steps", "1", "--save_strategy", "steps")
        assert real_runs.here(given, tmp_path / kind, *words) == 0
        plan = json.loads((tmp_path / kind / "plan.json").read_text())
        beside[kind] = sum(row["bytes"] for row in plan["bytes"] if row["class"] == "projectors")
    assert beside["published"] > beside["fitted"]
    saved = load_file(real_runs.last_checkpoint(tmp_path / "published") / "spillway" / "projectors.safetensors")
    values, places = (saved[f"model.layers.0.self_attn.q_proj.weight.p_{name}"] for name in ("values", "places"))
    assert places.dtype == torch.int32 and values.shape == places.shape and int(places.max()) > 4


def test_a_run_begun_before_rotating_was_the_default_goes_on_without(given: Path) -> None:
    def asked(**more: Any) -> Any:
        return resolve({}, {"method": "lsp", "model": str(given / "model"), "dataset": "a.jsonl", **more})

    saved = state.fixed_keys(asked(lsp_residual="none")) | {"lsp_residual": None}
    state.check_keys(saved, asked(lsp_residual="none"))
    with pytest.raises(InputError, match="lsp_residual: the run was started with none, a resume cannot change it to"):
        state.check_keys(saved, asked())
    full = state.fixed_keys(asked(method="full"))
    assert full["lsp_residual"] is None
    state.check_keys(full, asked(method="full"))


@pytest.mark.parametrize("compute_dtype", some(["fp16", "fp32"], ["fp16"]))
def test_other_types_learn(compute_dtype: str, given: Path, tmp_path: Path) -> None:
    words = ("--method", "lsp", "--compute_dtype", compute_dtype, "--max_steps", "6")
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    losses = [row["loss"] for row in real_runs.metrics(tmp_path / "out") if "loss" in row]
    assert losses[-1] < losses[0]


def test_export_stands_alone_and_goes_on(given: Path, tmp_path: Path) -> None:
    words = ("--method", "lsp", "--max_steps", "3", "--save_steps", "2")
    out, alone = tmp_path / "out", tmp_path / "alone"
    assert real_runs.here(given, out, *words, *real_runs.on_path(tmp_path / "path")) == 0
    assert real_runs.main(["export", str(out), "--to", str(alone), "--checkpoint", str(out / "checkpoint-2")]) == 0
    assert real_runs.here(given, tmp_path / "next", *words, "--resume_from_checkpoint", str(alone)) == 0
    assert weights(tmp_path / "next") == weights(out)


@pytest.mark.parametrize("compute_dtype", ["fp32", "bf16"])
def test_check_is_equal_but_for_rounding(compute_dtype: str, given: Path, tmp_path: Path, capsys: Any) -> None:
    words = ("--method", "lsp", "--compute_dtype", compute_dtype, "--max_steps", "3", "--learning_rate", "1e-5")
    assert real_runs.here(given, tmp_path / "out", *words, verb="check") == 0
    assert "equal but for rounding" in capsys.readouterr().out


@pytest.mark.parametrize("modules", [[], ["--lsp_modules", "q_proj"]])
def test_check_learns_projectors_in_the_same_turn(modules: list[str], given: Path, tmp_path: Path) -> None:
    """Which matrices learn when does not depend on how many others the model has between them."""
    words = ("--method", "lsp", *ROTATING, *modules, "--compute_dtype", "fp32", "--max_steps", "4")
    assert real_runs.here(given, tmp_path / "out", *words, "--weight_dtype", "fp32", verb="check") == 0


def test_the_plan_says_what_it_saves_and_where_it_does_not_help(given: Path, tmp_path: Path, capsys: Any) -> None:
    assert real_runs.here(given, tmp_path / "out", "--method", "lsp", verb="plan") == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "Subspaces: 14 matrices" in said and "In full a step would take" in said
    assert "projectors" in said


def test_refused_on_the_command_line(given: Path, tmp_path: Path, capsys: Any) -> None:
    def said(*more: str) -> str:
        assert real_runs.here(given, tmp_path / "out", *more) == 2
        return str(capsys.readouterr().err)

    assert "lsp_rank: it is for method lsp, and the method is full" in said("--lsp_rank", "8")
    assert "lsp_residual: got 'feedback', expects" in said("--method", "lsp", "--lsp_residual", "feedback")
    assert "lsp_rotate_every: it is for lsp_residual rotating, and that is none" in said(
        "--method", "lsp", "--lsp_residual", "none", "--lsp_rotate_every", "5"
    )
    both = said("--method", "lsp", "--lsp_projectors", "published", "--lsp_residual", "rotating")
    assert "lsp_residual: rotating refits projectors on a schedule" in both and "lsp_projectors fitted" in both
    assert "lsp_projectors: got 'random', expects" in said("--method", "lsp", "--lsp_projectors", "random")
    for type_ in ("fp16", "fp32"):
        words = ("--method", "lsp", "--lsp_master", "bf16", "--compute_dtype", type_)
        assert f"lsp_master: bf16 is for weights in bf16, and weight_dtype is {type_}" in said(*words)
    assert "lsp_rank: 10 is no multiple of lsp_nonzeros 4; use 8" in said("--method", "lsp", "--lsp_rank", "10")
    assert "'q_prj' matches no trainable linear layer" in said("--method", "lsp", "--lsp_modules", "q_prj")
    large = said("--method", "lsp", "--lsp_rank", "4096")
    assert "model.layers.0.self_attn.q_proj: lsp_rank 4096" in large and "choose layers without it" in large
    words = ("--method", "lsp", "--optim", "sgd", "--weight_decay", "0.1")
    assert "weight_decay: with method lsp and optim sgd" in said(*words)
    assert not (tmp_path / "out").exists()


def test_published_projectors_have_the_same_bits_with_a_device(given: Path, tmp_path: Path) -> None:
    for where in ("cpu", "simulated"):
        words = ("--method", "lsp", *PUBLISHED, "--max_steps", "4", "--lsp_rank", "8", "--device", where)
        assert real_runs.here(given, tmp_path / where, *words) == 0
    assert weights(tmp_path / "simulated") == weights(tmp_path / "cpu")
    assert real_runs.metrics(tmp_path / "simulated") == real_runs.metrics(tmp_path / "cpu")


def test_a_device_of_its_own_changes_no_bit_and_rows_say_what_is_missed(given: Path, tmp_path: Path) -> None:
    words = ("--max_steps", "4", "--lsp_residual", "none", "--lsp_check_every", "2", "--lsp_threshold", "0.05")
    words = (*words, "--lsp_rank", "8")
    for where in ("cpu", "simulated"):
        assert real_runs.here(given, tmp_path / where, "--method", "lsp", *words, "--device", where) == 0
    assert weights(tmp_path / "simulated") == weights(tmp_path / "cpu")
    rows = real_runs.metrics(tmp_path / "cpu")
    assert rows == real_runs.metrics(tmp_path / "simulated")
    assert rows[-1]["projectors_learned"] > rows[0]["projectors_learned"] > 0
    assert all(0 <= error < 1 for row in rows for error in row["gradient_error"].values())
    assert len(rows[-1]["gradient_error"]) == 2  # layers
    moved = [
        row["link_bytes"]
        for row in map(json.loads, (tmp_path / "simulated" / "metrics.jsonl").read_text().splitlines())
    ]
    summary = json.loads((tmp_path / "simulated" / "summary.json").read_text())
    plan = json.loads((tmp_path / "simulated" / "plan.json").read_text())
    # The plan counts a row of the embedding for each of the 256 tokens: 32 bytes, and 4 of the index, in whole pages.
    rows = {"to_device": 3 * 4096, "from_device": 0}
    for way, most in rows.items():
        assert sum(row[way] for row in moved) == summary["link_bytes"][way]
        # Projectors and sums of squares go beside what the schedule moves.
        assert all(row[way] >= plan["device_bytes_per_step"][way] - most for row in moved[1:])
    assert all(row["to_device"] < plan["device_bytes_per_step"]["to_device"] for row in moved[1:3])  # tokens come twice
    assert "link_bytes" not in (tmp_path / "cpu" / "metrics.jsonl").read_text()
    assert "over the link (in full, by the plan: " in (tmp_path / "simulated" / "report.html").read_text()
    page = (tmp_path / "cpu" / "report.html").read_text()
    assert "What projectors miss" in page and "Projectors of 14 matrices were refitted" in page
    assert json.loads((tmp_path / "cpu" / "summary.json").read_text())["subspaces"]["matrices"] == 14


@pytest.mark.parametrize("learning", some([CHECKED, ROTATING, PUBLISHED], [CHECKED, PUBLISHED]))
def test_updated_on_a_device_no_bit_is_another(
    learning: list[str], given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, remainders, moments and projectors live there; stopped, and gone on with on the CPU and there."""
    settings = device.settings

    def resident(*given: Any) -> DeviceSettings | None:
        made = settings(*given)
        if made is not None:
            made.state = 1.0
        return made

    monkeypatch.setattr(device, "settings", resident)
    words = ("--method", "lsp", *learning, "--lsp_rank", "8", "--max_grad_norm", "0.5", "--save_steps", "2")
    words += ("--lr_scheduler_type", "constant")
    there = ("--device", "simulated")
    path = real_runs.on_path(tmp_path / "path")
    whole, living, again = tmp_path / "whole", tmp_path / "living", tmp_path / "again"
    assert real_runs.here(given, whole, *words, "--max_steps", "6") == 0
    assert real_runs.here(given, living, *words, *there, "--max_steps", "6") == 0
    assert real_runs.here(given, again, *words, *there, *path, "--max_steps", "2") == 0
    on = (*words, *path, "--resume_from_checkpoint", "true")
    assert real_runs.here(given, again, *on, "--max_steps", "4") == 0
    assert real_runs.here(given, again, *on, *there, "--max_steps", "6") == 0
    assert weights(living) == weights(again) == weights(whole)
    assert real_runs.metrics(living) == real_runs.metrics(again) == real_runs.metrics(whole)
    assert real_runs.metrics(whole)[-1]["projectors_learned"] > 14
    plan = json.loads((living / "plan.json").read_text())
    assert plan["device_blocks"]["state_and_update"] == 4 and plan["device_blocks"]["streamed"] == 0


def keep_copies(monkeypatch: pytest.MonkeyPatch, changes: bool = True) -> None:
    """Copies of all weights stay on a device, and those of matrices in subspaces take changes."""
    settings = device.settings

    def copying(*given: Any) -> DeviceSettings | None:
        made = settings(*given)
        if made is not None:
            made.weight, made.state, made.device_updated, made.applies_changes = 1.0, 0.0, 0.0, changes
        return made

    monkeypatch.setattr(device, "settings", copying)


@pytest.mark.parametrize(("learning", "master"), [(CHECKED, "exact"), (ROTATING, "bf16"), (PUBLISHED, "bf16")])
def test_copies_that_take_changes_have_the_bits_of_the_masters(
    learning: list[str], master: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In DRAM, on a device, and stopped there and gone on with on a path of the host."""
    keep_copies(monkeypatch)
    words = ("--method", "lsp", *learning, "--lsp_rank", "8", "--lsp_master", master, "--save_steps", "2")
    words += ("--lr_scheduler_type", "constant")
    path = real_runs.on_path(tmp_path / "path")
    whole, copied, again = tmp_path / "whole", tmp_path / "copied", tmp_path / "again"
    there = ("--device", "simulated")
    assert real_runs.here(given, whole, *words, "--max_steps", "6") == 0
    assert real_runs.here(given, copied, *words, *there, "--max_steps", "6") == 0
    assert real_runs.here(given, again, *words, *there, *path, "--max_steps", "3") == 0
    assert real_runs.here(given, again, *words, *path, "--resume_from_checkpoint", "true", "--max_steps", "6") == 0
    assert weights(copied) == weights(again) == weights(whole)
    assert real_runs.metrics(copied) == real_runs.metrics(again) == real_runs.metrics(whole)
    plan = json.loads((copied / "plan.json").read_text())
    assert plan["device_blocks"]["matrices_that_take_changes"] == 14


def count_uploads(model: Path, monkeypatch: pytest.MonkeyPatch, changes: bool, master: str) -> int:
    """Bytes that the link counted to the device in a step whose weights no caller stored."""
    with monkeypatch.context() as patches:
        keep_copies(patches, changes)
        session = native.opened(
            model, both_ways.SHAPE, chunk=1 << 20, compute_dtype="bf16", device="simulated", lsp_residual="none",
            lsp_rank=RANK, lsp_nonzeros=4, lsp_master=master, activation_recompute="all", **LSP,
        )  # fmt: skip
    work = both_ways.steps_of(session._spec.meta_model.config.vocab_size)
    try:
        return [session.step(step, both_ways.RATE).link_bytes["to_device"] for step in work[:3]][-1]
    finally:
        session.close()


def test_changes_of_s_take_the_place_of_weights_on_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight takes 2 bytes an element. A change takes 4 bytes an element of S, or 2 with bf16 masters."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    sizes = {"hidden_size": 256, "intermediate_size": 1024, **heads}
    both_ways.save(tiny_config("llama", True, num_hidden_layers=2, **sizes), tmp_path / "model", 7)
    weights = 2 * 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    changes = 14 * RANK * RANK
    whole, exact, halved = (
        count_uploads(tmp_path / "model", monkeypatch, change, master)
        for change, master in ((False, "exact"), (True, "exact"), (True, "bf16"))
    )
    assert whole > weights > 2 * changes
    assert whole - exact == pytest.approx(weights - 4 * changes, rel=0.1)
    assert exact - halved == 2 * changes


def state_bytes(plan: dict[str, Any]) -> int:
    """Of all tiers."""
    return sum(int(row["bytes"]) for row in plan["bytes"] if row["class"] == "state")


def test_bf16_masters_take_less_memory_and_learn(given: Path, tmp_path: Path, capsys: Any) -> None:
    """`check` compares a run with exact masters."""
    words = ("--method", "lsp", "--lsp_rank", "8", "--max_steps", "6")
    states = {}
    for master in ("exact", "bf16"):
        out = tmp_path / master
        assert real_runs.here(given, out, *words, "--lsp_master", master) == 0
        losses = [row["loss"] for row in real_runs.metrics(out) if "loss" in row]
        assert losses[-1] < losses[0]
        states[master] = state_bytes(json.loads((out / "plan.json").read_text()))
    padded = json.loads((tmp_path / "bf16" / "plan.json").read_text())["subspaces"]["gradient_bytes_in_full"]
    assert states["exact"] - states["bf16"] == padded  # two bytes an element, as gradients have
    check = ("--lsp_master", "bf16", "--learning_rate", "1e-5")
    assert real_runs.here(given, tmp_path / "out", *words, *check, verb="check") == 0
    assert "equal but for rounding" in capsys.readouterr().out


def test_rotating_learns_every_matrix_in_turn(given: Path, tmp_path: Path) -> None:
    """Fourteen matrices, each once in four updates: a few of them in every step after the first."""
    words = ("--method", "lsp", "--max_steps", "9", "--lsp_rotate_every", "4")
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    learned = [row["projectors_learned"] for row in real_runs.metrics(tmp_path / "out") if "loss" in row]
    again = [after - before for before, after in zip(learned, learned[1:], strict=False)]
    assert learned[0] == 14 and all(2 <= count <= 5 for count in again) and sum(again) == 2 * 14


def test_under_the_trainer_resumed_with_the_same_bits(given: Path, tmp_path: Path) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import StopAfter, loaded, logged, parts

    asked = {"method": "lsp", "lsp_residual": "none", "lsp_check_every": 2, "lsp_threshold": 0.05}
    more = {"save_strategy": "steps", "save_steps": 3}

    def streamed(out: Path, resume: bool = False, stop: int | None = None) -> Trainer:
        trainer = Trainer(model=loaded(given, tmp_path / f"{out.name}-storage", **asked), **parts(given, out, **more))
        if stop is not None:
            trainer.add_callback(StopAfter(stop))
        trainer.train(resume_from_checkpoint=str(out / "checkpoint-3") if resume else None)
        trainer.save_model()
        trainer.close()
        return trainer

    streamed(tmp_path / "ours", stop=5)
    ours, whole = streamed(tmp_path / "ours", resume=True), streamed(tmp_path / "whole")
    assert logged(ours) == logged(whole)
    assert weights(tmp_path / "ours") == weights(tmp_path / "whole")
