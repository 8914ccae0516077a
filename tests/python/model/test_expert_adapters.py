"""Adapters on experts that are fused into one parameter: equal to PEFT in memory, over codes too, killed and resumed,
in PEFT's files, continued and merged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import both_ways
import native
import real_runs
import seeds
from breadth import some
from hf_models import tiny_config
from needs import package
from spillway.cli import main
from spillway.errors import InputError
from spillway.model.adapters.lora import ADAPTER, ADAPTER_CONFIG, Adapters, list_adapted
from spillway.model.measure.narrow import narrow_of_its_kind
from spillway.model.meta.building import build
from test_merge import load_merged, merge_by_peft, require_equal, save_adapters
from test_quantised import expect_kill_changes_nothing
from test_quantised_experts import round_layers

peft = package("peft", "LoRA is PEFT's")
SEED = 5  # native's
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SIZES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},  # transposed, with biases
}
WORDS = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "24"]
WORDS += [word for name in EXPERTS for word in ("--lora_target_parameters", name)]

RANKS = {"use_rslora": True, "rank_pattern": {"mlp.experts.down_proj": 2}, "alpha_pattern": {"q_proj": 2.5}}
RANK_WORDS = ["--use_rslora", "--lora_rank_pattern", '{"mlp.experts.down_proj": 2}', "--lora_alpha_pattern"]
RANK_WORDS += ['{"q_proj": 2.5}', "--lora_target_modules", "q_proj"]


def adapt_in_memory(model: Any, targets: Any, **asked: Any) -> Any:
    torch.manual_seed(SEED)
    options = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_parameters": EXPERTS, "task_type": "CAUSAL_LM"}
    return peft.get_peft_model(model, peft.LoraConfig(**{**options, "target_modules": targets, **asked}))


def compare(kind: str, directory: Path, targets: list[str], form: str | None = None, **more: Any) -> None:
    """Losses, gradient norms and adapters of ten steps with accumulation, clipping and decay."""
    routers, asked = more.pop("routers", {}), more.pop("asked", {})  # `asked`: by PEFT's names
    keys = {name if name.startswith("use_") else f"lora_{name}": value for name, value in asked.items()}
    config = tiny_config(kind, False, num_hidden_layers=2, **SIZES.get(kind, {}), **routers)
    config.use_cache = False
    both_ways.save(config, directory / "model", 7)
    session = native.opened(
        directory / "model", both_ways.SHAPE, weight_decay=both_ways.DECAY, max_grad_norm=both_ways.CLIP,
        adam_epsilon=both_ways.EPSILON, method="lora", lora_r=4, lora_alpha=8, lora_target_modules=targets,
        base_form=form, **{"lora_target_parameters": EXPERTS, **keys}, **more,
    )  # fmt: skip
    base = both_ways.load(directory / "model")
    plain = adapt_in_memory(base if form is None else round_layers(base, form), targets, **asked)
    work = both_ways.steps_of(plain.config.vocab_size, both_ways.asks_for_routers(plain))
    try:
        steps = [session.step(step, both_ways.RATE) for step in work]
        (directory / "saved").mkdir()
        session.save_model(directory / "saved")
        evaluated = session.evaluate(work[0])
    finally:
        session.close()
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def clip_and_note(*given: Any) -> Any:
        norms.append(float(clip(*given)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.utils, "clip_grad_norm_", clip_and_note)
        losses = both_ways.train_plain(plain.get_base_model(), work)
    assert [step.loss_sum / step.label_tokens for step in steps] == pytest.approx(losses, rel=1e-5)
    assert [step.grad_norm for step in steps] == pytest.approx(norms, rel=1e-5)
    plain.save_pretrained(directory / "expected")
    found, expected = (load_file(directory / name / ADAPTER) for name in ("saved", "expected"))
    assert found.keys() == expected.keys()
    inside = {name.partition("layers.0.")[2].removesuffix(".weight") for name in found}
    assert kind not in SIZES or {"mlp.experts.lora_A", "mlp.experts.base_layer.lora_B"} <= inside
    for name, tensor in expected.items():
        assert float((found[name] - tensor).abs().max()) <= 2e-5 * float(tensor.abs().max()), name
    ids = torch.arange(3, 20)[None]
    base = both_ways.load(directory / "model")
    again = peft.PeftModel.from_pretrained(base if form is None else round_layers(base, form), directory / "saved")
    torch.testing.assert_close(again(ids).logits, plain.eval()(ids).logits, rtol=1e-4, atol=1e-5)
    if not both_ways.asks_for_routers(plain):  # PEFT's merged model, and the engine's evaluation before it closed
        merged, tokens = again.merge_and_unload().eval(), evaluated[1]
        with torch.no_grad():
            expected_loss = sum(float(both_ways.plain_loss(merged, piece, tokens)) for piece in work[0])
        assert evaluated[0] / tokens == pytest.approx(expected_loss, rel=1e-5)


@pytest.mark.parametrize("kind", some(SIZES, ["qwen3_moe", "mixtral", "gpt_oss"]))
@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
def test_expert_adapters_equal_peft_in_memory(kind: str, place: str, tmp_path: Path) -> None:
    more = {"placement": "path", "storage": tmp_path} if place == "path" else {}
    compare(kind, tmp_path, ["q_proj", "v_proj"], **more)


def test_experts_alone_have_adapters_without_target_modules(tmp_path: Path) -> None:
    compare("qwen3_moe", tmp_path, [])
    saved = load_file(tmp_path / "saved" / ADAPTER)
    assert all(".experts." in name for name in saved)
    assert json.loads((tmp_path / "saved" / ADAPTER_CONFIG).read_text())["target_modules"] == []


@pytest.mark.parametrize("kind", some(["qwen3_moe", "mixtral"], ["qwen3_moe"]))
def test_expert_adapters_over_nf4_equal_peft_on_what_the_codes_stand_for(kind: str, tmp_path: Path) -> None:
    compare(kind, tmp_path, ["q_proj", "v_proj"], "nf4", placement="path", storage=tmp_path)


@pytest.mark.parametrize("kind", some(["qwen3_moe", "mixtral"], ["qwen3_moe"]))
def test_auxiliary_loss_counts_beside_expert_adapters(kind: str, tmp_path: Path) -> None:
    compare(kind, tmp_path, ["q_proj", "v_proj"], routers={"output_router_logits": True, "router_aux_loss_coef": 0.5})


OTHER_RANKS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"mlp.experts.down_proj": 2, r"layers\.1\.self_attn\.q_proj": 7},
        "alpha_pattern": {"experts.*": 40, "v_proj": 3},
    },
    "both": {"use_rslora": True, "rank_pattern": {"experts.gate_up_proj": 9}, "alpha_pattern": {"q_proj": 2.5}},
}
OTHER_RANKS["dora"] = {"target_parameters": [], "use_dora": True, "rank_pattern": {"q_proj": 2}}
OTHER_RANKS["dense"] = {
    "target_parameters": [], "use_rslora": True, "alpha_pattern": {"v_proj": 3}, "rank_pattern": {"0.*.q_proj": 7},
}  # fmt: skip


@pytest.mark.parametrize("place", some(["dram", "path"], ["path"]))
@pytest.mark.parametrize("asked", OTHER_RANKS, ids=OTHER_RANKS.keys())
def test_adapters_of_other_ranks_and_factors_equal_peft(asked: str, place: str, tmp_path: Path) -> None:
    more = {"placement": "path", "storage": tmp_path} if place == "path" else {}
    kind = "llama" if asked in ("dense", "dora") else "qwen3_moe"
    compare(kind, tmp_path, ["q_proj", "v_proj"], asked=OTHER_RANKS[asked], **more)
    saved, expected = (json.loads((tmp_path / name / ADAPTER_CONFIG).read_text()) for name in ("saved", "expected"))
    assert all(
        saved[name] == expected[name] for name in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "r")
    )


@pytest.mark.parametrize(("kind", "form"), [("qwen2", "nf4"), ("gpt2", None)])
def test_dora_equals_peft_on_what_the_base_stands_for(kind: str, form: str | None, tmp_path: Path) -> None:
    """Linear layers with biases; of gpt2 they are Conv1D, whose weight has its inputs as rows."""
    targets = ["c_attn"] if kind == "gpt2" else ["q_proj", "down_proj"]
    asked = {"target_parameters": [], "use_dora": True, "use_rslora": True}
    still = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0) if kind == "gpt2" else {}
    compare(kind, tmp_path, targets, form, asked=asked, routers=still, placement="path", storage=tmp_path)


def test_dora_is_continued_checked_and_merged_to_the_bits_of_peft(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--method", "lora", "--lora_r", "4", "--lora_alpha", "24", "--use_dora", "--compute_dtype", "fp32"]
    words += ["--lora_target_modules", "q_proj", "--lora_dropout", "0", "--learning_rate", "1e-2"]
    first, second, on_path = tmp_path / "first", tmp_path / "second", real_runs.on_path(tmp_path / "path")
    assert real_runs.here(given, first, *words, "--max_steps", "2", *on_path) == 0
    assert real_runs.here(given, second, *words, "--max_steps", "2", "--save_steps", "1") == 0
    assert (first / ADAPTER).read_bytes() == (second / ADAPTER).read_bytes()
    assert real_runs.here(given, tmp_path / "device", *words, *DEVICE, "--max_steps", "2") == 0
    assert (first / ADAPTER).read_bytes() == (tmp_path / "device" / ADAPTER).read_bytes()
    resumed = [*words, "--max_steps", "2", "--resume_from_checkpoint", str(second / "checkpoint-1")]
    assert real_runs.here(given, tmp_path / "third", *resumed) == 0
    assert (first / ADAPTER).read_bytes() == (tmp_path / "third" / ADAPTER).read_bytes()
    again = [*words, "--max_steps", "1", "--adapter", str(first), "--load_in_4bit"]
    assert real_runs.here(given, tmp_path / "next", *again, "--learning_rate", "0") == 0
    began, ended = load_file(first / ADAPTER), load_file(tmp_path / "next" / ADAPTER)
    assert any("magnitude" in name for name in began)
    assert began.keys() == ended.keys() and all(torch.equal(ended[name], tensor) for name, tensor in began.items())
    assert real_runs.here(given, tmp_path / "check", *words, "--load_in_4bit", "--max_steps", "2", verb="check") == 0
    capsys.readouterr()
    assert real_runs.here(given, tmp_path / "other", *again, "--use_dora", "false") == 2
    assert "use_dora: it is False, and " in capsys.readouterr().err
    assert main(["merge", str(first), "--to", str(tmp_path / "merged"), "--weight_dtype", "fp32"]) == 0
    require_equal(load_merged(tmp_path / "merged"), merge_by_peft(given / "model", first, "fp32"))


def test_expert_adapters_in_tiles_equal_peft(tmp_path: Path) -> None:
    compare("qwen3_moe", tmp_path, ["q_proj"], token_tile=8)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = real_runs.inputs(tmp_path_factory.mktemp("expert-adapters"))
    both_ways.replace_model(directory / "model", "qwen3_moe")
    return directory


DEVICE = ["--device", "simulated", "--gpu_memory", "256MiB", "--dram_budget", "4GiB"]


@pytest.mark.parametrize("device", some([[], DEVICE], [[]]), ids=["cpu", "simulated"])
def test_expert_adapters_killed_and_resumed_on_a_path_end_as_in_memory(
    device: list[str], given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, "--load_in_4bit", "--max_steps", "8", "--save_steps", "3", *device]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("expert-adapters").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(given, tmp_path, words, capfd)


def test_placement_and_device_change_no_bit_of_expert_adapters(given: Path, tmp_path: Path) -> None:
    words = [*WORDS, *RANK_WORDS, "--load_in_4bit", "--max_steps", "2"]
    places = {
        "dram": [],
        "half": real_runs.on_path(tmp_path / "half-path"),
        "path": [*real_runs.storage_in(tmp_path / "path-path"), "--placement", "path"],
        "device": DEVICE,
    }
    for place, more in places.items():
        assert real_runs.here(given, tmp_path / place, *words, *more) == 0
        assert (tmp_path / place / ADAPTER).read_bytes() == (tmp_path / "dram" / ADAPTER).read_bytes(), place


def test_expert_adapters_are_continued_and_merged_to_the_bits_of_peft(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From adapters alone, as `export` or PEFT leaves them; then base and adapters as one model."""
    train = [*WORDS, "--learning_rate", "1e-2", "--compute_dtype", "fp32", "--lora_target_modules", "all-linear"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert real_runs.here(given, first, *train, "--max_steps", "3") == 0
    assert "leaves out" in " ".join(capsys.readouterr().out.split())  # the router
    again = [*train, "--max_steps", "1", "--lora_adapter", str(first)]
    assert real_runs.here(given, second, *again, "--learning_rate", "0") == 0
    began, ended = load_file(first / ADAPTER), load_file(second / ADAPTER)
    assert began.keys() == ended.keys() and all(torch.equal(ended[name], tensor) for name, tensor in began.items())
    assert real_runs.here(given, tmp_path / "check", *again, verb="check") == 0
    assert real_runs.here(given, tmp_path / "other", *again, "--lora_alpha", "8") == 2
    assert f"lora_alpha: it is 8, and {first / ADAPTER_CONFIG} has 24" in capsys.readouterr().err
    assert real_runs.here(given, tmp_path / "other", *again, "--lora_r", "2") == 2
    assert "lora_r, lora_target_modules: " in capsys.readouterr().err
    assert main(["merge", str(first), "--to", str(tmp_path / "merged"), "--weight_dtype", "fp32"]) == 0
    require_equal(load_merged(tmp_path / "merged"), merge_by_peft(given / "model", first, "fp32"))
    changed = load_merged(tmp_path / "merged")
    before = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32).state_dict()
    assert all(not torch.equal(changed[name], before[name]) for name in before if name.endswith("experts.down_proj"))


MERGED: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {"rank_pattern": {"mlp.experts.down_proj": 2}, "alpha_pattern": {"mlp.experts.gate_up_proj": 40}},
}


@pytest.mark.parametrize("asked", MERGED.values(), ids=MERGED.keys())
@pytest.mark.parametrize("kind", SIZES)
def test_expert_adapters_of_peft_merge_to_the_bits_of_peft(kind: str, asked: dict[str, Any], tmp_path: Path) -> None:
    base = tmp_path / "base"
    both_ways.save(tiny_config(kind, False, num_hidden_layers=2, **SIZES[kind]), base, 7)
    more = {"target_modules": ["q_proj"], "target_parameters": EXPERTS, **asked}
    adapters = save_adapters(base, tmp_path / "adapters", **more)
    rows = load_file(adapters / ADAPTER)["base_model.model.model.layers.0.mlp.experts.lora_A.weight"].shape[0]
    assert rows == 4 * (2 if "rank_pattern" in asked else 4)
    assert main(["merge", str(adapters), "--to", str(tmp_path / "merged"), "--weight_dtype", "bf16"]) == 0
    require_equal(load_merged(tmp_path / "merged"), merge_by_peft(base, adapters, "bf16"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lora_target_parameters", "experts.up"], "experts.up names no parameter of .*mlp.experts.gate_up_proj"),
        (["--lora_target_parameters", "mlp.gate.weight"], "mlp.gate.weight finds .* which is not one"),
        (["--lora_dropout", "0.1"], "lora_dropout: it is 0.1, .* give 0"),
        (["--use_dora", "true"], "use_dora: adapters of lora_target_parameters have no lengths of rows"),
        (["--lora_rank_pattern", '{"o_prj": 2}'], "lora_rank_pattern: o_prj names no layer .* are on mlp.experts.down"),
        (["--lora_alpha_pattern", '{"experts.up": 2}'], "lora_alpha_pattern: experts.up names no layer"),
        (["--lora_rank_pattern", '{"q_proj": 0}'], "lora_rank_pattern: got .* expects a mapping from names to whole"),
        (["--lora_alpha_pattern", '{"(": 2}'], "lora_alpha_pattern: got .* expects a mapping from names to numbers"),
        (["--rank_pattern", "{}"], "rank_pattern.*its name is .lora_rank_pattern"),
        (["--modules_to_save", "lm_head"], "modules_to_save.*LoRA trains only adapters"),
    ],
)
def test_settings_that_expert_adapters_lack_are_refused_by_name(
    words: list[str], said: str, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    try:
        code = real_runs.here(given, tmp_path / "out", *WORDS, *words)
    except SystemExit as left:
        code = int(left.code or 0)
    assert code == 2
    assert re.search(said, " ".join(capsys.readouterr().err.split()))


SAVED: dict[str, dict[str, Any]] = {
    "modules_to_save": {"modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_adapters_of_another_kind_are_not_continued(
    name: str, given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"target_modules": ["q_proj"], "target_parameters": EXPERTS, **SAVED[name]}
    adapters = save_adapters(given / "model", tmp_path / "adapters", **more)
    assert real_runs.here(given, tmp_path / "out", *WORDS, "--lora_adapter", str(adapters)) == 2
    assert f"lora_adapter: {adapters / ADAPTER_CONFIG}: {name} is " in capsys.readouterr().err


def test_saved_adapters_with_a_table_are_not_continued(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PEFT saves a resized table without naming it in `modules_to_save`."""
    adapters = save_adapters(given / "model", tmp_path / "adapters", target_modules=["q_proj"])
    tensors = load_file(adapters / ADAPTER)
    table = "base_model.model.model.embed_tokens.weight"
    save_file({**tensors, table: torch.zeros(7, 3)}, adapters / ADAPTER)
    made = json.loads((adapters / ADAPTER_CONFIG).read_text())
    words = ["--method", "lora", "--lora_r", str(made["r"]), "--lora_alpha", str(made["lora_alpha"])]
    words += ["--lora_target_modules", "q_proj", "--lora_adapter", str(adapters)]
    assert real_runs.here(given, tmp_path / "out", *words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"lora_adapter: {adapters / ADAPTER} holds {table} whole; the base is frozen" in said
    assert "spillway merge DIR --to NEW" in said


def test_saved_adapters_of_other_ranks_are_continued_with_the_same_keys(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"r": 4, "lora_alpha": 24, "target_modules": ["q_proj"], "target_parameters": EXPERTS, **RANKS}
    adapters = save_adapters(given / "model", tmp_path / "adapters", **more)
    again = [*WORDS, *RANK_WORDS, "--max_steps", "1", "--learning_rate", "0", "--lora_adapter", str(adapters)]
    again += ["--compute_dtype", "fp32"]
    assert real_runs.here(given, tmp_path / "out", *again) == 0
    began, ended = load_file(adapters / ADAPTER), load_file(tmp_path / "out" / ADAPTER)
    assert began.keys() == ended.keys() and all(torch.equal(ended[name], tensor) for name, tensor in began.items())
    assert real_runs.here(given, tmp_path / "check", *again, verb="check") == 0
    capsys.readouterr()
    for key, value, said in (
        ("--use_rslora", "false", "use_rslora: it is False, and "),
        ("--lora_alpha_pattern", '{"q_proj": 3}', "lora_alpha_pattern: it is {'q_proj': 3}, and "),
        ("--lora_rank_pattern", "none", "lora_rank_pattern: it is {}, and "),
    ):
        assert real_runs.here(given, tmp_path / "other", *again, key, value) == 2
        assert f"{said}{adapters / ADAPTER_CONFIG} has " in capsys.readouterr().err


def test_memory_is_measured_with_the_largest_rank_of_a_kind() -> None:
    meta_model = build(tiny_config("llama", False, num_hidden_layers=3), torch.float32)
    asked = {"r": 2, "target_modules": ["q_proj", "v_proj"], "rank_pattern": {r"layers\.2\..*q_proj": 7}}
    Adapters(asked, 1).adapt(meta_model)
    small = narrow_of_its_kind(meta_model, saved=True)
    ranks = {name.rpartition(".")[2]: module.r["default"] for name, module in list_adapted(small.model).items()}
    assert len(small.layers) < 3 and ranks == {"q_proj": 7, "v_proj": 2}


@pytest.mark.nightly
def test_adapters_of_other_ranks_killed_and_resumed_on_a_path_end_as_in_memory(
    given: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS, *RANK_WORDS, "--load_in_4bit", "--max_steps", "8", "--save_steps", "3"]
    monkeypatch.setenv("DIES_AFTER", str(seeds.instants("other-ranks").uniform(0.005, 0.2)))
    expect_kill_changes_nothing(given, tmp_path, words, capfd)


def test_targets_for_fused_experts_name_the_parameter_to_give() -> None:
    meta_model = build(tiny_config("qwen3_moe", False, **SIZES["qwen3_moe"]), torch.float32)
    with pytest.raises(InputError, match="name that one in lora_target_parameters, such as mlp.experts.gate_up_proj"):
        Adapters({"r": 2, "target_modules": ["up_proj", "q_proj"]}, 1).adapt(meta_model)
