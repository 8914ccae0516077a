"""The configuration: precedence, names, refusals, and that config.yaml reads back as itself."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spillway.cli import arguments
from spillway.config import Config, read_file, resolve
from spillway.config.checks import check
from spillway.config.keys import KEYS
from spillway.config.values import MOST_BYTES, MOST_COUNT, MOST_SEED, MOST_STEPS, StoragePath
from spillway.errors import InputError


def configured(*words: str) -> Config:
    return arguments.parse(list(words)).config()


def refused(*words: str) -> str:
    with pytest.raises(InputError) as caught:
        configured(*words)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("learning_rate: 3e-4\nmax-steps: 7\npacking: true\nstorage: [/a]\neval_strategy: no\n")
    return path


def test_defaults_are_those_of_the_table() -> None:
    config = configured()
    assert (config.max_length, config.learning_rate, config.warmup_steps) == (1024, 2e-5, 0)
    assert (config.weight_dtype, config.compute_dtype, config.optim) == ("bf16", "auto", "adamw")
    assert (config.device, config.durability) == ("cpu", None)
    assert (config.eval_strategy, config.save_strategy) == ("no", "no")


def test_command_line_wins_over_file_wins_over_default(file: Path) -> None:
    config = configured(str(file), "--max_steps", "9", "--storage", "/b")
    assert (config.learning_rate, config.max_steps, config.packing, config.seed) == (3e-4, 9, True, 42)
    assert config.storage == [StoragePath("/b")]
    assert config.eval_strategy == "no"


def test_dashes_underscores_equals_and_the_last_one_wins() -> None:
    config = configured("--max-steps=3", "--max_steps", "4", "--learning-rate", "1e-3", "--max_steps", "-1")
    assert (config.max_steps, config.learning_rate) == (-1, 1e-3)


@pytest.mark.parametrize(
    ("words", "packing"),
    [
        (["--packing"], True),
        (["--packing", "true"], True),
        (["--packing=false"], False),
        (["--no-packing"], False),
        (["--packing", "--no_packing"], False),
        (["--packing", "off"], False),
    ],
)
def test_flags(words: list[str], packing: bool) -> None:
    config = configured(*words)
    assert config.packing is packing
    assert config.eval_packing is packing


def test_a_flag_leaves_the_configuration_file_alone(file: Path) -> None:
    assert configured("--overwrite", str(file)).max_steps == 7
    assert configured("--resume_from_checkpoint", str(file)).resume_from_checkpoint is True


def test_lists_grow_and_sizes_are_bytes() -> None:
    config = configured("--storage", "/a,capacity=2GiB", "--dram_budget", "4GiB")
    assert config.storage == [StoragePath("/a", 2**31)]
    assert config.dram_budget == 2**32
    assert config.durability is None  # the plan says whether anything is on storage


def test_paths_and_their_options() -> None:
    words = ["--storage", "a,endurance=600TB,capacity=1GB", "--storage_device", "/dev/x,endurance=1kB", "--erase"]
    config = configured(*words, "--storage", "/b")
    device = StoragePath("/dev/x", endurance=1000)
    assert config.storage == [StoragePath(str(Path("a").absolute()), 10**9, 600 * 10**12), StoragePath("/b")]
    assert config.paths == [*config.storage, device] and config.erase
    text = yaml.safe_load(config.text())
    assert text["storage_device"] == ["/dev/x,endurance=1000"] and text["erase"] is False
    for spoilt in ("/a,size=1GB", "/a,capacity", "/a,endurance=much", "/a,capacity=1GB,capacity=2GB", ",capacity=1GB"):
        assert "storage" in refused("--storage", spoilt)


def test_resolved_from_other_keys() -> None:
    config = configured("--seed", "5", "--eval_steps", "10", "--save_steps", "0.5", "--eval_dataset", "somewhere")
    assert (config.data_seed, config.eval_strategy, config.save_strategy) == (5, "steps", "steps")
    assert configured("--eval_dataset", "somewhere").eval_strategy == "epoch"
    assert configured("--eval_strategy", "steps", "--logging_steps", "3").eval_steps == 3


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("adamw_torch", "adamw"),
        ("adamw_torch_fused", "adamw"),
        ("adamw", "adamw"),
        ("adam", "adam"),
        ("lion", "lion"),
        ("lion_32bit", "lion"),
        ("sgd", "sgd"),
    ],
)
def test_names_of_optimizers(name: str, meaning: str) -> None:
    assert configured("--optim", name).optim == meaning


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("adafactor", "a sum over whole rows and columns"),
        ("adamw_bnb_8bit", "`state_format: int8` with `optim: adamw`"),
        ("lion_8bit", "`state_format: int8` with `optim: lion`"),
    ],
)
def test_optimizers_that_are_not_here_say_why_or_where_else(name: str, reason: str) -> None:
    message = refused("--optim", name)
    assert message.startswith(f"optim: {name}") and reason in message and "`sgd`" in message


def test_state_formats() -> None:
    assert [configured("--state_format", name).state_format for name in ("exact", "bf16", "int8")] == [
        "exact",
        "bf16",
        "int8",
    ]


@pytest.mark.parametrize(
    ("name", "value", "most"),
    [
        ("seed", 2**70, MOST_SEED),
        ("save_total_limit", 2**40, MOST_COUNT),
        ("gradient_accumulation_steps", 10**30, MOST_COUNT),
        ("save_steps", 10**30, MOST_STEPS),
        ("dram_budget", 10**30, MOST_BYTES),
        ("token_tile", 10**30, MOST_COUNT),
    ],
)
def test_numbers_beyond_what_is_counted_are_refused(name: str, value: int, most: int) -> None:
    message = refused(f"--{name}", str(value))
    assert message.startswith(f"{name}: got '{value}'") and (f"; {most} at most" in message or name == "token_tile")
    assert configured(f"--{name}", str(most)).values()[name] == most


def test_old_and_other_names() -> None:
    assert configured("--warmup_ratio", "0.1").warmup_steps == 0.1
    assert configured("--bf16").compute_dtype == "bf16"
    assert configured("--no-bf16").compute_dtype == "fp32"
    assert configured("--fp16").compute_dtype == configured("--fp16", "--no-bf16").compute_dtype == "fp16"
    assert configured("--bf16", "--no-fp16").compute_dtype == "bf16" and configured("--no-fp16").compute_dtype == "auto"
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        for value, meant in (("true", "all"), ("false", "none")):
            config = configured(f"--{name}", value)
            assert config.activation_recompute == meant
            assert config.notices == [notice for notice in config.notices if f"{name}: {value} means" in notice] != []
    assert configured("--gradient_checkpointing", "--activation_recompute", "all").activation_recompute == "all"
    with pytest.raises(InputError, match="contradicts activation_recompute: 3"):
        configured("--gradient_checkpointing", "--activation_recompute", "3")


def test_other_names_of_a_key_have_its_values() -> None:
    assert (
        configured("--adapter", "saved").lora_adapter == configured("--lora_adapter", "saved").lora_adapter == "saved"
    )
    assert (
        configured("--no-deterministic").full_determinism
        is configured("--deterministic", "0").full_determinism
        is False
    )
    assert configured("--deterministic", "--full_determinism", "true").full_determinism is True
    assert configured("--deterministic", "true", "--full_determinism", "1").full_determinism is True
    assert resolve({"deterministic": False}, {"full_determinism": True}).full_determinism is True
    names = yaml.safe_load(configured("--adapter", "saved", "--deterministic").text())
    assert names["lora_adapter"] == "saved" and not {"adapter", "deterministic"} & names.keys()


@pytest.mark.parametrize(("given", "meant"), [("auto", "auto"), ("all", "all"), ("none", "none"), ("0", 0), ("12", 12)])
def test_what_recomputes(given: str, meant: str | int) -> None:
    config = configured("--activation_recompute", given)
    assert config.activation_recompute == meant
    assert yaml.safe_load(config.text())["activation_recompute"] == meant


@pytest.mark.parametrize("value", ["auto", "never", "all"])
def test_what_spills(value: str) -> None:
    config = configured("--activation_spill", value)
    assert config.activation_spill == value
    assert yaml.safe_load(config.text())["activation_spill"] == value


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--learning_rat", "1"], ["'learning_rat'", "'learning_rate'"]),
        (["--xyzzy", "1"], ["'xyzzy'", "--help"]),
        (["--max_steps", "many"], ["max_steps", "'many'", "whole number"]),
        (["--max_steps", "0"], ["max_steps", "-1 or a whole number"]),
        (["--activation_recompute", "some"], ["activation_recompute", "'some'", "auto, all, none"]),
        (["--activation_recompute", "-1"], ["activation_recompute", "0 or more"]),
        (["--activation_spill", "some"], ["activation_spill", "'some'", "auto, never, all"]),
        (["--max_steps", "1.5"], ["max_steps", "'1.5'"]),
        (["--learning_rate", "-1"], ["learning_rate", "0 or more"]),
        (["--learning_rate", "nan"], ["learning_rate"]),
        (["--adam_beta1", "1"], ["adam_beta1", "not including, 1"]),
        (["--per_device_train_batch_size", "0"], ["per_device_train_batch_size", "1 or more"]),
        (["--dram_budget", "4G"], ["dram_budget", "'4G'", "4GiB"]),
        (["--packing=maybe"], ["packing", "'maybe'", "true or false"]),
        (["--lr_scheduler_type", "lineer"], ["lr_scheduler_type", "linear, cosine"]),
        (["--optim", "adagrad"], ["optim", "'adagrad'", "adamw, ", "lion", "sgd"]),
        (["--max_length"], ["--max_length", "value is missing"]),
        (["--max_length", "--packing"], ["--max_length", "value is missing"]),
        (["--no-packing=true"], ["no-packing", "no value"]),
        (["--no-max_steps"], ["no-max_steps"]),
        (["a.yaml", "b.yaml"], ["a.yaml and b.yaml"]),
        (["none.yaml"], ["none.yaml", "no such"]),
        (["--warmup_ratio", "1"], ["warmup_ratio", "below 1"]),
        (["--warmup_ratio", "0.1", "--warmup_steps", "5"], ["warmup_ratio", "warmup_steps"]),
        (["--bf16", "--compute_dtype", "fp32"], ["bf16", "compute_dtype"]),
        (["--fp16", "--bf16"], ["fp16", "bf16"]),
        (["--fp16", "--compute_dtype", "bf16"], ["fp16", "compute_dtype"]),
        (["--deterministic=maybe"], ["deterministic", "'maybe'", "true or false"]),
        (["--deterministic", "--no-full_determinism"], ["deterministic: True contradicts full_determinism: False"]),
        (["--adapter", "a", "--lora_adapter", "b"], ["adapter: a contradicts lora_adapter: b"]),
    ],
)
def test_refused_by_name(words: list[str], parts: list[str]) -> None:
    message = refused(*words)
    assert all(part in message for part in parts), message


def test_adapters_have_the_defaults_of_trl_where_they_are_asked_for() -> None:
    plain, lora = resolve({}, {}), resolve({}, {"method": "lora", "lora_r": "4"})
    assert (plain.lora_r, plain.lora_alpha, plain.lora_dropout) == (None, None, None)
    assert (lora.lora_r, lora.lora_alpha, lora.lora_dropout, lora.lora_target_modules) == (4, 32, 0.05, [])


def test_subspaces_have_defaults_of_their_own() -> None:
    full, lsp = resolve({}, {}), resolve({}, {"method": "lsp", "lsp_rank": 64, "lsp_residual": "none"})
    assert (full.lsp_rank, full.lsp_nonzeros, full.lsp_check_every, full.lsp_threshold) == (None, None, None, None)
    assert (lsp.lsp_rank, lsp.lsp_nonzeros, lsp.lsp_check_every, lsp.lsp_threshold) == (64, 4, 100, 0.9)
    rotating = resolve({}, {"method": "lsp"})
    assert (full.lsp_rotate_every, lsp.lsp_rotate_every, rotating.lsp_rotate_every) == (None, None, 20)
    published = resolve({}, {"method": "lsp", "lsp_projectors": "published"})
    assert (full.lsp_projectors, lsp.lsp_projectors, published.lsp_projectors) == (None, "fitted", "published")
    assert (rotating.lsp_residual, published.lsp_residual, published.lsp_rotate_every) == ("rotating", "none", None)


def test_patterns_are_one_or_several() -> None:
    assert resolve({}, {"frozen": "embed"}).frozen == ["embed"]
    assert resolve({}, {"trainable": ["a", "b$"]}).trainable == ["a", "b$"]


@pytest.mark.parametrize(
    "words",
    [
        ["--device", "tpu"],
        ["--device", "cuda:x"],
    ],
)
def test_features_to_come_are_refused_by_name(words: list[str]) -> None:
    message = refused(*words)
    assert message.startswith(words[0][2:]) and "not available in this release" in message


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("max_steps: 1\nmax_steps: 2\n", ["run.yaml:2", "max_steps", "twice"]),
        ("max-steps: 1\nmax_steps: 2\n", ["max_steps", "twice"]),
        ("- 1\n", ["run.yaml", "keys and values"]),
        ("a: [1\n", ["run.yaml:", "not valid YAML"]),
        ("learning_rte: 1\n", ["run.yaml", "learning_rte", "'learning_rate'"]),
        ("max_steps: many\n", ["run.yaml: max_steps", "'many'"]),
        ("optim: {a: 1}\n", ["optim", "one of"]),
        ("max_steps: true\n", ["max_steps"]),
        ("model: [a, b]\n", ["model"]),
        ("device: cuda:one\n", ["run.yaml: device", "release"]),
        ("1: 2\n", ["unknown key '1'"]),
        ("a: !!python/object:os.system x\n", ["not valid YAML"]),
    ],
)
def test_bad_files(tmp_path: Path, content: str, parts: list[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    message = refused(str(path))
    assert all(part in message for part in parts), message


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert configured(str(path)).values() == configured().values()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"storage_device": ["/dev/x,capacity=3GiB,endurance=600TB"], "durability": "checkpoint"},
        {"storage": ["/a,capacity=3GiB"], "placement": "weight=dram,state=path", "dram_budget": "2GB"},
        {"lr_scheduler_kwargs": {"min_lr": "1e-6"}, "warmup_steps": 0.1, "logging_steps": 0.5, "learning_rate": 1e-8},
        {"model": "name/of-hub", "output_dir": "relative", "packing": True, "eval_packing": False, "device": "cpu"},
    ],
)
def test_written_configuration_reads_back_as_itself(tmp_path: Path, given: dict[str, Any]) -> None:
    config = resolve(given, {})
    path = tmp_path / "config.yaml"
    path.write_text(config.text())
    again = resolve(read_file(path), {})
    assert again.values() == config.values()
    assert set(yaml.safe_load(config.text())) == set(KEYS)


def test_orders_to_one_call_are_not_written_down() -> None:
    text = configured("--overwrite", "--resume_from_checkpoint", "auto").text()
    assert yaml.safe_load(text)["overwrite"] is False
    assert yaml.safe_load(text)["resume_from_checkpoint"] is None


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapters").mkdir()
    config = configured(
        "--dataset", "rows.jsonl", "--eval_dataset", "of/hub", "--output_dir", "out", "--adapter", "adapters"
    )
    assert config.dataset == str(tmp_path / "rows.jsonl")
    assert config.eval_dataset == "of/hub"
    assert config.output_dir == str(tmp_path / "out")
    assert config.lora_adapter == str(tmp_path / "adapters")


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}")
    return {"model": str(model), "dataset": str(tmp_path / "rows.jsonl"), "output_dir": str(tmp_path / "out")}


def test_checks_accept_what_is_good(good: dict[str, str], tmp_path: Path) -> None:
    check(resolve(good, {"storage": [str(tmp_path)], "placement": "state=path"}))


def test_more_than_one_process_is_refused(good: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    check(resolve(good, {}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes"):
        check(resolve(good, {}))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model": None}, ["model", "required"]),
        ({"dataset": None}, ["dataset", "required"]),
        ({"output_dir": None}, ["output_dir", "required"]),
        ({"model": "{tmp}/none"}, ["model", "no directory"]),
        ({"model": "{tmp}"}, ["model", "config.json"]),
        ({"model": "{tmp}/rows.jsonl"}, ["model", "is a file"]),
        ({"tokenizer": "./none"}, ["tokenizer", "no directory"]),
        ({"dataset": "{tmp}/none.jsonl"}, ["dataset", "no file"]),
        ({"dataset": "none.txt"}, ["dataset", "no file"]),
        ({"dataset": "{tmp}/model"}, ["dataset", "is a directory"]),
        ({"dataset": "{tmp}/model/config.json", "dataset_split": "test"}, ["dataset_split"]),
        ({"eval_dataset": "{tmp}/none.jsonl"}, ["eval_dataset", "no file"]),
        ({"eval_steps": 5}, ["eval_dataset", "eval_steps"]),
        ({"eval_on_start": True}, ["eval_dataset", "eval_on_start"]),
        ({"prompt_field": "q"}, ["completion_field"]),
        ({"completion_field": "a"}, ["prompt_field"]),
        ({"messages_field": "m", "dataset_text_field": "t"}, ["messages_field"]),
        ({"placement": "path"}, ["storage", "placement"]),
        ({"placement": "grad=50%"}, ["storage", "placement"]),
        ({"durability": "step"}, ["durability", "no storage"]),
        ({"durability": "checkpoint"}, ["durability", "no storage"]),
        ({"erase": True}, ["erase", "storage_device"]),
        ({"storage": ["/dev/null", "{tmp}/../{tmp}", "/dev/null"]}, ["storage", "/dev/null is given twice"]),
        ({"storage_device": ["{tmp}"]}, ["storage_device", "is a directory"]),
        ({"storage_device": ["{tmp}/rows.jsonl"]}, ["storage_device", "no block device"]),
        ({"storage": ["{tmp}/none"]}, ["storage", "no directory"]),
        ({"storage": ["{tmp}/rows.jsonl"]}, ["storage", "no directory"]),
        ({"profile": "{tmp}/none.json"}, ["profile", "no file"]),
        ({"chat_template_path": "{tmp}/none.jinja"}, ["chat_template_path"]),
        ({"dataset": "{tmp}/link.jsonl"}, ["dataset: there is no file", "a link to {tmp}/gone, which is missing"]),
        ({"storage": ["{tmp}/link.jsonl"]}, ["storage: there is no directory", "a link to {tmp}/gone"]),
        ({"model": "{tmp}/link.jsonl"}, ["model: there is no directory", "a link to {tmp}/gone"]),
        ({"method": "lora", "adapter": "{tmp}/none"}, ["lora_adapter", "{tmp}/none/adapter_model.safetensors"]),
        ({"method": "lora", "lora_adapter": "{tmp}"}, ["lora_adapter", "expects a directory of adapters"]),
    ],
)
def test_checks_between_keys(good: dict[str, str], tmp_path: Path, changes: dict[str, Any], parts: list[str]) -> None:
    def placed(value: Any) -> Any:
        if isinstance(value, list):
            return [placed(item) for item in value]
        return value.replace("{tmp}", str(tmp_path)) if isinstance(value, str) else value

    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone")
    config = resolve(good | {name: placed(value) for name, value in changes.items()}, {})
    with pytest.raises(InputError) as caught:
        check(config)
    assert all(placed(part) in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "a: " + "{a: " * 5000, f"seed: {'9' * 5000}", "seed: 2020-13-45", "? [seed]\n: 1", "seed: !!int x"],
)
def test_unreadable_configuration_is_bad_input(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command, in one sentence that names the file."""
    from spillway.cli import main

    (tmp_path / "run.yaml").write_text(text)
    assert main(["train", str(tmp_path / "run.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "run.yaml" in error and "SPILLWAY_TRACEBACK" not in error, error
