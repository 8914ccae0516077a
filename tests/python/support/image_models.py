"""Small multimodal models whose vision towers run, of several families, and micro-batches with images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, PreTrainedConfig

import tiny
from both_ways import save
from spillway.model.batches.batch import Batch

IMAGE, VIDEO, BEGIN, END = 320, 321, 322, 323  # tokens, as the tokenizer below has them
NAMES = ("<image>", "<video>", "<begin>", "<end>", "<fake_token_around_image>", "<global-img>")
TEXT = {
    "vocab_size": 328, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": BEGIN, "vision_end_token_id": END}
SIGLIP_TOWER = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
CLIP_TOWER = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}


def qwen_text(kind: str) -> dict[str, Any]:
    return {**TEXT, "model_type": kind, "rope_parameters": MROPE, "tie_word_embeddings": False}


CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        **QWEN, "text_config": qwen_text("qwen2_vl_text"), "tie_word_embeddings": False,
        "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2,
                          "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
    },
    "qwen2_5_vl": {
        **QWEN, "text_config": qwen_text("qwen2_5_vl_text"), "tie_word_embeddings": False,
        "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32,
                          "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 56,
                          "fullatt_block_indexes": [1]},
    },
    "gemma3": {
        "image_token_id": IMAGE, "image_token_index": IMAGE, "boi_token_index": BEGIN, "eoi_token_index": END,
        "mm_tokens_per_image": 4,
        "text_config": {**TEXT, "model_type": "gemma3_text", "sliding_window": 8, "query_pre_attn_scalar": 8,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "vision_config": {**SIGLIP_TOWER, "image_size": 56},
    },
    "llava": {
        "image_token_index": IMAGE, "image_token_id": IMAGE, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": CLIP_TOWER, "vision_feature_layer": -1, "vision_feature_select_strategy": "default",
    },
    "idefics3": {
        "image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**VISION, "image_size": 56},
    },
    "smolvlm": {
        "image_token_id": IMAGE, "scale_factor": 2, "pad_token_id": 0, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**VISION, "image_size": 56},
    },
    "qwen3_vl": {
        **QWEN, "text_config": qwen_text("qwen3_vl_text"), "tie_word_embeddings": False,
        "vision_config": {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "out_hidden_size": 32,
                          "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
                          "num_position_embeddings": 64, "deepstack_visual_indexes": [0]},
    },
}  # fmt: skip


def image_config(kind: str, layers: int = 3) -> PreTrainedConfig:
    settings = {**CONFIGS[kind], "text_config": {**CONFIGS[kind]["text_config"], "num_hidden_layers": layers}}
    return AutoConfig.for_model(kind, **settings)


def image_tokens(kind: str) -> int:
    """Tokens of an image as `pixels` makes it."""
    return 6 if kind.startswith("qwen") else 4


def pixels(kind: str, images: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """What the family's image processor makes of so many images."""

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    if kind.startswith("qwen"):  # 4 x 6 patches, of which 4 become one token
        return {
            "pixel_values": draw(24 * images, 3 * 2 * 14 * 14),
            "image_grid_thw": torch.tensor([[1, 4, 6]] * images),
        }
    size = CONFIGS[kind]["vision_config"]["image_size"]
    if kind in ("idefics3", "smolvlm"):
        return {"pixel_values": draw(1, images, 3, size, size),
                "pixel_attention_mask": torch.ones(1, images, size, size, dtype=torch.int64)}  # fmt: skip
    return {"pixel_values": draw(images, 3, size, size)}


def image_batch(kind: str, rows: int, length: int, generator: torch.Generator, padded: int = 0) -> Batch:
    """Rows of text with an image each, the first with two; `padded`: tokens by which the last is shorter."""
    ids = torch.randint(3, 300, (rows, length), generator=generator)
    tokens = image_tokens(kind)
    places = [(0, length - tokens - 3), *((row, 1 + row) for row in range(rows))]
    for row, first in places:
        ids[row, first : first + tokens] = IMAGE
    labels = ids.masked_fill(ids == IMAGE, -100)
    lengths = torch.full((rows,), length)
    if padded:
        lengths[-1] -= padded
        ids[-1, -padded:], labels[-1, -padded:] = 0, -100
    images = pixels(kind, len(places), generator)
    types = (ids == IMAGE).long()
    if kind == "gemma3":
        images["token_type_ids"] = types
    if kind.startswith("qwen"):
        images["mm_token_type_ids"] = types
    return Batch(ids, labels, None, int(lengths.sum()), lengths, images=images)


# ---- with a tokenizer and a processor, as a command line reads them

CONTENT = (
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}@{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{{ eos_token }}"
)
TEMPLATE = tiny.MARKED.replace("{{ m['content'] }}{{ eos_token }}", CONTENT)
STANDS = {**dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), "<begin><image><end>"), "gemma3": "<begin>"}
QWEN_PIXELS = {"min_pixels": 28 * 28, "max_pixels": 56 * 84}
PROCESSORS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("Qwen2VLProcessor", "Qwen2VLImageProcessorPil", QWEN_PIXELS, {}),
    "qwen2_5_vl": ("Qwen2_5_VLProcessor", "Qwen2VLImageProcessorPil", QWEN_PIXELS, {}),
    "qwen3_vl": ("Qwen3VLProcessor", "Qwen2VLImageProcessorPil", QWEN_PIXELS, {}),
    "gemma3": ("Gemma3Processor", "Gemma3ImageProcessorPil", {"size": {"height": 56, "width": 56}},
               {"image_seq_length": 4}),
    "llava": ("LlavaProcessor", "CLIPImageProcessorPil",
              {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}},
              {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}),
    "idefics3": ("Idefics3Processor", "Idefics3ImageProcessorPil",
                 {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 56}, "do_image_splitting": False},
                 {"image_seq_len": 4}),
}  # fmt: skip


def image_directory(place: Path, kind: str) -> Path:
    """A model with weights, tokenizer and processor, and rows of messages with images beside it."""
    model = place / "model"
    template = TEMPLATE.replace("@", STANDS.get(kind, "<image>"))
    special = dict(zip(("image_token", "video_token", "boi_token", "eoi_token"), NAMES, strict=False))
    tokenizer = tiny.tokenizer(extra_special_tokens=special, chat_template=template)
    tokenizer.add_special_tokens({"additional_special_tokens": list(NAMES)}, replace_extra_special_tokens=False)
    assert tokenizer.convert_tokens_to_ids(list(NAMES[:4])) == [IMAGE, VIDEO, BEGIN, END]
    save(image_config(kind), model, 7)
    tokenizer.save_pretrained(model)
    name, prepares, sizes, more = PROCESSORS[kind]
    prepare = getattr(transformers, prepares)(**sizes)
    if kind.startswith("qwen"):  # with its part for videos it needs Torchvision
        prepare.save_pretrained(model)
    else:
        getattr(transformers, name)(prepare, tokenizer, **more).save_pretrained(model)
    image_rows(place)
    return place


def image_rows(place: Path, count: int = 12) -> Path:
    """Rows in the forms that TRL's vision examples have: images in a column, or in the parts of messages."""
    generator = np.random.default_rng(5)
    (place / "images").mkdir(exist_ok=True)
    for number in range(6):
        shape = (40 + 8 * number, 64 - 4 * number, 3)
        Image.fromarray(generator.integers(0, 255, shape, dtype=np.uint8)).save(place / f"images/{number}.png")
    rows: list[dict[str, Any]] = []
    for number in range(count):
        question, answer = f"{number}: what is it?", tiny.SENTENCES[number % 8]
        name, other = (f"images/{each % 6}.png" for each in (number, number + 1))
        text = {"type": "text", "text": question}
        forms: list[tuple[Any, dict[str, Any]]] = [
            (question, {"images": [name]}),
            ([{"type": "image", "image": name}, text], {}),
            ([{"type": "image"}, text, {"type": "image"}], {"images": [name, other]}),
            (question, {"images": []}),
        ]
        content, columns = forms[number % 4]
        turns = [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]
        rows.append({"messages": turns, **columns})
    return tiny.jsonl(place / "train.jsonl", rows)
