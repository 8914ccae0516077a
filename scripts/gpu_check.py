"""Everything that needs a GPU, in one command and under eight minutes: builds, runs the device's contract and the
kernels against the host's, a small fine-tune on both, the memory budget, and short benchmarks; writes
bench/results/gpu-NAME.json.

python3 scripts/gpu_check.py [--device cuda:0] [--out FILE] [--bench] [--only NAME ...] [--built TREE]

Needs nvcc, CMake, Ninja, a C++ compiler, and a Python with PyTorch, transformers, nanobind and what Spillway needs
beside them; headers and libraries from build/gpu-bundle where that is (make gpu-bundle), else from the system.
`--device simulated` is a dry run of the same parts where no GPU is. `--bench` runs the long benchmarks instead (make
gpu-bench): real shapes under several budgets. What was done is written after every part, so that a run that is cut off
leaves it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TREE = ROOT / "build" / "gpu"
BUNDLE = ROOT / "build" / "gpu-bundle"
GIB = 2**30
PARAMETERS = {"tiny": 6.3e6, "0.5b": 494e6, "1.5b": 1.544e9, "7b": 7.616e9}
LAYERS = {"tiny": (4, 256), "0.5b": (24, 896), "1.5b": (28, 1536), "7b": (28, 3584)}  # layers, width
Report = dict[str, Any]


class Failed(Exception):
    """A part did not do what it should; the words say what."""


class Check:
    def __init__(self, device: str, out: Path | None, dry: bool, built: Path | None) -> None:
        self.device = device
        self.tree = built or TREE
        self.built = built is not None
        self.dry = dry
        self.report: Report = {"facts": facts(device), "parts": {}}
        name = re.sub(r"[^a-z0-9]+", "-", str(self.report["facts"]["gpu"]).lower().replace("nvidia", "")).strip("-")
        self.out = out or (TREE / "dry.json" if dry else ROOT / "bench" / "results" / f"gpu-{name}.json")

    def part(self, name: str, work: Callable[[], Report]) -> bool:
        began = time.monotonic()
        try:
            found = work() | {"good": True}
        except (Failed, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
            found = {"good": False, "words": str(error)[-3000:]}
        found["part_seconds"] = round(time.monotonic() - began, 1)
        self.report["parts"][name] = found
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        words = "" if found["good"] else f"\n{found['words']}"
        print(f"{name}: {'good' if found['good'] else 'FAILED'} in {found['part_seconds']} s{words}", flush=True)
        return bool(found["good"])

    # ---- parts

    def build(self) -> Report:
        if not self.built:
            self.make()
        (found,) = (self.tree / "python" / "bindings").glob("_engine*.so")
        link = ROOT / "python" / "spillway" / found.name
        link.unlink(missing_ok=True)
        link.symlink_to(found)
        words = "from spillway import _engine; print(_engine.gpu_kernels())"
        kernels = python("-c", words, seconds=120).strip() == "True"
        if not kernels and not self.dry:
            raise Failed("the build has no kernels for a GPU: nvcc was not found")
        return {"kernels": kernels}

    def make(self) -> None:
        bundle = [f"-DSPILLWAY_BUNDLE={BUNDLE}"] if BUNDLE.is_dir() else []
        # A compiler that the project was not built with yet: its warnings are no errors, and what its library's headers
        # no longer bring along by themselves is brought.
        newer = ["-DSPILLWAY_STRICT=OFF", "-DCMAKE_CXX_FLAGS=-include cstdint -include algorithm"]
        run("cmake", "-S", ROOT, "-B", TREE, "-G", "Ninja", "-DSPILLWAY_TESTS=ON", "-DSPILLWAY_PYTHON=ON",
            "-DSPILLWAY_BENCH=ON", "-DSPILLWAY_EXAMPLES=OFF", f"-DPython_EXECUTABLE={sys.executable}", *newer, *bundle,
            seconds=120)  # fmt: skip
        run("ninja", "-C", TREE, "device_test", "device_copies", "_engine", seconds=400)

    def contract(self) -> Report:
        said = run(self.tree / "tests" / "device_test", "--gtest_brief=1", seconds=200, fails=True)
        listed = run(self.tree / "tests" / "device_test", "--gtest_list_tests", seconds=30)
        passed = re.search(r"\[  PASSED  \] (\d+) test", said)
        if passed is None or "[  FAILED  ]" in said:
            raise Failed(said)
        on_gpu = listed.count("/cuda_0")
        if on_gpu == 0 and not self.dry:
            raise Failed("device_test found no GPU: its tests of a real one did not run")
        return {"passed": int(passed[1]), "of_them_on_a_gpu": on_gpu}

    def equality(self) -> Report:
        """The same few steps in host memory and there; and there with as little memory as will do."""
        kinds = (("fp32", 2e-4), ("bf16", 3e-2))
        words = ["--shape", "tiny", "--sequence", "256", "--batch", "2", "--micro-batches", "2", "--steps", "5",
                 "--learning-rate", "1e-3", "--compute-dtype"]  # fmt: skip
        device = ["--device", self.device]
        with ThreadPoolExecutor(4 if (os.cpu_count() or 1) >= 8 else 1) as together:
            here = {dtype: together.submit(engine, *words, dtype) for dtype, _ in kinds}
            there = {dtype: together.submit(engine, *words, dtype, *device) for dtype, _ in kinds}
            tight = {dtype: together.submit(in_least, *words, dtype, *device) for dtype, _ in kinds}
        found: Report = {}
        for dtype, most in kinds:
            difference = apart(here[dtype].result(), there[dtype].result())
            itself = apart(there[dtype].result(), tight[dtype].result())
            found[dtype] = {"from_cpu": difference, "from_itself_in_less_memory": itself,
                            "losses": there[dtype].result()["losses"]}  # fmt: skip
            if difference > most or itself > most:
                said = f"{dtype}: losses and norms differ by {difference:.2e} from the processor's, "
                raise Failed(f"{said}by {itself:.2e} from those in less memory; {most:.0e} is what rounding explains")
        return found

    def budget(self) -> Report:
        shape, sequence = ("tiny", 256) if self.dry else ("0.5b", 1024)
        words = ["--shape", shape, "--sequence", str(sequence), "--steps", "2", "--device", self.device]
        found: Report = {}
        for memory in [64 << 20] if self.dry else [3 * GIB, 6 * GIB]:
            run_there = engine(*words, "--gpu-memory", str(memory))
            peak = run_there["measured"]["tiers"]["device"]
            tier = next(tier for tier in run_there["plan"]["tiers"] if tier["name"] == "device")
            found[str(memory)] = {"measured_peak": peak, "planned_peak": tier["planned_peak"]}
            if peak > memory:
                raise Failed(f"{peak} bytes were used on the device, and gpu_memory is {memory}")
        return found

    def copies(self) -> Report:
        size = "64" if self.dry else "2048"
        said = run(self.tree / "bench" / "device_copies", "--device", self.device, "--mebibytes", size, seconds=120)
        return dict(json.loads(said.strip().splitlines()[-1]))

    def steps(self) -> Report:
        """Tokens per second of a small model; the long ones are `--bench`."""
        shape, sequence, batch = ("tiny", 256, 2) if self.dry else ("0.5b", 2048, 4)
        memory = 64 << 20 if self.dry else 6 * GIB
        return timed(shape, sequence, batch, 2, 3, self.device, memory)

    # ---- the long benchmarks

    def long(self) -> Iterator[tuple[str, Callable[[], Report]]]:
        yield "copies", self.copies
        shapes = ("tiny",) if self.dry else ("1.5b", "7b")
        lengths = ((256, 2),) if self.dry else ((2048, 4), (8192, 1))
        budgets = (64 << 20,) if self.dry else (8 * GIB, 16 * GIB, 24 * GIB)
        for shape in shapes:
            for sequence, batch in lengths:
                for memory in budgets:
                    name = f"{shape}, sequence {sequence}, {memory >> 20} MiB"
                    yield name, partial(timed, shape, sequence, batch, 4, 3, self.device, memory)
                if not self.dry:
                    name = f"{shape}, sequence {sequence}, without offload"
                    yield name, partial(resident, shape, sequence, batch, 4, self.device)


def facts(device: str) -> Report:
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else device
    driver = ""
    if torch.cuda.is_available():
        driver = run(
            "nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader", fails=True
        ).strip()
    return {
        "gpu": gpu,
        "driver": driver,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
        "commit": run("git", "rev-parse", "HEAD", fails=True).strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def run(*words: Any, seconds: float = 60, fails: bool = False) -> str:
    """What the program said. Failed when it did, unless it `fails`."""
    try:
        done = subprocess.run([str(word) for word in words], cwd=ROOT, env=environment(), capture_output=True,
                              text=True, timeout=seconds)  # fmt: skip
    except FileNotFoundError as error:
        if fails:
            return ""
        raise Failed(f"{error}") from None
    if done.returncode != 0 and not fails:
        raise Failed(f"{' '.join(map(str, words))}\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return done.stdout + (done.stderr if fails else "")


def environment() -> dict[str, str]:
    """With the tools that were installed beside this Python: CMake and Ninja may be."""
    path = f"{ROOT / 'python'}{os.pathsep}{ROOT / 'bench'}"
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"PATH": tools, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def python(*words: Any, seconds: float) -> str:
    return run(sys.executable, *words, seconds=seconds)


def engine(*words: str, seconds: float = 300) -> Report:
    said = python("bench/engine_run.py", *words, seconds=seconds)
    return dict(json.loads(said.strip().splitlines()[-1]))


def least(*words: str) -> int:
    """Bytes that such a run needs on the device at least, as its refusal says, and a little more: what PyTorch needs is
    measured anew each time."""
    try:
        engine(*words, "--gpu-memory", str(1 << 20))
    except Failed as refused:
        if found := re.search(r"--gpu_memory (\d+)MiB", str(refused)):
            return int(int(found[1]) * 1.05 + 8) << 20
        raise
    raise Failed("a device of one MiB was not refused")


def in_least(*words: str) -> Report:
    return engine(*words, "--gpu-memory", str(least(*words)))


def apart(one: Report, other: Report) -> float:
    """The largest relative difference of losses and norms."""
    pairs = [*zip(one["losses"], other["losses"], strict=True),
             *zip(one["grad_norms"], other["grad_norms"], strict=True)]  # fmt: skip
    return max(abs(a - b) / abs(a) for a, b in pairs)


def timed(shape: str, sequence: int, batch: int, micro_batches: int, steps: int, device: str, memory: int) -> Report:
    found = engine("--shape", shape, "--sequence", str(sequence), "--batch", str(batch), "--micro-batches",
                   str(micro_batches), "--steps", str(steps), "--device", device, "--gpu-memory", str(memory),
                   seconds=560)  # fmt: skip
    seconds = min(found["seconds"][1:])
    stalls = found["stalls"][found["seconds"].index(seconds)]
    exposed = stalls.get("to_device", 0.0) + stalls.get("from_device", 0.0)
    tokens = found["tokens"]
    return {
        "tokens_per_second": tokens / seconds,
        "model_flops_per_second": flops(shape, sequence, tokens) / seconds,
        "seconds": found["seconds"],
        "predicted_seconds": found["plan"]["predicted_step_seconds"],
        "stalls": stalls,
        "exposed_transfer": exposed / seconds,
        "device_peak": found["measured"]["tiers"]["device"],
        "gpu_memory": memory,
        "process_peak": found["peak_bytes"],
        "bytes_per_step": found["plan"].get("device_bytes_per_step"),
    }


def resident(shape: str, sequence: int, batch: int, micro_batches: int, device: str) -> Report:
    """The same step of plain PyTorch with everything on the GPU, where that fits."""
    said = python("bench/gpu_plain.py", shape, sequence, batch, micro_batches, device, seconds=300)
    found = dict(json.loads(said.strip().splitlines()[-1]))
    tokens = sequence * batch * micro_batches
    seconds = min(found["seconds"][1:])
    return found | {"tokens_per_second": tokens / seconds,
                    "model_flops_per_second": flops(shape, sequence, tokens) / seconds}  # fmt: skip


def flops(shape: str, sequence: int, tokens: int) -> float:
    """Of the model, recomputation not counted: six for each parameter and token, and causal attention."""
    layers, width = LAYERS[shape]
    return 6 * PARAMETERS[shape] * tokens + 6 * layers * width * sequence * tokens


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--built", type=Path, help="a tree that device_test, device_copies and _engine are built in")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--only", nargs="*", help="parts whose name begins so")
    arguments = parser.parse_args(words)
    dry = arguments.device == "simulated"
    check = Check(arguments.device, arguments.out, dry, arguments.built and arguments.built.absolute())
    print(json.dumps(check.report["facts"]), flush=True)
    if not check.part("build", check.build):
        return 1
    quick = [(name, getattr(check, name)) for name in ("contract", "equality", "budget", "copies", "steps")]
    parts = list(check.long()) if arguments.bench else quick
    good = True
    for name, work in parts:
        if arguments.only is None or any(name.startswith(each) for each in arguments.only):
            good = check.part(name, work) and good
    print(check.out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
