"""Several processes: who they are, what each computes, how they end together; and whole runs under torchrun, equal to a
run of one process bit by bit."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import real_runs
import seeds
from folders import REPOSITORY
from hf_models import batch, random_ids
from native import GPU
from spillway._engine import DeviceSettings, EngineSettings, NodeShare, PassSeconds, PathSettings, Profile
from spillway.base.ranks import ALONE, Ranks, machines_of, of_environment
from spillway.config import checks, resolve
from spillway.errors import DoesNotFit, InputError, Interrupted
from spillway.machine import device, nodes
from spillway.model.batches.microbatch import Share, arrange, share_of
from spillway.output.records import rows
from spillway.run import alike, engine_spec, room
from spillway.run.interruption import Interruption
from spillway.run.processes import Failure, first_of, placed
from spillway.run.world import OneProcess

LIMIT = 300
HOST = socket.gethostname()


# ---- who a process is, and what is its own


def test_who_a_process_is() -> None:
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert of_environment(launched) == Ranks(3, 4, 1, 2)
    assert of_environment({}) == of_environment({"WORLD_SIZE": "1", "RANK": "0"}) == ALONE
    for name, value in (("RANK", "4"), ("RANK", "three"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "-2"), ("RANK", "")):
        with pytest.raises(InputError, match=name):
            of_environment(launched | {name: value})
    assert Ranks(3, 4, 1, 2).filled("/mnt/nvme{local_rank}/of-{rank}") == "/mnt/nvme1/of-3"
    assert placed(2, ["a", "b", "b"]) == Ranks(2, 3, 1, 2)
    assert machines_of([(0, 2), (1, 2), (0, 2), (1, 2)]) == 2
    assert machines_of([(0, 3), (1, 3), (2, 3)]) == 1
    assert machines_of([(0, 1), (0, 2), (1, 2)]) == 3, "not as many on each: none has anything to do with its own alone"
    assert machines_of([(0, 2), (0, 2), (1, 2), (1, 2)]) == 4, "in another order"


@pytest.mark.parametrize(("micro_batches", "virtual_ranks"), [(9, 4), (3, 4), (4, 4), (7, 3), (1, 2), (16, 8)])
def test_processes_share_a_step_as_virtual_ranks(micro_batches: int, virtual_ranks: int) -> None:
    work = arrange([batch(random_ids(1, 5, n)) for n in range(micro_batches)], virtual_ranks=virtual_ranks)
    for world in range(1, virtual_ranks + 1):
        shares = [share_of(micro_batches, virtual_ranks, rank, world) for rank in range(world)]
        taken = [work.micro_batches[share] for share in shares]
        assert [each for part in taken for each in part] == work.micro_batches
        of_ranks = [{each.rank for each in part} for part in taken]
        assert sum(map(len, of_ranks)) == work.ranks  # no virtual rank is on two processes
        most = Share(0, world, virtual_ranks).most(micro_batches)
        assert max(map(len, taken)) <= most
        for share in shares:
            part = work.part(share)
            assert part.units == work.units and part.ids.numel() == part.tokens == sum(part.counts)
            assert [each.index for each in part.micro_batches] == list(range(len(part.micro_batches)))
            assert [each.number for each in part.micro_batches] == [each.number for each in work.micro_batches[share]]


def test_a_step_is_that_of_all_processes(tmp_path: Path) -> None:
    given = {"gradient_accumulation_steps": 3, "storage": ["/mnt/nvme{local_rank}/s,capacity=1GiB"]}
    config = resolve(given, {}).over(Ranks(3, 4, 1, 2))
    assert (config.virtual_ranks, config.gradient_accumulation_steps) == (4, 12)
    assert [path.place for path in config.paths] == ["/mnt/nvme1/s"]
    assert "/mnt/nvme{local_rank}/s" in config.text()
    (tmp_path / "config.yaml").write_text(config.text())  # what is written means the same to one process
    alone = resolve({}, {"virtual_ranks": config.virtual_ranks, "gradient_accumulation_steps": 12}).over(ALONE)
    assert (alone.virtual_ranks, alone.gradient_accumulation_steps) == (4, 12)
    kept = resolve(given | {"virtual_ranks": 8}, {}).over(Ranks(0, 2, 0, 2))
    assert (kept.virtual_ranks, kept.gradient_accumulation_steps) == (8, 3)


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"virtual_ranks": 2, "gradient_accumulation_steps": 8}, ["virtual_ranks: 2", "3 processes"]),
        ({"virtual_ranks": 4, "gradient_accumulation_steps": 2}, ["gradient_accumulation_steps: 2", "give 3"]),
    ],
)
def test_what_they_cannot_do_together_is_refused_by_name(
    tmp_path: Path, keys: dict[str, Any], parts: list[str]
) -> None:
    config = resolve({}, {"model": str(tmp_path), "output_dir": str(tmp_path / "out"), **keys}).over(Ranks(0, 3, 0, 3))
    with pytest.raises(InputError) as refused:
        checks.check(config, ())
    assert all(part in str(refused.value) for part in parts), refused.value


# ---- what they plan with, and how they end


class Told(OneProcess):
    """Processes of which each call is answered with what they were made to say."""

    def __init__(self, *said: Any) -> None:
        super().__init__()
        self.ranks, self._said = Ranks(0, len(said), 0, len(said)), said

    def gather(self, value: Any) -> list[Any]:
        return list(self._said)


def test_all_plan_for_the_one_that_has_least() -> None:
    def settings(rank: int) -> EngineSettings:
        return EngineSettings(
            dram_budget=8 - 2 * rank, work_bytes=2 + rank, seconds=PassSeconds(forward=1 - rank / 2), threads=2 + rank,
            storage=[PathSettings(directory="/ab"[: 2 + rank], capacity=9 - 2 * rank)],
            profile=Profile(copy_bytes_per_second=5 - rank, network_latency=1e-3 * (1 + rank)),
        )  # fmt: skip

    first, other = settings(0), settings(1)
    sent = pickle.loads(pickle.dumps(other))  # as another process sends it
    assert sent == other
    found = alike.agree_settings(Told(first, sent), first)
    assert found == EngineSettings(
        dram_budget=6, work_bytes=3, seconds=PassSeconds(forward=1), threads=2,
        storage=[PathSettings(directory="/a", capacity=7)],
        profile=Profile(copy_bytes_per_second=4, network_latency=2e-3),
    )  # fmt: skip
    other.storage = []
    with pytest.raises(InputError, match="storage: the processes have"):
        alike.agree_settings(Told(first, other), first)
    with pytest.raises(InputError, match="seed: rank 0 has 42, rank 1 has 43"):
        alike.same(Told({"seed": 42}, {"seed": 43}), {"seed": 42})


def test_directory_of_two_processes_is_refused(tmp_path: Path) -> None:
    """Two names of one directory are refused."""
    (tmp_path / "drive0").mkdir()
    (tmp_path / "drive1").symlink_to("drive0")
    config = resolve({}, {"storage": [f"{tmp_path}/drive{{local_rank}}"]})
    first, other = (alike.list_places(config.among(Ranks(rank, 2, rank, 2))) for rank in (0, 1))
    with pytest.raises(InputError, match="ranks 0 and 1 .* the same directory .*drive0, .* give one directory without"):
        alike.places(Told(("host", first), ("host", other)), config)
    alike.places(Told(("host", first), ("another", other)), config)


def test_each_has_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    own, first = (
        [resolve({}, {"device": name}).over(Ranks(r, 2, r, 2)) for r in (0, 1)] for name in ("cuda", "cuda:0")
    )
    assert [device.number(config) for config in own] == [0, 1]
    alike.places(Told(*(("host", alike.list_places(config)) for config in own)), own[0])
    told = [("host", alike.list_places(config)) for config in first]
    with pytest.raises(InputError, match="device: ranks 0 and 1 .* the same GPU cuda:0; --device cuda"):
        alike.places(Told(*told), first[0])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # as a launcher may say it to each, whose only one is cuda:0
    alike.places(Told(told[0], ("host", alike.list_places(first[1]))), first[0])
    of_gpus = [EngineSettings(device=DeviceSettings(stream=rank, work=2 + rank, memory=9 - rank)) for rank in (0, 1)]
    found = alike.agree_settings(Told(*of_gpus), of_gpus[1])
    assert found.device == DeviceSettings(stream=1, work=3, memory=8)


def test_each_has_its_part_of_memory(tmp_path: Path) -> None:
    on_machine = Told((HOST, [0, 1]), (HOST, [1]), ("another", [0]))
    assert engine_spec.sharing(on_machine, [0, 1]) == [1, 2]
    there = [NodeShare(id=0, capacity=110), NodeShare(id=1, capacity=100)]
    nodes.share_nodes(there, [], 10, None, {0: 2, 1: 4})
    assert there == [
        NodeShare(id=0, capacity=60),
        NodeShare(id=1, capacity=25),
    ]  # beside what it has on the first
    files = resolve({}, {"memory_file": [f"{tmp_path}/{{local_rank}}=6B"]}).over(Ranks(3, 4, 1, 2)).files
    assert [(share.directory, share.capacity) for share in files] == [(f"{tmp_path}/1", 6)]
    room.require_files(Told([("one", 1, "/pmem", 6, 10)], [("other", 1, "/pmem", 6, 10)]), [])
    with pytest.raises(DoesNotFit, match="memory_file: the file system of /pmem .* ask for 12 B"):
        room.require_files(Told([("one", 1, "/pmem", 6, 10)], [("one", 1, "/pmem", 6, 10)]), [])


def test_the_first_failure_is_told() -> None:
    own, follows, lost = Failure(2, "drive", 1), Failure(0, "rank 2", 1, follows=True), Failure(3, "ended", 1)
    assert first_of([follows, own], [lost]) == own
    assert first_of([follows], [lost]) == lost
    assert first_of([follows], []) == follows
    assert first_of([], []) is None
    every = [Failure(rank, "seed: no", 2) for rank in range(3)]
    assert first_of(every, []) == Failure(-1, "seed: no", 2)  # nobody's own


def test_no_signal_ends_one_of_them_alone() -> None:
    with Interruption() as interruption:
        interruption.speaks = False
        with pytest.raises(Interrupted), interruption.held():
            signal.raise_signal(signal.SIGTERM)
            assert interruption.signal == signal.SIGTERM  # and it went on
        with interruption.held():
            pass  # it has been told
    with Interruption() as interruption:
        interruption.finish_steps()
        interruption.agree([0, 0])
        interruption.signal = signal.SIGINT
        assert not interruption  # until all have heard of it
        interruption.agree([0, signal.SIGINT])
        assert interruption


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


SCRIPT = """
import os, sys
from spillway.cli import command
from spillway.errors import InputError
from spillway.run.world import opened

def run(arguments):
    with opened() as world:
        rank = world.ranks.rank
        assert world.gather(10 * rank) == [0, 10, 20], rank
        assert world.agreed(lambda: f"of {rank}") == "of 0"
        if sys.argv[-1] == "raises" and rank == 1:
            raise InputError("storage: there is no directory /there")
        if sys.argv[-1] == "leads" and rank == 0:
            raise InputError("storage: there is no directory /there")
        if sys.argv[-1] == "alike":
            raise InputError("seed: no")
        if sys.argv[-1] == "dies" and rank == 2:
            os._exit(9)
        if sys.argv[-1] == "first" and rank == 0:
            os._exit(9)
        world.gather(None)
    print("done", flush=True)
    return 0

command.VERBS["train"] = command.Verb("", "", run, own_signals=True)
sys.exit(command.main(["train"]))
"""


def ranks_of(
    script: str, world: int, *words: str, env_more: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[str, str, int]]:
    """What each of so many processes has said, and how it ended."""
    where = {**env_more, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    started = [real_runs.apart("-c", script, *words, env_more={**where, "RANK": str(rank)}) for rank in range(world)]
    return [(*process.communicate(timeout=LIMIT), process.returncode) for process in started]


@pytest.mark.parametrize(
    ("how", "codes", "told"),
    [
        ("well", [0, 0, 0], ""),
        ("raises", [2, 2, 2], f"spillway: rank 1 ({HOST}): storage: there is no directory /there"),
        ("leads", [2, 2, 2], f"spillway: rank 0 ({HOST}): storage: there is no directory /there"),
        ("alike", [2, 2, 2], "spillway: seed: no"),
        ("dies", [1, 1, 9], f"spillway: rank 2 ({HOST}): has ended without a word"),
        ("first", [9, 1, 1], f"spillway: rank 0 ({HOST}): has ended without a word"),
    ],
)
def test_they_end_together_and_it_is_told_once(how: str, codes: Sequence[int], told: str) -> None:
    ends = ranks_of(SCRIPT, 3, how)
    assert [code for *_, code in ends] == list(codes), ends
    said = [line for _, error, _ in ends for line in error.splitlines() if line.startswith("spillway: ")]
    assert [line.startswith(told) for line in said] == ([True] if told else []), ends


# ---- whole runs


EXAMPLES = REPOSITORY / "examples/processes"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]


def torchrun(world: int, words: Sequence[object], timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """The installed command in so many processes, as a person starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [*LAUNCHER, str(world), "-m", "spillway", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


CODES = ("--method", "lora", "--load_in_4bit", "true")
MUON = ("--optim", "muon")
LSP = ("--method", "lsp", "--lsp_rank", "8", "--lsp_nonzeros", "2", "--lsp_rotate_every", "2")
KEYS = ("--virtual_ranks", "4", "--gradient_accumulation_steps", "6", "--max_steps", "4", "--save_steps", "2")


def on_paths(place: Path, world: int) -> list[str]:
    """Half of it on a path of each process."""
    for rank in range(world):
        (place / f"drive{rank}").mkdir(parents=True)
    halves = "weight=50%,state=50%,grad=path,activation=dram"
    return ["--storage", f"{place}/drive{{local_rank}},capacity=512MiB", "--placement", halves]


def one_process(given: Path, out: Path, *keys: str) -> None:
    process = real_runs.apart("-m", "spillway", *real_runs.words(given, out, *keys))
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, error


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("ranks"))


def test_two_processes_make_what_one_makes(given: Path, tmp_path: Path) -> None:
    """The last step of an epoch has fewer micro-batches than ranks; their state lies half on a path of each. By
    torchrun they begin in the nightly tests."""
    one_process(given, tmp_path / "one", *KEYS)
    ranks = processes(2, given, tmp_path / "two", *KEYS, *on_paths(tmp_path, 2))
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    assert real_runs.result(tmp_path / "two") == real_runs.result(tmp_path / "one")
    shown = ends[0][0]
    assert shown.count("step 4/4") == 2, shown  # the line of the step, and of the checkpoint
    assert "2 processes train together" in shown and "step" not in ends[1][0]
    written = (tmp_path / "two" / "config.yaml").read_text()
    assert "virtual_ranks: 4" in written and "drive{local_rank}" in written
    told = json.loads((tmp_path / "two" / "summary.json").read_text())["ranks"]
    names = [(each["rank"], each["host"], set(each["waited_for"])) for each in told]
    assert names == [(0, HOST, {"1"}), (1, HOST, {"0"})]
    assert 'id="late-1"' in (tmp_path / "two" / "report.html").read_text()


def weights_and_rows(out: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    metrics, files, _ = real_runs.result(out)
    return metrics, {name: data for name, data in files.items() if not name.endswith("run.json")}  # which has the keys


def test_the_base_of_adapters_is_kept_once_by_all_processes_together(given: Path, tmp_path: Path) -> None:
    """Codes of 4 bits in memory: each of two keeps half of them, and the result is that of one process."""
    one_process(given, tmp_path / "one", *KEYS, *CODES)
    kept = {}
    for name, more in (("each", ()), ("once", ("--shard_frozen", "true"))):
        ranks = processes(2, given, tmp_path / name, *KEYS, *CODES, *more)
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
        assert [code for *_, code in ends] == [0, 0], ends
        assert weights_and_rows(tmp_path / name) == weights_and_rows(tmp_path / "one")
        planned = json.loads((tmp_path / name / "plan.json").read_text())["bytes"]
        kept[name] = sum(each["bytes"] for each in planned if (each["class"], each["tier"]) == ("weight", "dram"))
    assert kept["once"] < 0.7 * kept["each"], kept


def test_several_train_under_a_budget_that_is_too_small_for_one(given: Path, tmp_path: Path) -> None:
    """In memory alone: each keeps half of the state, and what it keeps of it stays below its plan."""
    wide = tmp_path / "wide"
    shutil.copytree(given / "model", wide, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((wide / "config.json").read_text()) | {"hidden_size": 512, "intermediate_size": 4096}
    (wide / "config.json").write_text(json.dumps(config))
    keys = ("--model", str(wide), "--init", "random", "--max_steps", "1", "--virtual_ranks", "2")
    small = real_runs.apart(
        "-m", "spillway", *real_runs.words(given, tmp_path / "one", *keys, "--dram_budget", "560MiB")
    )
    refusal = small.communicate(timeout=LIMIT)[1]
    assert small.returncode == 3
    (needed,) = re.findall(r"the smallest plan for this placement needs ([0-9.]+) MiB", refusal)
    budget = ("--dram_budget", str(int((float(needed) - 12) * 2**20)))
    ends = [
        (*process.communicate(timeout=LIMIT), process.returncode)
        for process in processes(2, given, tmp_path / "two", *keys, *budget)
    ]
    assert [code for *_, code in ends] == [0, 0], ends
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["process_peak"] <= int(budget[1]) * 1.02


@pytest.mark.nightly
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize(
    "keys",
    [
        (),
        ("--method", "lora"),
        CODES,
        (*CODES, "--shard_frozen", "true"),
        (*CODES, "--shard_frozen", "true", "--use_dora", "true", "--lora_rank_pattern", '{"q_proj": 2}'),
        MUON,
        LSP,
        ("--state_format", "int8", "--weight_dtype", "bf16"),
        ("--compute_dtype", "fp32"),
        ("--device", "simulated"),
    ],
)
def test_any_number_of_processes_makes_the_same(given: Path, tmp_path: Path, world: int, keys: tuple[str, ...]) -> None:
    one_process(given, tmp_path / "one", *KEYS, *keys)
    words = real_runs.words(given, tmp_path / "several", *KEYS, *keys, *on_paths(tmp_path, world))
    found = torchrun(world, words, 600)
    assert found.returncode == 0, found.stderr
    assert real_runs.result(tmp_path / "several") == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
@pytest.mark.parametrize(("where", "method"), [("dram", "full"), ("path", "full"), ("path", "lora")])
def test_blocks_live_on_the_device_of_each_and_change_no_bit(
    given: Path, tmp_path: Path, where: str, method: str
) -> None:
    """The CPUs are so slow that updates there are worth it, and the link so slow that states stay."""
    gpu = GPU | {"to_gpu_bytes_per_second": 1e6, "from_gpu_bytes_per_second": 1e6}
    slow = {"update_elements_per_second": 1e5, "update_elements_per_second_all_cores": 1e5, "gpus": [gpu]}
    profile = json.loads((given / "profile.json").read_text()) | slow
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    keys = (*KEYS, "--method", method)
    on_device = (*keys, "--device", "simulated", "--profile", str(tmp_path / "profile.json"))
    one_process(given, tmp_path / "one", *keys)
    one_process(given, tmp_path / "alone", *on_device)
    paths = [*on_paths(tmp_path, 2), "--durability", "step"] if where == "path" else []
    ranks = processes(2, given, tmp_path / "two", *on_device, *paths)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    plain = real_runs.result(tmp_path / "one")
    for name in ("alone", "two"):
        assert real_runs.result(tmp_path / name) == plain
        blocks = json.loads((tmp_path / name / "plan.json").read_text())["device_blocks"]
        assert blocks["state_and_update"] > 0, blocks
    assert "live there with their states" in ends[0][0]


ENDS = """
import sys
from spillway.cli import main
from spillway.run.session import EngineSession
EngineSession.give_up_volumes = lambda self: None  # as if it were killed there
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_a_run_that_was_killed_at_its_very_end_leaves_no_volumes(given: Path, tmp_path: Path) -> None:
    keys = (*KEYS, *on_paths(tmp_path, 2), "--durability", "step", "--resume_from_checkpoint", "auto")
    left = tmp_path / "out" / ".old-checkpoint-1"
    for command in (["-c", ENDS], ["-m", "spillway"]):
        words = [*command, *real_runs.words(given, tmp_path / "out", *keys)]
        ends = [(*each.communicate(timeout=LIMIT), each.returncode) for each in started(2, words)]
        assert [code for *_, code in ends] == [0, 0], ends
        if command[0] == "-c":
            assert len(list(tmp_path.glob("drive*/*"))) == 2
            left.mkdir()
    assert "The run is complete" in ends[0][0] and not list(tmp_path.glob("drive*/*")) and not left.exists()


@pytest.mark.nightly
def test_memory_files_and_a_node_change_no_bit(given: Path, tmp_path: Path) -> None:
    """Each has a file in a directory of its own, and no more of the first node than it asks for."""
    one_process(given, tmp_path / "one", *KEYS)
    for rank in range(2):
        (tmp_path / f"memory{rank}").mkdir()
    places = ("--memory_file", f"{tmp_path}/memory{{local_rank}}=64MiB", "--placement", "grad=file:0,activation=file:0")
    ranks = processes(2, given, tmp_path / "two", *KEYS, *places, "--node", "0=2GiB")
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    assert real_runs.result(tmp_path / "two") == real_runs.result(tmp_path / "one")
    tiers = {tier["name"]: tier for tier in json.loads((tmp_path / "two" / "plan.json").read_text())["tiers"]}
    assert tiers["file:0"]["planned_peak"] > 0 and tiers["dram"]["capacity"] <= 2 << 30


@pytest.mark.nightly
def test_two_processes_on_each_of_two_machines_make_the_same(given: Path, tmp_path: Path) -> None:
    one_process(given, tmp_path / "one", *KEYS)
    ends = [
        (*process.communicate(timeout=LIMIT), process.returncode)
        for process in processes(4, given, tmp_path / "four", *KEYS, machines=2)
    ]
    assert [code for *_, code in ends] == [0, 0, 0, 0], ends
    assert "go between machines" in ends[0][0]
    assert real_runs.result(tmp_path / "four") == real_runs.result(tmp_path / "one")


@pytest.mark.nightly
def test_another_number_goes_on_from_a_checkpoint(given: Path, tmp_path: Path) -> None:
    """Evaluations come where each of its parts ends, too, and a rate that does not depend on where that is."""
    constant = ("--eval_steps", "2", "--lr_scheduler_type", "constant")
    evaluated = ("--eval_dataset", str(given / "held_out.jsonl"), *constant)
    one_process(given, tmp_path / "whole", *KEYS, *evaluated, "--max_steps", "6")
    one_process(given, tmp_path / "out", *KEYS, *evaluated, "--max_steps", "2")
    for world, steps in ((3, 4), (2, 6)):
        again = ["--max_steps", str(steps), "--resume_from_checkpoint", "true"]
        found = torchrun(world, real_runs.words(given, tmp_path / "out", *KEYS, *evaluated, *again), 600)
        assert found.returncode == 0, found.stderr
        assert "going on after step" in found.stdout
    assert real_runs.result(tmp_path / "out") == real_runs.result(tmp_path / "whole")


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_equal_to_plain_pytorch(given: Path, tmp_path: Path, how: str) -> None:
    """The scripts of examples/processes, over the same rows."""
    for name, last in (("plain", how), ("streamed", str(tmp_path / "drive"))):
        script = [EXAMPLES / f"{name}.py", given / "model", given / "train.jsonl", tmp_path / name, last]
        found = subprocess.run([*LAUNCHER, "2", *map(str, script)], capture_output=True, text=True, timeout=600)
        assert found.returncode == 0, found.stderr
    plain, streamed = (list(rows(tmp_path / name / "metrics.jsonl")) for name in ("plain", "streamed"))
    assert len(plain) == 20
    assert [row["loss"] for row in streamed] == pytest.approx([row["loss"] for row in plain], rel=1e-6)
    assert [row["grad_norm"] for row in streamed] == pytest.approx([row["grad_norm"] for row in plain], rel=1e-5)


def processes(world: int, given: Path, out: Path, *keys: str, machines: int = 1) -> list[Any]:
    return started(world, ["-m", "spillway", *real_runs.words(given, out, *keys)], machines)


def started(world: int, words: Sequence[str], machines: int = 1) -> list[Any]:
    return [real_runs.apart(*words, env_more=own) for own in environments(world, machines)]


def environments(world: int, machines: int = 1) -> list[dict[str, str]]:
    """What a launcher tells each of the processes, in the order of their ranks."""
    local = world // machines
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    where |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(local)}
    return [{**where, "RANK": str(rank), "LOCAL_RANK": str(rank % local)} for rank in range(world)]


def wait_for_rows(count: int, ranks: list[Any], out: Path) -> None:
    """Until so many steps are told, or a process has ended."""
    began = time.monotonic()
    while len(list(rows(out / "metrics.jsonl"))) < count and time.monotonic() - began < LIMIT:
        if any(process.poll() is not None for process in ranks):
            return
        time.sleep(0.02)


def under_way(world: int, given: Path, out: Path, *keys: str) -> list[Any]:
    """The processes of a run that has made a step."""
    ranks = processes(world, given, out, *keys, "--max_steps", "500")
    wait_for_rows(1, ranks, out)
    assert all(process.poll() is None for process in ranks), [process.communicate() for process in ranks]
    return ranks


@pytest.mark.nightly
def test_a_signal_to_any_of_them_ends_all_after_the_same_step(given: Path, tmp_path: Path) -> None:
    ranks = under_way(2, given, tmp_path / "out", "--virtual_ranks", "2", "--gradient_accumulation_steps", "2")
    ranks[1].send_signal(signal.SIGTERM)
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [143, 143], ends
    assert "is saved in" in ends[0][1] and "is saved in" not in ends[1][1]
    step = len(list(rows(tmp_path / "out" / "metrics.jsonl")))
    assert real_runs.last_checkpoint(tmp_path / "out").name == f"checkpoint-{step}"


@pytest.mark.nightly
def test_the_others_end_when_one_is_killed(given: Path, tmp_path: Path) -> None:
    ranks = under_way(3, given, tmp_path / "out", "--virtual_ranks", "3", "--gradient_accumulation_steps", "3")
    ranks[2].kill()
    ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [1, 1, -signal.SIGKILL], ends
    assert f"rank 2 ({HOST}): has ended without a word" in ends[0][1]
    assert not ends[1][1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("killed", "more"), [((0,), ()), ((1,), ()), ((0, 1), ()), ((1,), CODES), ((0,), MUON), ((1,), LSP)]
)
def test_a_step_is_durable_on_all_processes_or_on_none(
    given: Path, tmp_path: Path, killed: tuple[int, ...], more: tuple[str, ...]
) -> None:
    """Killed at random instants again and again, it goes on from the last step that all have."""
    keys = (*KEYS, "--max_steps", "8", *more)
    one_process(given, tmp_path / "one", *keys)
    instants, out, went_on, told = seeds.instants(f"ranks {killed} {more}"), tmp_path / "out", 0, 0
    where = (*on_paths(tmp_path, 2), "--durability", "step", "--resume_from_checkpoint", "auto")
    for life in range(5):
        ranks = processes(2, given, out, *keys, *where)
        if life < 4:
            wait_for_rows(told + 1, ranks, out)
            time.sleep(instants.uniform(0, 0.5))
            for rank in killed:
                ranks[rank].kill()
        ends = [(*process.communicate(timeout=LIMIT), process.returncode) for process in ranks]
        told = len(list(rows(out / "metrics.jsonl")))
        went_on += "from the storage paths" in ends[0][0]
        if all(code == 0 for *_, code in ends):
            break
        assert life < 4 and all(code in (0, 1, -signal.SIGKILL) for *_, code in ends), ends
    assert went_on
    assert real_runs.result(out) == real_runs.result(tmp_path / "one")
    assert not list(tmp_path.glob("drive*/*"))  # what no checkpoint needs is gone


@pytest.mark.nightly
def test_the_volumes_of_one_that_are_gone_are_missed(given: Path, tmp_path: Path) -> None:
    where = (*on_paths(tmp_path, 2), "--durability", "step", "--virtual_ranks", "2")
    ranks = under_way(2, given, tmp_path / "out", "--gradient_accumulation_steps", "2", *where)
    for process in ranks:
        process.kill()
        process.communicate(timeout=LIMIT)
    (tmp_path / "drive0" / "spillway.shard-0-of-2.volume").unlink()
    again = (*where, "--gradient_accumulation_steps", "2", "--resume_from_checkpoint", "auto", "--max_steps", "500")
    ends = [
        (*each.communicate(timeout=LIMIT), each.returncode) for each in processes(2, given, tmp_path / "out", *again)
    ]
    assert [code for *_, code in ends] == [2, 2], ends
    assert "nothing of it on those of rank 0" in ends[0][1]
