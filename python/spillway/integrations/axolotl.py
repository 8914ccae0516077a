"""Axolotl's SFT over a streamed model: `plugins: [spillway.integrations.axolotl.SpillwayPlugin]`.

The plug-in names a class of models in Axolotl's registry of model types, and a class of trainers. Axolotl reads the
YAML file, encodes the rows and runs its own Trainer. The plug-in replaces no function of Axolotl.
"""

from __future__ import annotations

import math
from typing import Any

import transformers
from axolotl.core.trainers import AxolotlTrainer
from axolotl.integrations.base import BasePlugin
from axolotl.model_support import (
    VANILLA_CAUSAL_LM,
    ModelProfile,
    ModelStrategyOverrides,
    ModelSupport,
    get_model_support,
    register_model_support,
)
from pydantic import BaseModel

from spillway.config import front_ends
from spillway.config.front_ends import give_reason
from spillway.data.batches import drop_row_numbers
from spillway.errors import InputError
from spillway.integrations.loading import load
from spillway.integrations.trainer import StreamedTraining
from spillway.model.batches.batch import Batch

ADAPTERS = ("lora", "qlora")
LORA_KEYS = (
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_parameters", "lora_rank_pattern", "lora_alpha_pattern",
)  # fmt: skip
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
PAD_TO = 64  # Axolotl's default of `pad_to_multiple_of`
TAKEN = ("revision", "quantization_config", "trust_remote_code")  # keywords of from_pretrained that go on to `load`
SIZES = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size")  # refused above 1
ADVISED = (  # by the table of front ends
    "embedding_lr", "embedding_lr_scale", "fp8", "lora_modules_to_save", "loraplus_lr_ratio", "lr_groups",
    "peft_init_lora_weights", "peft_layers_to_transform", "qat", "relora", "rope_scaling",
)  # fmt: skip
PLACES = "the keys of `spillway` say where bytes lie"
CODE = "layers run the library's own code"
LOADED = "weights are those of the checkpoint"
# keys of Axolotl that act on weights, or on the Trainer's own step, and why they are refused
REFUSED = {
    **dict.fromkeys(("rl", "reward_model", "process_reward_model"), "a script takes the trainers of spillway.hf"),
    **dict.fromkeys(("deepspeed", "fsdp", "fsdp_config", "max_memory", "gpu_memory_limit"), PLACES),
    **dict.fromkeys(("activation_offloading", "layer_offloading", "selective_checkpointing"), PLACES),
    **dict.fromkeys(("unfrozen_parameters", "freeze_mm_modules"), "give `spillway: {trainable: [...]}`"),
    **dict.fromkeys(("tiled_mlp", "use_kernels", "cut_cross_entropy", "scaling_softmax", *LORA_KERNELS), CODE),
    **dict.fromkeys(("experts_implementation", "fused_attn_kernel", "fp32_norms", "use_onebitllms"), CODE),
    **dict.fromkeys(("fix_untrained_tokens", "gptq", "model_quantization_config", "quantize_moe_experts"), LOADED),
    **dict.fromkeys(("overrides_of_model_config", "reinit_weights"), LOADED),
    **dict.fromkeys(
        ("loftq_config", "peft_layer_replication", "peft_trainable_token_indices"), give_reason(front_ends.ADAPTERS)
    ),
    **{name: give_reason(front_ends.AXOLOTL[name]) for name in ADVISED},
}


class SpillwayArgs(BaseModel):
    """The key of the YAML file: keywords of `spillway.hf.load`."""

    spillway: dict[str, Any] | None = None


class StreamedAxolotlTrainer(StreamedTraining, AxolotlTrainer):
    """AxolotlTrainer, over a streamed model."""

    compute_loss = transformers.Trainer.compute_loss  # Axolotl's own counts tokens and calls this one

    def _batch(self, inputs: Any) -> Batch:
        return super()._batch(drop_row_numbers(inputs) if self.args.sample_packing else inputs)


class StreamedSupport(ModelSupport):  # type: ignore[misc]
    """The base of entries in Axolotl's registry that `name_loader` makes."""


class SpillwayPlugin(BasePlugin):  # type: ignore[misc]
    """The plug-in. Axolotl calls its methods in the order of this class."""

    def get_input_args(self) -> str:
        return f"{SpillwayArgs.__module__}.{SpillwayArgs.__name__}"

    def register(self, cfg: Any) -> None:
        """Axolotl enables its own kernels for adapters unless the file has a value."""
        for name in LORA_KERNELS:
            if cfg.get(name) is None:
                cfg[name] = False

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> None:
        """Only commands that train call it with `preprocess=False`, before they choose the class of the model."""
        if not preprocess:
            check(cfg)
            name_loader(cfg.model_config_type, list_keys(cfg))

    def pre_model_load(self, cfg: Any) -> None:
        """`load` makes the adapters, and the model stays on `meta`."""
        if isinstance(get_model_support(cfg.model_config_type), StreamedSupport):
            cfg.adapter = None
            cfg.experimental_skip_move_to_device = True

    def get_trainer_cls(self, cfg: Any) -> type[transformers.Trainer]:
        return StreamedAxolotlTrainer


def check(cfg: Any) -> None:
    """InputError for the first key that a streamed model cannot serve."""
    for name, why in REFUSED.items():
        if cfg[name]:
            raise InputError(f"{name}: not with a streamed model: {why}")
    for name in SIZES:
        if (cfg[name] or 1) > 1:
            raise InputError(f"{name}: not with a streamed model: {give_reason(front_ends.LAYOUT)}")
    if name := next((name for name in cfg if name.startswith("liger_") and cfg[name]), ""):
        raise InputError(f"{name}: not with a streamed model: {CODE}")
    if cfg.adapter and cfg.adapter not in ADAPTERS:
        raise InputError(f"adapter: {cfg.adapter} is not trained here; expects {' or '.join(ADAPTERS)}")


def list_keys(cfg: Any) -> dict[str, Any]:
    """Keywords of `load` that follow from Axolotl's keys, then those of the key `spillway`."""
    keys: dict[str, Any] = {}
    if cfg.adapter:
        keys = {"method": "lora", **{name: cfg[name] for name in LORA_KEYS if cfg[name] is not None}}
        if targets := "all-linear" if cfg.lora_target_linear else cfg.lora_target_modules:
            keys["lora_target_modules"] = targets
        keys |= {name: True for name in ("use_rslora", "use_dora") if cfg[f"peft_{name}"]}
        if cfg.lora_model_dir:
            keys["lora_adapter"] = cfg.lora_model_dir
    if cfg.sample_packing:
        multiple = cfg.pad_to_multiple_of or PAD_TO
        keys |= {"packing": True, "max_length": multiple * math.ceil(cfg.sequence_len / multiple)}
    return keys | dict(cfg.spillway or {})


def name_loader(model_type: str, keys: dict[str, Any]) -> None:
    """Enters into Axolotl's registry that `load` makes models of this type."""

    class Loader:
        @staticmethod
        def from_pretrained(path: str, dtype: Any = None, **named: Any) -> transformers.PreTrainedModel:
            given = {name: named[name] for name in TAKEN if named.get(name)}
            if "compute_dtype" not in keys:
                given["dtype"] = dtype
            return load(path, **{**given, **keys})

    class Support(StreamedSupport):
        model_types = (model_type,)
        profile = ModelProfile(VANILLA_CAUSAL_LM, strategies=ModelStrategyOverrides(auto_model_cls=lambda: Loader))

    if not isinstance(get_model_support(model_type), StreamedSupport | None):
        raise InputError(f"base_model: Axolotl has its own code for {model_type}; a script takes spillway.hf.load")
    register_model_support(Support)
