"""Keys of other trainers: a refusal names the Spillway key, and docs/how-to/migrate.md says the same."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from folders import REPOSITORY
from needs import package
from spillway.cli import main
from spillway.config import normalised, resolve
from spillway.config.aliases import ALIASES
from spillway.config.foreign import FOREIGN, advise
from spillway.config.front_ends import METHODS, OWN, SHARED, VALUES
from spillway.config.keys import KEYS
from spillway.errors import InputError

sys.path.append(str(REPOSITORY / "scripts"))
import make_migration  # noqa: E402

KNOWN = {*KEYS, *ALIASES}
NO_KEYS = {"auto", "from_pretrained", "freeze", "full", "lora", "nvme", "pt", "qlora", "sft", "torchrun", "true"}
NO_KEYS |= {"cpo", "distill", "dpo", "grpo", "kto", "orpo", "reward", "rm"}
NO_KEYS |= {"bf16", "fp16", "fp32", "eval_loss", "tokens", "keep_start", "output_router_logits"}


def read_tables() -> dict[str, dict[str, str]]:
    """Rows of the page: tool, key, second cell."""
    tables: dict[str, dict[str, str]] = {}
    for line in make_migration.TARGET.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| (\S+) \| Spillway \|$", line):
            rows = tables.setdefault(found[1], {})
        elif found := re.match(r"\| (`[^`]+`(?:, `[^`]+`)*) \| (.*) \|$", line):
            rows |= dict.fromkeys(re.findall(r"`([^`]+)`", found[1]), found[2])
    return tables


def test_page_is_made_from_the_tables() -> None:
    script = REPOSITORY / "scripts" / "make_migration.py"
    assert subprocess.run([sys.executable, str(script), "--check"], check=False).returncode == 0


def test_refusal_of_each_key_says_the_sentence_of_the_page() -> None:
    tables = read_tables()
    assert tables.keys() == make_migration.TOOLS.keys()
    for tool, rows in tables.items():
        assert len(rows) > 3, tool
        for name in rows.keys() - KNOWN:
            with pytest.raises(InputError) as refused:
                normalised({name: 1}, "config.yaml")
            words = rows[name].replace(make_migration.BELOW, make_migration.ENTRIES)
            ending = f". N{words[1:]}. Remove the key" if words.startswith("not ") else f": {words}"
            assert re.search(
                r": Spillway does not take this key of .*" + re.escape(ending) + "$", str(refused.value)
            ), name


def test_rows_of_known_keys_are_taken() -> None:
    for tool, rows in read_tables().items():
        for name in rows.keys() & KNOWN:
            assert rows[name].startswith(("the same", "taken: ")), (tool, name)
            assert normalised({name: 1}, "config.yaml") == {name: 1}


def test_file_before_and_after_is_the_same_run() -> None:
    before, after = yaml.safe_load(make_migration.BEFORE), yaml.safe_load(make_migration.AFTER)
    rows = read_tables()["Axolotl"]
    for name, value in before.items():
        own = re.search(r"`([a-z0-9_]+)[`:]", rows[name])
        kept = name if name in after else own[1] if own else ""
        assert kept in after, name
        assert after[kept] == value or name in ("adapter", "datasets", "lora_target_linear")
    assert normalised(after, "config.yaml").keys() >= {"model", "dataset", "dram_budget"}


def test_script_of_unsloth_keeps_its_adapters_without_dropout() -> None:
    assert "dropout" not in make_migration.UNSLOTH and "lora_dropout=0," in make_migration.STREAMED
    assert resolve({"method": "lora", "model": "m"}, {}).lora_dropout > 0  # so the argument is needed


def test_keys_of_one_answer_share_a_row() -> None:
    lines = make_migration.page().splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) < 0.8 * sum(len(make_migration.tool_keys(tool)) for tool in make_migration.TOOLS)
    for tool in make_migration.TOOLS:
        listed = [name for rows in make_migration.group_keys(tool).values() for _, names in rows for name in names]
        assert sorted(listed) == make_migration.tool_keys(tool)


def test_cells_begin_with_a_form_that_the_page_explains() -> None:
    forms = ("the same", "taken: ", "its name is `", "not needed: ", "not supported: ")
    other = "not supported by the command: ", make_migration.BELOW
    for tool, rows in read_tables().items():
        for name, words in rows.items():
            own = re.match(r"`([a-z0-9_]+)(?:: [^`]+)?`", words)
            assert words.startswith(forms + other) or (own and own[1] in KEYS), (tool, name, words)


@pytest.mark.parametrize("tool", OWN)
def test_own_keys_of_a_front_end_are_told_in_one_place(tool: str) -> None:
    assert not OWN[tool].keys() & (KNOWN | FOREIGN.keys() | {*SHARED[tool]})
    for other in OWN.keys() - {tool}:
        assert all(OWN[other][name] == OWN[tool][name] for name in OWN[tool].keys() & OWN[other].keys())


@pytest.mark.parametrize("name", sorted({name for own in OWN.values() for name in own}))
def test_advice_names_keys_that_exist(name: str) -> None:
    words = [word.partition(":")[0] for word in re.findall(r"`([^`]+)`", advise(name))]
    names = {word for word in words if re.fullmatch(r"[a-z][a-z0-9_]*", word)}
    assert names <= {*KEYS, *NO_KEYS}


@pytest.mark.parametrize(
    ("given", "own"),
    [("base_model", "model"), ("micro_batch_size", "per_device_train_batch_size"), ("sequence_len", "max_length"),
     ("cutoff_len", "max_length"), ("per_gpu_train_batch_size", "per_device_train_batch_size"),
     ("finetuning_type", "method"), ("zero_optimization", "storage")],
)  # fmt: skip
def test_command_refuses_a_foreign_key_with_the_name_of_ours(
    given: str, own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({given: 1}))
    assert main(["plan", str(file)]) == 2
    assert re.search(rf"{given}: Spillway does not take this key of .*: .*`{own}`", capsys.readouterr().err)


@pytest.mark.parametrize("value", ["lora", "qlora"])
def test_another_trainers_value_of_a_shared_name_is_refused_unless_a_directory_has_it(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--adapter", value]) == 2
    refusal = f"adapter: Spillway does not take the value {value} of Axolotl: {METHODS}"
    assert refusal in capsys.readouterr().err.replace("\n", " ")
    (tmp_path / value).mkdir()
    assert resolve({"adapter": value}, {}).lora_adapter == str(tmp_path / value)


def test_names_with_other_values_elsewhere_are_names_of_ours() -> None:
    assert VALUES.keys() <= KNOWN and all(name in SHARED[tool] for name, (tool, *_) in VALUES.items())


def test_key_of_two_front_ends_names_both() -> None:
    with pytest.raises(InputError, match="use_muon: Spillway does not take this key of LLaMA-Factory"):
        normalised({"use_muon": True}, "config.yaml")
    with pytest.raises(InputError, match="sequence_len: Spillway does not take this key of Axolotl"):
        normalised({"sequence_len": 1}, "config.yaml")


def test_tables_have_every_argument_of_the_installed_libraries() -> None:
    package("trl", "TRL is not installed: its arguments are not compared")
    package("peft", "PEFT is not installed: its arguments are not compared")
    from peft import LoraConfig
    from transformers import TrainingArguments
    from trl import DPOConfig, SFTConfig

    tables = read_tables()
    arguments = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert arguments <= tables["TrainingArguments"].keys()
    for config in (SFTConfig, DPOConfig):
        assert {field.name for field in dataclasses.fields(config)} - arguments <= tables["TRL"].keys()
    lora = {field.name for field in dataclasses.fields(LoraConfig)}
    assert lora <= tables["LoraConfig"].keys() | {"base_model_name_or_path", "revision"}
