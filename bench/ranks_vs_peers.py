"""Several processes on machines of their own, beside what a user would pick: DeepSpeed ZeRO-3 with its optimizer on the
drive, and FSDP2 with its parameters offloaded to host memory.

    ranks_vs_peers.py run --storage DIR [--shape 0.5b] [--sequence 128] [--ranks 2] [--accumulation 1 8]
                          [--sides NAME ...] [--rounds 1] [--minutes 15] [--rate 1gbit] [--deepspeed-python PYTHON]
                          [--results FILE]
    ranks_vs_peers.py show [--results FILE]

Each process is in a network namespace of its own, joined to the others by a bridge (as root; without, all are on
loopback), and in a memory cgroup of its own. Random weights, the same random tokens in a step on every side, AdamW,
clipping at 1.0, a thread for each process. A round runs every side once with every accumulation; of a side's steps the
first is not counted, but where eight micro-batches of a peer, which gathers weights and reduces gradients in each, are
one step. What is kept of a rank: seconds of its steps, the most memory that it had as the kernel counted it (VmHWM, and
of the cgroup, which page cache is part of), and the bytes that its network interface sent and received in the counted
steps. A side that cannot run, or not in its share of the minutes that are left, is a row with the reason; one of an
earlier call with the same settings takes its place.

    spillway-dram   all state in memory, a half of it in each of two processes
    spillway-disk   states on the drive, every step durable on both
    deepspeed       ZeRO-3, bf16, optimizer states on the drive (NVMe offload), its own Adam
    fsdp2           fully_shard of each layer, fp32 parameters that compute in bf16, CPUOffloadPolicy, AdamW
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "ranks-peers.json"
SIDES = ("spillway-dram", "spillway-disk", "deepspeed", "fsdp2")
KEY = ("side", "shape", "sequence", "ranks", "accumulation", "rate")  # of a row
SHARE = 2.0  # times what is left for each side that is still to come: what one may take
NAME = "spw"  # of bridge, namespaces and interfaces
MEMORY = Path("/sys/fs/cgroup/memory"), "memory.max_usage_in_bytes"  # of the first version of cgroups
UNIFIED = Path("/sys/fs/cgroup"), "memory.peak"  # and of the second


# ---- one process of a side


def rank_main(arguments: argparse.Namespace) -> None:
    """Prints one JSON line of what this rank has measured."""
    from shapes import refuses

    side: Callable[[argparse.Namespace, Callable[[int], None]], list[float]]
    side = {"deepspeed": deepspeed, "fsdp2": fsdp2}.get(arguments.side, spillway)
    before: list[tuple[int, int]] = []

    def counted(step: int) -> None:
        """Before each step and after the last."""
        if step in (arguments.uncounted, arguments.steps):
            before.append(moved())

    with refuses():
        seconds = side(arguments, counted)
    (sent, received), (all_sent, all_received) = before
    seconds = seconds[arguments.uncounted :]
    print(json.dumps({"seconds": seconds, "sent": all_sent - sent, "received": all_received - received,
                      "resident_peak": resident_peak()}))  # fmt: skip


def moved() -> tuple[int, int]:
    """Bytes that the interface has sent and received."""
    place = Path("/sys/class/net", os.environ["GLOO_SOCKET_IFNAME"], "statistics")
    sent, received = (int((place / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return sent, received


def resident_peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def tokens(arguments: argparse.Namespace, step: int, rank: int) -> list[Any]:
    """A rank's micro-batches of a step, [1, sequence] each; those of all ranks are the same on every side."""
    from shapes import random_tokens

    first = (step * arguments.ranks + rank) * arguments.accumulation
    return [random_tokens(arguments.shape, arguments.sequence, first + n) for n in range(arguments.accumulation)]


def spillway(arguments: argparse.Namespace, counted: Callable[[int], None]) -> list[float]:
    from shapes import config_of

    from spillway.cli.arguments import parse
    from spillway.model.batches.batch import Batch, WorkShape
    from spillway.run.protocol import Keeping, StartPoint
    from spillway.run.session import EngineSession
    from spillway.run.world import opened

    place = arguments.storage / f"rank-{arguments.rank}"
    config_of(arguments.shape).save_pretrained(place / "model")
    words = ["--model", str(place / "model"), "--init", "random", "--dataset", "none", "--overwrite"]
    words += ["--output_dir", str(place / "run"), "--gradient_accumulation_steps", str(arguments.accumulation)]
    if arguments.side == "spillway-disk":
        words += ["--storage", str(place / "state"), "--placement", "state=path", "--durability", "step"]
        (place / "state").mkdir()
    else:
        words += ["--placement", "dram"]
    seconds = []
    with opened() as world:
        config = parse(words).config().over(world.ranks)
        shape = WorkShape(config.gradient_accumulation_steps, 1, arguments.sequence, 0, 0)
        session = EngineSession(config, shape, keeping=Keeping("bench"), world=world)
        session.start(StartPoint(line=lambda: 1))
        session.commit({})
        for step in range(arguments.steps):
            rows = [ids for rank in range(arguments.ranks) for ids in tokens(arguments, step, rank)]
            counted(step)
            result = session.step([Batch(ids, ids, None, ids.numel()) for ids in rows], 1e-5)
            session.commit({})
            seconds.append(result.seconds)
        session.settle()
        counted(arguments.steps)
        session.close()
    return seconds


def deepspeed(arguments: argparse.Namespace, counted: Callable[[int], None]) -> list[float]:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed as ds
    import torch
    import torch._dynamo  # noqa: F401  before zero.Init replaces torch.Tensor's constructors
    from peers import deepspeed_settings, own_adam
    from shapes import config_of
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    torch.set_num_threads(1)
    ds.init_distributed(dist_backend="gloo")
    place = arguments.storage / f"rank-{arguments.rank}"
    place.mkdir()
    asked = argparse.Namespace(
        params_on_storage=False, storage=place, shape=arguments.shape, layers=None, buffers=5, pipeline=False,
        device="cpu", batch=1, micro_batches=arguments.accumulation, dtype="bf16", block_size=1 << 20, queue_depth=16,
        io_threads=1,
    )  # fmt: skip
    settings = deepspeed_settings(asked, own_adam())
    keep = HfDeepSpeedConfig(settings)
    torch.manual_seed(0)
    with ds.zero.Init(config_dict_or_path=settings):
        model = AutoModelForCausalLM.from_config(config_of(arguments.shape), dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    model.train()
    engine, *_ = ds.initialize(model=model, config=settings, model_parameters=model.parameters())

    def train(rows: list[Any]) -> None:
        for ids in rows:
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()

    seconds = timed(arguments, counted, train)
    del keep
    return seconds


def timed(
    arguments: argparse.Namespace, counted: Callable[[int], None], train: Callable[[list[Any]], None]
) -> list[float]:
    """Seconds of each step; `train`: on this rank's rows of one."""
    seconds = []
    for step in range(arguments.steps):
        rows = tokens(arguments, step, arguments.rank)
        counted(step)
        began = time.perf_counter()
        train(rows)
        seconds.append(time.perf_counter() - began)
    counted(arguments.steps)
    return seconds


def fsdp2(arguments: argparse.Namespace, counted: Callable[[int], None]) -> list[float]:
    import torch
    import torch.distributed as dist
    from shapes import config_of
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (arguments.ranks,))
    policy = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=False),
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(arguments.shape), dtype=torch.float32)
    model.gradient_checkpointing_enable()
    model.train()
    for layer in model.model.layers:
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)

    def train(rows: list[Any]) -> None:
        for ids in rows:
            (model(input_ids=ids, labels=ids).loss / len(rows)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    seconds = timed(arguments, counted, train)
    dist.barrier()
    dist.destroy_process_group()
    return seconds


# ---- the machines that they are on


@contextlib.contextmanager
def machines(count: int, rate: str) -> Iterator[list[tuple[list[str], dict[str, str]]]]:
    """For each the words before a command there, and what its environment says. Namespaces on a bridge where this
    process may make them, each interface at `rate` (as tc says it; empty: as fast as it goes); else loopback."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        port = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        yield [([], port) for _ in range(count)]
        return
    told = {"MASTER_ADDR": "10.93.0.1", "GLOO_SOCKET_IFNAME": "eth0"}
    try:
        ip("link", "add", f"{NAME}-br", "type", "bridge")
        ip("link", "set", f"{NAME}-br", "up")
        for number in range(count):
            join(number, rate)
        yield [(["ip", "netns", "exec", f"{NAME}{number}"], told) for number in range(count)]
    finally:
        for number in range(count):
            ip("netns", "del", f"{NAME}{number}", check=False)
        ip("link", "del", f"{NAME}-br", check=False)


def join(number: int, rate: str) -> None:
    space, outside = f"{NAME}{number}", f"{NAME}-v{number}"
    ip("netns", "add", space)
    ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
    ip("link", "set", outside, "master", f"{NAME}-br", "up")
    ip("-n", space, "addr", "add", f"10.93.0.{number + 1}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        ip("-n", space, "link", "set", device, "up")
    if rate:
        shape = ["tbf", "rate", rate, "burst", "1mb", "latency", "50ms"]
        subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *shape], check=True)
        subprocess.run(["tc", "qdisc", "add", "dev", outside, "root", *shape], check=True)


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


class Cgroup:
    """What the kernel counts of a process's memory; nothing where cgroups cannot be made."""

    def __init__(self, name: str) -> None:
        self._place: Path | None = None
        for root, peak in (MEMORY, UNIFIED):
            place = root / name
            with contextlib.suppress(OSError):
                place.mkdir(exist_ok=True)
                if (place / peak).exists():
                    self._place, self._peak = place, place / peak
                    return
                place.rmdir()

    def enter(self) -> None:
        """In the process that it is of."""
        if self._place is not None:
            (self._place / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int | None:
        return int(self._peak.read_text()) if self._place is not None else None

    def remove(self) -> None:
        """Once its processes have ended."""
        if self._place is not None:
            with contextlib.suppress(OSError):
                self._place.rmdir()


# ---- rounds


def run(arguments: argparse.Namespace) -> None:
    if arguments.storage is None or not arguments.storage.is_dir():
        raise SystemExit(f"--storage names a directory that exists, not {arguments.storage}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is taken down
    content = read(arguments.results)
    until = time.monotonic() + 60 * arguments.minutes
    one_round = [(side, count) for count in arguments.accumulation for side in arguments.sides]
    left = one_round * arguments.rounds
    with machines(arguments.ranks, arguments.rate) as places:
        for number in range(len(left)):
            side, accumulation = left[number]
            remains = max(0.0, until - time.monotonic())
            patience = min(remains, SHARE * remains / (len(left) - number))
            found = measure(side, accumulation, arguments, places, patience)
            print(line(found), flush=True)
            if number < len(one_round):
                content["runs"] = [
                    each for each in content["runs"] if any(each.get(name) != found[name] for name in KEY)
                ]
            content["runs"].append(found)
            keep(arguments.results, content)


def measure(
    side: str,
    accumulation: int,
    arguments: argparse.Namespace,
    places: list[tuple[list[str], dict[str, str]]],
    patience: float,
) -> dict[str, Any]:
    from headline import where

    uncounted = 0 if accumulation > 1 and not side.startswith("spillway") else 1
    found: dict[str, Any] = {
        "side": side, "shape": arguments.shape, "sequence": arguments.sequence, "ranks": arguments.ranks,
        "accumulation": accumulation, "steps": uncounted + (2 if accumulation == 1 else 1), "rate": arguments.rate,
        "processor": where(), "date": datetime.date.today().isoformat(), "load": os.getloadavg()[0],
    }  # fmt: skip
    python = arguments.deepspeed_python if side == "deepspeed" else sys.executable
    groups = [Cgroup(f"spillway-rank-{rank}") for rank in range(arguments.ranks)]
    with tempfile.TemporaryDirectory(dir=arguments.storage) as work:
        command = [python, str(Path(__file__).resolve()), "rank", "--side", side, "--accumulation", str(accumulation),
                   "--shape", arguments.shape, "--sequence", str(arguments.sequence), "--ranks", str(arguments.ranks),
                   "--steps", str(found["steps"]), "--uncounted", str(uncounted), "--storage", work]  # fmt: skip
        processes = [
            subprocess.Popen(
                [*prefix, *command, "--rank", str(rank)], env=environment(rank, arguments.ranks, told),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
                preexec_fn=groups[rank].enter,
            )
            for rank, (prefix, told) in enumerate(places)
        ]  # fmt: skip
        try:
            said = heard(processes, patience)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    peaks = [group.peak() for group in groups]
    for group in groups:
        group.remove()
    if isinstance(said, str):
        return found | {"refused": said}
    of_ranks = [each | {"cgroup_peak": peak} for each, peak in zip(said, peaks, strict=True)]
    slowest = [max(each) for each in zip(*(rank["seconds"] for rank in of_ranks), strict=True)]
    return found | {
        "of_ranks": of_ranks, "median_seconds": statistics.median(slowest),
        "sent_per_step": max(rank["sent"] for rank in of_ranks) / len(slowest),
        "resident_peak": max(rank["resident_peak"] for rank in of_ranks),
    }  # fmt: skip


def heard(processes: list[subprocess.Popen[str]], patience: float) -> list[dict[str, Any]] | str:
    """What each rank has said, or why one did not."""
    until, said = time.monotonic() + patience, []
    for rank, process in enumerate(processes):
        try:
            out, errors = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"more than {patience / 60:.1f} minutes"
        if process.returncode != 0:
            last = (errors.strip().splitlines() or ["nothing"])[-1]
            return f"rank {rank} ended with {process.returncode}: {last}"
        said.append(json.loads(out.strip().splitlines()[-1]))
    return said


def environment(rank: int, ranks: int, told: dict[str, str]) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_PORT": "29531", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    } | told  # fmt: skip


# ---- what was found


def read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.is_file() else {"host": socket.gethostname(), "runs": []}


def keep(file: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(file)


def line(found: dict[str, Any]) -> str:
    start = f"{found['side']:14} accumulation {found['accumulation']}:"
    if "refused" in found:
        return f"{start} {found['refused']}"
    of_ranks = found["of_ranks"]
    groups = [rank["cgroup_peak"] for rank in of_ranks if rank["cgroup_peak"] is not None]
    cache = f", with page cache {max(groups) / 2**30:.2f}" if groups else ""
    return (
        f"{start} {found['median_seconds']:8.2f} s a step, {found['sent_per_step'] / 1e9:6.3f} GB sent by a rank in a "
        f"step, {found['resident_peak'] / 2**30:5.2f} GiB{cache}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "show", "rank"))
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rate", default="", help="of each interface, as tc says it")
    parser.add_argument("--deepspeed-python", default=sys.executable, help="of an environment with DeepSpeed")
    parser.add_argument("--minutes", type=float, default=15, help="that all of it may take")
    parser.add_argument("--results", type=Path, default=RESULTS)
    for name in ("--side", "--rank", "--steps", "--uncounted"):  # of one process
        parser.add_argument(name, type=str if name == "--side" else int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.what == "show":
        print("\n".join(map(line, read(arguments.results)["runs"])))
    elif arguments.what == "run":
        run(arguments)
    else:
        arguments.accumulation = arguments.accumulation[0]
        rank_main(arguments)


if __name__ == "__main__":
    main()
