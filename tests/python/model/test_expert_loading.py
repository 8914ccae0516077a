"""Frozen experts that come when tokens are routed to them: the bits of layers that come whole, and fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

import both_ways
import real_runs
import seeds
import tiny
from breadth import some
from hf_models import tiny_config
from spillway.cli import main
from spillway.config import resolve
from spillway.errors import InputError
from spillway.model.adapters import quantised
from spillway.model.adapters.lora import Adapters
from spillway.model.meta.building import build
from spillway.model.meta.demand import estimate_met
from spillway.model.meta.meta_model import MetaModel
from spillway.output import identity
from spillway.output.records import rows
from spillway.run import experts_met
from test_quantised import LIMIT, MOE, WORDS, adapters, expect_kill_changes_nothing
from test_ranks import processes

EXPERTS = 16
# An expert's codes are whole chunks: 65,536 values for 4 bits.
SIZES = {**MOE, "num_experts": EXPERTS, "moe_intermediate_size": 256, "hidden_size": 256, "num_hidden_layers": 2}
SHORT = [*WORDS, "--max_length", "8", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "1"]
ON_DEMAND = ["--expert_loading", "on_demand"]
BITS = {"nf4": "--load_in_4bit", "int8": "--load_in_8bit"}
NAMES = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
ADAPTED = [word for name in NAMES for word in ("--lora_target_parameters", name)]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("experts"))


def write_inputs(directory: Path) -> Path:
    """Writes a mixture of experts beside the rows, tokenizer and profile of every run."""
    real_runs.inputs(directory)
    for name in ("config.json", "model.safetensors"):
        (directory / "model" / name).unlink()
    config = tiny_config("qwen3_moe", False, vocab_size=len(tiny.tokenizer()), **SIZES)
    both_ways.save(config, directory / "model", 7)
    return directory


def read_bytes(output: Path) -> int:
    """Of the steps after the first, from all paths."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "path_bytes" in line]
    return sum(path["read"] for line in steps[1:] for path in line["path_bytes"].values())


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["bare", "adapted"])
@pytest.mark.parametrize("form", some(BITS, ["nf4"]))
def test_they_change_no_bit_wherever_they_lie(form: str, adapted: list[str], given: Path, tmp_path: Path) -> None:
    words = [*SHORT, BITS[form], *adapted, "--max_steps", "4"]
    assert real_runs.here(given, tmp_path / "whole", *words) == 0
    places = {
        "dram": [],
        "half": real_runs.on_path(tmp_path / "half-path"),
        "path": [*real_runs.storage_in(tmp_path / "path-path"), "--placement", "path"],
        "device": ["--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"],
        "device and path": [*real_runs.storage_in(tmp_path / "both-path"), "--placement", "path",
                            "--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"],
    }  # fmt: skip
    for place, more in places.items():
        assert real_runs.here(given, tmp_path / place, *words, *ON_DEMAND, *more) == 0
        assert adapters(tmp_path / place) == adapters(tmp_path / "whole"), place


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["bare", "adapted"])
def test_a_step_of_few_tokens_reads_fewer_of_them(adapted: list[str], given: Path, tmp_path: Path) -> None:
    words = [*SHORT, *adapted, "--load_in_4bit", "--max_steps", "4", "--placement", "path"]
    for name, more in (("whole", []), ("met", ON_DEMAND)):
        assert real_runs.here(given, tmp_path / name, *words, *more, *real_runs.storage_in(tmp_path / f"{name}-p")) == 0
    assert adapters(tmp_path / "met") == adapters(tmp_path / "whole")
    assert read_bytes(tmp_path / "met") < 0.9 * read_bytes(tmp_path / "whole")


def test_two_processes_with_adapters_on_them_make_what_one_makes(given: Path, tmp_path: Path) -> None:
    words = [*SHORT, *ADAPTED, "--load_in_4bit", "--virtual_ranks", "2", "--max_steps", "2"]
    words += ["--gradient_accumulation_steps", "2"]
    assert real_runs.here(given, tmp_path / "whole", *words) == 0
    ranks = processes(2, given, tmp_path / "two", *words, *ON_DEMAND)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    assert adapters(tmp_path / "two") == adapters(tmp_path / "whole")


def watch_routers(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The experts that the tokens of each later call of a router go to."""
    calls: list[set[int]] = []
    forward = Qwen3MoeTopKRouter.forward

    def watched(router: Any, *given: Any) -> Any:
        out = forward(router, *given)
        if not out[-1].is_meta:
            calls.append(set(out[-1].flatten().tolist()))
        return out

    monkeypatch.setattr(Qwen3MoeTopKRouter, "forward", watched)
    return calls


@pytest.mark.parametrize("tokens", ["8", "64"])  # layers of the longer steps come whole
def test_a_step_tells_how_many_its_tokens_met(
    tokens: str, given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = watch_routers(monkeypatch)
    more = ["--max_length", tokens, "--activation_recompute", "all", "--max_steps", "1"]
    assert real_runs.here(given, tmp_path / "out", *SHORT, "--load_in_4bit", *ON_DEMAND, *more) == 0
    forward, backward = calls[-4:-2], calls[-2:]
    assert forward == backward[::-1], "the layers ran again"
    layers = [len(experts) / EXPERTS for experts in forward]
    (row,) = [row for row in rows(tmp_path / "out" / "metrics.jsonl") if "loss" in row]
    assert row["experts_met"] == pytest.approx(sum(layers) / 2)
    met = json.loads((tmp_path / "out" / "summary.json").read_text())["experts_met"]
    assert list(met["layers"].values()) == pytest.approx(layers)
    assert met["mean"] == pytest.approx(sum(layers) / 2)
    assert met["planned"]["source"] == "even routing"
    assert met["planned"]["share"] == (1 if tokens == "64" else pytest.approx(1 - 0.875**8))
    words = " ".join("".join(capsys.readouterr()).split())
    assert f"experts: a step met {met['mean']:.0%} of a layer's" in words
    assert f"the plan counted on {met['planned']['share']:.0%} (even routing)" in words
    assert main(["report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    row_of_page = f"by even routing</td><td>{met['planned']['share']:.0%}</td><td>{met['mean']:.0%}</td>"
    assert f"experts of a layer that a step meets, {row_of_page}" in page


def test_a_resumed_run_plans_with_what_its_steps_met(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its budget has room for some experts: those that most steps met stay in memory."""

    def start(name: str, steps: str, *more: str) -> tuple[dict[str, Any], str]:
        paths = [*real_runs.storage_in(tmp_path / f"{name}-path"), "--placement", "weight=50%"]
        words = [*SHORT, "--load_in_4bit", *ON_DEMAND, *paths, "--save_steps", "4", "--max_steps", steps,
                 "--lr_scheduler_type", "constant"]  # fmt: skip
        assert real_runs.here(given, tmp_path / name, *words, *more) == 0
        return json.loads((tmp_path / name / "plan.json").read_text())["experts_met"], "".join(capsys.readouterr())

    def read_counts() -> dict[str, Any]:
        return dict(json.loads((tmp_path / "out" / identity.EXPERTS).read_text()))

    start("whole", "8")
    first, told = start("out", "4")
    assert first["source"] == "even routing" and "if they are spread evenly, meet 66%" in " ".join(told.split())
    counts = read_counts()
    shares = [row["experts_met"] for row in rows(tmp_path / "out" / "metrics.jsonl") if "loss" in row]
    every = [count for of in counts["tensors"].values() for count in of]
    assert counts["steps"] == 4 and sum(every) / len(every) == pytest.approx(sum(shares))

    again, told = start("out", "8", "--resume_from_checkpoint", "auto")
    expected = sum((count + 0.5) / 5 for count in every) / len(every)
    source = {"tokens": 8, "source": "earlier steps of the run", "period": 16}
    assert again == {"share": pytest.approx(expected), **source}
    assert f"as in earlier steps of the run, meet {again['share']:.0%}" in " ".join(told.split())
    assert adapters(tmp_path / "out") == adapters(tmp_path / "whole")
    assert read_counts()["steps"] == 8
    met = {name: json.loads((tmp_path / name / "summary.json").read_text())["experts_met"] for name in ("out", "whole")}
    assert met["out"]["resident"] > met["whole"]["resident"], "half of the weights, and the half that is met"


@pytest.mark.parametrize("damaged", ['"1"', "1.5", "1e999", "NaN", "3", "-1", "null", "[]"])
def test_damaged_counts_are_left_out(damaged: str, tmp_path: Path) -> None:
    experts = SimpleNamespace(name="experts", pieces=2, apart=True)
    description: Any = SimpleNamespace(tokens=8, blocks=[SimpleNamespace(tensors=[experts])])
    config: Any = SimpleNamespace(resume_from_checkpoint="true", overwrite=False, output_dir=str(tmp_path))
    content = '{"format": 1, "tokens": 8, "steps": 2, "tensors": {"experts": [2, COUNT]}}'
    (tmp_path / identity.FOLDER).mkdir()
    (tmp_path / identity.EXPERTS).write_text(content.replace("COUNT", "1"))
    sound = experts_met.read_recorded(config, description)
    assert sound is not None and sound.shares() == {"experts": [0.8333, 0.5]}
    (tmp_path / identity.EXPERTS).write_text(content.replace("COUNT", damaged))
    assert experts_met.read_recorded(config, description) is None


@pytest.mark.parametrize("steps", [1, 9_999, 10_000, 10**9])
def test_shares_of_experts_that_no_step_or_each_step_met_are_in_the_range_of_the_engine(steps: int) -> None:
    (shares,) = experts_met.Recorded(8, steps, {"experts": [0, 1, steps]}).shares().values()
    assert all(0 < share <= 1 for share in shares) and shares == sorted(shares)


@pytest.mark.parametrize("adapted", [[], ADAPTED], ids=["bare", "adapted"])
def test_killed_and_resumed_on_a_path_they_end_as_in_memory(
    adapted: list[str],
    given: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = [*SHORT, *adapted, "--load_in_4bit", *ON_DEMAND, "--max_steps", "8", "--save_steps", "3"]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("loading").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(given, tmp_path, words, capfd)


def test_a_run_is_merged_and_exported_and_goes_on(given: Path, tmp_path: Path) -> None:
    """From its paths: what the run keeps of the model has the places of its experts."""
    out, paths = tmp_path / "out", [*real_runs.storage_in(tmp_path / "path"), "--placement", "path"]
    words = [*SHORT, "--load_in_4bit", *ON_DEMAND, *paths, "--save_steps", "1"]
    assert real_runs.here(given, out, *words, "--max_steps", "2") == 0
    assert main(["merge", str(out), "--to", str(tmp_path / "merged")]) == 0
    assert main(["export", str(out), "--to", str(tmp_path / "exported")]) == 0
    assert main(["export", str(out), "--checkpoint", str(out / "checkpoint-1"), "--to", str(tmp_path / "first")]) == 0
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    assert real_runs.here(given, out, *words, "--max_steps", "3", "--resume_from_checkpoint", "auto") == 0


def test_a_plan_counts_on_those_that_tokens_meet(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def plan(*more: str) -> tuple[dict[str, Any], str]:
        words = ["plan", "--model", str(given / "model"), "--profile", "two-drives", "--json", "--placement", "path"]
        assert main([*words, *WORDS, "--per_device_train_batch_size", "1", "--load_in_4bit", *more]) == 0
        out = capsys.readouterr()
        return json.loads(out.out), out.err

    few, told = plan("--max_length", "8", *ON_DEMAND)
    assert "meet 66% of a layer's experts" in told
    assert few["tiers"] and told.count("expert_loading") == 1
    _, told = plan("--max_length", "512", *ON_DEMAND)
    assert "meet all experts of a layer, so layers come whole" in told
    _, told = plan("--max_length", "8")
    assert "expert_loading" not in told


@pytest.mark.parametrize(("tokens", "share"), [(1, 0.125), (8, 1 - 0.875**8), (512, 1)])
def test_even_routing_meets_most_experts_soon(tokens: int, share: float) -> None:
    config = tiny_config("qwen3_moe", False, **SIZES)
    assert estimate_met(config, tokens) == pytest.approx(share)


def test_it_is_for_packed_experts_in_pieces(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*more: str) -> str:
        assert real_runs.here(given, tmp_path / "out", *SHORT, "--max_steps", "1", *more) == 2
        return capsys.readouterr().err

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantised, "count_pieces", lambda *_: 0)
        words = refused(*ON_DEMAND, "--load_in_4bit")
    assert "no layer has experts in one parameter that a pass can take a few at a time" in words
    nested = ["--load_in_4bit", "--bnb_4bit_use_double_quant"]
    assert "takes multiples of 8,388,608 with bnb_4bit_use_double_quant; leave" in refused(*ON_DEMAND, *nested)
    keys = {"method": "lora", "load_in_4bit": True, "expert_loading": "on_demand"}

    def chosen(**sizes: int) -> MetaModel:
        meta_model = build(tiny_config("qwen3_moe", False, **{**SIZES, **sizes}), torch.bfloat16)
        Adapters({"r": 2, "target_modules": "all-linear"}, 1).adapt(meta_model)
        quantised.choose(meta_model, resolve({}, keys))
        return meta_model

    assert len(chosen().on_demand) == 2 * 2
    assert len(chosen(moe_intermediate_size=128).on_demand) == 2, "of the joined matrices alone"
    with pytest.raises(InputError, match="experts of 16,384 values cannot come on demand"):
        chosen(moe_intermediate_size=64)


def test_a_resume_keeps_it(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SHORT, "--load_in_4bit", "--save_steps", "1"]
    assert real_runs.here(given, tmp_path / "out", *words, "--max_steps", "1") == 0
    again = [*words, *ON_DEMAND, "--max_steps", "2", "--resume_from_checkpoint", "auto"]
    assert real_runs.here(given, tmp_path / "out", *again) == 2
    assert "expert_loading: the run was started with whole" in capsys.readouterr().err
