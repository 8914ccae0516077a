"""A small configuration of any model type that makes text and that the installed transformers knows, made by rule.

The class's own defaults, reduced as the verification reduces a model (`spillway.model.source.tiny_copy`); OVERRIDES
holds what a type's own defaults lack."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from spillway.model.source.source import PLAIN_PARTS, text_config
from spillway.model.source.tiny_copy import SIZES, WIDTH, keep_two_layers, tiny_copy

LAYERS = 3
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# Of towers of other modalities, which are carried along and never run.
OTHERS = SIZES | {
    **dict.fromkeys(("embed_dim", "out_hidden_size", "num_features", "text_hidden_size"), WIDTH),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers", "num_layers"), 2),
    "num_heads": 4,
}
PARTIAL = {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}

COMPASS = {"rope_parameters": {"full_attention": None, "sliding_attention": ROPE}}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 16,
           "indexer_compress_ratio": 4}  # fmt: skip
DENSE_FIRST = ["dense"] + ["sparse"] * 31

OVERRIDES: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 3, "IMGIMGAZ": 4}, "vq_config": {"base_channels": 32}},
    "cohere_compass": {"text_config": COMPASS},
    "cohere_compass_text": COMPASS,
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}, "d_model": 32},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": DENSE_FIRST, "num_experts_per_tok": 2}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots3_note": {"vision_config": {"mlp_layer_types": ["dense"] * 42}},
    "dots1": {"num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": 1},
    "emu3": {"vocabulary_map": {"<image>": 3, "<|extra_200|>": 4}, "vq_config": {"base_channels": 32}},
    "gemma4": {"text_config": {"num_kv_shared_layers": 10},
               "vision_config": {"num_hidden_layers": 2}},  # none by default
    "gemma4_text": {"num_kv_shared_layers": 10},
    **dict.fromkeys(("glm4v", "glm46v", "glmga"), {"text_config": {"rope_parameters": PARTIAL}}),
    "glm4v_moe": {"text_config": {"head_dim": 128, "rope_parameters": PARTIAL}},
    "granite4_vision": {"downsample_rate": "1/4", "deepstack_layer_map": [[0, 0]], "spatial_target_layers": [0, 1]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": {**ROPE, "mrope_section": [16, 16, 16, 16]}}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    # Few, so that every step reaches some that have weights.
    "longcat_flash": {"n_routed_experts": 8, "num_local_experts": 8, "zero_expert_num": 2, "moe_topk": 4,
                      "num_experts_per_tok": 4},
    "minimax_m3_vl": {"projector_hidden_size": 64},
    "ministral": {"head_dim": 8},
    "molmo2": {"adapter_config": {"vision_feature_layer": [-1, -2]}},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h_omni": {"projector_hidden_size": 64, "vision_hidden_size": 32},
    "qwen4_exp": {"text_config": INDEXER},
    "qwen4_exp_text": INDEXER,
    "reformer": {"is_decoder": True},
    "step3p7": {"text_config": {"sliding_window": 512}, "vision_config": {"mlp_ratio": 1.5}},
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config": {"num_filters": 4},
                      "semantic_tokenizer_encoder_config": {"num_filters": 4}},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip


def dots3_note(config: PreTrainedConfig) -> None:
    config.vision_config.adapter_in_dim = config.audio_config.adapter_input_size = WIDTH
    config.vision_config.adapter_out_dim = config.audio_config.adapter_out_dim = WIDTH
    config.audio_config.num_key_value_heads = config.audio_config.num_attention_heads


def granite4_vision(config: PreTrainedConfig) -> None:
    """Its heads are 64 wide."""
    config.vision_config.hidden_size = config.qformer_config.hidden_size = 64
    config.qformer_config.encoder_hidden_size, config.qformer_config.num_attention_heads = 64, 1


def nemo_speechlm(config: PreTrainedConfig) -> None:
    config.word_timestamp_config.blank_token_id = config.word_timestamp_config.vocab_size - 1
    speakers = config.audio_config.diarization_config
    speakers.head_config.audio_hidden_size = speakers.audio_config.hidden_size


# What a type's own rule asks of sizes that are made small apart.
TOGETHER: dict[str, Callable[[PreTrainedConfig], None]] = {
    "dots3_note": dots3_note,
    "fun_asr_nano": lambda config: setattr(config.adaptor_config, "intermediate_size", WIDTH // 4),
    "granite4_vision": granite4_vision,
    "minimax_m3_vl": lambda config: setattr(config, "merged_hidden_size", 4 * WIDTH),
    "nemo_speechlm": nemo_speechlm,
}


def kinds() -> list[str]:
    """Every model type with a causal language model, or with a multimodal one that makes text."""
    return sorted(
        {
            *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
            *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        }
    )


def wraps_models(kind: str) -> bool:
    """The type holds other models' configurations: vision, audio, an encoder and a decoder."""
    alone = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return not alone or bool(CONFIG_MAPPING[kind].sub_configs.keys() - PLAIN_PARTS)


def small_config(kind: str, **more: Any) -> PreTrainedConfig:
    """The small configuration; `more` wins over everything."""
    own = OVERRIDES.get(kind, {})
    config = CONFIG_MAPPING[kind](**own)
    known = text_config(config).to_dict()
    values = {name: value for name, value in TOKENS.items() if name in known}
    if known.get("is_decoder") is False:
        values["is_decoder"] = True
    small = with_small_others(tiny_copy(config, LAYERS, **{**values, **more}))
    TOGETHER.get(kind, lambda _: None)(small)
    return small


def with_small_others(config: PreTrainedConfig) -> PreTrainedConfig:
    """Of a multimodal model all but the text tower made small, too: nothing asks that their sizes go together."""
    found = copy.deepcopy(config)
    for part in vars(found).values():
        if isinstance(part, PreTrainedConfig) and part is not text_config(found):
            make_small(part)
    return found


def make_small(config: PreTrainedConfig) -> None:
    """With what it holds in turn."""
    keep_two_layers(config)
    for name, most in OTHERS.items():
        if type(value := getattr(config, name, None)) is int and value > most:
            with suppress(AttributeError):  # another name of a size, which cannot be set
                setattr(config, name, most)
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig):
            make_small(part)
