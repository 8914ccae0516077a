"""The `spillway` command on a GPU that is faked (fake_gpu.py): the whole Python path over the engine's `cuda`
device, with the bits of a run on the CPU; and with drivers that are too old."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fake_gpu
from fake_gpu import FakeGpu, Said, build_driver
from folders import PYTHONPATH
from native import GPU, file_bytes
from needs import lacks
from real_runs import here, inputs, result, words
from spillway import _engine
from spillway.output.records import rows
from test_ranks import environments

# On both sides micro-batches share passes, since the head of a GPU takes their label tokens at once in any case. The
# model's own code computes, since fused kernels add in another order.
STEPS = ("--max_steps", "4", "--save_steps", "4", "--pass_tokens", "32768", "--fused_kernels", "never")


@pytest.fixture(scope="module")
def gpu() -> Iterator[FakeGpu]:
    if not _engine.gpu_kernels():
        lacks("nvcc", f"there are no kernels to run: {_engine.load_gpu_kernels(0)[1]}")
    if refusal := build_driver():
        lacks("compiler", refusal)
    process = FakeGpu()
    yield process
    process.close()


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs, with the profile of a machine that has a GPU and slow CPUs, so that much is worth doing there;
    and of one whose GPU updates nothing."""
    path = inputs(tmp_path_factory.mktemp("cuda"))
    slow = {"update_elements_per_second": 1e5, "update_elements_per_second_all_cores": 1e5}
    profile = json.loads((path / "profile.json").read_text()) | slow
    for name, more in ("profile", {}), ("no_updates", {"update_elements_per_second": 0.0}):
        (path / f"{name}.json").write_text(json.dumps(profile | {"gpus": [GPU | more]}))
    return path


class Pair:
    """Runs of one configuration on the CPU, and on the fake GPU."""

    def __init__(self, given: Path, gpu: FakeGpu, name: str, *more: str) -> None:
        computes = () if "--compute_dtype" in more else ("--compute_dtype", "bf16")  # auto may be another there
        self._given, self._gpu, self._more = given, gpu, (*STEPS, *computes, *more)
        self._plain = given / name
        self._runs = 0
        assert here(given, self._plain, *self._more) == 0

    def on_gpu(self, *more: str, **environment: str) -> dict[str, Any]:
        """The plan of a run that has the same bits."""
        self._runs += 1
        out = self._plain.with_name(f"{self._plain.name} on a GPU {self._runs}")
        said = self.run(out, *more, **environment)
        assert said.code == 0, said.err
        weights = "adapter_model.safetensors" if "lora" in self._more else "model.safetensors"
        assert (out / weights).read_bytes() == (self._plain / weights).read_bytes()
        ours, theirs = (file_bytes(run / "checkpoint-4" / "spillway") for run in (out, self._plain))
        assert ours == theirs
        for one, another in zip(rows(out / "metrics.jsonl"), rows(self._plain / "metrics.jsonl"), strict=True):
            assert one["loss"] == another["loss"] and one["grad_norm"] == another["grad_norm"]
        plan: dict[str, Any] = json.loads((out / "plan.json").read_text())
        return plan

    def weights(self) -> bytes:
        """Of the run on the CPU."""
        return (self._plain / "model.safetensors").read_bytes()

    def run(self, out: Path, *more: str, **environment: str) -> Said:
        return self._gpu.run(words(self._given, out, *self._more, "--device", "cuda:0", *more), **environment)


def test_a_gpu_takes_all_micro_batches_in_one_product_of_the_head(given: Path, gpu: FakeGpu, tmp_path: Path) -> None:
    """The same loss as on the CPUs within rounding, and the same bits with less memory."""
    keys = ("--max_steps", "3", "--compute_dtype", "bf16", "--gradient_accumulation_steps", "4", "--pass_tokens", "0")
    assert here(given, tmp_path / "cpu", *keys) == 0
    for name, memory in ("much", "96MiB"), ("little", "24MiB"):
        said = gpu.run(words(given, tmp_path / name, *keys, "--device", "cuda:0", "--gpu_memory", memory))
        assert said.code == 0, said.err
    cpu, much, little = (
        [row["loss"] for row in rows(tmp_path / name / "metrics.jsonl")] for name in ("cpu", "much", "little")
    )
    assert much == little and much == pytest.approx(cpu, rel=1e-3)
    ours, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("much", "little"))
    assert ours == theirs


@pytest.mark.parametrize("more", [(), ("--virtual_ranks", "2"), ("--token_tile", "24")])
def test_products_that_add_to_sums_change_no_bit_but_their_own(
    given: Path, gpu: FakeGpu, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """With parts that are rounded alike the bits are those of gradients that are handed over. In fp32 they are others,
    the same with little memory as with much."""
    keys = ("--max_steps", "3", "--save_steps", "3", "--compute_dtype", "bf16", "--device", "cuda:0", *more,
            "--gradient_accumulation_steps", "4", "--pass_tokens", "0")  # fmt: skip

    def run(name: str, product: str, *memory: str) -> Any:
        said = gpu.run(words(given, tmp_path / name, *keys, *memory), FAKE_GPU_PRODUCT=product)
        assert said.code == 0, said.err
        return result(tmp_path / name)

    much, little = ("--gpu_memory", "96MiB"), ("--gpu_memory", "24MiB", "--placement", "path")
    storage = ("--storage", f"{tmp_path},capacity=256MiB")
    handed, rounded, fp32 = (run(name, name, *much) for name in ("none", "add_rounded", "add_in_fp32"))
    assert rounded == handed and fp32 != handed
    assert run("little", "add_in_fp32", *little, *storage) == fp32


def test_kernels_without_a_fixed_order_are_announced(given: Path, gpu: FakeGpu, tmp_path: Path) -> None:
    keys = ("--max_steps", "1", "--device", "cuda:0", "--gpu_memory", "96MiB", "--full_determinism", "false")
    said = gpu.run(words(given, tmp_path / "out", *keys))
    text = " ".join((said.out + said.err).split())
    assert said.code == 0 and "full_determinism: false: a resumed run" in text and "attention: " in text
    refused = gpu.run(words(given, tmp_path / "refused", *keys, "--replay_steps", "1"))
    assert refused.code == 2 and "full_determinism: false" in refused.err


def least_of(refused: Said) -> str:
    """The least memory of a GPU that a refusal names."""
    return refused.err.split("--gpu_memory ")[1].split(",")[0]


@pytest.fixture(scope="module")
def bf16(given: Path, gpu: FakeGpu) -> Pair:
    return Pair(given, gpu, "bf16")


def test_blocks_that_live_on_a_gpu_change_no_bit(bf16: Pair) -> None:
    plan = bf16.on_gpu("--gpu_memory", "96MiB")
    assert plan["device_blocks"]["state_and_update"] > 0


@pytest.mark.parametrize("format", ["bf16", "int8"])
def test_states_of_fewer_bytes_live_on_a_gpu_and_change_no_bit(given: Path, gpu: FakeGpu, format: str) -> None:
    pair = Pair(given, gpu, f"live in {format}", "--state_format", format)
    plan = pair.on_gpu("--gpu_memory", "96MiB")
    assert plan["device_blocks"]["state_and_update"] > 0


def test_a_gpu_with_little_memory_changes_no_bit(bf16: Pair, given: Path, tmp_path: Path) -> None:
    storage = ["--storage", f"{tmp_path},capacity=256MiB", "--placement", "path", "--durability", "none"]
    little = [*storage, "--profile", str(given / "no_updates.json")]
    refused = bf16.run(tmp_path / "refused", *little, "--gpu_memory", "4KiB")
    assert refused.code == 3 and "does not fit on the device" in refused.err
    plan = bf16.on_gpu(*little, "--gpu_memory", least_of(refused))
    assert plan["device_blocks"]["state_and_update"] == 0 and plan["device_bytes_per_step"]["to_device"] > 0


def test_a_limit_above_the_free_memory_is_the_free_memory(bf16: Pair) -> None:
    """256 MiB are free, and 8 of them are left to the driver's context."""
    plan = bf16.on_gpu("--gpu_memory", "24GiB")
    (tier,) = (tier for tier in plan["tiers"] if tier["name"] == "device")
    assert tier["capacity"] == 248 << 20
    assert plan["gpu_memory_why"].startswith("gpu_memory: 24.0 GiB were asked, and the plan takes 248.0 MiB: ")


def test_a_gpu_without_memory_for_a_layer_names_what_fits(bf16: Pair, tmp_path: Path) -> None:
    """Passes are of 4 rows of up to 64 tokens: of two micro-batches, which share them."""
    refused = bf16.run(tmp_path / "out", FAKE_GPU_TOKENS="64")
    assert refused.code == 3 and not (tmp_path / "out").exists()
    assert (
        "does not fit on cuda:0: one layer takes more than the 256.0 MiB that are free to train on 4 x" in refused.err
    )
    assert refused.err.strip().endswith("One layer has room with per_device_train_batch_size 1 and pass_tokens 64")
    fewer = ("--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "4")
    assert bf16.run(tmp_path / "fewer", *fewer, "--pass_tokens", "64", FAKE_GPU_TOKENS="64").code == 0
    refused = bf16.run(tmp_path / "out", FAKE_GPU_TOKENS="32")
    advice = re.search(
        r"with max_length (\d+) and per_device_train_batch_size 1 and pass_tokens \1$", refused.err.strip()
    )
    assert refused.code == 3 and advice is not None, refused.err
    shorter = ("--max_length", advice[1], *fewer, "--pass_tokens", advice[1])
    assert bf16.run(tmp_path / "shorter", *shorter, FAKE_GPU_TOKENS="32").code == 0


def in_own_process(script: str, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A user's script beside the fake GPU, with its words and the driver's variables."""
    path = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", script, *more],
        env=os.environ | fake_gpu.DRIVEN | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=fake_gpu.HANGS,
    )


STREAMS = """
import contextlib, json, sys
import fake_gpu
fake_gpu.play()
import torch
import spillway
given, out, streams = sys.argv[1:]
made = [torch.cuda.Stream() for _ in range(int(streams))]
keys = {
    "model": f"{given}/model", "output_dir": out, "device": "cuda:0", "gpu_memory": "96MiB",
    "weight_dtype": "bf16", "compute_dtype": "fp32", "max_length": 32, "max_steps": 4, "learning_rate": 1e-3,
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "profile": f"{given}/profile.json",
}
losses = []
with spillway.Session(**keys) as session:
    ids = torch.arange(64).view(2, 32) % 320
    for number in range(4):
        stream = torch.cuda.stream(made[number % len(made)]) if made else contextlib.nullcontext()
        with stream:
            losses.append(session.step([{"input_ids": ids, "labels": ids}])["loss"])
            losses.append(session.evaluate([{"input_ids": ids, "labels": ids}])["eval_loss"])
print(json.dumps(losses))
"""


def test_a_step_may_be_asked_for_in_any_stream(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    """The engine has the stream that was current when the session was opened."""

    def losses(streams: int) -> Any:
        done = in_own_process(STREAMS, str(given), str(tmp_path / str(streams)), str(streams))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert losses(0) == losses(2)


THREADS = """
import json, os, sys, time
import fake_gpu
fake_gpu.play()
import spillway
given, out = sys.argv[1:]
keys = {"model": f"{given}/model", "output_dir": out, "device": "cuda:0", "compute_dtype": "bf16", "max_length": 32,
        "per_device_train_batch_size": 1, "max_steps": 1, "profile": f"{given}/profile.json"}
with spillway.Session(**keys) as session:
    session.open()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for _ in range(1000):  # until the threads have begun
        threads = [int(thread) for thread in os.listdir("/proc/self/task")]
        lower = [thread for thread in threads if os.getpriority(os.PRIO_PROCESS, thread) > own]
        if lower:
            break
        time.sleep(0.01)
    print(json.dumps([sorted(os.sched_getaffinity(thread)) for thread in lower]))
"""


def test_updates_spare_the_thread_that_launches(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    """Update threads have a lower priority beside a GPU, and one physical core is free of them."""
    cpus = sorted(os.sched_getaffinity(0))

    done = in_own_process(THREADS, str(given), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    updates = json.loads(done.stdout.splitlines()[-1])
    assert updates
    if not set(cpus) <= core_of(cpus[0]):
        assert all(set(each) < set(cpus) for each in updates)


def core_of(cpu: int) -> set[int]:
    """The CPUs of its physical core."""
    try:
        words = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return {cpu}
    ends = [[int(end) for end in part.split("-")] for part in words.split(",")]
    return {number for part in ends for number in range(part[0], part[-1] + 1)}


COMMAND = """
import sys
import fake_gpu
fake_gpu.play()
from spillway.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_process_that_multiplied_before_trains(bf16: Pair, given: Path, tmp_path: Path) -> None:
    """As a notebook does; PyTorch refuses products in one order there."""
    keys = (*STEPS, "--compute_dtype", "bf16", "--device", "cuda:0", "--gpu_memory", "96MiB")
    done = in_own_process(COMMAND, *words(given, tmp_path / "out", *keys), FAKE_GPU_MULTIPLIED="1")
    assert done.returncode == 0, done.stderr
    assert "PyTorch no longer checks products" in " ".join((done.stdout + done.stderr).split())
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == bf16.weights()


def test_memory_that_cannot_be_registered_changes_no_bit(bf16: Pair, tmp_path: Path) -> None:
    """As under WSL2: copies pass through a ring."""
    bf16.on_gpu("--gpu_memory", "96MiB", FAKE_CUDA_REGISTERS="0")
    said = bf16.run(tmp_path / "out", "--gpu_memory", "96MiB", FAKE_CUDA_REGISTERS="0")
    told = " ".join((said.out + said.err).split())
    assert said.code == 0 and told.count("of host memory could not be registered with cuda:0") == 1, told


# With less patience, as in test_remote.py.
IMPATIENT = COMMAND.replace(
    "from spillway.cli",
    """
from spillway.base import silence
silence.EVERY, silence.PATIENCE = 0.05, 0.5
from spillway.cli""",
)


def test_a_copy_that_does_not_end_is_told_and_the_run_goes_on(bf16: Pair, given: Path, tmp_path: Path) -> None:
    keys = (*STEPS, "--compute_dtype", "bf16", "--device", "cuda:0", "--gpu_memory", "96MiB")
    done = in_own_process(IMPATIENT, *words(given, tmp_path / "out", *keys), FAKE_CUDA_HOLDS_AFTER="9")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "has not ended '" in line]
    assert len(told) == 1, done.stderr
    assert re.search(r"cuda:0 \(Fake GPU\) has not ended '.+' of .+iB for \d+ s \(device:\w+_device, \d ", told[0])
    assert "answers again, after" in done.stderr
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == bf16.weights()


def test_an_old_driver_compiles_the_kernels(bf16: Pair, gpu: FakeGpu) -> None:
    """As of CUDA 11.4, which takes nothing of what nvcc 13 makes but the text that is marked as old enough."""
    bf16.on_gpu("--gpu_memory", "96MiB", FAKE_CUDA_VERSION="11040")
    said = gpu.run(["doctor"], FAKE_CUDA_VERSION="11040")
    words = " ".join(said.out.replace("│", " ").split())
    assert said.code == 0 and "driver for CUDA 11.4" in words
    assert "cuda:0 Fake GPU, its kernels as PTX that the driver has compiled" in words
    assert "CUDA_ERROR_NO_BINARY_FOR_GPU" in words
    newest = " ".join(gpu.run(["doctor"]).out.replace("│", " ").split())
    assert "cuda:0 Fake GPU, its kernels as machine code" in newest


def test_a_driver_that_takes_neither_form_is_quoted(bf16: Pair, gpu: FakeGpu, tmp_path: Path) -> None:
    refused = bf16.run(tmp_path / "out", FAKE_CUDA_VERSION="10020")
    assert refused.code == 2 and not (tmp_path / "out").exists()
    for part in ("driver (for CUDA 10.2)", "NO_BINARY_FOR_GPU", "UNSUPPORTED_PTX_VERSION", "ptxas fatal", "11.0"):
        assert part in refused.err, refused.err
    words = " ".join(gpu.run(["doctor"], FAKE_CUDA_VERSION="10020").out.replace("│", " ").split())
    assert "gpu no cuda:0 (Fake GPU): the driver (for CUDA 10.2) refuses the kernels" in words
    assert "UNSUPPORTED_PTX_VERSION" in words


def test_fused_kernels_have_one_result_in_every_placement(
    bf16: Pair, gpu: FakeGpu, given: Path, tmp_path: Path
) -> None:
    """Blocks that live on the GPU, and blocks that come from a path; near what the CPUs compute."""
    fused = ("--fused_kernels", "auto")
    said = bf16.run(tmp_path / "resident", "--gpu_memory", "96MiB", *fused)
    assert said.code == 0, said.err
    assert "RMSNorm, SwiGLU, rotary embedding of layers run in Spillway's kernels" in " ".join(said.out.split())
    storage = ["--storage", f"{tmp_path},capacity=256MiB", "--placement", "path", "--durability", "none"]
    least = least_of(bf16.run(tmp_path / "refused", *storage, "--gpu_memory", "4KiB", *fused))
    assert bf16.run(tmp_path / "little", *storage, "--gpu_memory", least, *fused).code == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("resident", "little")]
    assert weights[0] == weights[1]
    ours, theirs = (list(rows(run / "metrics.jsonl")) for run in (tmp_path / "resident", given / "bf16"))
    for one, another in zip(ours, theirs, strict=True):
        assert one["loss"] == pytest.approx(another["loss"], rel=5e-3)
    norms = [[row["grad_norm"] for row in each] for each in (ours, theirs)]
    assert norms[0] != norms[1] and norms[0] == pytest.approx(norms[1], rel=2e-2)


AUTO = ("--max_steps", "2", "--save_steps", "1", "--gpu_memory", "96MiB")


def device_of(out: Path) -> str:
    found = re.search(r"^device: (.*)$", (out / "config.yaml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_auto_is_the_gpu_and_says_so(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    said = gpu.run(words(given, tmp_path / "auto", *AUTO, verb="plan"))
    assert said.code == 0, said.err
    assert "Layers compute on Fake GPU; --device cpu computes on the CPUs (device auto)." in " ".join(said.out.split())
    silent = gpu.run(words(given, tmp_path / "auto", *AUTO, "--device", "cuda", verb="plan"))
    assert silent.code == 0 and "device auto" not in silent.out
    assert gpu.run(words(given, tmp_path / "auto", *AUTO)).code == 0
    assert gpu.run(words(given, tmp_path / "cuda", *AUTO, "--device", "cuda")).code == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("auto", "cuda"))
    assert ours.read_bytes() == theirs.read_bytes()
    plan = json.loads((tmp_path / "auto" / "plan.json").read_text())
    assert device_of(tmp_path / "auto") == "cuda" and plan["device_bytes_per_step"]["to_device"] > 0
    assert gpu.run(["resume", str(tmp_path / "auto")]).code == 0


def test_what_was_begun_on_the_processors_goes_on_there(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert gpu.run(words(given, out, "--max_steps", "2", "--save_steps", "1", "--device", "cpu")).code == 0
    said = gpu.run(words(given, out, "--max_steps", "3", "--save_steps", "1", "--resume_from_checkpoint", "auto"))
    assert said.code == 0, said.err
    assert device_of(out) == "cpu" and "the CPUs, as the run was begun (device auto)" in " ".join(said.out.split())


def test_auto_is_the_processors_where_a_gpu_cannot_be_taken(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    def plan(*more: str, **environment: str) -> str:
        said = gpu.run(words(given, tmp_path / "out", *AUTO[:4], *more, verb="plan"), **environment)
        assert said.code == 0, said.err
        return " ".join(said.out.split())

    not_it = "Layers compute on the CPUs, and not Fake GPU: "
    assert not_it + "activation_spill: " in plan("--activation_spill", "all", "--storage", str(tmp_path))
    assert not_it + "cuda:0 (Fake GPU): the driver (for CUDA 10.2) refuses" in plan(FAKE_CUDA_VERSION="10020")
    assert not_it + "of 3 processes on this machine this one sees 2" in plan(LOCAL_WORLD_SIZE="3", LOCAL_RANK="0")
    spills = ("--activation_spill", "all", "--storage", str(tmp_path))
    refused = gpu.run(words(given, tmp_path / "out", *AUTO, *spills))
    assert refused.code == 2 and "gpu_memory: device cpu has no memory" in refused.err


def test_memory_file_serves_a_gpu_with_the_same_bits(gpu: FakeGpu, given: Path, tmp_path: Path) -> None:
    """On blocks of the fake GPU's own, and by copies to and from a file that holds states, gradients and boundaries."""
    far = tmp_path / "far"
    far.mkdir()
    on_file = ("--memory_file", f"{far}=256MiB", "--placement", "grad=file:0,activation=file:0")
    plain = gpu.run(words(given, tmp_path / "plain", *AUTO, "--device", "cuda"))
    assert plain.code == 0, plain.err
    said = gpu.run(words(given, tmp_path / "file", *AUTO, *on_file))
    assert said.code == 0, said.err
    assert device_of(tmp_path / "file") == "cuda"
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("file", "plain"))
    assert ours.read_bytes() == theirs.read_bytes()
    tiers = {tier["name"]: tier for tier in json.loads((tmp_path / "file" / "plan.json").read_text())["tiers"]}
    assert tiers["file:0"]["planned_peak"] > 0
    assert "could not be registered" not in said.err + said.out
    staged = gpu.run(words(given, tmp_path / "staged", *AUTO, *on_file), FAKE_CUDA_REGISTERS="0")
    assert staged.code == 0, staged.err
    assert "could not be registered" in " ".join((staged.err + staged.out).split())
    assert (tmp_path / "staged" / "model.safetensors").read_bytes() == theirs.read_bytes()


def test_what_does_not_fit_a_gpu_that_nobody_asked_for_says_what_does_without(
    gpu: FakeGpu, given: Path, tmp_path: Path
) -> None:
    refused = gpu.run(words(given, tmp_path / "out", "--max_steps", "1", "--gpu_memory", "4KiB"))
    assert refused.code == 3 and "--device cpu does without it" in refused.err
    asked = gpu.run(words(given, tmp_path / "out", "--max_steps", "1", "--gpu_memory", "4KiB", "--device", "cuda"))
    assert asked.code == 3 and "--device cpu" not in asked.err


LORA = ("--method", "lora", "--lora_r", "4")
LSP = ("--method", "lsp", "--lsp_rank", "8", "--lsp_nonzeros", "2", "--gradient_accumulation_steps", "1")
FORMS = {
    "fp32": ("--compute_dtype", "fp32"),
    "fp16": ("--compute_dtype", "fp16"),
    "bf16 weights in fp32": ("--weight_dtype", "bf16", "--compute_dtype", "fp32"),
    "states of bf16": ("--state_format", "bf16"),
    "states of int8": ("--state_format", "int8"),
    "clipping": ("--max_grad_norm", "0.1"),
    "packed": ("--packing",),
    "lora": LORA,
    "subspaces": LSP,
    "published subspaces": (*LSP, "--lsp_projectors", "published", "--lsp_check_every", "2"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_bits_of_the_processor(given: Path, gpu: FakeGpu, name: str) -> None:
    pair = Pair(given, gpu, name, *FORMS[name])
    pair.on_gpu("--gpu_memory", "96MiB")
    pair.on_gpu("--gpu_memory", least_of(pair.run(given / "never", "--gpu_memory", "4KiB")))


def two_on_gpus(*command: str) -> None:
    """Python runs it in two processes, on a GPU each."""
    path = os.pathsep.join([PYTHONPATH, os.environ.get("PYTHONPATH", "")])
    both = os.environ | fake_gpu.DRIVEN | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            env=both | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in environments(2)
    ]
    ends = [(*process.communicate(timeout=fake_gpu.HANGS), process.returncode) for process in started]
    assert [code for *_, code in ends] == [0, 0], ends


SHARED = (*STEPS, "--compute_dtype", "bf16", "--virtual_ranks", "2", "--gradient_accumulation_steps", "4")
METHODS = {
    "full": (),
    "full over nccl": ("--ddp_backend", "nccl"),
    "lora": LORA,
    "lora beside codes": (*LORA, "--load_in_4bit", "true"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("method", METHODS)
def test_several_processes_have_a_gpu_each(given: Path, gpu: FakeGpu, tmp_path: Path, method: str) -> None:
    """What NCCL would move on this GPU gloo does, in the same parts. One process on a GPU has the same bits."""
    keys = (*SHARED, *METHODS[method])
    assert gpu.run(words(given, tmp_path / "plain", *keys, "--device", "cuda:0")).code == 0
    two_on_gpus(fake_gpu.__file__, *words(given, tmp_path / "out", *keys, "--device", "cuda"))
    assert result(tmp_path / "out") == result(tmp_path / "plain")
    plan, summary = (json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("plan", "summary"))
    assert plan["device_blocks"]["state_and_update"] > 0
    (there,) = (tier for tier in summary["tiers"] if tier["name"] == "device")
    assert 0 < there["measured_peak"] <= there["planned_peak"]


LOADED = {"full": {}, "lora": {"method": "lora", "lora_r": 4}, "codes": {"method": "lora", "load_in_4bit": True}}


@pytest.mark.nightly
@pytest.mark.parametrize("method", LOADED)
def test_a_trainer_in_two_processes_has_a_gpu_in_each(given: Path, gpu: FakeGpu, tmp_path: Path, method: str) -> None:
    """transformers' Trainer, as torchrun starts it beside GPUs: it, too, is told that there are some."""
    from test_together import TRAINER, ranks, same_saves, told, well  # without accelerate this test alone is skipped

    keys = {"dtype": "bfloat16", "virtual_ranks": 2, **LOADED[method]}
    asked = {"micro_batches": 2, "load": keys}  # one of each virtual rank: a GPU's head takes all of a rank at once
    well(ranks(TRAINER, 1, given, tmp_path, json.dumps(asked)))
    named = {"device": "cuda"} if method == "full" else {}  # else the GPU is what `auto` is
    more = {"gpu_memory": "96MiB", "fused_kernels": "never"}
    asked |= {"load": {**keys, **named, **more}, "use_cpu": False, "ddp_backend": "gloo"}
    two_on_gpus("-c", f"import fake_gpu\nfake_gpu.play()\n{TRAINER}", str(given), str(tmp_path), json.dumps(asked))
    assert told(tmp_path, 1) == told(tmp_path, 2)
    same_saves(tmp_path / "of-2", tmp_path / "of-1")
