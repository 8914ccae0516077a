"""Keywords of `from_pretrained` in `load`: each becomes a key of the configuration, is already true, or is refused with
its replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spillway.errors import InputError
from spillway.integrations.peft_configs import translate_peft

NO_CACHE = "give no `use_cache`: training keeps no keys and values, and generation runs without them"
PLACED = (
    "the plan places every byte: `device` says where layers compute, `dram_budget`, `gpu_memory` and `storage` how "
    "much lies where"
)
OFFLOAD = "`storage` is where the state lies that memory has no room for"
HUB = "the hub's own environment says it: HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN, HF_ENDPOINT"
CODE = "models of the installed transformers alone are streamed; code that comes with a checkpoint is not run"
FILES = "weights are read from the safetensors of the directory, or of the main branch of a hub id"
LAYERS = "layers run as the library has them"
PROCESSES = "a launcher starts several processes, which share the model"
CONFIG = "the model's config.json says it; change the file"

# the replacement of each keyword
ELSEWHERE = {
    "adapter_kwargs": 'load(PATH, method="lora", ...) makes adapters',
    "adapter_name": 'load(PATH, method="lora", ...) makes adapters',
    "allow_all_kernels": LAYERS,
    "cache_dir": HUB,
    "code_revision": CODE,
    "config": CONFIG,
    "device_mesh": PROCESSES,
    "disable_mmap": FILES,
    "distributed_config": PLACED,
    "experts_implementation": "experts run as the library chooses for the device",
    "force_download": HUB,
    "from_flax": FILES,
    "from_tf": FILES,
    "fusion_config": LAYERS,
    "generation_config": "set it on the model: model.generation_config = ...",
    "gguf_file": FILES,
    "ignore_mismatched_sizes": "every tensor has to be there in its shape",
    "kernel_config": LAYERS,
    "key_mapping": "tensors are found by the library's own names",
    "max_memory": PLACED,
    "mirror": HUB,
    "offload_buffers": OFFLOAD,
    "offload_folder": OFFLOAD,
    "offload_state_dict": OFFLOAD,
    "output_loading_info": "missing and unexpected tensors are refused by name",
    "proxies": HUB,
    "state_dict": FILES,
    "subfolder": FILES,
    "token": HUB,
    "tp_plan": PROCESSES,
    "tp_size": PROCESSES,
    "tqdm_class": "progress is shown on a terminal alone",
    "use_auth_token": HUB,
    "use_kernels": LAYERS,
    "variant": FILES,
}
# keyword: values that are already true, and the replacement of other values
HOLDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "attn_implementation": (
        (None, "sdpa"),
        'layers attend by PyTorch\'s scaled_dot_product_attention: attn_implementation="sdpa", or leave it out',
    ),
    "local_files_only": ((None, False), HUB),
    "low_cpu_mem_usage": ((None, True), "the model is never whole in memory; leave it out"),
    "trust_remote_code": ((None, False), CODE),
    "use_cache": ((None, False), NO_CACHE),
    "use_safetensors": ((None, True), FILES),
    "weights_only": ((None, True), FILES),
}
UNSAID = (None, "float32", torch.float32)  # the default of bnb_4bit_compute_dtype, which no user may have set


def translate(keywords: dict[str, Any]) -> dict[str, Any]:
    """The keys of the configuration for `keywords`; `dtype` stays. InputError names the first unsupported one."""
    keys = dict(keywords)
    for name, (values, instead) in HOLDS.items():
        if name in keys and not any(keys[name] is value or keys[name] == value for value in values):
            raise InputError(f"load(): {name}={keys[name]!r} is not taken: {instead}")
        keys.pop(name, None)
    for name, instead in ELSEWHERE.items():
        if keys.pop(name, None) is not None:
            raise InputError(f"load(): {name} is not taken: {instead}")
    if (dtype := keys.pop("torch_dtype", None)) is not None:
        set_once(keys, "dtype", dtype, "torch_dtype")
    if (revision := keys.pop("revision", None)) is not None:
        set_once(keys, "model_revision", revision, "revision")
    if (device := choose_device(keys.pop("device_map", None))) is not None:
        set_once(keys, "device", device, "device_map")
    for name, value in translate_quantisation(keys.pop("quantization_config", None)).items():
        set_once(keys, name, value, "quantization_config")
    for name, value in translate_peft(keys.pop("peft_config", None)).items():
        set_once(keys, name, value, "peft_config")
    return keys


def set_once(keys: dict[str, Any], name: str, value: Any, given_as: str) -> None:
    """Sets a key. InputError if the key has another value."""
    if keys.get(name) not in (None, value):
        raise InputError(f"load(): {given_as} says {value!r}, and {name} says {keys[name]!r}; give one of them")
    keys[name] = value


def choose_device(device_map: Any) -> str | None:
    """The device that a device map names for all layers; None for the default of the machine."""
    if isinstance(device_map, dict) and len(device_map) == 1:
        device_map = device_map.get("", device_map)
    if device_map is None or device_map == "auto":
        return None
    name = f"cuda:{device_map}" if isinstance(device_map, int) and not isinstance(device_map, bool) else str(device_map)
    if name == "cpu" or name.partition(":")[0] == "cuda":
        return name
    raise InputError(f"load(): device_map={device_map!r} is not taken: {PLACED}")


def translate_quantisation(config: Any) -> dict[str, Any]:
    """The keys for a BitsAndBytesConfig or its dictionary."""
    if config is None:
        return {}
    read_setting: Callable[[str], Any] = (
        config.get if isinstance(config, dict) else lambda name: getattr(config, name, None)
    )
    if not (read_setting("load_in_4bit") or read_setting("load_in_8bit")):
        kind = read_setting("quant_method") or type(config).__name__
        raise InputError(
            f"load(): quantization_config of {kind} is not taken: a base is quantised as bitsandbytes does it, with "
            'load(PATH, method="lora", load_in_4bit=True), or load_in_8bit=True'
        )
    if read_setting("load_in_8bit"):
        return {"load_in_8bit": True}
    keys = {"load_in_4bit": True, "bnb_4bit_quant_type": read_setting("bnb_4bit_quant_type") or "fp4"}
    if read_setting("bnb_4bit_use_double_quant"):
        keys["bnb_4bit_use_double_quant"] = True
    if (dtype := read_setting("bnb_4bit_compute_dtype")) not in UNSAID:
        keys["dtype"] = dtype
    return keys
