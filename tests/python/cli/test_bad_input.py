"""What a run is refused for: the exit code, one message that names the culprit, and nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import real_runs
import tiny
from both_ways import replace_model
from native import file_bytes
from needs import needs
from real_runs import apart, here, names, on_path, words
from warm import NIGHTLY

LIMIT = 300  # seconds that a process of its own may take at most
Refused = Callable[..., str]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def model(inputs: Path, tmp_path: Path) -> Path:
    """A model directory to be spoilt."""
    return Path(shutil.copytree(inputs / "model", tmp_path / "model"))


@pytest.fixture
def refused(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs `train` with a storage path and returns the message; nothing may be written anywhere."""
    (tmp_path / "storage").mkdir()

    def call(*keys: str, code: int = 2, out: Path = tmp_path / "out", storage: bool = True) -> str:
        before = file_bytes(tmp_path)
        there = out.exists()
        assert here(inputs, out, *keys, *(on_path(tmp_path / "storage") if storage else [])) == code
        error = capfd.readouterr().err
        assert file_bytes(tmp_path) == before and out.exists() is there
        assert "Traceback" not in error and error.startswith("spillway: ") and error.count("\n") == 1, error
        return error

    return call


# ---- safetensors ----


def header(model: Path) -> tuple[dict[str, Any], bytes]:
    content = (model / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(model: Path, content: dict[str, Any], data: bytes, lie: int = 0) -> None:
    text = json.dumps(content).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text) + lie) + text + data)


TENSOR = "model.layers.0.mlp.up_proj.weight"
OTHER = "model.layers.0.mlp.gate_proj.weight"


def truncated(model: Path) -> None:
    size = (model / "model.safetensors").stat().st_size
    os.truncate(model / "model.safetensors", size - 1000)


def truncated_in_the_header(model: Path) -> None:
    os.truncate(model / "model.safetensors", 100)


def truncated_in_the_length(model: Path) -> None:
    os.truncate(model / "model.safetensors", 5)


def empty(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")


def length_beyond_the_file(model: Path) -> None:
    with_header(model, *header(model), lie=1 << 40)


def length_too_short(model: Path) -> None:
    with_header(model, *header(model), lie=-10)


def length_too_long(model: Path) -> None:
    with_header(model, *header(model), lie=16)


def offsets_beyond_the_file(model: Path) -> None:
    content, data = header(model)
    begin, end = content[TENSOR]["data_offsets"]
    content[TENSOR]["data_offsets"] = [begin + len(data), end + len(data)]
    with_header(model, content, data)


def tensor_beyond_the_file(model: Path) -> None:
    """The last tensor has a row more than there are bytes."""
    content, data = header(model)
    last = max((name for name in content if name != "__metadata__"), key=lambda name: content[name]["data_offsets"])
    content[last]["shape"] = [size + 8 for size in content[last]["shape"]]
    content[last]["data_offsets"][1] += 8 * 4
    with_header(model, content, data)


def offsets_that_overlap(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["data_offsets"] = content[OTHER]["data_offsets"]
    with_header(model, content, data)


def offsets_backwards(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["data_offsets"].reverse()
    with_header(model, content, data)


def offsets_that_do_not_match_the_shape(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["shape"][0] += 1
    with_header(model, content, data)


def another_shape(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["shape"].reverse()
    with_header(model, content, data)


def whole_numbers(model: Path) -> None:
    content, data = header(model)
    rows, columns = content[TENSOR]["shape"]
    content[TENSOR] |= {"dtype": "I64", "shape": [rows, columns // 2]}
    with_header(model, content, data)


def whole_numbers_of_the_same_shape(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["dtype"] = "I32"
    with_header(model, content, data)


def unknown_dtype(model: Path) -> None:
    content, data = header(model)
    content[TENSOR]["dtype"] = "F7"
    with_header(model, content, data)


def missing_tensor(model: Path) -> None:
    content, data = header(model)
    content["model.layers.9.renamed"] = content.pop(TENSOR)
    with_header(model, content, data)


def not_json(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b"{'a': 1}")


def no_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def index_without_its_files(model: Path) -> None:
    content, _ = header(model)
    names_of = {name: "model-00001-of-00001.safetensors" for name in content if name != "__metadata__"}
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names_of}))


def broken_index(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text('{"weight_map": ')


WEIGHTS: dict[Callable[[Path], None], list[str]] = {
    truncated: ["model.safetensors", "truncated"],
    truncated_in_the_header: ["model.safetensors", "header"],
    truncated_in_the_length: ["model.safetensors"],
    empty: ["model.safetensors"],
    length_beyond_the_file: ["model.safetensors", "header"],
    length_too_short: ["model.safetensors", "header"],
    length_too_long: ["model.safetensors", "header"],
    offsets_beyond_the_file: ["model.safetensors", "belong to no tensor"],
    tensor_beyond_the_file: ["model.safetensors", "model.norm.weight", "truncated"],
    offsets_that_overlap: ["model.safetensors", TENSOR, OTHER, "overlap"],
    offsets_backwards: ["model.safetensors", TENSOR, "before it begins"],
    offsets_that_do_not_match_the_shape: ["model.safetensors", TENSOR, "shape"],
    another_shape: [TENSOR, "[16, 32]", "[32, 16]"],
    whole_numbers: [TENSOR],
    whole_numbers_of_the_same_shape: [TENSOR, "I32"],
    unknown_dtype: ["model.safetensors", TENSOR, "F7"],
    missing_tensor: [TENSOR, "missing"],
    not_json: ["model.safetensors", "not JSON"],
    no_weights: ["no model.safetensors"],
    index_without_its_files: ["model-00001-of-00001.safetensors"],
    broken_index: ["model.safetensors.index.json"],
}


@pytest.mark.parametrize("spoil", WEIGHTS, ids=lambda spoil: spoil.__name__)
def test_spoilt_weights(model: Path, refused: Refused, spoil: Callable[[Path], None]) -> None:
    spoil(model)
    error = refused("--model", str(model))
    assert all(part in error for part in WEIGHTS[spoil]), error


def test_an_index_that_names_files_elsewhere(inputs: Path, tmp_path: Path) -> None:
    """Of a model whose experts are apart in files, which are fused before the engine gets them."""
    model = Path(shutil.copytree(inputs / "model", tmp_path / "model"))
    replace_model(model, "mixtral")
    content, _ = header(model)
    (model / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    for name in ("../elsewhere.safetensors", str(tmp_path / "elsewhere.safetensors"))[: 2 if NIGHTLY else 1]:
        weight_map = dict.fromkeys(set(content) - {"__metadata__"}, name)
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        process = apart("-m", "spillway", *words(inputs, tmp_path / "out", "--model", str(model), "--max_steps", "1"))
        _, error = process.communicate(timeout=LIMIT)
        assert process.returncode == 2, error
        assert "model.safetensors.index.json" in error and f"is not a plain name: '{name}'" in error, error
        assert any(f"tensor {tensor} is" in error for tensor in content) and not (tmp_path / "out").exists()


def test_a_file_that_is_cut_while_it_is_read(model: Path) -> None:
    """An error, and not a signal that ends the process, as a mapped file would be."""
    script = f"""
import os
from pathlib import Path
from spillway.model.checkpoint.files import Stored
stored = Stored(Path({str(model)!r}))
os.truncate({str(model / "model.safetensors")!r}, 2000)
for name in sorted(stored.names()):
    stored.tensor(name)
"""
    process = apart("-c", script)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 1 and "it was cut while it was open" in error, error


# ---- configurations ----


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ["config.json", "JSON"]),
        ('{"model_type": "llama"', ["config.json", "JSON"]),
        ("[]", ["config.json"]),
        ('{"hidden_size": 8}', ["config.json", "model_type"]),
        (json.dumps(tiny.CONFIG | {"model_type": "nonesuch"}), ["config.json", "nonesuch"]),
        (json.dumps(tiny.CONFIG | {"num_hidden_layers": "many"}), ["config.json", "num_hidden_layers"]),
        (
            json.dumps(tiny.CONFIG | {"num_key_value_heads": 5}),
            ["config.json: num_key_value_heads is 5", "no multiple"],
        ),
        (json.dumps({"model_type": "t5", "vocab_size": 320}), ["config.json", "t5", "causal language model"]),
    ],
)
def test_spoilt_configurations(model: Path, refused: Refused, content: str, parts: list[str]) -> None:
    (model / "config.json").write_text(content)
    error = refused("--model", str(model))
    assert all(part in error for part in parts), error


def test_an_architecture_that_cannot_be_streamed(model: Path, refused: Refused) -> None:
    shape = {"vocab_size": 320, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", **shape}))
    error = refused("--model", str(model))
    assert "gpt2" in error.lower() or TENSOR.partition(".")[0] in error, error


def test_models_that_are_not_there(refused: Refused, inputs: Path, tmp_path: Path) -> None:
    assert "model: there is no directory" in refused("--model", str(tmp_path / "nowhere"))
    assert "is a file" in refused("--model", str(inputs / "train.jsonl"))
    assert "has no config.json" in refused("--model", str(inputs))


@pytest.mark.parametrize("place", ["/proc/none/out", "/proc", "/sys/out", "x" * 300, "folder/with\0zero"])
def test_output_directories_that_cannot_be_made(
    inputs: Path, tmp_path: Path, place: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Found before anything long, or written: by root, too, whom no permissions stop."""
    before = file_bytes(tmp_path)
    assert here(inputs, tmp_path / place, "--max_steps", "1") == 2
    error = capfd.readouterr().err
    assert error.startswith("spillway: output_dir: ") and error.count("\n") == 1, error
    assert file_bytes(tmp_path) == before and not list(tmp_path.iterdir())


def test_an_output_directory_that_permissions_protect(inputs: Path, tmp_path: Path) -> None:
    """As a user without privileges: root gives its own up."""
    (tmp_path / "protected").mkdir(mode=0o500)
    out = tmp_path / "protected" / "out"
    program = [sys.executable, "-m", "spillway", *words(inputs, out, "--max_steps", "1")]
    if os.geteuid() == 0:
        program = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *program]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path / 'protected'} cannot be written" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not out.exists()


@pytest.mark.parametrize("key", ["tokenizer", "chat_template_path"])
def test_a_tokenizer_that_brings_code_is_refused_without_asking(
    inputs: Path, model: Path, tmp_path: Path, key: str
) -> None:
    """At a terminal, where the library would ask and wait for an answer."""
    (model / "tokenizer.json").unlink()
    ran = tmp_path / "ran"
    (model / "tokenization_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass OwnTokenizer: pass\n")
    own = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    content = {"tokenizer_class": "OwnTokenizer", "auto_map": own}
    (model / "tokenizer_config.json").write_text(json.dumps(content))
    for file in model.glob("chat_template*"):
        file.unlink()
    terminal, ours = os.openpty()
    try:
        command = words(inputs, tmp_path / "out", f"--{key}", str(model), "--max_steps", "1")
        process = apart("-m", "spillway", *command, stdin=ours)
        _, error = process.communicate(timeout=LIMIT)
    finally:
        os.close(terminal)
        os.close(ours)
    assert process.returncode == 2 and str(model) in error and "Traceback" not in error, error
    assert not ran.exists() and not (tmp_path / "out").exists()


# ---- data ----


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("rows.jsonl", "", ["dataset", "holds no rows"]),
        ("rows.txt", "  \n", ["dataset", "holds no rows"]),
        ("rows.jsonl", '{"text": "a"}\n{"text": \n', ["rows.jsonl:2", "not valid JSON"]),
        ("rows.jsonl", "[1, 2]\n", ["rows.jsonl:1", "expects an object"]),
        ("rows.jsonl", '{"texts": "a"}\n', ["rows.jsonl:1", "'texts'"]),
        ("rows.jsonl", '{"text": 5}\n', ["rows.jsonl:1", "text"]),
        ("rows.jsonl", '{"text": ""}\n', ["dataset", "no row", "carries loss"]),
        ("rows.xlsx", "text\na\n", ["dataset", "rows.xlsx"]),
    ],
)
def test_spoilt_data(refused: Refused, tmp_path: Path, name: str, content: str, parts: list[str]) -> None:
    (tmp_path / name).write_text(content)
    error = refused("--dataset", str(tmp_path / name))
    assert all(part in error for part in parts), error


def test_data_that_is_not_text_or_not_there(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "\xff"}\n')
    assert "not UTF-8" in refused("--dataset", str(tmp_path / "rows.jsonl"))
    assert "there is no file" in refused("--dataset", str(tmp_path / "none.jsonl"))
    assert "is a directory" in refused("--dataset", str(tmp_path / "storage"))


# ---- keys ----


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (["--learning-rat", "1"], ["learning-rat", "learning_rate"]),
        (["--learning_rate", "fast"], ["learning_rate", "'fast'", "number"]),
        (["--max_length", "1.5"], ["max_length", "'1.5'"]),
        (["--dram_budget", "lots"], ["dram_budget", "'lots'"]),
        (["--optim", "adafactor"], ["optim", "adafactor", "rows and columns", "`lion`"]),
        (["--compute_dtype", "fp8"], ["compute_dtype", "fp8"]),
        (["--window", "-1"], ["window"]),
        (["--node", "0=lots"], ["node", "'0=lots'", "N=SIZE"]),
        (["--node", "4095=1GiB"], ["node", "4095"]),
        (["--state_format", "int4"], ["state_format", "int4", "exact, bf16, int8"]),
    ],
)
def test_spoilt_keys(refused: Refused, keys: list[str], parts: list[str]) -> None:
    error = refused(*keys)
    assert all(part in error for part in parts), error


def test_spoilt_placements(refused: Refused) -> None:
    for placement in ("disk", "weights=dram", "state=150%"):
        assert "placement" in refused("--placement", placement, storage=False)
    assert "no storage is given" in refused("--placement", "path", storage=False)


def test_a_configuration_file(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 1e-3\nlearning_rat: 2e-3\n")
    assert "learning_rat" in refused(str(path))
    path.write_text("learning_rate: [1\n")
    assert "config.yaml" in refused(str(path))
    path.write_text("max_steps: soon\n")
    error = refused(str(path))
    assert "config.yaml" in error and "max_steps" in error and "'soon'" in error


# ---- budgets ----


def test_a_budget_too_small_names_what_would_fit(
    refused: Refused, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And what it names does fit."""
    error = refused("--dram_budget", "64MiB", code=3)
    assert "does not fit in DRAM" in error and "dram_budget is 64.0 MiB" in error
    found = re.search(r"would fit with --dram_budget (\d+)MiB", error)
    assert found
    enough = int(found[1]) + 32  # what the interpreter holds differs a little from run to run
    assert here(inputs, tmp_path / "out", "--max_steps", "1", "--dram_budget", f"{enough}MiB") == 0
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["tiers"][0]["planned_peak"] <= plan["tiers"][0]["capacity"] == enough << 20
    capfd.readouterr()


def test_a_node_too_small(refused: Refused) -> None:
    assert "would fit with" in refused("--node", "0=64MiB", code=3)


def test_plan_says_the_same(inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert here(inputs, tmp_path / "out", "--dram_budget", "64MiB", verb="plan") == 3
    assert "would fit with --dram_budget" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_capacity_too_small(refused: Refused, tmp_path: Path) -> None:
    storage = f"{tmp_path / 'storage'},capacity=2MiB"
    error = refused("--storage", storage, "--placement", "path", code=3, storage=False)
    assert "does not fit on storage" in error and "path:0 with 2.0 MiB" in error and "capacity" in error


# ---- directories ----


def test_storage_that_is_no_directory(refused: Refused, inputs: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", inputs / "train.jsonl"):
        error = refused("--storage", str(place), storage=False)
        assert "storage" in error and str(place) in error


def test_an_output_dir_that_is_a_file(refused: Refused, inputs: Path) -> None:
    assert "is a file" in refused(out=inputs / "train.jsonl")
    assert "is a file" in refused(out=inputs / "train.jsonl" / "below")
    assert "the model's own directory" in refused(out=inputs / "model")


def test_an_output_dir_that_holds_a_run(
    refused: Refused, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert here(inputs, tmp_path / "out", "--max_steps", "1") == 0
    capfd.readouterr()
    error = refused()
    assert "holds a run already" in error and "--overwrite" in error and "--resume_from_checkpoint true" in error


def test_a_volume_of_another_run(
    refused: Refused, inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed leaves its volume; only itself, or `--overwrite`, may take it."""
    storage = on_path(tmp_path / "storage")
    killed = "import os; from spillway.run.session import EngineSession; EngineSession.step = lambda *_: os._exit(9); "
    killed += "import sys; from spillway.cli import main; main(sys.argv[1:])"
    process = apart("-c", killed, *words(inputs, tmp_path / "first", *storage))
    process.communicate(timeout=LIMIT)
    assert process.returncode == 9 and names(tmp_path / "storage") == ["spillway.volume"]
    error = refused()
    assert str(tmp_path / "first") in error and "spillway.volume" in error and "overwrite" in error
    assert here(inputs, tmp_path / "first", *storage, "--max_steps", "1", "--resume_from_checkpoint", "auto") == 0
    assert names(tmp_path / "storage") == ["spillway.volume"]
    capfd.readouterr()


def mounted(directory: Path, *options: str) -> Iterator[Path]:
    directory.mkdir()
    done = subprocess.run(["mount", *options, str(directory)], capture_output=True, text=True)
    needs("mount", done.returncode == 0, f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)  # a closed ring lets go of its file a little later


def test_an_output_directory_on_a_file_system_that_is_read_only(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for place in mounted(tmp_path / "read only", "-t", "tmpfs", "-o", "ro", "spillway_test"):
        assert here(inputs, place / "out", "--max_steps", "1") == 2
        error = capfd.readouterr().err
        assert error.startswith(f"spillway: output_dir: {place} cannot be written") and error.count("\n") == 1, error


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=8m", "tmpfs")


@pytest.fixture
def disk_without_direct_io(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "tmpfs", "-t", "tmpfs", "-o", "size=64m", "tmpfs")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "read_only", "-t", "tmpfs", "-o", "ro,size=4m", "tmpfs")


def test_a_read_only_directory(refused: Refused, read_only: Path) -> None:
    error = refused("--storage", str(read_only), storage=False)
    assert "storage" in error and str(read_only) in error and "read-only" in error
    error = refused(out=read_only / "out")
    assert "output_dir" in error and str(read_only) in error and "read-only" in error


def test_a_full_disk(refused: Refused, small_disk: Path) -> None:
    """Whether the planner knows what is free, or is told of more than there is."""
    placement = ["--placement", "path"]
    for capacity in ("", ",capacity=1GiB"):
        error = refused("--storage", f"{small_disk}{capacity}", *placement, code=3, storage=False)
        assert ("path:0" in error or str(small_disk) in error) and "MiB" in error
        assert names(small_disk) == []


def test_a_disk_without_room_for_a_checkpoint(
    inputs: Path, small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Refused before it begins. What becomes of a disk that fills up later is in test_saving.py."""
    (small_disk / "ballast").write_bytes(bytes(small_disk_room(small_disk) - (64 << 10)))
    assert here(inputs, small_disk / "out", "--max_steps", "2") == 3
    error = capfd.readouterr().err
    assert "Traceback" not in error and f"does not fit on the file system of output_dir, {small_disk}" in error
    assert not (small_disk / "out").exists()
    (small_disk / "ballast").unlink()
    assert here(inputs, small_disk / "out", "--max_steps", "2") == 0
    capfd.readouterr()


def small_disk_room(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def test_a_disk_without_direct_io(
    inputs: Path, disk_without_direct_io: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Works, and says so."""
    keys = ["--max_steps", "2", "--placement", "path", "--durability", "none"]
    assert here(inputs, tmp_path / "out", *keys, "--storage", f"{disk_without_direct_io},capacity=32MiB") == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "note: path:0 is on tmpfs, which has no O_DIRECT: it is used through the page cache" in shown
    assert names(disk_without_direct_io) == []
    (tmp_path / "storage").mkdir()
    assert here(inputs, tmp_path / "other", *keys, "--storage", str(tmp_path / "storage")) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "other")


def test_one_line_from_the_command_itself(model: Path, inputs: Path, tmp_path: Path) -> None:
    """In a process of its own: nothing of the libraries beside the one message."""
    truncated(model)
    process = apart("-m", "spillway", *words(inputs, tmp_path / "out", "--model", str(model)))
    shown, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 2 and not (tmp_path / "out").exists()
    assert error.startswith("spillway: ") and error.count("\n") == 1 and "model.safetensors" in error
    assert "Traceback" not in shown + error
