"""What weights are kept in and what layers multiply in: the keys, what `auto` makes of them, bits, bytes and losses."""

from __future__ import annotations

import copy
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import PreTrainedModel

import both_ways
import interposed
import real_runs
import spillway
from hf_models import tiny_config, tiny_model
from native import opened
from needs import package
from real_runs import apart, here, metrics, on_path, result, words
from small_configs import small_config
from spillway._engine import Form
from spillway.cli.doctor import multiplications
from spillway.config import Config, resolve
from spillway.errors import InputError
from spillway.machine import products
from spillway.machine.products import Products
from spillway.output import state
from test_engine import SHAPE, accumulated, rate, single, train, train_plain

LIMIT = 300  # seconds that a process of its own may take at most
WIDENED = ("--weight_dtype", "bf16", "--compute_dtype", "fp32")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


# ---- keys


def configured(*pairs: str) -> Config:
    values = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return resolve({}, {"model": "m", **values})


@pytest.mark.parametrize(
    ("given", "kept", "computed"),
    [
        ((), "bf16", "auto"),
        (("compute_dtype", "fp32"), "fp32", "fp32"),
        (("compute_dtype", "fp16"), "fp16", "fp16"),
        (("compute_dtype", "bf16"), "bf16", "bf16"),
        (("bf16", "true"), "bf16", "bf16"),
        (("bf16", "false"), "fp32", "fp32"),
        (("fp16", "true"), "fp16", "fp16"),
        (("weight_dtype", "bf16", "compute_dtype", "fp32"), "bf16", "fp32"),
        (("weight_dtype", "fp16", "compute_dtype", "fp32"), "fp16", "fp32"),
        (("weight_dtype", "fp32"), "fp32", "auto"),
    ],
)
def test_what_the_keys_mean(given: tuple[str, ...], kept: str, computed: str) -> None:
    config = configured(*given)
    assert (config.weight_dtype, config.compute_dtype) == (kept, computed)
    again = resolve(yaml.safe_load(config.text()), {})
    assert (again.weight_dtype, again.compute_dtype) == (kept, computed)


@pytest.mark.parametrize("given", [("fp32", "bf16"), ("bf16", "fp16"), ("fp16", "bf16")])
def test_nothing_is_computed_in_less_than_it_is_kept_in(given: tuple[str, str]) -> None:
    with pytest.raises(InputError, match=f"compute_dtype: {given[1]} contradicts weight_dtype: {given[0]}.*give"):
        configured("weight_dtype", given[0], "compute_dtype", given[1])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that says what the CPUs do."""

    def is_one(narrow: float, fp32: float, instructions: str = "") -> None:
        monkeypatch.setattr(products, "measured", lambda kept: Products(narrow, fp32, instructions))

    yield is_one


def test_auto_takes_what_is_faster(machine: Any) -> None:
    machine(2e9, 60e9)
    found = products.settled(configured())
    assert found.compute_dtype == "fp32" and found.weight_dtype == "bf16"
    assert "2.0 GFLOP/s in bf16 and 60 in fp32" in found.chosen
    assert products.settled(configured("device", "cuda")).compute_dtype == "bf16"
    assert products.settled(configured("weight_dtype", "fp32")).compute_dtype == "fp32"
    assert products.settled(configured("weight_dtype", "fp16")).compute_dtype == "fp32"
    assert products.settled(configured("compute_dtype", "bf16")).compute_dtype == "bf16"
    machine(90e9, 60e9, "amx_bf16")
    found = products.settled(configured())
    assert found.compute_dtype == "bf16" and "with amx_bf16" in found.chosen
    assert multiplications() == ("products", "good", f"{found.chosen}: {products.AUTO['bf16']}")
    machine(2e9, 60e9, "amx_bf16")  # as where a virtual machine may not use them
    found = products.settled(configured())
    assert found.compute_dtype == "fp32"
    assert multiplications() == ("products", "lesser", f"{found.chosen}: {products.AUTO['fp32']}")
    machine(58e9, 60e9)
    assert products.settled(configured()).compute_dtype == "bf16"


def test_a_type_that_is_given_and_slow_here_is_told(machine: Any) -> None:
    machine(2e9, 60e9)
    assert "weight_dtype bf16 and compute_dtype auto" in products.warnings(configured("bf16", "true"))[0]
    assert "weight_dtype fp16 and compute_dtype auto" in products.warnings(configured("fp16", "true"))[0]
    begun = configured("bf16", "true", "resume_from_checkpoint", "true")
    for config in (configured("compute_dtype", "fp32"), products.settled(configured()), begun):
        assert products.warnings(config) == []
    assert products.warnings(configured("bf16", "true", "device", "cuda")) == []
    machine(58e9, 60e9)
    assert products.warnings(configured("bf16", "true")) == []


def test_products_are_measured() -> None:
    threads = torch.get_num_threads()
    found = products.measured("bf16")
    assert found.narrow > 0 and found.fp32 > 0 and torch.get_num_threads() == threads
    assert found.instructions == products.instructions() and products.measured("bf16") is found


def test_where_calls_cost_as_much_as_products_larger_ones_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {products.SMALL: Products(30e9, 60e9), products.LARGE: Products(300e9, 70e9)}
    monkeypatch.setattr(products, "both", lambda kept, shape: rates[shape])
    assert products.measured.__wrapped__("bf16").faster("bf16") == "bf16"
    rates[products.SMALL] = Products(3e9, 60e9)
    assert products.measured.__wrapped__("bf16").faster("bf16") == "fp32"


def test_instructions_are_those_that_the_kernel_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(products, "CPUINFO", cpuinfo)
    for flags, found in (("avx2 avx512_bf16 amx_bf16", "amx_bf16, avx512_bf16"), ("avx2 avx512f", "")):
        cpuinfo.write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t\t: bf16\n")
        assert products.instructions() == found
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert products.instructions() == "bf16"
    cpuinfo.unlink()
    assert products.instructions() == ""


# ---- runs


def written(out: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((out / "config.yaml").read_text()))


def test_auto_is_written_as_what_it_was_and_stays_so(
    inputs: Path, tmp_path: Path, machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("--save_steps", "2", "--max_steps")
    machine(2e9, 60e9)
    assert here(inputs, tmp_path / "whole", *keys, "4") == 0
    out, whole = tmp_path / "out", capsys.readouterr().out
    why = "a CPU does 2.0 GFLOP/s in bf16 and 60 in fp32, without instructions for bf16"
    assert f"Layers multiply in fp32 (compute_dtype auto): {why}." in whole
    assert here(inputs, out, *keys, "2", "--lr_scheduler_type", "constant") == 0
    assert (written(out)["weight_dtype"], written(out)["compute_dtype"]) == ("bf16", "fp32")
    plan = json.loads((out / "plan.json").read_text())
    assert (plan["weight_dtype"], plan["compute_dtype"]) == ("bf16", "fp32") and plan["compute_why"]
    machine(90e9, 60e9)
    assert here(inputs, tmp_path / "other", *keys, "2", "--lr_scheduler_type", "constant") == 0
    assert written(tmp_path / "other")["compute_dtype"] == "bf16"
    assert metrics(out)[0]["loss"] != metrics(tmp_path / "other")[0]["loss"]
    for go_on in (["resume", str(out), "--max_steps", "3"], None):
        more = ("4", "--lr_scheduler_type", "constant", "--resume_from_checkpoint", "true")
        assert (spillway.cli.main(go_on) if go_on else here(inputs, out, *keys, *more)) == 0
        assert written(out)["compute_dtype"] == "fp32"
    capsys.readouterr()
    for key, value in (("compute_dtype", "bf16"), ("weight_dtype", "fp32")):
        changed = (f"--{key}", value, "--resume_from_checkpoint", "true")
        assert here(inputs, out, *keys, "5", "--lr_scheduler_type", "constant", *changed) == 2
        assert f"{key}: the run was started with" in capsys.readouterr().err


def test_a_run_of_before_the_keys_were_two_goes_on(
    inputs: Path, tmp_path: Path, machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config.yaml and its states know compute_dtype alone. That another type would be faster is said when it
    begins, and never again."""
    machine(2e9, 60e9)
    keys = ("--save_steps", "2", "--lr_scheduler_type", "constant", "--max_steps")
    for dtype in ("bf16", "fp32"):
        out = tmp_path / dtype
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state, "FIXED", tuple(name for name in state.FIXED if name != "weight_dtype"))
            assert here(inputs, out, *keys, "2", "--compute_dtype", dtype) == 0
        assert ("compute_dtype: bf16 was given, and a CPU" in capsys.readouterr().out) == (dtype == "bf16")
        assert "weight_dtype" not in (out / "spillway" / "run.json").read_text()
        lines = (out / "config.yaml").read_text().splitlines(True)
        (out / "config.yaml").write_text("".join(line for line in lines if not line.startswith("weight_dtype:")))
        assert "weight_dtype" not in written(out)
        assert spillway.cli.main(["resume", str(out), "--max_steps", "3"]) == 0
        assert "was given, and a CPU" not in capsys.readouterr().out
        assert (written(out)["weight_dtype"], written(out)["compute_dtype"]) == (dtype, dtype)


def test_a_loop_of_ones_own_keeps_what_its_run_was_begun_with(inputs: Path, tmp_path: Path, machine: Any) -> None:
    keys = {
        "model": inputs / "model",
        "profile": inputs / "profile.json",
        "max_length": 64,
        "output_dir": tmp_path / "out",
    }
    keys |= {"per_device_train_batch_size": 2, "lr_scheduler_type": "constant"}
    given = {key: str(value) for key, value in keys.items()}
    ids = torch.arange(24).view(2, 12)
    for rates, more in (((2e9, 60e9), {}), ((90e9, 60e9), {"resume_from_checkpoint": "true"})):
        machine(*rates)
        with spillway.Session({**given, **more}) as session:
            session.step({"input_ids": ids, "labels": ids})
            session.save()
            assert (session.plan["weight_dtype"], session.plan["compute_dtype"]) == ("bf16", "fp32")


@pytest.mark.parametrize("durability", ["none", "step"])
def test_a_trainer_keeps_what_its_run_was_begun_with(
    inputs: Path, tmp_path: Path, machine: Any, durability: str
) -> None:
    package("accelerate", "transformers' Trainer needs accelerate")
    from spillway.hf import Trainer
    from test_trainer import loaded, parts

    for rates, steps in (((2e9, 60e9), 2), ((90e9, 60e9), 3)):
        machine(*rates)
        model = loaded(inputs, tmp_path / "storage", dtype=None, durability=durability)
        assert model.dtype == (torch.float32 if rates[0] < rates[1] else torch.bfloat16)
        more = {"save_strategy": "steps", "save_steps": 2, "max_steps": steps, "num_train_epochs": 1}
        trainer = Trainer(model=model, **parts(inputs, tmp_path / "out", **more))
        trainer.train(resume_from_checkpoint=steps > 2)
        assert (trainer.session.config.weight_dtype, trainer.session.config.compute_dtype) == ("bf16", "fp32")
        trainer.save_model()
        trainer.close()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {it.dtype for it in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize("more", [(), ("--method", "lora", "--lora_r", "4", "--learning_rate", "1e-2")])
def test_check_is_equal_but_for_rounding(
    inputs: Path, tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    if more:
        package("peft", "LoRA is PEFT's")
    assert here(inputs, tmp_path / "out", *WIDENED, "--max_steps", "3", *more, verb="check") == 0
    shown = capsys.readouterr().out
    assert "equal but for rounding" in shown


KILLED = """
import os, signal, sys
from spillway.cli import main
from spillway.run.loop import Loop
step = Loop.step
def step_or_die(trainer):
    if trainer.state.step == int(os.environ["DIES_AT"]):
        os.kill(os.getpid(), signal.SIGKILL)
    step(trainer)
Loop.step = step_or_die
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_run_goes_on_and_placement_changes_no_bit(inputs: Path, tmp_path: Path) -> None:
    """Through the command, on a path and in memory, on the host and on the simulated device."""
    keys = (*WIDENED, "--max_steps", "4", "--save_steps", "4")
    for name, more in (("dram", []), ("device", ["--device", "simulated"])):
        process = apart("-m", "spillway", *words(inputs, tmp_path / name, *keys, *more))
        assert process.wait(LIMIT) == 0, process.communicate()[1]
    out = tmp_path / "out"
    place = on_path(tmp_path / "storage")
    killed = apart("-c", KILLED, *words(inputs, out, *keys, *place), env_more={"DIES_AT": "2"})
    assert killed.wait(LIMIT) == -signal.SIGKILL
    process = apart("-m", "spillway", "resume", str(out))
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error
    assert result(out) == result(tmp_path / "dram") == result(tmp_path / "device")
    tensors = load_file(out / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_path_carries_what_it_did_and_the_plan_holds(inputs: Path, tmp_path: Path) -> None:
    """With activations on the path, too, these are fp32; the peak is within the plan's."""
    found = {}
    for dtype in ("bf16", "fp32"):
        out, storage = tmp_path / dtype, tmp_path / f"{dtype}-storage"
        storage.mkdir()
        keys = ["--weight_dtype", "bf16", "--compute_dtype", dtype, "--max_steps", "4", "--durability", "none"]
        keys += ["--storage", f"{storage},capacity=512MiB", "--placement", "path"]
        process = apart("-m", "spillway", *words(inputs, out, *keys), env_more=interposed.BY_ITSELF)
        assert process.wait(LIMIT) == 0, process.communicate()[1]
        plan, summary = (json.loads((out / name).read_text()) for name in ("plan.json", "summary.json"))
        for tier, measured in zip(plan["tiers"], summary["tiers"], strict=True):
            assert 0 < measured["measured_peak"] <= tier["planned_peak"] * 1.05 + (2 << 20)
        on_it = {row["class"]: row["bytes"] for row in plan["bytes"] if row["tier"] == "path:0"}
        moved = summary["path_bytes"]["path:0"]
        found[dtype] = plan["bytes_per_parameter"], on_it, plan["path_bytes_per_step"]["path:0"], moved
    narrow, wide = found["bf16"], found["fp32"]
    assert narrow[0] == wide[0]
    assert {**narrow[1], "activation": 0} == {**wide[1], "activation": 0}
    more = {way: wide[2][way] - narrow[2][way] for way in ("read", "written")}
    assert more["read"] == more["written"] > 0
    assert {way: 4 * count for way, count in more.items()} == {way: wide[3][way] - narrow[3][way] for way in more}


# ---- against plain PyTorch


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that computes in fp32 with the values of bf16 weights."""
    return copy.deepcopy(model).bfloat16().float()


def apart_by(ours: list[float], exact: list[float]) -> float:
    return sum(abs(one - other) for one, other in zip(ours, exact, strict=True)) / len(ours)


@pytest.mark.parametrize("tied", [True, False])
def test_losses_are_those_of_fp32_over_rounded_weights(tmp_path: Path, tied: bool) -> None:
    model = tiny_model(tiny_config("llama", tied))
    model.save_pretrained(tmp_path / "model")
    steps = accumulated() if tied else single()
    curves = {}
    for dtype in ("fp32", "bf16"):
        (tmp_path / dtype).mkdir()
        session = opened(tmp_path / "model", SHAPE, storage=tmp_path / dtype, placement="state=50%,grad=0%",
                         weight_dtype="bf16", compute_dtype=dtype)  # fmt: skip
        curves[dtype], _ = train(session, steps)
        session.close()
    first, _ = train_plain(rounded(model), steps[:1])
    assert curves["fp32"][0] == pytest.approx(first[0], rel=1e-5)
    assert abs(curves["bf16"][0] / first[0] - 1) > 1e-5, "else bf16 would do"
    exact, _ = train_plain(copy.deepcopy(model), steps)
    assert apart_by(curves["fp32"], exact) < apart_by(curves["bf16"], exact)


WAYS: dict[str, dict[str, Any]] = {
    "frozen": {"frozen": [r"layers\.0\.", "embed"]},
    "lora": {"method": "lora", "lora_target_modules": ["q_proj", "down_proj"]},
    "lsp": {"method": "lsp", "lsp_rank": 16},
    "int8": {"state_format": "int8"},
    "fp16": {"weight_dtype": "fp16"},
}


@pytest.mark.parametrize("more", WAYS.values(), ids=list(WAYS))
def test_every_way_to_train_widens(tmp_path: Path, more: dict[str, Any]) -> None:
    """The first loss is that of the rounded weights; on a path and in memory the same bits; a resume goes on."""
    if more.get("method") == "lora":
        package("peft", "LoRA is PEFT's")
    model = tiny_model(tiny_config("llama", hidden_size=64, intermediate_size=96))
    model.save_pretrained(tmp_path / "model")
    steps = single()[:4]
    keys = {"weight_dtype": "bf16", "compute_dtype": "fp32", **more}
    found = []
    for placement in ("dram", "path"):
        (tmp_path / placement).mkdir()
        session = opened(tmp_path / "model", SHAPE, storage=tmp_path / placement, placement=placement, **keys)
        losses = [session.step(step, rate(number)).loss_sum for number, step in enumerate(steps)]
        found.append((losses, session.masters()))
        session.close()
    (losses, masters), (again, others) = found
    assert losses == again and all(torch.equal(masters[name], others[name]) for name in masters)
    kept = torch.float16 if keys["weight_dtype"] == "fp16" else torch.bfloat16
    plain = copy.deepcopy(model).to(kept).float()
    tokens = sum(int((piece.labels[:, 1:] != -100).sum()) for piece in steps[0])
    assert losses[0] / tokens == pytest.approx(train_plain(plain, steps[:1])[0][0], rel=1e-5)


def test_tensors_that_stay_in_fp32_lie_as_they_did(tmp_path: Path) -> None:
    """A model that keeps some of its parameters in fp32 beside bf16."""
    both_ways.save(small_config("bailing_hybrid"), tmp_path / "model", seed=7)
    held = {}
    for dtype in ("bf16", "fp32"):
        session = opened(tmp_path / "model", SHAPE, weight_dtype="bf16", compute_dtype=dtype)
        wide = {t.name for block in session.description.blocks for t in block.tensors if t.form is Form.fp32}
        (tmp_path / dtype).mkdir()
        session.save_model(tmp_path / dtype)
        held[dtype] = wide, (tmp_path / dtype / "model.safetensors").read_bytes()
        session.close()
    assert held["bf16"] == held["fp32"] and held["bf16"][0]
