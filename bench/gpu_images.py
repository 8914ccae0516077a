"""Steps of a small Qwen2.5-VL on rows with images; prints one JSON line. Exit code 3: it does not fit.

gpu_images.py --device cuda:0 [--shape small] [--steps 4] [--gpu-memory BYTES]

Fails if the first step's loss or gradient norm is not that of plain transformers on the same device, or if the device
holds more bytes than the plan says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from shapes import peak_watch, refuses
from transformers import AutoConfig, Qwen2_5_VLForConditionalGeneration

from spillway.cli.arguments import parse
from spillway.model.batches.batch import Batch, WorkShape
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession

# hidden, feed-forward, layers, heads, key-value heads, vocabulary; hidden and layers of the tower; tokens of a row
SHAPES = {
    "small": (1024, 4096, 8, 16, 2, 32768, 640, 8, 1024),
    "tiny": (64, 128, 2, 4, 2, 512, 32, 2, 128),
}
IMAGE, VIDEO, BEGIN, END = 3, 4, 5, 6  # tokens
GRID = (1, 16, 16)  # patches of an image, of which four become one token
PATCH = 3 * 2 * 14 * 14  # values of a patch
ROWS, MICRO_BATCHES = 2, 2
LOSS, NORM = 5e-3, 5e-2  # relative differences that rounding in bf16 explains


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="small")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--gpu-memory", default="4GiB")
    return parser


def config_of(shape: str) -> Any:
    hidden, feed_forward, layers, heads, keys, vocabulary, tower, depth, _ = SHAPES[shape]
    part = hidden // heads // 8  # of rotary frequencies, by direction
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2 * part, part, part]}
    text = {"model_type": "qwen2_5_vl_text", "hidden_size": hidden, "intermediate_size": feed_forward,
            "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": keys,
            "vocab_size": vocabulary, "rope_parameters": rope, "tie_word_embeddings": False}  # fmt: skip
    vision = {"depth": depth, "hidden_size": tower, "intermediate_size": 2 * tower, "num_heads": tower // 16,
              "out_hidden_size": hidden, "fullatt_block_indexes": [depth - 1]}  # fmt: skip
    return AutoConfig.for_model(
        "qwen2_5_vl", text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=VIDEO,
        vision_start_token_id=BEGIN, vision_end_token_id=END, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip


def draw_batch(shape: str, number: int) -> Batch:
    """Rows with an image each."""
    vocabulary, length, generator = SHAPES[shape][5], SHAPES[shape][8], torch.Generator().manual_seed(number)
    tokens = GRID[0] * GRID[1] * GRID[2] // 4
    ids = torch.randint(END + 1, vocabulary, (ROWS, length), generator=generator)
    ids[:, 1], ids[:, 2 : 2 + tokens], ids[:, 2 + tokens] = BEGIN, IMAGE, END
    images = {
        "pixel_values": torch.randn(ROWS * GRID[1] * GRID[2], PATCH, generator=generator),
        "image_grid_thw": torch.tensor([GRID] * ROWS),
        "mm_token_type_ids": (ids == IMAGE).long(),
    }
    return Batch(ids, ids.masked_fill(ids == IMAGE, -100), None, ids.numel(), images=images)


def draw_step(shape: str, step: int) -> list[Batch]:
    return [draw_batch(shape, step * MICRO_BATCHES + number) for number in range(MICRO_BATCHES)]


def train(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    words = ["--model", str(directory / "model"), "--dataset", "none", "--output_dir", str(directory / "run"),
             "--placement", "dram", "--compute_dtype", "bf16", "--durability", "none", "--learning_rate", "1e-4",
             "--device", arguments.device, "--gpu_memory", arguments.gpu_memory]  # fmt: skip
    largest = draw_batch(arguments.shape, 0)
    shape = WorkShape(MICRO_BATCHES, ROWS, SHAPES[arguments.shape][8], 0, 0, largest_images=largest)
    session = EngineSession(parse(words).config(), shape)
    try:
        session.start(StartPoint())
        results = [session.step(draw_step(arguments.shape, step), 1e-4) for step in range(arguments.steps)]
        (planned,) = (tier["planned_peak"] for tier in session.plan["tiers"] if tier["name"] == "device")
        return {
            "seconds": [each.seconds for each in results],
            "losses": [each.loss_sum / each.label_tokens for each in results],
            "grad_norms": [each.grad_norm for each in results],
            "planned_peak": planned,
            "device_peak": session.measured()["tiers"]["device"],
            "plan_notices": [words for words in session.list_plan_notices() if words.startswith("images")],
        }
    finally:
        session.close()


def measure_plain(arguments: argparse.Namespace, directory: Path) -> tuple[float, float]:
    """The loss and gradient norm of the first step in plain transformers, the tower frozen."""
    device = torch.device("cpu" if arguments.device == "simulated" else arguments.device)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(directory / "model", dtype=torch.bfloat16).to(device)
    model.model.visual.requires_grad_(False)
    batches, total = draw_step(arguments.shape, 0), 0.0
    count = sum(int((batch.labels[:, 1:] != -100).sum()) for batch in batches)
    for batch in batches:
        images = {name: tensor.to(device) for name, tensor in (batch.images or {}).items()}
        logits = model(input_ids=batch.input_ids.to(device), use_cache=False, **images).logits[:, :-1].flatten(0, 1)
        labels = batch.labels[:, 1:].flatten().to(device)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    norms = [each.grad.float().norm() for each in model.parameters() if each.grad is not None]
    return total, float(torch.stack(norms).norm())


def list_faults(figures: dict[str, Any]) -> list[str]:
    """A sentence for each of the figures that is not as it should be."""
    faults = []
    for name, series, limit in (("loss", "losses", LOSS), ("grad_norm", "grad_norms", NORM)):
        ours, plain = figures[series][0], figures[f"plain_{name}"]
        if not abs(ours - plain) <= limit * abs(plain):
            faults.append(f"the first step has {name} {ours}, and plain transformers has {plain}")
    if figures["device_peak"] > figures["planned_peak"]:
        faults.append(f"the device held {figures['device_peak']} bytes, and the plan says {figures['planned_peak']}")
    return faults


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, peak_watch() as watch:
        directory = Path(folder)
        torch.manual_seed(1)
        Qwen2_5_VLForConditionalGeneration._from_config(config_of(arguments.shape)).save_pretrained(directory / "model")
        figures = train(arguments, directory)
        figures["plain_loss"], figures["plain_grad_norm"] = measure_plain(arguments, directory)
    return figures | {"peak_bytes": watch.bytes}


def main() -> None:
    with refuses():
        figures = run(parser().parse_args())
    if faults := list_faults(figures):
        sys.exit("; ".join(faults) + f"\n{json.dumps(figures)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
