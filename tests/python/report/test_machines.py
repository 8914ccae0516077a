"""`spillway plan --profile` for machines that are not this one."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from folders import REPOSITORY
from model_directories import model_shapes
from spillway import _engine as engine
from spillway import cli
from spillway.config import Config, resolve
from spillway.errors import InputError
from spillway.report import machine_tables
from spillway.run.cluster import bound_from
from spillway.run.machine_request import widths
from spillway.run.machines import choose_compute_dtype, described, refuse_elsewhere
from spillway.run.train import plan_config

PROFILES = sorted((REPOSITORY / "profiles").glob("*.json"))
PARAMETERS = 494_032_768  # of Qwen2.5-0.5B
SMALL = ("--per_device_train_batch_size", "1", "--gpu_memory", "2560MiB")  # a GPU that does not hold its states


Plan = Callable[..., tuple[int, str, str]]


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Exit code, output and message of the verb for a model's shape, a profile and further words."""

    def run(name: str, profile: Path, *words: str) -> tuple[int, str, str]:
        model = model_shapes.write(tmp_path, name)
        code = cli.main(["plan", "--model", str(model), "--profile", str(profile), *words])
        return (code, *capsys.readouterr())

    return run


def profile(name: str) -> Path:
    return REPOSITORY / "profiles" / f"{name}.json"


def altered(directory: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    content = json.loads(profile("two-drives").read_text())
    change(content)
    path = directory / "altered.json"
    path.write_text(json.dumps(content))
    return path


def test_a_machine_that_comes_along_is_meant_by_its_name(plan: Plan, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--max_length", "1024", "--json")
    assert plan("Qwen2.5-0.5B", Path("workstation"), *words) == plan("Qwen2.5-0.5B", profile("workstation"), *words)
    code, _, message = plan("Qwen2.5-0.5B", Path("mainframe"), *words)
    assert code == 2
    cards = "gb10, h100, h200, l40s, laptop, rtx-3090, rtx-4090, rtx-5090"
    names = f"a100, b200, cluster, {cards}, server, two-drives, workstation"
    assert f"no file mainframe, and no installed profile of this name; installed are {names}" in message


def test_a_step_there_is_drawn(plan: Plan, tmp_path: Path) -> None:
    file = tmp_path / "step.svg"
    code, _, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *SMALL, "--max_length", "1024", "--graph", str(file))
    drawn = ElementTree.parse(file).getroot()
    shown = {it.text for it in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert code == 0 and {"compute", "to_device", "forward", "upload weight", "update"} <= shown


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_that_comes_along_is_one_and_says_where_it_is_from(path: Path) -> None:
    found = engine.Profile.parse(path.read_text(), str(path))
    assert found.machine and found.comment


def test_a_plan_says_where_everything_lives_and_what_fits(plan: Plan) -> None:
    code, words, _ = plan(
        "Qwen2.5-0.5B", profile("two-drives"), *SMALL, "--max_length", "1024", "--dram_budget", "4GiB", "--json"
    )
    found = json.loads(words)
    assert code == 0 and found["fits"]
    for tier in found["tiers"]:
        held = sum(entry["bytes"] for entry in found["bytes"] if entry["tier"] == tier["name"])
        assert held == pytest.approx(tier["planned_peak"], abs=1024)
        assert tier["planned_peak"] <= tier["capacity"]
    everywhere = {
        kind: sum(entry["bytes"] for entry in found["bytes"] if entry["class"] == kind) for kind in ("weight", "state")
    }
    assert everywhere["state"] == pytest.approx(10 * PARAMETERS, rel=0.02)
    assert everywhere["weight"] >= 2 * PARAMETERS
    assert found["tokens_per_second"] == pytest.approx(1024 / found["predicted_step_seconds"])
    assert found["machine"] == json.loads(profile("two-drives").read_text())["machine"]
    assert found["bottleneck"] in found["seconds_alone"] and found["next_bottleneck"] in found["seconds_alone"]
    assert found["longest_sequence"] >= 1024
    attention, more = found["attention"], found["a_micro_batch_more"]
    assert 0 < attention["share"] < 0.5 and attention["half_at"] > 1024
    assert more["fits"] and more["predicted_step_seconds"] >= found["predicted_step_seconds"]
    assert more["tokens_per_second"] > 0.9 * found["tokens_per_second"]
    assert {change["what"].split()[0] for change in found["what_if"]} >= {"1", "one", "sequences"}
    for group, share in found["shares"]["path"].items():
        assert 0 <= share <= 1, group


def test_a_cluster_is_planned_by_one_of_its_processes(plan: Plan, tmp_path: Path) -> None:
    def cluster(profile: dict[str, Any]) -> None:
        profile |= {"machines": 2, "network": 1e9, "gpus": []}
        profile["compute_flops_per_second"] = 1e13

    words = ("--max_length", "256", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2")
    code, text, _ = plan("Qwen2.5-0.5B", altered(tmp_path, cluster), *words, "--json")
    found = json.loads(text)
    assert code == 0 and (found["world"], found["machines"]) == (2, 2)
    assert found["tokens_per_second"] == pytest.approx(2 * 2 * 256 / found["predicted_step_seconds"])
    crossing = found["cluster"]["between_machines_per_step"]
    assert 8 * PARAMETERS / 4 < crossing < 8 * PARAMETERS  # weights twice, or once, and sums in fp32: half of each
    assert 1 <= found["seconds_alone"]["network"] / (crossing / 1e9) < 1.3  # each transfer takes its slower direction
    others = max(seconds for name, seconds in found["seconds_alone"].items() if name != "network")
    assert found["cluster"]["network_needed"] == pytest.approx(crossing / others)
    more = {change["what"]: change for change in found["what_if"]}
    assert more["one more machine"]["tokens_per_second"] > found["tokens_per_second"]
    assert "1 GiB more DRAM for each process" in more
    code, shown, _ = plan("Qwen2.5-0.5B", altered(tmp_path, cluster), *words)
    assert code == 0 and "2 machines, processes on each: 1." in shown and "one more machine" in shown
    code, _, message = plan("Qwen2.5-0.5B", altered(tmp_path, cluster), *words, "--virtual_ranks", "1")
    assert code == 2 and "virtual_ranks: 1 are fewer than the 2 processes" in message
    code, _, message = plan("Qwen2.5-0.5B", altered(tmp_path, cluster), *words, "--node", "0=4GiB")
    assert code == 2 and "node: each of several processes gets its part of all nodes" in message


def test_a_process_on_each_gpu_is_planned_where_the_profile_says_machines(plan: Plan, tmp_path: Path) -> None:
    def two_gpus(profile: dict[str, Any]) -> None:
        profile["machines"] = 1
        profile["gpus"] = [gpu | {"name": str(n)} for n, gpu in enumerate(profile["gpus"][:1] * 2)]

    words = (*SMALL, "--max_length", "256", "--json")
    code, text, message = plan("Qwen2.5-0.5B", altered(tmp_path, two_gpus), *words)
    found = json.loads(text)
    assert code == 0 and found["world"] == 2 and found["between_machines"] == {"sent": 0, "received": 0}
    assert "over a simulated driver alone, and none of these plans has" in message
    assert found["device_blocks"]["state_and_update"] > 0


def test_limits_of_a_cluster() -> None:
    assert bound_from(2, 4.0, 1.0) == 2  # it takes longer already
    assert bound_from(2, 4.0, 16.0) == 5  # 8 s without end times 4/5, and 16 s times 2/5


def test_what_a_person_reads(plan: Plan) -> None:
    code, words, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *SMALL, "--max_length", "1024")
    assert code == 0
    parts = ("What lives where", "tokens/s. Bottleneck: ", "What would help", "1 GiB more DRAM", "What fits",
             "Attention takes", "One more accumulation step: a step takes")  # fmt: skip
    assert all(part in words for part in parts)


def test_a_plan_says_what_subspaces_move_beside_all_in_full(plan: Plan) -> None:
    """On a GPU that does not hold the states, so that weights and gradients cross the link."""
    words = (*SMALL, "--max_length", "1024", "--method", "lsp")
    code, text, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *words, "--json")
    inside = json.loads(text)["subspaces"]
    assert code == 0 and inside["matrices"] == 7 * 24
    assert inside["gradient_bytes"] < 0.5 * inside["gradient_bytes_in_full"]
    _, text, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *words[:-2], "--json")
    whole = json.loads(text)
    assert inside["in_full"]["predicted_step_seconds"] == pytest.approx(whole["predicted_step_seconds"], rel=0.15)
    assert "subspaces" not in whole


@pytest.mark.nightly
def test_a_plan_says_where_subspaces_do_not_help(plan: Plan) -> None:
    """A step so long that whatever moves is hidden behind its compute."""
    long = ("--max_length", "4096", "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "8")
    _, words, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *long, "--method", "lsp")
    assert "Fewer bytes do not help here" in " ".join(words.split())
    _, words, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *SMALL, "--max_length", "512", "--method", "lsp")
    assert "In full a step would take" in " ".join(words.split())


def test_compute_grows_with_tokens_and_hardly_with_the_tiles_that_they_run_in(plan: Plan) -> None:
    """A GPU with micro-batches of one tile and of four, and a CPU with one row in one tile and in four."""

    def compute(machine: str, *words: str) -> float:
        code, text, _ = plan("Qwen2.5-0.5B", profile(machine), "--activation_recompute", "all", "--json", *words)
        assert code == 0
        seconds: float = json.loads(text)["seconds"]["compute"]
        return seconds

    long = ("--max_length", "2048", "--per_device_train_batch_size")
    one, four = (compute("workstation", *long, rows, "--token_tile", "8192") for rows in ("4", "16"))
    assert 3.8 < four / one < 4.2
    whole, tiles = (compute("laptop", *long, "1", "--token_tile", tile) for tile in ("all", "512"))
    assert 0.999 < tiles / whole < 1.12


def test_a_gpu_takes_at_least_the_calls_of_the_host(plan: Plan) -> None:
    """One short row takes as long as its launches, so sixteen of them in a pass take less than sixteen passes."""

    def seconds(*words: str) -> float:
        short = ("--per_device_train_batch_size", "1", "--max_length", "512")
        short += ("--gradient_accumulation_steps", "16")
        code, text, _ = plan("Qwen2.5-0.5B", profile("rtx-4090"), "--json", *short, *words)
        assert code == 0
        found: float = json.loads(text)["predicted_step_seconds"]
        return found

    assert seconds() < 0.5 * seconds("--pass_tokens", "0")


def test_the_plan_is_shown_before_the_answers_for_other_settings(tmp_path: Path) -> None:
    model = model_shapes.write(tmp_path, "Qwen2.5-0.5B")
    words = {"model": str(model), "profile": str(profile("two-drives")), "max_length": 512, "gpu_memory": "2560MiB"}
    shown: list[dict[str, Any]] = []
    found = plan_config(resolve({}, words), lambda _: None, show=lambda content: shown.append(dict(content)))
    assert shown[0]["predicted_step_seconds"] == found["predicted_step_seconds"]
    assert not {"what_if", "fit_table"} & shown[0].keys() and {"what_if", "fit_table"} <= found.keys()


def test_longer_than_the_longest_does_not_fit_and_says_what_would(plan: Plan) -> None:
    words = (*SMALL[:2], "--gpu_memory", "1800MiB")
    _, text, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *words, "--max_length", "4096", "--json")
    longest = json.loads(text)["longest_sequence"]
    assert 4096 <= longest < 4 * 4096
    more = longest // 8  # beyond a tile of tokens memory grows by steps, which the longest is worked out between
    assert plan("Qwen2.5-0.5B", profile("two-drives"), *words, "--max_length", str(longest))[0] == 0
    code, _, message = plan("Qwen2.5-0.5B", profile("two-drives"), *words, "--max_length", str(longest + more))
    assert code == 3 and "on the device" in message and "It would fit with" in message


def test_budgets_bound_the_plan(plan: Plan) -> None:
    words = (*SMALL[:2], "--max_length", "512", "--json")
    budgets = ("--dram_budget", "4GiB", "--gpu_memory", "3GiB")
    code, text, _ = plan("Qwen2.5-0.5B", profile("two-drives"), *words, *budgets)
    assert code == 0
    peaks = {tier["name"]: tier["planned_peak"] for tier in json.loads(text)["tiers"]}
    assert peaks["device"] <= 3 * 2**30 and peaks["dram"] <= 4 * 2**30
    for key, part in (("gpu_memory", "does not fit on the device"), ("dram_budget", "does not fit in DRAM")):
        code, _, message = plan("Qwen2.5-0.5B", profile("two-drives"), *words, f"--{key}", "1GiB")
        assert code == 3 and part in message
        would = re.findall(rf"--{key} (\w+)", message)[0]
        assert plan("Qwen2.5-0.5B", profile("two-drives"), *words, f"--{key}", would)[0] == 0


def test_named_nodes_alone_are_used(plan: Plan) -> None:
    batch = (*SMALL, "--json")
    code, words, _ = plan("Qwen2.5-0.5B", profile("server"), *batch, "--node", "0=100GiB", "--node", "2=50GiB")
    assert code == 0
    tiers = {tier["name"]: tier for tier in json.loads(words)["tiers"]}
    assert "numa:1" not in tiers and tiers["numa:0"]["planned_peak"] <= 100 * 2**30
    code, _, message = plan("Qwen2.5-0.5B", profile("server"), *batch, "--node", "9=1GiB")
    assert code == 2 and "numa:9" in message
    code, _, message = plan("Qwen2.5-0.5B", profile("server"), *batch, "--node", "2=1TB")
    assert code == 3 and "numa:2" in message


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda content: content.pop("cores"), "cores is missing"),
        (lambda content: content["gpus"][0].pop("flops_per_second"), "gpus[0].flops_per_second is missing"),
        (lambda content: content["gpus"][0].update(memory=-1), "gpus[0].memory is -1"),
        (lambda content: content["gpus"][0].update(to_gpu_bytes_per_second=1e30), "gpus[0].to_gpu_bytes_per_second is"),
        (lambda content: content["nodes"][0].update(capacity=10**18), "nodes has more DRAM than dram_total"),
        (lambda content: content["nodes"][0].update(update_elements_per_second=0), "no NUMA node has an update rate"),
        (lambda content: content["paths"][0].update(read_bytes_per_second=0), "path:0 lacks the rate of its reads"),
        (lambda content: content.update(nods=[]), "nods is not a key"),
    ],
)
def test_a_bad_profile_is_refused_naming_the_entry(
    plan: Plan, tmp_path: Path, change: Callable[[dict[str, Any]], Any], part: str
) -> None:
    code, _, message = plan("Qwen2.5-0.5B", altered(tmp_path, change))
    assert code == 2 and part in message, message


def test_a_file_that_is_no_json_is_refused(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text("{")
    code, _, message = plan("Qwen2.5-0.5B", path)
    assert code == 2 and "profile" in message


def test_a_machine_without_a_gpu_computes_on_its_cores(plan: Plan) -> None:
    code, words, _ = plan("Qwen2.5-0.5B", profile("laptop"), "--per_device_train_batch_size", "1", "--json")
    found = json.loads(words)
    assert code == 0 and found["bottleneck"] == "compute"
    assert [tier["name"] for tier in found["tiers"]] == ["dram", "path:0"]
    assert found["link_bytes_per_step"] == {"to_device": 0, "from_device": 0}


def test_a_server_distributes_its_states_to_dram_and_cards_and_is_planned_with_one_gpu(plan: Plan) -> None:
    code, words, message = plan("Qwen2.5-0.5B", profile("server"), *SMALL, "--json")
    found = json.loads(words)
    assert code == 0 and "of the 8 GPUs" in message
    shares = found["shares"]["state_by_node"]
    assert len(shares) == 4 and sum(shares) == pytest.approx(1)
    assert [tier["name"] for tier in found["tiers"]][:5] == ["numa:0", "numa:1", "numa:2", "numa:3", "device"]


def test_a_simulated_device_of_a_described_machine_computes_on_its_cores(plan: Plan) -> None:
    words = ("--per_device_train_batch_size", "1", "--max_length", "512", "--json")
    code, text, _ = plan("Qwen2.5-0.5B", profile("laptop"), *words, "--device", "simulated", "--gpu_memory", "1GiB")
    found = json.loads(text)
    assert code == 0
    assert {tier["name"]: tier["capacity"] for tier in found["tiers"]}["device"] == 2**30
    assert found["link_bytes_per_step"]["to_device"] > 0


def test_types_are_chosen_by_the_products_of_the_profile(tmp_path: Path) -> None:
    kinds = [("bf16", 1.0), ("fp32", 3.0)]
    compute = [
        engine.ComputeProfile(
            dtype=name,
            products=[engine.ProductRate(tokens=8, inner=8, outer=8, forward_flops_per_second=rate)],
        )
        for name, rate in kinds
    ]
    with_gpu = engine.Profile(gpus=[engine.GpuProfile()], compute=compute)
    config = settings(weight_dtype="bf16", compute_dtype="auto")
    assert choose_compute_dtype(config, engine.Profile(compute=compute), False).compute_dtype == "fp32"
    assert choose_compute_dtype(config, engine.Profile(compute=compute[:1]), False).compute_dtype == "bf16"
    assert choose_compute_dtype(config, with_gpu, True).compute_dtype == "bf16"
    with pytest.raises(InputError, match="has GPUs"):
        choose_compute_dtype(settings(weight_dtype="bf16", compute_dtype="fp32"), with_gpu, True)


def settings(**values: Any) -> Config:
    return resolve({"model": "m", "dataset": "d", "output_dir": "o", **values}, {})


def test_training_stays_here() -> None:
    with pytest.raises(InputError, match="describes another machine"):
        refuse_elsewhere(settings(profile=str(profile("server"))))
    with pytest.raises(InputError, match="gpu_memory"):
        refuse_elsewhere(settings(device="cpu", gpu_memory="1GiB"))
    refuse_elsewhere(settings(gpu_memory="1GiB"))  # there may be a GPU to take it


def test_a_profile_without_a_machine_is_this_ones(tmp_path: Path) -> None:
    path = altered(tmp_path, lambda content: content.pop("machine"))
    assert described(settings(profile=str(path))) is None
    assert described(settings(profile=None)) is None


def test_widths_of_models_that_say_less() -> None:
    class Plain:
        hidden_size, num_attention_heads = 64, 4

    assert widths(Plain()) == (64, 64, 256)


def test_what_does_not_fit_is_shown_as_such() -> None:
    console = Console(file=io.StringIO(), width=120)
    change = {"what": "sequences of 8", "fits": False, "step_seconds": 0, "tokens_per_second": 0}
    console.print(machine_tables.what_if_table({"tokens_per_second": 1, "what_if": [change]}))
    assert isinstance(console.file, io.StringIO) and "does not fit" in console.file.getvalue()
    assert "No sequence" in machine_tables.longest(
        {"longest_sequence": 0, "fit_table": {"batches": [1, 2], "sequences": [8]}}
    )
    assert "does not fit" in machine_tables.accumulation({"a_micro_batch_more": {"fits": False}})
    bounding = {"attention": {"share": 0.75, "sequence": 4096, "half_at": 1365}}
    assert "75.0 %" in machine_tables.attention(bounding) and "less than 1365" in machine_tables.attention(bounding)
