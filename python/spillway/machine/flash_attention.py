"""FA3, FlashAttention's kernels for Hopper, in place of PyTorch's own flash attention during passes.

PyTorch activates FA3 for the whole process (`torch.nn.attention.activate_flash_attention_impl`). Passes therefore
activate it, and give the process its own choice back. A run with `full_determinism` keeps PyTorch's own kernel, even
if the process has activated another.

PyTorch asks FA3's backward pass for one order (`_fa3.py`), but cannot tell builds apart. Some builds drop the flag
(Dao-AILab/flash-attention #1596), some hang with grouped heads (#1839), and some write out of order with windows and
packed rows (#1893).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import attention

from spillway.errors import first_line

FA3 = "FA3"
PACKAGE = "flash_attn_interface"  # which PyTorch imports FA3's kernels from
HOPPER = (9, 0)  # compute capability
NEEDS_ANY_ORDER = "full_determinism: false allows it"


@contextmanager
def flash_attention(name: str | None) -> Iterator[None]:
    """Runs PyTorch's flash attention of this name, its own for None. The process's choice returns afterwards."""
    before = read_active()
    try:
        activate(name)
        yield
    finally:
        activate(before)


def activate(name: str | None) -> None:
    if name == read_active():
        return
    if name is None:
        attention.restore_flash_attention_impl()
    else:
        attention.activate_flash_attention_impl(name)


def read_active() -> str | None:
    """The name of what the process has activated. None: nothing, or this PyTorch has no other flash attention."""
    read = getattr(attention, "current_flash_attention_impl", None)
    return None if read is None else read()


@functools.cache
def refuse_fa3(device: torch.device) -> str:
    """Why passes on this GPU cannot run FA3; empty if they can."""
    names: list[str] = getattr(attention, "list_flash_attention_impls", list)()
    if FA3 not in names:
        return f"PyTorch {torch.__version__} cannot activate it"
    if torch.cuda.get_device_capability(device) != HOPPER:
        return "it needs a GPU of compute capability 9.0"
    if importlib.util.find_spec(PACKAGE) is None:
        return f"{PACKAGE} is not installed"
    try:
        with flash_attention(FA3):
            return ""
    except Exception as error:  # whatever a build for another PyTorch or another CUDA raises
        return f"{PACKAGE} does not load: {first_line(error)}"
