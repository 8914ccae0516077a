"""Two machines on a slow network: what a step sends over it, and how long it takes, beside the plan.

    network.py [--shape tiny] [--layers N] [--length 128] [--steps 4] [--rates 1000 100] [--accumulation 1 2 8]
               [--processes 1]

The machines are two network namespaces that are joined by a pair of virtual interfaces, each of which sends at most
that many Mbit/s (`tc tbf`). On each, torchrun starts so many processes of the installed `spillway train`, which train
one model of that shape in memory, with weights drawn at random, as many micro-batches of a row a step as
gradient_accumulation_steps says. Bytes are those that the kernel counts on the interfaces between two steps, headers
included; those of the plan are of all processes, as each of them has planned. Both machines share the CPUs that there
are. A step's seconds are the median without the first. Needs root, `ip` and `tc`; leaves nothing behind. Results go to
bench/results/network.json, where rows of other settings stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import RESULTS, machine, processor, save
from shapes import SHAPES, VOCABULARY, config_of

NAME = "network"
MACHINES = ("spillway-m0", "spillway-m1")  # namespaces
INTERFACES = ("spw0", "spw1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29541
LOOK = 0.002  # seconds between two looks at the metrics
PATIENCE = 3600  # seconds that a run may take
TEXT = "The river rises in the hills and runs to the sea. "


def command(*words: str) -> None:
    subprocess.run(words, check=True)


@contextlib.contextmanager
def joined(megabits: float) -> Iterator[None]:
    """Both machines, each of which sends so many Mbit/s."""
    made: list[str] = []
    try:
        for name in MACHINES:
            command("ip", "netns", "add", name)
            made.append(name)
            command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "link", "add", INTERFACES[0], "netns", MACHINES[0], "type", "veth",
                "peer", "name", INTERFACES[1], "netns", MACHINES[1])  # fmt: skip
        for name, interface, address in zip(MACHINES, INTERFACES, ADDRESSES, strict=True):
            command("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            command("ip", "-n", name, "link", "set", interface, "up")
            limit = ("rate", f"{megabits:g}mbit", "burst", "256kb", "latency", "100ms")
            command("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", *limit)
        yield
    finally:
        for name in made:
            command("ip", "netns", "del", name)


def sent() -> list[int]:
    """Bytes that each machine's interface has sent so far."""
    found = []
    for name, interface in zip(MACHINES, INTERFACES, strict=True):
        file = f"/sys/class/net/{interface}/statistics/tx_bytes"
        told = subprocess.run(["ip", "netns", "exec", name, "cat", file], capture_output=True, text=True, check=True)
        found.append(int(told.stdout))
    return found


def model(folder: Path, shape: str, layers: int | None) -> Path:
    """A configuration, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    directory = folder / "model"
    config_of(shape, layers).save_pretrained(directory)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {letter: number for number, letter in enumerate(["<eos>", *letters])}
    assert len(known) <= VOCABULARY[shape]
    tokenizer = Tokenizer(models.BPE(vocab=known, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.save_pretrained(str(directory))
    (folder / "text.txt").write_text(TEXT * 20000, encoding="utf-8")
    return directory


def started(number: int, given: list[str], processes: int, log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": INTERFACES[number], "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(MACHINES)), "--node_rank",
                str(number), "--nproc_per_node", str(processes), "--master_addr", ADDRESSES[0], "--master_port",
                str(PORT)]  # fmt: skip
    with log.open("wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", MACHINES[number], *launcher, "-m", "spillway", "train", *given],
            env=environment, stdout=file, stderr=file,
        )  # fmt: skip


def steps_of(out: Path) -> list[float]:
    """Seconds of each step that has been told."""
    file = out / "metrics.jsonl"
    if not file.is_file():
        return []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [row["step_seconds"] for row in map(json.loads, lines) if "step_seconds" in row]


def watched(out: Path, running: list[subprocess.Popen[bytes]], steps: int) -> list[list[int]]:
    """What had been sent when each step was told."""
    found: list[list[int]] = []
    began = time.monotonic()
    while len(found) < steps and all(process.poll() is None for process in running):
        if time.monotonic() - began > PATIENCE:
            break
        if len(steps_of(out)) > len(found):
            found.append(sent())
        time.sleep(LOOK)
    return found


def planned(out: Path, processes: int) -> list[int]:
    """Bytes that each machine's processes send to the other one in a step, as they have planned."""
    from spillway import _engine
    from spillway.output import identity

    description = json.loads((out / identity.DESCRIPTION).read_text(encoding="utf-8"))
    settings = (out / identity.SETTINGS).read_text(encoding="utf-8")
    found = [0] * len(MACHINES)
    for rank in range(description["world"]):
        network = _engine.Network(rank, description["world"])
        engine = _engine.Engine(json.dumps(description | {"rank": rank}), settings, network)
        found[rank // processes] += json.loads(engine.plan())["between_machines"]["sent"]
        engine.close()
    return found


def measured(folder: Path, accumulation: int, arguments: argparse.Namespace) -> dict[str, Any]:
    out = folder / f"out-{accumulation}"
    given = [
        "--model", str(folder / "model"), "--init", "random", "--dataset", str(folder / "text.txt"), "--packing",
        "--max_length", str(arguments.length), "--per_device_train_batch_size", "1", "--max_steps",
        str(arguments.steps), "--gradient_accumulation_steps", str(accumulation), "--output_dir", str(out),
        "--save_only_model", "true", "--overwrite", "true",
    ]  # fmt: skip
    logs = [folder / f"machine-{number}.log" for number in range(len(MACHINES))]
    running = [started(number, given, arguments.processes, logs[number]) for number in range(len(MACHINES))]
    bytes_sent = watched(out, running, arguments.steps)
    codes = [process.wait() for process in running]
    if any(codes) or len(bytes_sent) < 2:
        return {"exit": codes, "told": [log.read_text(encoding="utf-8")[-1000:] for log in logs]}
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    each = [(last - first) / (len(bytes_sent) - 1) for first, last in zip(bytes_sent[0], bytes_sent[-1], strict=True)]
    seconds = steps_of(out)
    return {
        "bytes_per_step": each, "planned_bytes_per_step": planned(out, arguments.processes),
        "step_seconds": seconds, "median_seconds": statistics.median(seconds[1:]),
        "predicted_seconds": plan["predicted_step_seconds"], "bottleneck": plan["bottleneck"],
        "seconds": plan["seconds"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="tiny")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[1000.0, 100.0], help="Mbit/s each way")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--processes", type=int, default=1, help="on each machine")
    arguments = parser.parse_args()
    file = RESULTS / f"{NAME}.json"
    content = json.loads(file.read_text()) if file.is_file() else {"runs": []}
    names = ("shape", "layers", "length", "processes")
    for rate in arguments.rates:
        with tempfile.TemporaryDirectory() as directory, joined(rate):
            model(Path(directory), arguments.shape, arguments.layers)
            for accumulation in arguments.accumulation:
                key = {name: getattr(arguments, name) for name in names}
                key |= {"megabits": rate, "accumulation": accumulation}
                found = key | measured(Path(directory), accumulation, arguments)
                print(json.dumps(found), flush=True)
                kept = [run for run in content["runs"] if not key.items() <= run.items()]
                content = {"machine": machine() | processor(), "runs": [*kept, found]}
                save(NAME, content)


if __name__ == "__main__":
    main()
