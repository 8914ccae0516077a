"""Which flash attention passes run: FA3 or PyTorch's own, and the process's own choice after them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import attention

from spillway.config import resolve
from spillway.machine import device, flash_attention
from spillway.machine.flash_attention import FA3, NEEDS_ANY_ORDER, read_active, refuse_fa3
from spillway.machine.place import Place
from spillway.model.layers.packed_attention import PackedRows
from spillway.run.engine_spec import attention_notice

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
FASTEST = Place(CPU, full_determinism=False, fa3_refusal="")


@dataclass
class Handle:
    removed: int = 0

    def remove(self) -> None:
        self.removed += 1


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Handle]]:
    """Two implementations of flash attention that can be activated, and what PyTorch holds of them."""
    if not hasattr(attention, "activate_flash_attention_impl"):
        pytest.skip(f"PyTorch {torch.__version__} cannot activate flash attention")
    registry = importlib.import_module("torch.nn.attention._registry")
    handles = {FA3: Handle(), "another": Handle()}
    for name, handle in handles.items():
        monkeypatch.setitem(registry._FLASH_ATTENTION_IMPLS, name, lambda handle=handle: handle)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    refuse_fa3.cache_clear()
    yield handles
    refuse_fa3.cache_clear()
    if read_active() is not None:
        attention.restore_flash_attention_impl()


@pytest.mark.parametrize("before", [None, "another", FA3])
@pytest.mark.parametrize(("place", "inside"), [(FASTEST, FA3), (Place(CPU), None)])
def test_passes_choose_and_the_process_keeps_its_choice(
    place: Place, inside: str | None, before: str | None, handles: dict[str, Handle]
) -> None:
    flash_attention.activate(before)
    with place.kernels():
        assert read_active() == inside
        assert torch.are_deterministic_algorithms_enabled() == (inside is None)
    assert read_active() == before and not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError), place.kernels():
        raise ZeroDivisionError
    assert read_active() == before and not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("place", [replace(FASTEST, fa3_refusal="none"), Place(CPU, any_order="cumsum")])
def test_a_place_without_order_and_fa3_leaves_the_processs_choice(place: Place, handles: dict[str, Handle]) -> None:
    flash_attention.activate("another")
    with place.kernels():
        assert read_active() == "another" and handles["another"].removed == 0


def test_fa3_runs_where_a_run_gives_up_one_order(monkeypatch: pytest.MonkeyPatch, handles: dict[str, Handle]) -> None:
    for name, answer in (("is_available", True), ("device_count", 1), ("current_stream", None)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    assert device.place(resolve({"device": "cuda:0"}, {})).fa3_refusal == NEEDS_ANY_ORDER
    assert handles[FA3].removed == 0
    assert device.place(resolve({"device": "cuda:0", "full_determinism": False}, {})).fa3_refusal == ""
    assert handles[FA3].removed == 1 and read_active() is None
    wide = {"device": "cuda:0", "deterministic": False, "compute_dtype": "fp32"}
    assert device.place(resolve(wide, {})).fa3_refusal == "it computes in bf16 and fp16"


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ({"capability": (8, 9)}, "it needs a GPU of compute capability 9.0"),
        ({"capability": (10, 0)}, "it needs a GPU of compute capability 9.0"),
        ({"spec": None}, "flash_attn_interface is not installed"),
        ({"names": []}, "cannot activate it"),
        ({"error": ImportError("undefined symbol: one\nmore")}, "does not load: undefined symbol: one"),
    ],
)
def test_what_fa3_lacks_is_named(
    lacking: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, handles: dict[str, Handle]
) -> None:
    if "capability" in lacking:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: lacking["capability"])
    if "spec" in lacking:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if "names" in lacking:
        monkeypatch.setattr(attention, "list_flash_attention_impls", list)
    if "error" in lacking:
        registry = importlib.import_module("torch.nn.attention._registry")

        def fail() -> None:
            raise lacking["error"]

        monkeypatch.setitem(registry._FLASH_ATTENTION_IMPLS, FA3, fail)
    flash_attention.activate("another")
    assert refuse_fa3(GPU).endswith(words) and read_active() == "another"


def test_an_older_pytorch_has_no_fa3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("list_flash_attention_impls", "current_flash_attention_impl", "activate_flash_attention_impl"):
        monkeypatch.delattr(attention, name, raising=False)
    refuse_fa3.cache_clear()
    assert refuse_fa3(GPU) == f"PyTorch {torch.__version__} cannot activate it"
    refuse_fa3.cache_clear()
    with flash_attention.flash_attention(None):
        assert read_active() is None


def test_fa3_that_refuses_a_model_is_left_out() -> None:
    refused = RuntimeError("FA3 SDPA forward unsupported: dropout_p must be 0")
    place = FASTEST.without(refused)
    assert place.fa3_refusal == str(refused) and not place.any_order
    for refusing, error in ((place, refused), (FASTEST, RuntimeError("out of memory"))):
        with pytest.raises(RuntimeError) as raised:
            refusing.without(error)
        assert raised.value is error


ORDER = "attention: PyTorch's kernels in one order; full_determinism: false allows cuDNN's and FA3"
FREE = Place(GPU, full_determinism=False, fa3_refusal="")


@pytest.mark.parametrize(
    ("place", "refusal", "words"),
    [
        (Place(CPU), "", []),
        (Place(GPU), None, [ORDER]),
        (Place(GPU), "", [ORDER, "attention: packed rows and windows run in one call"]),
        (FREE, None, ["attention: FA3, and cuDNN's kernels where PyTorch prefers them"]),
        (
            replace(FREE, fa3_refusal="it is not installed"),
            "flash attention computes in bf16 and fp16",
            [
                "attention: the fastest of PyTorch's kernels, without FA3: it is not installed",
                "attention: packed rows and windows run one by one: flash attention computes in bf16 and fp16",
            ],
        ),
    ],
)
def test_a_run_names_its_attention(
    place: Place, refusal: str | None, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackedRows, "refusal", refusal)
    assert attention_notice(place) == words
