"""The `spillway` command on a real GPU: what it promises where layers compute there. Skipped where there is none; what
is shown without one is in test_cuda.py (a driver of host memory) and test_place.py (shapes alone)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from hf_models import tiny_model
from native import GPU, file_bytes, profile
from needs import package
from real_runs import here, names, result, words
from spillway.cli import main
from spillway.machine import compute_rates
from spillway.machine.place import Place
from spillway.model.layers import packed_attention
from spillway.model.layers.row_attention import RowMask, row_attention
from spillway.model.layers.weight_sums import add_product, choose_product
from spillway.output.records import rows
from test_ranks import environments, wait_for_rows
from test_row_attention import HEADS, KEY_HEADS, ROWS, results, states

pytestmark = pytest.mark.needs("gpu", torch.cuda.is_available(), "PyTorch has no GPU here")

STEPS = ("--max_steps", "4", "--save_steps", "4")
ROOMY = ("--gpu_memory", "1GiB")
LIMIT = 300  # seconds that a process may take
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 128}  # fmt: skip
FORMS = {  # and how far their losses and norms may lie from those of the processors
    "bf16": (("--compute_dtype", "bf16"), 3e-2),
    "fp32": (("--compute_dtype", "fp32"), 2e-4),
    "fp16": (("--compute_dtype", "fp16"), 1e-2),
    "bf16 weights in fp32": (("--weight_dtype", "bf16", "--compute_dtype", "fp32"), 2e-2),
    "states of bf16": (("--compute_dtype", "bf16", "--state_format", "bf16"), 3e-2),
    "states of int8": (("--compute_dtype", "bf16", "--state_format", "int8"), 3e-2),
    "clipping": (("--compute_dtype", "bf16", "--max_grad_norm", "0.1"), 3e-2),
    "packed": (("--compute_dtype", "bf16", "--packing"), 3e-2),
    "muon": (("--compute_dtype", "bf16", "--optim", "muon"), 3e-2),
    "lora": (("--compute_dtype", "bf16", "--method", "lora", "--lora_r", "4"), 3e-2),
    "lora over NF4": (("--compute_dtype", "bf16", "--method", "lora", "--lora_r", "4", "--load_in_4bit"), 3e-2),
    "subspaces": (("--compute_dtype", "bf16", "--method", "lsp", "--lsp_rank", "8", "--lsp_nonzeros", "2"), 3e-2),
}


TOGETHER = ("--device", "cuda", "--compute_dtype", "bf16", "--virtual_ranks", "2", "--gradient_accumulation_steps", "4")
TWO = {
    "everything on the GPU": ROOMY,
    "over nccl": (*ROOMY, "--ddp_backend", "nccl"),
    "path": (*ROOMY, "--placement", "path", "--durability", "step"),
    "lora over NF4": (*FORMS["lora over NF4"][0], *ROOMY),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model that a GPU's attention kernels take, and rows."""
    from transformers import LlamaConfig

    path = tmp_path_factory.mktemp("gpu")
    model = path / "model"
    tiny_model(LlamaConfig(**SIZES)).save_pretrained(model)
    tiny.tokenizer().save_pretrained(str(model))
    tiny.jsonl(path / "train.jsonl", tiny.text_rows(23))
    profile(path)
    described = json.loads((path / "profile.json").read_text()) | {"gpus": [GPU]}
    (path / "profile.json").write_text(json.dumps(described))
    slow = {"update_elements_per_second": 1e5, "update_elements_per_second_all_cores": 1e5}
    (path / "slow.json").write_text(json.dumps(described | slow))
    yield path


def on_gpu(given: Path, out: Path, *more: str) -> Path:
    """A run there that ended well."""
    assert here(given, out, *STEPS, "--device", "cuda", *more) == 0
    return out


def least(given: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[str, str]:
    """The least memory of the GPU that a refusal names, and a little: what PyTorch needs is measured anew each time."""
    capsys.readouterr()
    assert here(given, out, *STEPS, "--device", "cuda", *more, "--gpu_memory", "4KiB") == 3
    found = re.search(r"--gpu_memory (\d+)MiB", capsys.readouterr().err)
    assert found is not None
    return "--gpu_memory", f"{int(int(found[1]) * 1.05) + 8}MiB"


def same_bits(run: Path, other: Path) -> None:
    for one, another in zip(rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True):
        assert (one["loss"], one["grad_norm"]) == (another["loss"], another["grad_norm"])
    (weights,) = run.glob("*model.safetensors")
    assert weights.read_bytes() == (other / weights.name).read_bytes()


def apart(run: Path, other: Path) -> float:
    """The largest relative difference of losses and norms."""
    pairs = zip(rows(run / "metrics.jsonl"), rows(other / "metrics.jsonl"), strict=True)
    return max(
        abs(one[key] - another[key]) / abs(another[key]) for one, another in pairs for key in ("loss", "grad_norm")
    )


def plan_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "plan.json").read_text()))


@pytest.mark.parametrize("name", FORMS)
def test_placement_changes_no_bit_and_the_processors_agree(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    form, most = FORMS[name]
    if "lora" in name:
        package("peft", "adapters are its")
    roomy = on_gpu(given, tmp_path / "roomy", *form, *ROOMY)
    same_bits(on_gpu(given, tmp_path / "again", *form, *ROOMY), roomy)
    little = on_gpu(given, tmp_path / "little", *form, *least(given, tmp_path / "x", capsys, *form))
    same_bits(little, roomy)
    tier = next(tier for tier in plan_of(little)["tiers"] if tier["name"] == "device")
    measured = next(t for t in json.loads((little / "summary.json").read_text())["tiers"] if t["name"] == "device")
    assert measured["measured_peak"] <= tier["capacity"]
    storage = ("--storage", f"{tmp_path},capacity=256MiB", "--placement", "path")
    same_bits(on_gpu(given, tmp_path / "path", *form, *storage, *ROOMY), roomy)
    assert here(given, tmp_path / "processors", *STEPS, *form, "--device", "cpu") == 0
    assert apart(roomy, tmp_path / "processors") <= most


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_adds_to_a_sum_within_the_rounding_of_a_gradient(dtype: torch.dtype) -> None:
    """Three parts, the first of which overwrites NaN; and the same bits twice."""
    rows, columns = 192, 320
    draw = torch.Generator("cuda").manual_seed(4)
    parts = [
        [torch.randn(tokens, size, generator=draw, device="cuda").to(dtype) for size in (rows, columns)]
        for tokens in (512, 384, 128)
    ]

    def summed() -> torch.Tensor:
        sum = torch.full((rows, columns), float("nan"), device="cuda")
        for number, (dy, x) in enumerate(parts):
            add_product(sum, dy, x, number == 0)
        return sum

    assert choose_product(Place(torch.device("cuda", 0)), dtype) is add_product
    handed = sum((dy.t().mm(x).float() for dy, x in parts), torch.zeros(rows, columns, device="cuda"))
    exact = sum((dy.double().t() @ x.double() for dy, x in parts), torch.zeros((), device="cuda"))
    found = summed()
    assert torch.equal(found, summed())
    assert float((found - handed).abs().max()) <= 3 * torch.finfo(dtype).eps * float(handed.abs().max())
    assert float((found - exact).abs().max()) <= 1e-5 * float(exact.abs().max())


def test_micro_batches_that_products_sum_change_no_bit_with_placement(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against gradients that are handed over losses and norms agree within rounding."""
    keys = ("--compute_dtype", "bf16", "--gradient_accumulation_steps", "4", "--pass_tokens", "0")
    roomy = on_gpu(given, tmp_path / "roomy", *keys, *ROOMY)
    same_bits(on_gpu(given, tmp_path / "little", *keys, *least(given, tmp_path / "x", capsys, *keys)), roomy)
    monkeypatch.setattr("spillway.model.layers.weight_sums.has_operation", lambda: False)
    assert 0 < apart(roomy, on_gpu(given, tmp_path / "handed over", *keys, *ROOMY)) <= FORMS["bf16"][1]


def test_blocks_live_on_the_gpu_where_there_is_room(given: Path, tmp_path: Path) -> None:
    out = on_gpu(given, tmp_path / "out", "--compute_dtype", "bf16", *ROOMY)
    assert plan_of(out)["device_blocks"]["state_and_update"] > 0
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ  # it costs the host more than a product
    assert file_bytes(out / "checkpoint-4" / "spillway")


@pytest.mark.parametrize("how", ["none", "all"])
def test_saved_activations_change_no_bit(given: Path, tmp_path: Path, how: str) -> None:
    form = ("--compute_dtype", "bf16", *ROOMY)
    auto = on_gpu(given, tmp_path / "auto", *form)
    same_bits(on_gpu(given, tmp_path / how, *form, "--activation_recompute", how), auto)


def test_killed_and_resumed(given: Path, tmp_path: Path) -> None:
    """By the command in processes of its own, as a user runs it."""
    storage = tmp_path / "storage"
    storage.mkdir()
    many = ("--max_steps", "150", "--save_steps", "50", "--device", "cuda", "--compute_dtype", "bf16", *ROOMY,
            "--num_train_epochs", "100")  # fmt: skip
    durable = ("--storage", f"{storage},capacity=256MiB", "--placement", "path", "--durability", "step")
    assert here(given, tmp_path / "whole", *many) == 0
    out = tmp_path / "out"
    verb = words(given, out, *many, *durable)
    for at in (20, 60, 110):
        process = subprocess.Popen(
            [sys.executable, "-m", "spillway", *verb], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        wait_for_rows(at, [process], out)
        process.kill()
        error = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL, error
        verb = ["resume", str(out)]
    assert subprocess.run([sys.executable, "-m", "spillway", *verb], stdout=subprocess.DEVNULL).returncode == 0
    assert result(out) == result(tmp_path / "whole")
    assert main(["verify", str(out)]) == 0
    assert "checkpoint-150" in names(out)


def processes(*command: str) -> list[subprocess.Popen[str]]:
    """The command in two processes with a GPU each. Where there is one card, it is named in two ways."""
    cards: list[dict[str, str]] = [{}, {}]
    if torch.cuda.device_count() == 1:
        named = ("0", f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        # NCCL takes two ranks on one card where it believes them on two machines
        cards = [
            {"CUDA_VISIBLE_DEVICES": name, "NCCL_HOSTID": f"machine {rank}", "NCCL_SOCKET_IFNAME": "lo"}
            for rank, name in enumerate(named)
        ]
        command = tuple("cuda:0" if word == "cuda" else word for word in command)
    return [
        subprocess.Popen([sys.executable, "-m", "spillway", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         text=True, env=os.environ | {"OMP_NUM_THREADS": "2"} | own | card)
        for own, card in zip(environments(2), cards, strict=True)
    ]  # fmt: skip


def ended(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes, and what each said last."""
    return [(process.returncode, said[-2000:]) for process in ranks for said in process.communicate(timeout=LIMIT)[1:]]


@pytest.mark.parametrize("name", TWO)
def test_two_processes_make_what_one_makes(given: Path, tmp_path: Path, name: str) -> None:
    if "lora" in name:
        package("peft", "adapters are its")
    slow = ("--profile", str(given / "slow.json"))  # its CPUs leave updates to the GPU
    keys = (*STEPS, *TOGETHER, *TWO[name], *slow)
    for place in ("drive0", "drive1", "alone"):
        (tmp_path / place).mkdir()
    each, alone = (
        ("--storage", f"{tmp_path}/{place},capacity=256MiB") if "path" in name else ()
        for place in ("drive{local_rank}", "alone")
    )
    assert here(given, tmp_path / "one", *keys, *alone) == 0
    ends = ended(processes(*words(given, tmp_path / "two", *keys, *each)))
    assert [code for code, _ in ends] == [0, 0], ends
    assert result(tmp_path / "two") == result(tmp_path / "one")
    if "path" not in name:
        assert plan_of(tmp_path / "two")["device_blocks"]["state_and_update"] > 0


def test_two_processes_are_killed_and_go_on(given: Path, tmp_path: Path) -> None:
    many = ("--max_steps", "120", "--save_steps", "60", "--num_train_epochs", "100")
    keys = (*many, *TOGETHER, *TWO["path"])
    for place in ("drive0", "drive1", "alone"):
        (tmp_path / place).mkdir()
    alone = ("--storage", f"{tmp_path}/alone,capacity=256MiB")
    assert here(given, tmp_path / "whole", *keys, *alone) == 0
    out = tmp_path / "out"
    verb = words(given, out, *keys, "--storage", f"{tmp_path}/drive{{local_rank}},capacity=256MiB")
    for at, victims in ((20, 1), (70, 2)):
        ranks = processes(*verb)
        wait_for_rows(at, ranks, out)
        for process in ranks[-victims:]:
            process.kill()
        told = ended(ranks)
        assert told[1][0] == -signal.SIGKILL and told[0][0] != 0, told
        verb = ["resume", str(out)]
    told = ended(processes(*verb))
    assert [code for code, _ in told] == [0, 0], told
    assert result(out) == result(tmp_path / "whole")


def test_what_was_saved_is_a_model_of_the_library(given: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = on_gpu(given, tmp_path / "out", "--compute_dtype", "bf16", *ROOMY)
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16).to("cuda")
    prompt = AutoTokenizer.from_pretrained(out)("The river", return_tensors="pt").to("cuda")
    made = model.generate(**{key: prompt[key] for key in ("input_ids", "attention_mask")}, max_new_tokens=8)
    assert made.shape[1] > prompt["input_ids"].shape[1]


def test_a_profile_and_the_doctor_know_the_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_rates, "TOKENS", compute_rates.TOKENS[:1])  # the processors' rates take minutes
    monkeypatch.setattr(compute_rates, "SHAPES", compute_rates.SHAPES[:1])
    assert main(["probe", "--output", str(tmp_path / "profile.json")]) == 0
    (gpu, *_) = json.loads((tmp_path / "profile.json").read_text())["gpus"]
    assert gpu["to_gpu_bytes_per_second"] > 1e9 and gpu["from_gpu_bytes_per_second"] > 1e9
    assert gpu["update_elements_per_second"] > 1e8 and gpu["memory"] > 1 << 30
    assert main(["doctor"]) == 0
    assert "its kernels as" in re.sub(r"[│\s]+", " ", capsys.readouterr().out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_heads", [HEADS, KEY_HEADS])
@pytest.mark.parametrize("window", [None, 1, 19, 130])
@pytest.mark.parametrize("rows", ["several", "unlike", "long", "of one token"])
def test_one_call_for_packed_rows_agrees_with_rows_by_themselves(
    rows: str, window: int | None, key_heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has the same bits twice."""
    mask = RowMask.build(ROWS[rows], window, "cuda")
    given = [state.cuda() for state in states(mask, key_heads, dtype)]
    monkeypatch.setattr(packed_attention.PackedRows, "refusal", None)
    with Place(torch.device("cuda", 0)).current():
        once, twice = (results(mask, given, row_attention, key_heads) for _ in range(2))
        assert packed_attention.PackedRows.refusal == ""
        monkeypatch.setattr(packed_attention, "can_attend", lambda *_: False)
        expected = results(mask, given, row_attention, key_heads)
    assert all(torch.equal(one, other) for one, other in zip(once, twice, strict=True))
    for one, other in zip(once, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.03)


def test_a_packed_run_says_that_its_rows_run_in_one_call(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu(given, tmp_path / "out", *FORMS["packed"][0], *ROOMY)
    said = capsys.readouterr()
    assert "attention: packed rows and windows run in one call" in re.sub(r"\s+", " ", said.out + said.err)


def test_a_run_without_one_order_runs_as_well(given: Path, tmp_path: Path) -> None:
    out = on_gpu(given, tmp_path / "out", *FORMS["packed"][0], *ROOMY, "--full_determinism", "false")
    assert here(given, tmp_path / "processors", *STEPS, *FORMS["packed"][0], "--device", "cpu") == 0
    assert apart(out, tmp_path / "processors") <= FORMS["packed"][1]


def test_a_loop_of_ones_own(given: Path, tmp_path: Path) -> None:
    """A Session's steps there."""
    import spillway

    def steps(device: str) -> list[float]:
        out = tmp_path / device
        with spillway.Session(
            model=str(given / "model"), output_dir=str(out), device=device, compute_dtype="fp32", max_length=32,
            per_device_train_batch_size=2, gradient_accumulation_steps=1, learning_rate=1e-3, max_steps=5,
            profile=str(given / "profile.json"), gpu_memory="1GiB" if device == "cuda" else None,
        ) as session:  # fmt: skip
            ids = torch.arange(64).view(2, 32) % 320
            return [session.step([{"input_ids": ids, "labels": ids}])["loss"] for _ in range(5)]

    there, host = steps("cuda"), steps("cpu")
    assert there[-1] < there[0]
    assert max(abs(a - b) / abs(b) for a, b in zip(there, host, strict=True)) < 2e-4
