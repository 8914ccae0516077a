"""Two machines on a slow network: what a step sends over it, and how long it takes, beside the plan.

    network.py [--shape wide] [--layers 3] [--length 128] [--steps 2] [--rates 1000 100] [--accumulation 1 2 8]
               [--minutes 12]

The machines are two network namespaces that are joined by a pair of virtual interfaces, each of which sends at most
that many Mbit/s (`tc tbf`). A process of the installed `spillway train` on each trains one model of that shape in
memory, with weights and words drawn at random, as many micro-batches of a row a step as gradient_accumulation_steps
says; then, at the first of the rates, two processes on each with half of 2, so that a step is as large. Bytes are those
that the kernel counts on the interfaces between two steps, headers included; those of the plan are of all processes of
a machine, as each of them has planned. Both machines share the CPUs that there are. A step's seconds are the median of
so many steps, without the first and the last. Runs beside which other programs had more than a tenth of the CPUs, while
they planned or in the steps, are made again, twice at most, the most disturbed first, while the minutes last; the least
disturbed counts, and the others stand beside it. Needs root, `ip` and `tc`; leaves nothing behind. Results go to
bench/results/network.json, where runs of other settings stay.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from figures import RESULTS, machine, processor, save
from prediction import taken_by_others
from shapes import SHAPES, VOCABULARY, config_of

NAME = "network"
MACHINES = tuple(f"spillway-m{number}-{os.getpid()}" for number in (0, 1))  # namespaces
INTERFACES = ("spw0", "spw1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT = 29541
LOOK = 0.002  # seconds between two looks at the metrics
MOST_OTHERS = 0.1  # of the CPUs
MOST_TRIES = 3
MINUTES_OF_ONE = 2  # that have to be left for a run to be made again
OF_OTHER = ("median_seconds", "predicted_seconds", "bytes_per_step", "others")
PATIENCE = 1200  # seconds that a run may take
TOKENS = 100_000  # of the text


class Setting(NamedTuple):
    shape: str
    layers: int | None
    length: int
    megabits: float
    processes: int  # on each machine
    accumulation: int  # of each process

    def key(self) -> dict[str, Any]:
        return self._asdict()


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


def model(folder: Path, shape: str, layers: int | None) -> None:
    """A configuration, a tokenizer of as many words as the shape's vocabulary has, and a text of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    config_of(shape, layers).save_pretrained(folder / "model")
    words = ["<eos>", *(f"w{number}" for number in range(1, VOCABULARY[shape]))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.save_pretrained(str(folder / "tokenizer"))
    drawn = random.Random(0).choices(words[1:], k=TOKENS)
    (folder / "text.txt").write_text(" ".join(drawn), encoding="utf-8")


@contextlib.contextmanager
def started(given: list[str], processes: int, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The command in so many processes on each machine, with what a launcher says to them."""
    running: list[subprocess.Popen[bytes]] = []
    world = processes * len(MACHINES)
    try:
        for rank in range(world):
            number, local = divmod(rank, processes)
            environment = os.environ | {
                "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": INTERFACES[number],
                "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(processes), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
            }  # fmt: skip
            words = ["ip", "netns", "exec", MACHINES[number], sys.executable, "-m", "spillway", "train", *given]
            with (folder / f"rank-{rank}.log").open("wb") as log:
                running.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def steps_of(out: Path) -> list[float]:
    """Seconds of each step that has been told."""
    file = out / "metrics.jsonl"
    if not file.is_file():
        return []
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [row["step_seconds"] for row in map(json.loads, lines) if "step_seconds" in row]


class Watched(NamedTuple):
    sent: list[list[int]]  # by step: what each machine had sent when it was told
    others: list[float]  # by step: the share of the CPUs that other programs had until it was


def watched(out: Path, running: list[subprocess.Popen[bytes]], steps: int) -> Watched:
    found = Watched([], [])
    own, others, since = 0.0, taken_by_others(), time.monotonic()
    until = since + PATIENCE
    while len(found.sent) < steps and all(process.poll() is None for process in running) and time.monotonic() < until:
        if len(steps_of(out)) > len(found.sent):
            found.sent.append(sent())
            now, taken, computed_now = time.monotonic(), taken_by_others(), sum(map(computed, running))
            found.others.append((taken - others - (computed_now - own)) / (now - since) / (os.cpu_count() or 1))
            own, others, since = computed_now, taken, now
        time.sleep(LOOK)
    return found


def computed(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process so far, without those of the kernel."""
    after_name = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2]
    return int(after_name.split()[11]) / os.sysconf("SC_CLK_TCK")


def planned(out: Path, processes: int) -> list[int]:
    """Bytes that each machine's processes send to the other one in a step, as they have planned."""
    from spillway import _engine
    from spillway.output import identity

    description = _engine.Description.parse((out / identity.DESCRIPTION).read_text(encoding="utf-8"))
    size, local = description.world.size, description.world.local
    settings = _engine.EngineSettings.parse((out / identity.SETTINGS).read_text(encoding="utf-8"))
    found = [0] * len(MACHINES)
    for rank in range(size):
        network = _engine.Network(rank, size)
        description.world = _engine.World(size=size, rank=rank, local=local)
        engine = _engine.Engine(description, settings, network)
        found[rank // processes] += engine.plan().between_machines.sent
        engine.close()
    return found


def measured(folder: Path, setting: Setting, steps: int) -> dict[str, Any]:
    out = folder / f"out-{setting.processes}-{setting.accumulation}"
    given = [
        "--model", str(folder / "model"), "--tokenizer", str(folder / "tokenizer"), "--init", "random",
        "--dataset", str(folder / "text.txt"), "--packing", "--max_length", str(setting.length),
        "--per_device_train_batch_size", "1", "--max_steps", str(steps + 2),
        "--gradient_accumulation_steps", str(setting.accumulation), "--output_dir", str(out),
        "--save_only_model", "true",
    ]  # fmt: skip
    with started(given, setting.processes, folder) as running:
        bytes_sent, others = watched(out, running, steps + 1)
        try:
            codes = [process.wait(PATIENCE) for process in running]
        except subprocess.TimeoutExpired:
            codes = [process.poll() for process in running]
    if any(code != 0 for code in codes) or len(bytes_sent) <= steps:
        logs = sorted(folder.glob("rank-*.log"))
        return {"exit": codes, "told": [log.read_text(encoding="utf-8", errors="replace")[-1000:] for log in logs]}
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    settings = json.loads((out / "spillway" / "settings.json").read_text(encoding="utf-8"))
    each = [(last - first) / steps for first, last in zip(bytes_sent[0], bytes_sent[-1], strict=True)]
    planned_each = planned(out, setting.processes)
    seconds = steps_of(out)
    median = statistics.median(seconds[1:-1])
    return {
        "bytes_per_step": each, "planned_bytes_per_step": planned_each,
        "beside_plan": [there / asked for there, asked in zip(each, planned_each, strict=True)],
        "step_seconds": seconds, "median_seconds": median,
        "predicted_seconds": plan["predicted_step_seconds"], "error": plan["predicted_step_seconds"] / median - 1,
        "bottleneck": plan["bottleneck"], "seconds": plan["seconds"],
        "others": {"while_planned": others[0], "in_steps": statistics.mean(others[1:])},
        "rates": {name: settings["profile"][name] for name in ("network", "network_latency")},
    }  # fmt: skip


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    """In an order in which those of one rate come together."""
    of_all = (arguments.shape, arguments.layers, arguments.length)
    each = [Setting(*of_all, rate, 1, count) for rate in arguments.rates for count in arguments.accumulation]
    halved = [count // 2 for count in arguments.accumulation if count == 2]
    return each + [Setting(*of_all, arguments.rates[0], 2, count) for count in halved]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="wide")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=2, help="that are counted")
    parser.add_argument("--rates", type=float, nargs="+", default=[1000.0, 100.0], help="Mbit/s each way")
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--minutes", type=float, default=12, help="after which nothing is made again")
    parser.add_argument("--note", default="", help="on the machine, for readers of the results")
    parser.add_argument("--results", default=NAME, help="the name of a file in bench/results")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is taken down
    until = time.monotonic() + 60 * arguments.minutes
    made = {setting: [run(setting, arguments)] for setting in settings_of(arguments)}
    for _ in range(1, MOST_TRIES):
        for setting in sorted(made, key=lambda each: -least_disturbed(made[each])):
            if least_disturbed(made[setting]) > MOST_OTHERS and until - time.monotonic() > 60 * MINUTES_OF_ONE:
                made[setting].append(run(setting, arguments))
                kept, *others = sorted(made[setting], key=disturbed)
                beside = [{name: other.get(name) for name in OF_OTHER} for other in others]
                keep(setting, kept | {"beside": beside}, arguments.results)


def disturbed(found: dict[str, Any]) -> float:
    return max(found.get("others", {"failed": 1.0}).values())


def least_disturbed(tries: list[dict[str, Any]]) -> float:
    return min(map(disturbed, tries))


def run(setting: Setting, arguments: argparse.Namespace) -> dict[str, Any]:
    beside = machine() | processor() | {"note": arguments.note}
    with tempfile.TemporaryDirectory() as directory, joined(setting.megabits):
        model(Path(directory), setting.shape, setting.layers)
        found = setting.key() | measured(Path(directory), setting, arguments.steps) | {"machine": beside}
    print(json.dumps(found), flush=True)
    keep(setting, found, arguments.results)
    return found


def keep(setting: Setting, found: dict[str, Any], name: str) -> None:
    """In place of an earlier run of the same setting."""
    file = RESULTS / f"{name}.json"
    runs = json.loads(file.read_text())["runs"] if file.is_file() else []
    save(name, {"runs": [*(each for each in runs if not setting.key().items() <= each.items()), found]})


if __name__ == "__main__":
    main()
