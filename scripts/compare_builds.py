"""Two builds side by side: the same numbers after every step, the same bytes in every file, the same figures of a plan.

    compare_builds.py PINNED NEW [--runs NAME ...] [--keep DIR]
    compare_builds.py --list

PINNED and NEW are Python interpreters in whose environments spillway is installed, for example those of the last
release and of this tree; the tests' small models are taken from this tree. Every run goes through `spillway train` and
its kin, in a process that is forked from one with everything imported, on one thread and with the same profile of the
machine. What is compared is what must not depend on the build:

    steps     rows of metrics.jsonl without what is measured in seconds
    files     every file that holds weights, states or text of a checkpoint, by its SHA-256
    plan      plan.json without seconds, and without what the process takes by itself
    paths     bytes moved over each path, of a run that nobody killed, to within a few records of the journal
    codes     exit codes of the run's commands; of a refusal its message, too

The exit code is 1 when anything differs, and a line says which run and which part. NEW may be PINNED: the comparison of
a build with itself says what is no property of a build.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
PATIENCE = 300  # seconds that a command may take
STEPS = 6
MEASURED = re.compile(r"second|why|predict|bound|per_day|days|tokens_per|shares?$|memory_peak|process_peak|^free$")
RECORDS = 64 << 10  # bytes of a run's records, which are as many as steps happened to end beside each other
OF_THE_PROCESS = {"interpreter and libraries", "working set", "gaps"}  # classes of bytes that a process makes itself
OF_THE_RUN = {"path_bytes", "link_bytes", "node_updates", "tokens_per_second", "peak", "written"}  # columns of metrics
TEXT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json")
ON_PATH = "weight=path,state=path,grad=path,activation=path"
MIXED = "weight=50%,state=path,grad=50%,activation=dram"
GPU = {"name": "0", "memory": 1 << 30, "flops_per_second": 1e12, "to_gpu_bytes_per_second": 1e11,
       "from_gpu_bytes_per_second": 1e11, "update_elements_per_second": 1e10}  # fmt: skip


@dataclass
class Run:
    """One training run, or a plan; `keys` are those of its configuration."""

    name: str
    model: str = "untied"
    keys: dict[str, Any] = field(default_factory=dict)
    paths: int = 0  # storage directories of its own
    profile: str = "machine"
    killed_after: int | None = None  # this row of metrics.jsonl; then it is resumed
    verbs: tuple[str, ...] = ()  # afterwards: verify, export
    plan_only: bool = False


def runs() -> list[Run]:
    found = [Run("dram", verbs=("verify",)), Run("tied", "tied"), Run("experts", "experts")]
    for name, placement in (("path", ON_PATH), ("mixed", MIXED)):
        for durability in ("none", "checkpoint", "step"):
            keys = {"placement": placement, "durability": durability}
            found.append(Run(f"{name}-{durability}", "tied", keys, 1, verbs=("verify", "export")))
    on_path = {"placement": ON_PATH}
    for model in ("tied", "untied", "experts"):
        found.append(Run(f"two-paths-killed-{model}", model, on_path | {"durability": "step"}, 2, killed_after=3))
    found.append(Run("checkpoints-killed", "tied", on_path | {"durability": "checkpoint", "save_steps": 2}, 1,
                     killed_after=5))  # fmt: skip
    for form in ("exact", "bf16", "int8"):
        for optimizer in ("adamw", "lion", "sgd"):
            keys = on_path | {"state_format": form, "optim": optimizer, "momentum": 0.9 if optimizer == "sgd" else 0}
            found.append(Run(f"{optimizer}-{form}", "untied", keys, 1))
    for weight, compute in (("bf16", "bf16"), ("fp16", "fp16"), ("fp32", "fp32"), ("bf16", "fp32")):
        keys = {"weight_dtype": weight, "compute_dtype": compute}
        found.append(Run(f"{weight}-computed-in-{compute}", "tied", keys | {"placement": MIXED}, 1))
        found.append(Run(f"{weight}-computed-in-{compute}-dram", "tied", keys))
    found += [
        Run("early", "untied", {"update_schedule": "early", "max_grad_norm": 0}),
        Run("early-clipped", "untied", {"update_schedule": "early", "speculative_updates": True}),
        Run("early-path", "tied", {"update_schedule": "early", "speculative_updates": True, "placement": MIXED}, 1),
        Run("early-killed", "tied", on_path | {"update_schedule": "early", "speculative_updates": True}, 1,
            killed_after=3),
        Run("lora", "untied", {"method": "lora", "lora_r": 4}),
        Run("lora-path-killed", "untied", on_path | {"method": "lora", "lora_r": 4, "durability": "step"}, 1,
            killed_after=3),
        Run("lsp", "untied", {"method": "lsp", "lsp_check_every": 2}),
        Run("lsp-path-killed", "untied", on_path | {"method": "lsp", "lsp_check_every": 2, "durability": "step"}, 1,
            killed_after=3),
        Run("frozen", "untied", {"frozen": ["layers\\.0\\."]}),
        Run("frozen-path", "tied", on_path | {"trainable": ["layers\\.1\\."], "durability": "step"}, 1),
        Run("packed", "untied", {"packing": True}),
        Run("evaluated", "tied", {"eval_dataset": "held_out.jsonl", "eval_steps": 2, "save_steps": 2,
                                  "save_total_limit": 1}),
        Run("windows", "tied", on_path | {"window": 2}, 1),
        Run("device", "untied", {"device": "simulated"}, profile="gpu"),
        Run("device-path", "tied", on_path | {"device": "simulated"}, 1, "gpu"),
        Run("device-updates", "untied", {"device": "simulated"}, profile="slow"),
        Run("device-lsp", "untied", {"device": "simulated", "method": "lsp", "lsp_check_every": 2}, profile="slow"),
        Run("no-room", "untied", {"dram_budget": "100MiB"}),
        Run("no-path", "untied", on_path),
    ]  # fmt: skip
    for machine in ("workstation", "server", "two-drives", "laptop"):
        found.append(Run(f"plan-{machine}", "large", {"dram_budget": "16GiB"}, profile=machine, plan_only=True))
    return found


# ---- what every run begins with


def make_inputs(place: Path) -> None:
    """Models, rows and profiles; the same for both builds."""
    sys.path.insert(0, str(TREE / "tests" / "python" / "support"))
    import tiny
    from hf_models import tiny_config, tiny_model
    from native import PROFILE

    sizes = {"vocab_size": 320, "num_hidden_layers": 3}
    configs = {
        "untied": tiny_config("qwen2", tied=False, **sizes),
        "tied": tiny_config("llama", tied=True, hidden_size=64, intermediate_size=24576, **sizes),
        "experts": tiny_config("qwen3_moe", tied=False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                               decoder_sparse_step=1, **sizes),
    }  # fmt: skip
    for name, config in configs.items():
        tiny.tokenizer().save_pretrained(str(tiny.model_directory(place / name)))
        tiny_model(config).save_pretrained(place / name)
    large = tiny_config("llama", tied=False, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                        num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=32000)  # fmt: skip
    tiny.model_directory(place / "large")
    large.save_pretrained(place / "large")
    tiny.jsonl(place / "train.jsonl", tiny.text_rows(23))
    tiny.jsonl(place / "held_out.jsonl", tiny.text_rows(7))
    slow = {"update_elements_per_second": 1e5, "update_elements_per_second_all_cores": 1e5}
    for name, more in (("machine", {}), ("gpu", {"gpus": [GPU]}), ("slow", {"gpus": [GPU]} | slow)):
        (place / f"{name}.json").write_text(json.dumps(PROFILE | more))


# ---- one build's side


def run_side(inputs: Path, out: Path, names: list[str]) -> None:
    """In the build's own interpreter: every run, each in a process of its own."""
    import gc

    import transformers.models.llama.modeling_llama
    import transformers.trainer_utils  # noqa: F401

    import spillway.cli  # noqa: F401

    gc.freeze()
    for run in runs():
        if run.name in names:
            place = out / run.name
            place.mkdir(parents=True)
            (place / "outcome.json").write_text(json.dumps(outcome(run, inputs, place)))
            for file in [*place.rglob("*.safetensors"), *place.rglob("*.volume")]:
                file.unlink()


def outcome(run: Run, inputs: Path, place: Path) -> dict[str, Any]:
    out = place / "out"
    words = words_of(run, inputs, place, out)
    if run.plan_only:
        code = command(["plan", *words, "--json"], place / "plan", None, out)
        shown = (place / "plan.out").read_text()
        return {"codes": [code], "plan": steady(json.loads(shown)) if code == 0 else said(place / "plan.err", place)}
    codes = [command(["train", *words], place / "train", run.killed_after, out)]
    if run.killed_after is not None:
        codes.append(command(["resume", str(out)], place / "resume", None, out))
    found: dict[str, Any] = {}
    if 0 not in codes:
        found["refused"] = said(place / "train.err", place)
    for verb in run.verbs:
        more = ["--to", str(place / "exported")] if verb == "export" else []
        codes.append(command([verb, str(out), *more], place / verb, None, out))
    found |= {"codes": codes, "files": files(place)}
    if (out / "metrics.jsonl").is_file():
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        found["steps"] = [step(line) for line in lines]
        if run.killed_after is None:
            found["paths"] = moved(lines)
    if (out / "plan.json").is_file():
        found["plan"] = steady(json.loads((out / "plan.json").read_text()))
    return found


def words_of(run: Run, inputs: Path, place: Path, out: Path) -> list[str]:
    profile = inputs / f"{run.profile}.json"
    keys = {
        "model": inputs / run.model, "dataset": inputs / "train.jsonl", "output_dir": out, "max_steps": STEPS,
        "max_length": 64, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": "1e-3",
        "compute_dtype": "fp32", "dram_budget": "6GiB",
        "profile": profile if profile.is_file() else TREE / "profiles" / f"{run.profile}.json",
    } | run.keys  # fmt: skip
    words: list[str] = []
    for key, value in keys.items():
        if value in (True, False):
            value = str(value).lower()
        several = value if isinstance(value, list) else [inputs / value if key == "eval_dataset" else value]
        words += [f"--{key}", *map(str, several)]
    for number in range(run.paths):
        storage = place / f"path{number}"
        storage.mkdir()
        words += ["--storage", f"{storage},capacity=2GiB"]
    return words


def command(words: list[str], log: Path, killed_after: int | None, out: Path) -> int:
    """`spillway WORDS`; how it ended, minus the signal's number where one ended it."""
    child = os.fork()
    if child == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{log}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        from spillway.cli import main

        code = 70
        with contextlib.suppress(BaseException):
            code = main(words)
        sys.stdout.flush()
        os._exit(code)
    last = time.monotonic() + PATIENCE
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        enough = killed_after is not None and rows_of(out / "metrics.jsonl") >= killed_after
        if enough or time.monotonic() > last:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(ended[1])


def step(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in OF_THE_RUN and not MEASURED.search(key)}


def rows_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def said(file: Path, place: Path) -> str:
    """An error, without the run's own place and with figures of the process left out."""
    return re.sub(r"[0-9][0-9.,]* ?([KMG]i)?B", "N", file.read_text().replace(str(place), "PLACE"))


def files(place: Path) -> dict[str, str]:
    held = [file for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
    kept = [file for file in held if file.suffix == ".safetensors" or file.name in TEXT]
    return {str(file.relative_to(place)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(kept)}


def moved(lines: list[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for line in lines:
        for name, directions in line.get("path_bytes", {}).items():
            for direction, count in directions.items():
                total[f"{name} {direction}"] = total.get(f"{name} {direction}", 0) + count
    return total


def steady(value: Any) -> Any:
    """A plan's figures that follow from what was asked, whatever the process takes and however fast it was just now."""
    if isinstance(value, dict):
        return {key: steady(each) for key, each in value.items() if not MEASURED.search(key)}
    if isinstance(value, list):
        return [steady(each) for each in value if not of_the_process(each)]
    return value


def of_the_process(value: Any) -> bool:
    return isinstance(value, dict) and (value.get("class") in OF_THE_PROCESS or value.get("name") == "dram")


# ---- both


def differences(pinned: Any, new: Any, where: str = "") -> Iterator[str]:
    """Lines that say where two outcomes differ."""
    if isinstance(pinned, dict) and isinstance(new, dict):
        for key in sorted({*pinned, *new}):
            if key not in pinned or key not in new:
                yield f"{where}{key}: only in the {'new' if key in new else 'pinned'} build"
            else:
                yield from differences(pinned[key], new[key], f"{where}{key} / ")
    elif isinstance(pinned, list) and isinstance(new, list) and len(pinned) == len(new):
        for number, (one, other) in enumerate(zip(pinned, new, strict=True)):
            yield from differences(one, other, f"{where}{number} / ")
    elif where.startswith("paths / ") and abs(pinned - new) <= RECORDS:
        return
    elif pinned != new:
        yield f"{where.removesuffix(' / ')}: {short(pinned)}, now {short(new)}"


def short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 100 else words[:97] + "..."


def compare(pinned: str, new: str, names: list[str], place: Path) -> int:
    make_inputs(place / "inputs")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    for side, python in (("pinned", pinned), ("new", new)):
        words = [python, str(HERE / Path(__file__).name), "--side", str(place), side, *names]
        subprocess.run(words, check=True, env=environment, cwd=place)
    differ = 0
    for name in names:
        one, other = (json.loads((place / side / name / "outcome.json").read_text()) for side in ("pinned", "new"))
        found = list(differences(one, other))
        differ += bool(found)
        kind = f"codes {one['codes']}, {len(one.get('files', ()))} files, {len(one.get('steps', ()))} steps"
        print(f"{'DIFFERS' if found else 'equal  '}  {name} ({kind})")
        for line in found[:20]:
            print(f"           {line}")
    print(f"{len(names) - differ} of {len(names)} runs are equal")
    return int(differ > 0)


def main() -> int:
    if sys.argv[1:2] == ["--side"]:
        place, side, *names = sys.argv[2:]
        run_side(Path(place) / "inputs", Path(place) / side, names)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pinned", nargs="?")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--runs", nargs="+", help="these alone; patterns as a shell has them")
    parser.add_argument("--keep", type=Path, help="an empty directory for everything that the runs leave")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    known = [run.name for run in runs()]
    if given.list:
        print(*(json.dumps(asdict(run)) for run in runs()), sep="\n")
        return 0
    if not given.new:
        parser.error("two interpreters are compared: PINNED and NEW")
    names = [n for n in known if not given.runs or any(fnmatch(n, wanted) for wanted in given.runs)]
    if not names:
        parser.error(f"there are no such runs; there are {', '.join(known)}")
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        return compare(given.pinned, given.new, names, given.keep.resolve())
    place = Path(tempfile.mkdtemp(prefix="spillway-compare-"))
    try:
        return compare(given.pinned, given.new, names, place)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
