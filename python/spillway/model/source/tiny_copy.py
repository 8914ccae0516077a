"""A small model of the same kind: every flag of a configuration kept, its sizes reduced.

Sizes that belong together (heads and head sizes, experts and those chosen) are named alike across the library, so they
are reduced by name; CONSISTENT holds what a few families demand of their sizes besides.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedConfig

from spillway.model.source.source import is_classifier, text_config

VOCABULARY = 211
LENGTH = 12
ORIGINAL_LENGTH = 10  # tokens: the verification has longer and shorter rows
WIDTH = 32
# Keys of a layer, where each has its own: with a few, of which a threshold lets one in twenty pass, a norm shows the
# rounding of what is left; of many, some lie at the threshold.
UNITS = 512
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_blocks")
LAYER_KINDS = ("layer_types", "layers_block_type", "block_types", "layers_type", "mlp_layer_types", "attention_layers")

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "encoder_attention_heads",
         "swa_num_attention_heads")  # fmt: skip

POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length", "max_target_positions",
             "max_source_positions", "model_max_length", "seq_length")  # fmt: skip

WIDTHS = ("hidden_size", "d_model", "n_embd")
LEAST_ROTARY = 4  # rotating channels of a head with scaled frequencies

# At most so much of each, where the configuration has it.
SIZES: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "emb_dim"), WIDTH),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size", "embedding_dim", "lru_width"), WIDTH),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_query_groups", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim", "dim_head", "swa_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("global_head_dim", "d_head", "attention_head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim", "index_head_dim"), 4),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank", "index_topk"), 16),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "dim_ff", "dff", "d_inner"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "mamba_d_ssm", "feed_forward_size"), 48),
    **dict.fromkeys(("ffn_hidden_size", "dense_intermediate_size", "intermediate_size_mlp", "block_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 16),
    **dict.fromkeys(("expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "router_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), 1),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "n_groups", "mamba_n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "index_n_heads"), 1),
    **dict.fromkeys(POSITIONS, 64),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("hidden_size_per_layer_input", "ple_embed_dim"), 8),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_window_size", "window_size"), LENGTH // 2),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "attention_chunk_size"), 8),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head"), 8),
    "num_nextn_predict_layers": 0,
    "original_max_position_embeddings": ORIGINAL_LENGTH,
}  # fmt: skip

# Rotary channels of time, height and width that classes take where a configuration names none.
SECTIONS = {
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "paddleocr_vl_text"), (16, 24, 24)),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_ocr_text"), (8, 12, 12)),
    "ernie4_5_vl_moe_text": (22, 22, 20),
}

Values = dict[str, Any]


def sharing_layers(values: Values) -> Values:
    """Half of the layers use the keys and values of the others, which are of the same kinds."""
    if not values.get("num_kv_shared_layers"):
        return {}
    before = values["layer_types"]
    kinds = sorted(set(before), key=lambda kind: (kind == before[-1], kind))  # some types demand which is the last
    order = [before.index(kind) for kind in kinds] * 2
    changes: Values = {"num_hidden_layers": len(order), "num_kv_shared_layers": len(kinds)}
    for name, value in values.items():
        if isinstance(value, list) and len(value) == len(before):
            changes[name] = [value[place] for place in order]
        elif name == "per_layer_config" and value:
            changes[name] = {new: value[old] for new, old in enumerate(order) if old in value}
    return changes


def shared_blocks(values: Values) -> Values:
    """The block that layers share is there twice."""
    changes: Values = {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2}
    return changes | ({"hybrid_layer_ids": [1, 3]} if "hybrid_layer_ids" in values else {})


def dots3_note(values: Values) -> Values:
    """Keys for every head; a head of a sliding layer is as wide as its two parts."""
    layers = {}
    for place, changed in (values.get("per_layer_config") or {}).items():
        whole = values | changed
        layers[place] = changed | {
            "num_key_value_heads": whole["num_attention_heads"],
            "head_dim": whole["qk_nope_head_dim"] + whole["qk_rope_head_dim"],
        }
    return {"num_key_value_heads": values["num_attention_heads"], "per_layer_config": layers}


def mamba2(values: Values) -> Values:
    return {"num_heads": values["hidden_size"] * values["expand"] // values["head_dim"]}


def falcon_h1(values: Values) -> Values:
    inner = values["mamba_n_heads"] * values["mamba_d_head"]
    return {"mamba_d_ssm": inner} if values.get("mamba_d_ssm") is not None else {"mamba_expand": inner / WIDTH}


def zamba(values: Values) -> Values:
    """Its attention works on twice the width."""
    heads, double = values["num_attention_heads"], 2 * values["hidden_size"]
    changes = {"attention_hidden_size": double,
             "attention_head_dim": double // heads, "num_key_value_heads": heads}  # fmt: skip
    if "mamba_headdim" in values:
        inner = values["mamba_expand"] * values["hidden_size"]
        changes |= {"mamba_headdim": inner // values["n_mamba_heads"],
                  "kv_channels": values["hidden_size"] // heads, "num_query_groups": heads}  # fmt: skip
    return changes


def reformer(values: Values) -> Values:
    half = values["hidden_size"] // 2
    return {"axial_pos_embds_dim": [half, half], "axial_pos_shape": [4, 16], "max_position_embeddings": 64}


LAYERS: dict[str, Callable[[Values], Values]] = {
    **dict.fromkeys(("gemma3n_text", "gemma4_text", "gemma4_unified_text"), sharing_layers),
    **dict.fromkeys(("zamba", "zamba2"), shared_blocks),
}
CONSISTENT: dict[str, Callable[[Values], Values]] = {
    "deepseek_v4": lambda values: {"compress_rates": dict.fromkeys(values["compress_rates"], 4)},
    "dots3_note_text": dots3_note,
    "mamba2": mamba2,
    "falcon_h1": falcon_h1,
    "zamba": zamba,
    "zamba2": zamba,
    "reformer": reformer,
}


def tiny_copy(config: PreTrainedConfig, layers: int = 2, **more: Any) -> PreTrainedConfig:
    """A configuration with the same flags at a small size, at least `layers` layers and one of every kind; `more` wins
    over all.

    The text tower of a multimodal one is reduced. Raises whatever the class finds wrong with the sizes.
    """
    if (text := text_config(config)) is not config:
        return set_text_config(config, tiny_copy(text, layers, **more))
    values = config.to_dict()
    names = {target: name for name, target in config.attribute_map.items()}
    sizes: Values = {}
    for name, value in values.items():
        if name in SIZES and isinstance(value, list | tuple):  # one for each layer
            sizes[name] = [min(one, UNITS) for one in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            for known in (name, names.get(name)):
                if known in POSITIONS:
                    sizes[name] = SIZES[known]  # a shorter table would have no room for the verification's rows
                elif known in SIZES:
                    sizes[name] = min(value, SIZES[known])
                if known in HEADS and value == 3:  # which divides no width here
                    sizes[name] = 2
    sizes |= heads(values, sizes)
    values |= sizes
    values |= few_layers(values, layers, config.model_type)
    values |= {name: shrunk_layers(value) for name, value in values.items() if name == "per_layer_config" and value}
    values |= small_numbers(values)
    name = config.attribute_map.get("head_dim", "head_dim")
    values |= widen_heads(values, name)
    values |= narrow_positions(add_head_channels(config.to_dict(), name), add_head_channels(values, name))
    if config.model_type in CONSISTENT:
        values |= CONSISTENT[config.model_type](values)
    small = rebuilt(config, values | more)
    if is_classifier(config):
        small.num_labels = VOCABULARY  # so that every token is a label, as of a model that predicts tokens
    return small


def narrow_positions(before: Values, values: Values) -> Values:
    """Settings of rotary positions, for the smaller heads and the shorter rows of a tiny copy."""
    return {
        key: narrow_rope(before[key], before, values)
        for key in ("rope_parameters", "rope_scaling")
        if isinstance(before.get(key), dict)
    } | shorten_context(before)


def narrow_rope(rope: Values, before: Values, values: Values) -> Values:
    """One set of settings, or one for each type of layer: lists with an entry for each frequency are cut to the heads
    of a tiny copy."""
    settings: Values = {}
    for name, value in rope.items():
        if isinstance(value, dict):
            settings[name] = narrow_rope(value, before, values)
        elif name == "original_max_position_embeddings" and type(value) is int:
            settings[name] = min(value, ORIGINAL_LENGTH)
        elif isinstance(value, list) and name.endswith("_factor"):
            settings[name] = pick_evenly(value, max(1, len(value) * head_size(values) // head_size(before)))
        else:
            settings[name] = value
    section = rope.get("mrope_section", SECTIONS.get(before["model_type"]) if rope else None)
    if section:
        total = sum(section) * head_size(values) // head_size(before)
        settings["mrope_section"] = parted(total, section)
    return settings


def list_rope_settings(values: Values) -> list[Values]:
    """The settings of rotary positions for all layers, or for each type of layer."""
    rope = values.get("rope_parameters") or {}
    return [each for each in (rope, *rope.values()) if isinstance(each, dict)]


def shorten_context(before: Values) -> Values:
    """A `max_position_embeddings` below some rows of the verification, for dynamic frequencies, which change there."""
    most = before.get("max_position_embeddings")
    if not most or all(each.get("rope_type") != "dynamic" for each in list_rope_settings(before)):
        return {}
    return {"max_position_embeddings": min(most, ORIGINAL_LENGTH)}


def add_head_channels(values: Values, name: str) -> Values:
    """The values with the channels of a head under their usual name."""
    return values | ({"head_dim": values[name]} if values.get(name) is not None else {})


def widen_heads(values: Values, name: str) -> Values:
    """Frequencies that are scaled need two of them in a head, of which a part may rotate. `name`: of the key with the
    channels of a head."""
    parts = [each.get("partial_rotary_factor") or 1.0 for each in list_rope_settings(values)
             if each.get("rope_type", "default") != "default"]  # fmt: skip
    if not parts or int(head_size(add_head_channels(values, name)) * min(parts)) >= LEAST_ROTARY:
        return {}
    if values.get(name) is not None:
        return {name: math.ceil(LEAST_ROTARY / min(parts) / 2) * 2}
    heads: Values = {"num_attention_heads": 2}
    if (keys := values.get("num_key_value_heads")) is not None:
        heads["num_key_value_heads"] = 2 if keys == values.get("num_attention_heads") else 1
    return heads


def pick_evenly(values: Sequence[Any], count: int) -> list[Any]:
    """`count` of the values, evenly spaced, from the first on."""
    return [values[place * len(values) // count] for place in range(count)]


def parted(total: int, section: Sequence[int]) -> list[int]:
    """`total` in as many parts, of which those are equal that were: one that had no equal takes what is over."""
    small = total // len(section)
    over = next((place for place, part in enumerate(section) if list(section).count(part) == 1), 0)
    return [total - small * (len(section) - 1) if place == over else small for place in range(len(section))]


def head_size(values: Values) -> int:
    """Channels of an attention head; 1 where the configuration does not say."""
    width = next((values[name] for name in WIDTHS if values.get(name)), 1)
    heads = next((values[name] for name in HEADS if values.get(name)), width)
    return int(values.get("head_dim") or width // heads)


def rebuilt(config: PreTrainedConfig, values: Values) -> PreTrainedConfig:
    dropped = ("dtype", "model_type", "transformers_version", "_name_or_path", "architectures")
    rebuilt = type(config)(**{key: value for key, value in values.items() if key not in dropped})
    if is_classifier(config):
        rebuilt.architectures = config.architectures
    return rebuilt


def set_text_config(config: PreTrainedConfig, text: PreTrainedConfig) -> PreTrainedConfig:
    """A multimodal configuration with another one of its text tower, and few layers in the others."""
    outer = copy.deepcopy(config)
    before = text_config(outer)
    for name, part in list(vars(outer).items()):
        if part is before:
            setattr(outer, name, text)
        elif isinstance(part, PreTrainedConfig):
            keep_two_layers(part)
    outer.use_cache = False
    return outer


def keep_two_layers(config: PreTrainedConfig) -> None:
    """Lists with an entry for each layer are cut alike."""
    for count in (*LAYER_COUNTS, "depth", "encoder_layers"):
        if not isinstance(value := getattr(config, count, None), int) or value <= 2:
            continue
        for name, each in list(vars(config).items()):
            if isinstance(each, list | tuple) and len(each) == value:
                setattr(config, name, each[:2])
        setattr(config, count, 2)


def shrunk_layers(single: dict[int, Values]) -> dict[int, Values]:
    return {
        layer: {name: min(value, SIZES[name] * (2 if "dim" in name else 1)) if name in SIZES and type(value) is int
                else value for name, value in changed.items()}
        for layer, changed in single.items()
    }  # fmt: skip


def heads(values: Values, sizes: Values) -> Values:
    """Queries to a key as they are, as far as four heads go; latent attention has its own."""
    changes: Values = {}
    query, key = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if isinstance(query, int) and isinstance(key, int) and "num_attention_heads" in sizes:
        few = sizes["num_attention_heads"]
        changes["num_key_value_heads"] = few if key == query else min(key, max(1, few // 2))
    if values.get("kv_lora_rank") is not None:
        if "num_key_value_heads" in values and "num_attention_heads" in sizes:
            changes["num_key_value_heads"] = sizes["num_attention_heads"]
        nope, rope = sizes.get("qk_nope_head_dim", 0), sizes.get("qk_rope_head_dim", 0)
        if values.get("qk_head_dim") is not None:
            changes["qk_head_dim"] = nope + rope
        if values.get("head_dim") is not None and rope:
            changes["head_dim"] = rope
    return changes


def small_numbers(values: Values) -> Values:
    """Token numbers inside the vocabulary, no dropout, weights large enough for every part to show in the loss."""
    changes: Values = {}
    for name, value in values.items():
        if name.endswith("_token_id") and isinstance(value, int) and value >= VOCABULARY:
            changes[name] = value % VOCABULARY
        elif ("drop" in name or "jitter" in name) and isinstance(value, float):
            changes[name] = 0.0
        elif name == "initializer_range" and value is not None:
            changes[name] = 0.1
    return changes


def few_layers(values: Values, least: int = 2, kind: str = "") -> Values:
    """`least` layers, or one of every kind if there are more kinds; lists with an entry for each layer cut alike."""
    count = next((values[name] for name in LAYER_COUNTS if isinstance(values.get(name), int)), None)
    if count is None:
        return {}
    lists = {name: value for name, value in values.items() if isinstance(value, list | tuple) and len(value) == count}
    dense = values.get("mlp_only_layers") or []  # numbers of layers
    kinds = [(place in dense, *(repr(lists[name][place]) for name in lists if name in LAYER_KINDS))
             for place in range(count)]  # fmt: skip
    chosen = {kind: place for place, kind in reversed(list(enumerate(kinds)))}.values()
    places = set(chosen)
    for place in range(count):
        if len(places) >= least:
            break
        places.add(place)
    order = sorted(places)
    changes: Values = {name: len(order) for name in LAYER_COUNTS if values.get(name) == count}
    changes |= {name: [value[place] for place in order] for name, value in lists.items()}
    if dense:
        changes["mlp_only_layers"] = [new for new, old in enumerate(order) if old in dense]
    for name, value in values.items():  # settings of single layers, by their number
        if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            single = {int(key): item for key, item in value.items()}
            changes[name] = {new: single[old] for new, old in enumerate(order) if old in single}
    return changes | (LAYERS[kind](values | changes) if kind in LAYERS else {})


def fewer_layers(config: PreTrainedConfig, least: int, **more: Any) -> PreTrainedConfig:
    """A configuration of the same widths with few layers, in place of a whole model's; in a multimodal one the text
    tower has them."""
    if (text := text_config(config)) is not config:
        return set_text_config(config, fewer_layers(text, least, **more))
    values = config.to_dict()
    small = rebuilt(config, values | few_layers(values, least, config.model_type) | more)
    small.use_cache = False
    return small
