"""Everything that needs a GPU, in one command and under eight minutes: builds, runs the device's contract and the
kernels against the host's, a small fine-tune on both, the memory budget, and short benchmarks; writes
bench/results/gpu-NAME.json.

python3 scripts/gpu_check.py [--device cuda:0] [--out FILE] [--bench] [--only NAME ...] [--built TREE] [--minutes M]

Needs nvcc, CMake, a C++ compiler, and a Python with PyTorch, transformers and what Spillway needs beside them; headers,
libraries and Python packages that are not there come from build/gpu-bundle (make gpu-bundle). `--device simulated` is a
dry run of the same parts where no GPU is. `--bench` runs the long benchmarks instead (make gpu-bench): real shapes
under several budgets. A part that fails does not keep the others from running, and what was found is written after each
part, so that a run that is cut off leaves it. A GPU, PyTorch or a compiler that is not there is named at once. Exit
code: 0 when every part was good, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from gpu_tools import BUNDLE, ROOT, DoesNotFit, Failed, Parts, Programs, Report, last_json

sys.path.append(str(ROOT / "bench"))
from shapes import model_flops  # noqa: E402

TREE = ROOT / "build" / "gpu"
GIB = 2**30
MINUTES = 7.8  # that gpu-check takes at most
PARAMETERS = {"tiny": 6.3e6, "0.5b": 494e6, "1.5b": 1.544e9, "7b": 7.616e9}
DEEPSPEED_HOST = 18  # bytes of host memory for a parameter: bf16 weight, fp32 master, moments and gradient


class Check(Parts):
    def __init__(self, device: str, out: Path | None, built: Path | None, minutes: float = 0) -> None:
        self.device = device
        self.tree = built or TREE
        self.built = built is not None
        self.dry = device == "simulated"
        self.programs = Programs(self.tree / "site", minutes)
        machine = facts(device, self.programs)
        results = ROOT / "bench" / "results"
        default_out = TREE / "dry.json" if self.dry else results / f"gpu-{slug(str(machine['gpu']))}.json"
        super().__init__(out or default_out, {"facts": machine})

    def needs(self, name: str) -> tuple[str, ...]:
        if name in ("programs", "extension") or "without offload" in name or "DeepSpeed" in name:
            return ()
        return ("programs",) if name in ("contract", "copies") else ("extension",)

    # ---- building

    def build(self) -> bool:
        """Builds the programs and the extension, or finds them in the built tree. Returns whether both are good."""
        programs = self.part("programs", self.build_programs)
        return self.part("extension", self.build_extension) and programs

    def build_programs(self) -> Report:
        """The tests of the device, and the benchmark of copies."""
        found: Report = {"packages": self.programs.unpack()}
        if not self.built:
            self.configure(python=False, tests=True)
            self.make("device_test", "fake_cuda", "device_copies")
        for program in ("tests/device_test", "tests/fake_driver/libcuda.so.1", "bench/device_copies"):
            if not (self.tree / program).is_file():
                raise Failed(f"{self.tree / program} is not there")
        return found

    def build_extension(self) -> Report:
        """The module that Python loads."""
        if not self.built:
            self.configure(python=True, tests=self.report["parts"]["programs"]["good"])  # with no more than it needs
            self.make("_engine")
        modules = sorted((self.tree / "python" / "bindings").glob("_engine*.so"))
        suffix = self.programs.python("-c", "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'))", seconds=60)
        made = [module for module in modules if module.name.endswith((suffix.strip(), ".abi3.so"))]
        if len(made) != 1:
            names = [module.name for module in modules]
            raise Failed(f"{self.tree}/python/bindings: one module for {suffix.strip()} is needed, there are {names}")
        link = ROOT / "python" / "spillway" / made[0].name
        link.unlink(missing_ok=True)
        link.symlink_to(made[0])
        number = self.device.partition(":")[2] or "0"
        words = f"from spillway import _engine; print(_engine.gpu_kernels(), _engine.load_gpu_kernels({number})[1])"
        kernels, form = self.programs.python("-c", words, seconds=120).strip().split(" ", 1)
        if kernels != "True" and not self.dry:
            raise Failed(form)
        return {"kernels": kernels == "True", "form": form}

    def configure(self, *, python: bool, tests: bool) -> None:
        bundle = [f"-DSPILLWAY_BUNDLE={BUNDLE}"] if BUNDLE.is_dir() else []
        tools = self.programs.environment()["PATH"]
        generator = ["-G", "Ninja" if shutil.which("ninja", path=tools) else "Unix Makefiles"]
        if (TREE / "CMakeCache.txt").is_file():
            generator = []  # as it was begun
        # A compiler that the project was not built with yet: its warnings are no errors, and what its library's headers
        # no longer bring along by themselves is brought.
        newer = ["-DSPILLWAY_STRICT=OFF", "-DCMAKE_CXX_FLAGS=-include cstdint -include algorithm"]
        wanted = {"TESTS": tests, "BENCH": tests, "PYTHON": python, "EXAMPLES": False}
        parts = [f"-DSPILLWAY_{part}={'ON' if it else 'OFF'}" for part, it in wanted.items()]
        self.programs.run("cmake", "-S", ROOT, "-B", TREE, *generator, *parts, f"-DPython_EXECUTABLE={sys.executable}",
                          *newer, *bundle, seconds=120)  # fmt: skip

    def make(self, *targets: str) -> None:
        jobs = os.cpu_count() or 1
        self.programs.run("cmake", "--build", TREE, "-j", jobs, "--target", *targets, seconds=3600)

    # ---- parts

    def contract(self) -> Report:
        program = self.tree / "tests" / "device_test"
        listed = self.programs.run(program, "--gtest_list_tests", seconds=30)
        said = self.programs.run(program, "--gtest_brief=1", seconds=200)
        passed = re.search(r"\[  PASSED  \] (\d+) test", said)
        if passed is None or "[  FAILED  ]" in said:
            raise Failed(said)
        on_gpu = len(re.findall(r"/cuda_\d", listed))
        if on_gpu == 0 and not self.dry:
            raise Failed("device_test found no GPU: its tests of a real one did not run")
        return {"passed": int(passed[1]), "of_them_on_a_gpu": on_gpu}

    def equality(self) -> Report:
        """The same few steps in host memory and there; and there with as little memory as will do."""
        kinds = (("fp32", 2e-4), ("bf16", 3e-2))
        sequence = "64" if self.dry else "256"
        words = ["--shape", "tiny", "--sequence", sequence, "--batch", "2", "--micro-batches", "2", "--steps", "5",
                 "--learning-rate", "1e-3", "--compute-dtype"]  # fmt: skip
        device = ["--device", self.device]
        with ThreadPoolExecutor(4 if (os.cpu_count() or 1) >= 8 else 1) as together:
            here = {dtype: together.submit(self.engine, *words, dtype) for dtype, _ in kinds}
            there = {dtype: together.submit(self.engine, *words, dtype, *device) for dtype, _ in kinds}
            tight = {dtype: together.submit(self.in_least, *words, dtype, *device) for dtype, _ in kinds}
        found: Report = {}
        for dtype, most in kinds:
            difference = apart(here[dtype].result(), there[dtype].result())
            itself = apart(there[dtype].result(), tight[dtype].result())
            found[dtype] = {"from_cpu": difference, "from_itself_in_less_memory": itself,
                            "losses": there[dtype].result()["losses"]}  # fmt: skip
            if not (difference <= most and itself <= most):  # nor a number that is none
                said = f"{dtype}: losses and norms differ by {difference:.2e} from the CPU's, "
                raise Failed(f"{said}by {itself:.2e} from those in less memory; {most:.0e} is what rounding explains")
        return found

    def budget(self) -> Report:
        shape, sequence = ("tiny", 256) if self.dry else ("0.5b", 1024)
        words = ["--shape", shape, "--sequence", str(sequence), "--steps", "2", "--device", self.device]
        found: Report = {}
        for memory in [64 << 20] if self.dry else [3 * GIB, 6 * GIB]:
            run_there = self.engine(*words, "--gpu-memory", str(memory))
            peak = run_there["measured"]["tiers"]["device"]
            tier = next(tier for tier in run_there["plan"]["tiers"] if tier["name"] == "device")
            found[str(memory)] = {"measured_peak": peak, "planned_peak": tier["planned_peak"]}
            if peak > memory:
                raise Failed(f"{peak} bytes were used on the device, and gpu_memory is {memory}")
        return found

    def copies(self) -> Report:
        size = "64" if self.dry else "2048"
        program = self.tree / "bench" / "device_copies"
        found = last_json(self.programs.run(program, "--device", self.device, "--mebibytes", size, seconds=120))
        return found | {"reach_95_percent": min(found["share"].values()) >= 0.95}

    def steps(self) -> Report:
        """Tokens per second of a small model; the long ones are `--bench`."""
        shape, sequence, batch = ("tiny", 256, 2) if self.dry else ("0.5b", 2048, 4)
        return self.timed(shape, sequence, batch, 2, 64 << 20 if self.dry else 6 * GIB)

    # ---- the long benchmarks

    def long(self) -> Iterator[tuple[str, Callable[[], Report]]]:
        yield "copies", self.copies
        shapes = ("tiny",) if self.dry else ("1.5b", "7b")
        lengths = ((256, 2),) if self.dry else ((2048, 4), (8192, 1))
        budgets = (64 << 20,) if self.dry else (8 * GIB, 16 * GIB, 24 * GIB)
        for shape in shapes:
            for sequence, batch in lengths:
                name = f"{shape}, sequence {sequence}, "
                whole = name + "without offload"
                yield whole, partial(self.resident, shape, sequence, batch, 4)
                for memory in budgets:
                    work = partial(self.timed, shape, sequence, batch, 4, memory, beside=whole)
                    yield f"{name}{memory >> 20} MiB", work
                if not self.dry:
                    budget = budgets[-1]
                    work = partial(self.deepspeed, shape, sequence, batch, 4, budget, beside=whole)
                    yield f"{name}DeepSpeed ZeRO-3 offload, {budget >> 20} MiB", work
        if self.dry:
            yield "DeepSpeed ZeRO-3 offload", partial(self.deepspeed, "tiny", 256, 2, 2, 0, layers=2)

    def timed(
        self, shape: str, sequence: int, batch: int, micro_batches: int, memory: int, *, beside: str = ""
    ) -> Report:
        """The engine's step under so many bytes of GPU memory. Where it does not fit, with as many tokens in smaller
        micro-batches."""

        def once(rows: int) -> Report:
            count = micro_batches * batch // rows
            return self.engine("--shape", shape, "--sequence", str(sequence), "--batch", str(rows), "--micro-batches",
                               str(count), "--steps", "3", "--device", self.device, "--gpu-memory", str(memory),
                               seconds=560)  # fmt: skip

        rows, found = smaller(batch, once)
        if found is None:
            return {"fits": False, "gpu_memory": memory}
        seconds = min(found["seconds"][1:])
        stalls = found["stalls"][found["seconds"].index(seconds)]
        exposed = stalls.get("to_device", 0.0) + stalls.get("from_device", 0.0)
        return self.rates(shape, sequence, found["tokens"], seconds, beside) | {
            "fits": True,
            "rows": rows,
            "seconds": found["seconds"],
            "predicted_seconds": found["plan"]["predicted_step_seconds"],
            "stalls": stalls,
            "exposed_transfer": exposed / seconds,
            "device_peak": found["measured"]["tiers"]["device"],
            "gpu_memory": memory,
            "process_peak": found["peak_bytes"],
            "bytes_per_step": found["plan"].get("device_bytes_per_step"),
        }

    def resident(self, shape: str, sequence: int, batch: int, micro_batches: int) -> Report:
        """The same step of plain PyTorch with everything on the GPU, where that fits."""

        def once(rows: int) -> Report:
            count = micro_batches * batch // rows
            words = ["--shape", shape, "--sequence", sequence, "--batch", rows, "--micro-batches", count]
            words += ["--device", "cpu" if self.dry else self.device]
            return last_json(self.programs.python("bench/gpu_plain.py", *words, seconds=300))

        return self.peer(shape, sequence, batch, micro_batches, once)

    def deepspeed(
        self, shape: str, sequence: int, batch: int, micro_batches: int, memory: int, *, beside: str = "",
        layers: int = 0,
    ) -> Report:  # fmt: skip
        """The same step of DeepSpeed ZeRO-3 with parameters and optimizer offloaded to host memory."""
        needed, there = int(PARAMETERS[shape] * DEEPSPEED_HOST), available()
        if needed > there:
            return {"fits": False, "words": f"it takes {needed} bytes of host memory, and there are {there}"}

        def once(rows: int) -> Report:
            words = ["deepspeed", "--shape", shape, "--sequence", sequence, "--steps", 4, "--batch", rows,
                     "--micro-batches", micro_batches * batch // rows, "--device",
                     "cpu" if self.dry else self.device, "--device-memory", memory]  # fmt: skip
            words += ["--layers", layers] if layers else []
            return last_json(self.programs.python("bench/peers.py", *words, seconds=560))

        return self.peer(shape, sequence, batch, micro_batches, once, beside)

    def peer(
        self, shape: str, sequence: int, batch: int, micro_batches: int, once: Callable[[int], Report],
        beside: str = "",
    ) -> Report:  # fmt: skip
        rows, found = smaller(batch, once)
        if found is None:
            return {"fits": False}
        seconds = min(found["seconds"][1:])
        tokens = sequence * batch * micro_batches
        return found | self.rates(shape, sequence, tokens, seconds, beside) | {"fits": True, "rows": rows}

    def rates(self, shape: str, sequence: int, tokens: int, seconds: float, beside: str) -> Report:
        """Of a step without padding; `beside`: the part of the same step without offload, which shows how much of this
        one is not covered by compute."""
        rate = tokens / seconds
        out: Report = {"tokens_per_second": rate,
                       "model_flops_per_second": model_flops(shape, sequence, tokens) / seconds}  # fmt: skip
        if whole := self.report["parts"].get(beside, {}).get("tokens_per_second"):
            out["share_beyond_the_step_without_offload"] = max(0.0, 1 - rate / whole)
        return out

    # ---- runs of the engine

    def engine(self, *words: str, seconds: float = 300) -> Report:
        return last_json(self.programs.python("bench/engine_run.py", *words, seconds=seconds))

    def least(self, *words: str) -> int:
        """Bytes that such a run needs on the device at least, as its refusal says, and a little more: what PyTorch
        needs is measured anew each time."""
        try:
            self.engine(*words, "--gpu-memory", str(1 << 20))
        except Failed as refused:
            if found := re.search(r"--gpu_memory (\d+)MiB", str(refused)):
                return int(int(found[1]) * 1.05 + 8) << 20
            raise
        raise Failed("a device of one MiB was not refused")

    def in_least(self, *words: str) -> Report:
        return self.engine(*words, "--gpu-memory", str(self.least(*words)))


def slug(gpu: str) -> str:
    """A file name for a GPU: the lower-case words and numbers of its name, joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().replace("nvidia", "")).strip("-")


def facts(device: str, programs: Programs) -> Report:
    import torch

    gpu = torch.cuda.get_device_name(device) if torch.cuda.is_available() and device.startswith("cuda") else device
    query = ["--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
    return {
        "gpu": gpu,
        "driver": programs.asked("nvidia-smi", *query) if gpu != device else "",
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "nvcc": programs.asked("nvcc", "--version").rpartition("release ")[2].partition(",")[0],
        "compiler": programs.asked("c++", "--version").partition("\n")[0],
        "processors": os.cpu_count(),
        "commit": programs.asked("git", "rev-parse", "HEAD"),
        "date": time.strftime("%Y-%m-%d"),
    }


def lacking(device: str, programs: Programs) -> str:
    """What this machine lacks for a check on that device, in words; "": nothing that could be told before it builds."""
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no PyTorch, and the check runs with this Python"
    if device == "simulated":
        return ""
    import torch

    here = f"PyTorch {torch.__version__} of {sys.executable}"
    dry = "; where no GPU is, --device simulated makes a dry run of the same parts"
    if torch.version.cuda is None:
        return f"--device {device}: {here} was built without CUDA{dry}"
    if not torch.cuda.is_available():
        driver = programs.asked("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
        seen = f"nvidia-smi shows {driver}" if driver else "nvidia-smi shows none, too, or is not there"
        return f"--device {device}: {here} finds no GPU ({seen}){dry}"
    if (count := torch.cuda.device_count()) <= int(device.partition(":")[2]):
        return f"--device {device}: this process sees {count}, cuda:0 to cuda:{count - 1}"
    return ""


def compilers(device: str, programs: Programs) -> str:
    """Names what the machine lacks to build the programs, and the packages that bring it; "" if nothing."""
    wanted = {"cmake": "pip install cmake", "c++": "apt-get install g++", "nvcc": "pip install nvidia-cuda-nvcc"}
    if device == "simulated":
        del wanted["nvcc"]
    path = programs.environment()["PATH"]
    missing = {name: how for name, how in wanted.items() if shutil.which(name, path=path) is None}
    if not BUNDLE.is_dir():
        if importlib.util.find_spec("nanobind") is None:
            missing["nanobind"] = "pip install nanobind"
        if not Path("/usr/include/gtest/gtest.h").is_file():
            missing["GoogleTest"] = "apt-get install libgtest-dev"
    told = ", ".join(f"{name} ({how})" for name, how in missing.items())
    return f"not there, and needed to build: {told}" if missing else ""


def explain_lack(device: str, built: Path | None) -> str:
    """Names what this machine lacks for a check on the device; "" if nothing. A built tree needs no compilers."""
    tools = Programs(TREE / "site")
    return lacking(device, tools) or ("" if built else compilers(device, tools))


def smaller(batch: int, once: Callable[[int], Report]) -> tuple[int, Report | None]:
    """Of `batch` rows, or the most halves of them that fit, and what was found; None when not even one row fits."""
    rows = batch
    while True:
        try:
            return rows, once(rows)
        except DoesNotFit:
            if rows == 1:
                return 0, None
        rows //= 2


def available() -> int:
    """Bytes of host memory that can be had."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def apart(one: Report, other: Report) -> float:
    """The largest relative difference of losses and norms."""
    pairs = [*zip(one["losses"], other["losses"], strict=True),
             *zip(one["grad_norms"], other["grad_norms"], strict=True)]  # fmt: skip
    differences = [abs(a - b) / abs(a) for a, b in pairs]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or simulated")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--built", type=Path, help="a tree that device_test, device_copies and _engine are built in")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--only", nargs="*", help="parts whose name begins so")
    parser.add_argument("--minutes", type=float, help=f"at most; 0: no limit (default: {MINUTES}; --bench: 0)")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    if not re.fullmatch(r"simulated|cuda:\d+", arguments.device):
        parser().error(f"--device {arguments.device}: cuda:N or simulated")
    if why := explain_lack(arguments.device, arguments.built):
        print(f"gpu-check: {why}", file=sys.stderr)
        return 1
    minutes = arguments.minutes if arguments.minutes is not None else 0 if arguments.bench else MINUTES
    check = Check(arguments.device, arguments.out, arguments.built and arguments.built.absolute(), minutes)
    print(json.dumps(check.report["facts"]), flush=True)
    check.save()
    good = check.build()
    quick = [(name, getattr(check, name)) for name in ("contract", "copies", "equality", "budget", "steps")]
    for name, work in check.long() if arguments.bench else quick:
        if arguments.only is None or any(name.startswith(each) for each in arguments.only):
            good = check.part(name, work) and good
    print(check.out)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
