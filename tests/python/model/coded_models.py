"""Models as they are published quantised: a directory of plain weights becomes one of codes, and one of what the codes
stand for. Written from the formats' descriptions, in PyTorch alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import pad

from both_ways import tensors
from test_quantised import NF4
from test_quantised_experts import BLOCK, GROUP, dynamic_map

Tensors = dict[str, torch.Tensor]
LARGEST = 448.0  # of e4m3
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MX = 32  # values of an exponent
FP8_BLOCK = (16, 24)
NOT_QUANTISED = ("embed_tokens", "lm_head", "norm", "router", "mlp.gate.", "bias", "sinks")


def nf4_parts(name: str, weight: torch.Tensor, nested: bool) -> tuple[Tensors, torch.Tensor]:
    """As bitsandbytes' QuantState.as_dict(packed=True) names them."""
    flat = weight.float().flatten()
    blocks = pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales, meanings = blocks.abs().amax(1), torch.tensor(NF4)
    codes = (blocks / scales[:, None]).unsqueeze(-1).sub(meanings).abs().argmin(-1).flatten()[: flat.numel()]
    pairs = (codes[::2] << 4 | codes[1::2]).to(torch.uint8)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": "bfloat16", "shape": [*weight.shape]}
    parts = {name: pairs[:, None], f"{name}.quant_map": meanings, f"{name}.absmax": scales}
    if nested:
        offset = scales.mean()
        groups = pad(scales - offset, (0, -len(scales) % GROUP)).view(-1, GROUP)
        largest = groups.abs().amax(1)
        found = (groups / largest[:, None]).unsqueeze(-1).sub(dynamic_map()).abs().argmin(-1)
        parts |= {
            f"{name}.absmax": found.flatten()[: len(scales)].to(torch.uint8),
            f"{name}.nested_absmax": largest,
            f"{name}.nested_quant_map": dynamic_map(),
        }
        state |= {"nested_blocksize": GROUP, "nested_dtype": "float32", "nested_offset": float(offset)}
        scales = (dynamic_map()[found] * largest[:, None]).flatten()[: len(scales)] + float(offset)
    text = json.dumps(state).encode()
    parts[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor(list(text), dtype=torch.uint8)
    values = meanings[codes] * scales.repeat_interleave(BLOCK)[: flat.numel()]
    return parts, values.view(weight.shape)


def fp8_parts(
    name: str, weight: torch.Tensor, block: tuple[int, int], exponents: bool = False
) -> tuple[Tensors, torch.Tensor]:
    rows, columns = weight.shape
    whole = pad(weight.float(), (0, -columns % block[1], 0, -rows % block[0]))
    grid = whole.view(whole.shape[0] // block[0], block[0], -1, block[1])
    scales = grid.abs().amax((1, 3)).clamp(min=1e-9) / LARGEST
    if exponents:
        scales = scales.log2().ceil().exp2()
    each = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:rows, :columns]
    codes = (weight.float() / each).to(torch.float8_e4m3fn)
    kept = scales.to(torch.float8_e8m0fnu) if exponents else scales
    return {name: codes, f"{name}_scale_inv": kept}, codes.float() * each


def mxfp4_parts(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Of experts [experts, in, out], whose codes lie along what comes in."""
    groups = weight.float().transpose(1, 2).unflatten(-1, (-1, MX))
    exponents = (groups.abs().amax(-1, keepdim=True).clamp(min=1e-30) / E2M1[-1]).log2().ceil()
    meanings = torch.tensor([*E2M1, *(-value for value in E2M1)])
    codes = (groups / exponents.exp2()).unsqueeze(-1).sub(meanings).abs().argmin(-1)
    values = (meanings[codes] * exponents.exp2()).flatten(2).transpose(1, 2).contiguous()
    parts = {
        f"{name}_blocks": (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8),
        f"{name}_scales": (exponents.squeeze(-1) + 127).to(torch.uint8),
    }
    return parts, values


def is_linear(name: str, weight: torch.Tensor) -> bool:
    return weight.dim() == 2 and not any(part in name for part in NOT_QUANTISED)


def is_expert(name: str, weight: torch.Tensor) -> bool:
    return weight.dim() == 3 and ".experts." in name


@dataclass(frozen=True)
class Kind:
    model: str  # its type
    settings: dict[str, Any]  # quantization_config
    words: str  # for a person
    chooses: Callable[[str, torch.Tensor], bool]
    parts: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
    sizes: dict[str, int] = field(default_factory=dict)  # of the model


OF_4_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
OF_8_BITS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
KINDS = {
    "nf4": Kind("llama", OF_4_BITS, "NF4 of bitsandbytes", is_linear, lambda name, it: nf4_parts(name, it, False)),
    "nested": Kind(
        "llama",
        {**OF_4_BITS, "bnb_4bit_use_double_quant": True},
        "NF4 of bitsandbytes",
        is_linear,
        lambda name, it: nf4_parts(name, it, True),
    ),
    "fp8": Kind(
        "qwen3_moe",
        {**OF_8_BITS, "weight_block_size": list(FP8_BLOCK)},
        "FP8 e4m3 with block scales",
        is_linear,
        lambda name, it: fp8_parts(name, it, FP8_BLOCK),
    ),
    "mxfp4": Kind("gpt_oss", {"quant_method": "mxfp4"}, "MXFP4", is_expert, mxfp4_parts, {"intermediate_size": 64}),
}


def code_model(directory: Path, kind: Kind, files: int = 1) -> Path:
    """Puts codes in place of the weights of a plain model. Returns the directory beside it with what they stand for."""
    plain, coded, values = tensors(directory), {}, {}
    for name, weight in plain.items():
        coded[name] = values[name] = weight
        if kind.chooses(name, weight):
            parts, values[name] = kind.parts(name, weight)
            del coded[name]
            coded |= parts
    assert len(coded) > len(plain)
    decoded = directory.with_name(f"{directory.name}-decoded")
    shutil.copytree(directory, decoded)
    save_file({name: value.contiguous() for name, value in values.items()}, decoded / "model.safetensors", META)
    write_shards(coded, directory, files)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": kind.settings}))
    return decoded


META = {"format": "pt"}


def write_shards(weights: Tensors, directory: Path, files: int) -> None:
    (directory / "model.safetensors").unlink()
    if files == 1:
        return save_file({name: value.contiguous() for name, value in weights.items()}, directory / ONLY, META)
    places = {name: f"model-{number % files + 1:05d}-of-{files:05d}.safetensors" for number, name in enumerate(weights)}
    for file in set(places.values()):
        part = {name: weights[name].contiguous() for name in weights if places[name] == file}
        save_file(part, directory / file, META)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


ONLY = "model.safetensors"
