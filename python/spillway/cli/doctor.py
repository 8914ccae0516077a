"""The verb `doctor`: what this installation can use here, what not, and why."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import socket
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spillway._engine import Description
from spillway.base.sizes import decimal, size

Finding = tuple[str, str, str]  # what; good, lesser or missing; words

WORDS = {"good": "yes", "lesser": "in part", "missing": "no"}
GET_KERNELS = "install a wheel with kernels, or build Spillway with nvcc (pip install nvidia-cuda-nvcc brings one)"
PACKAGES = ("torch", "transformers", "safetensors", "tokenizers")
OPTIONAL = {  # package: what is not here without it, the extra that brings it
    "datasets": ("files can be trained on, hub datasets cannot", "data"),
    "pyarrow": ("Parquet files cannot be read", "data"),
    "accelerate": ("no Trainer, and report_to has no trackers", "trainer"),
    "trl": ("no SFTTrainer", "trl"),
    "peft": ("method lora is refused", "lora"),
    "tensorboard": ("report_to: tensorboard is refused", "tensorboard"),
}


def examine(places: Sequence[str]) -> list[Finding]:
    """The system, the engine's findings, the libraries, the GPU."""
    return [
        ("kernel", "good", f"Linux {platform.release()}, {platform.machine()}"),
        ("python", "good", platform.python_version()),
        ("locked memory", "good", locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])),
        *engine_findings(places),
        *(package(name) for name in (*PACKAGES, *OPTIONAL)),
        names(),
        multiplications(),
        kernels(),
        gpu(),
        processes(),
    ]


def locked_memory(limit: int) -> str:
    allowed = "all memory" if limit == resource.RLIM_INFINITY else size(limit)
    return f"a process may lock {allowed} (memlock, ulimit -l) for direct transfers of drives"


def engine_findings(places: Sequence[str]) -> list[Finding]:
    """Without places of storage, of the directory that the command runs in: whether O_DIRECT works there."""
    if not places and os.access(".", os.W_OK | os.X_OK):
        places = [os.getcwd()]
    try:
        from spillway import _engine
    except ImportError as error:
        return [("engine", "missing", f"{error}; install it again (pip install --force-reinstall spillway)")]
    return [("engine", "good", _engine.__file__ or "built in"), *_engine.checkup([str(place) for place in places])]


def package(name: str) -> Finding:
    try:
        return name, "good", importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name in OPTIONAL:
            without, extra = OPTIONAL[name]
            return name, "lesser", f"not installed: {without} (pip install 'spillway[{extra}]')"
        return name, "missing", f"not installed (pip install {name})"


def names() -> Finding:
    """Where models and data that are named come from. Nobody is asked."""
    from huggingface_hub import get_token

    from spillway.model.source import hub

    place = f"{hub.cache()} ({decimal(hub.free_bytes())} free)"
    if hub.is_offline():
        return "hub", "lesser", f"HF_HUB_OFFLINE is set: only models and data that {place} holds"
    token = "with your token" if get_token() else f"without a token, so no gated or private ones ({hub.WAYS})"
    return "hub", "good", f"models and data by name from {hub.endpoint()}, {token}; the cache is {place}"


def multiplications() -> Finding:
    """What `compute_dtype: auto` goes by where no GPU computes."""
    try:
        from spillway.machine import products

        rates = products.measured("bf16")
    except Exception as error:
        return "products", "missing", f"PyTorch does not load: {error}"
    faster = rates.faster("bf16")
    return "products", "good" if faster == "bf16" else "lesser", f"{rates.words('bf16')}: {products.AUTO[faster]}"


def kernels() -> Finding:
    """Whether this build of the engine can compute on a GPU, on a machine with or without one."""
    try:
        from spillway import _engine
        from spillway.machine import device
    except Exception as error:
        return "gpu kernels", "missing", f"the engine does not load ({error})"
    if _engine.gpu_kernels():
        return "gpu kernels", "good", "this build has them"
    why = f"this build has none, because it found no nvcc; {GET_KERNELS}"
    if model := device.listed():
        return "gpu kernels", "missing", f"{why}. Until then {model} is not used"
    return "gpu kernels", "lesser", why


def gpu() -> Finding:
    """Whether `device: cuda` can be used."""
    try:
        import torch
    except Exception as error:
        return "gpu", "missing", f"PyTorch does not load: {error}"
    try:
        from spillway import _engine
        from spillway.machine import device
        from spillway.machine.flash_attention import refuse_fa3
    except ImportError:
        return "gpu", "missing", "the engine does not load"
    if not torch.cuda.is_available():
        why = f"the NVIDIA driver knows {model}, but {device.without_cuda()}" if (model := device.listed()) else ""
        why = why or "PyTorch finds none (torch.cuda.is_available())"
        return "gpu", "missing", f"{why}; training uses the CPUs"
    found = [(number, *_engine.load_gpu_kernels(number)) for number in range(torch.cuda.device_count())]
    words = [
        f"cuda:{number} {torch.cuda.get_device_name(number)}, its kernels as {words}" if loaded else words
        for number, loaded, words in found
    ]
    refusal = refuse_fa3(torch.device("cuda", 0))
    words.append(f"attention by FA3 with full_determinism: false: {f'no, {refusal}' if refusal else 'yes'}")
    if len(found) > 1:
        words.append(f"each of several processes takes the GPU of its LOCAL_RANK, up to {len(found)} on this machine")
    taken = [loaded for _, loaded, _ in found]
    return "gpu", "good" if all(taken) else "lesser" if any(taken) else "missing", "; ".join(words)


def processes() -> Finding:
    """Whether several processes can train together, and where their bytes go by default."""
    try:
        from torch import distributed
    except Exception as error:
        return "processes", "missing", f"PyTorch does not load: {error}"
    if not distributed.is_available() or not distributed.is_gloo_available():
        return "processes", "missing", "this PyTorch has no gloo, which carries the bytes between processes"
    host, named = socket.gethostname(), os.environ.get("GLOO_SOCKET_IFNAME")
    if named:
        return "processes", "good", f"gloo over {named} (GLOO_SOCKET_IFNAME)"
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        return "processes", "lesser", f"gloo; {host} has no address ({error}); set GLOO_SOCKET_IFNAME"
    if address.startswith("127."):
        words = f"gloo; {host} is {address}, which other machines do not reach; set GLOO_SOCKET_IFNAME"
        return "processes", "lesser", words
    return "processes", "good", f"gloo over the interface of {host}, {address}; GLOO_SOCKET_IFNAME names another one"


def of_directory(directory: Path) -> list[Finding]:
    """The findings of a run by its output directory, or of a model that comes quantised."""
    from spillway.model.source.coded import find_coding

    is_run = (directory / "plan.json").exists()
    if not is_run and (coding := find_coding(directory)) is not None:
        name, form = coding
        more = "; with method lora, load_in_4bit keeps the same codes" if form else ""
        return [("weights", "good", f"quantised ({name}): a run decodes them while it reads them{more}")]
    return of_run(directory)


def of_run(output_dir: Path) -> list[Finding]:
    """Says who is late, and for what, and how much of the base stays unquantised."""
    from spillway.report import facts, ranks

    found = facts.read(output_dir)
    damaged: list[Finding] = [("damaged", "lesser", words) for words in found.damaged]
    damaged += base_findings(found.description)
    if late := ranks.late_now(output_dir):
        return [*damaged, *[("late now", "lesser", words) for words in late]]
    if words := ranks.latest(ranks.rows(found)):
        return [*damaged, ("late", "lesser", words)]
    state = "has ended" if found.finished else "goes on, or was interrupted"
    return [*damaged, ("run", "good", f"{output_dir} {state}; no process of it is known to keep others waiting")]


def base_findings(description: Description | None) -> list[Finding]:
    """How much of a quantised base stays unquantised. A damaged description says nothing."""
    from spillway.model.adapters.unpacked import unpacked_notice

    return [("base", "lesser", words) for words in unpacked_notice(description)] if description else []


def show_findings(console: Console, findings: Sequence[Finding], title: str = "What can be used here") -> None:
    found = Table(title=title, title_justify="left")
    for name in ("", "", ""):
        found.add_column(name, overflow="fold")
    for what, state, words in findings:
        found.add_row(what, WORDS[state], words)
    console.print(found)
    missing = [what for what, state, _ in findings if state == "missing"]
    if missing:
        console.print(f"Missing: {', '.join(missing)}.", soft_wrap=True)
