"""LLaMA-Factory's SFT over a streamed model: `python -m spillway.integrations.llama_factory config.yaml`.

LLaMA-Factory has no plug-ins, and its workflow names the classes that it makes. This module is that workflow with
another model and another Trainer. Arguments, tokenizer, template, rows and collator are LLaMA-Factory's own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from llamafactory.data import SFTDataCollatorWith4DAttentionMask, get_dataset, get_template_and_fix_tokenizer
from llamafactory.extras.constants import IGNORE_INDEX
from llamafactory.extras.ploting import plot_loss
from llamafactory.hparams import get_train_args, read_args
from llamafactory.model import load_tokenizer
from llamafactory.train.callbacks import LogCallback
from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
from peft import PeftConfig

from spillway.config.front_ends import LLAMA_FACTORY, give_reason
from spillway.data.batches import drop_row_numbers
from spillway.errors import InputError
from spillway.integrations.loading import load
from spillway.integrations.peft_configs import translate_peft
from spillway.integrations.trainer import StreamedTraining
from spillway.model.batches.batch import Batch

ONLY_SFT = (
    "this command trains stage: sft with finetuning_type: full or lora; a script takes the other trainers of "
    "spillway.hf"
)
PAD_TO = 8  # tokens, as LLaMA-Factory pads rows
CODE = "layers run the library's own code"
LOSS = "the loss is plain cross-entropy"
RULE = "all trainable parameters have one optimizer of TrainingArguments"
# keys of LLaMA-Factory that act on weights, or on the Trainer's own step, and why they are refused
REFUSED = {
    **dict.fromkeys(("use_dft_loss", "use_eaft_loss", "use_asft_loss", "moe_aux_loss_coef"), LOSS),
    **dict.fromkeys(("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon", "loraplus_lr_ratio"), RULE),
    **dict.fromkeys(("shift_attn", "mixture_of_depths", "use_unsloth", "use_kt", "upcast_layernorm"), CODE),
    **dict.fromkeys(("enable_liger_kernel", "rope_scaling", "resize_vocab", "fp8"), CODE),
    **{name: give_reason(LLAMA_FACTORY[name]) for name in ("additional_target", "pissa_init", "use_llama_pro")},
    "adapter_folder": "name the folder in adapter_name_or_path",
    "pure_bf16": "master weights are fp32; leave it out, or set bf16",
    "use_swanlab": "give `report_to: swanlab`",
    "train_from_scratch": "give `spillway: {init: random}`",
    **dict.fromkeys(("predict_with_generate", "do_predict", "compute_accuracy"), "an evaluation gives the loss"),
}


class StreamedFactoryTrainer(StreamedTraining, CustomSeq2SeqTrainer):
    """LLaMA-Factory's Trainer, over a streamed model."""

    compute_loss = transformers.Trainer.compute_loss  # LLaMA-Factory's own calls this one

    def _batch(self, inputs: Any) -> Batch:
        return super()._batch(drop_row_numbers(inputs))


def refuse_open_packs(data_args: Any) -> None:
    """InputError for packs whose rows see each other."""
    if data_args.packing and not data_args.neat_packing:
        raise InputError("packing: rows of a pack would see each other; give neat_packing: true")


def check(*parsed: Any) -> None:
    """InputError for the first key that a streamed model cannot serve. `parsed`: arguments of LLaMA-Factory."""
    values: dict[str, Any] = {}
    for each in parsed:
        values |= vars(each)
    if values["stage"] != "sft" or values["finetuning_type"] not in ("full", "lora"):
        raise InputError(f"stage: {values['stage']} with {values['finetuning_type']}: {ONLY_SFT}")
    for name, why in REFUSED.items():
        if values.get(name):
            raise InputError(f"{name}: not with a streamed model: {why}")


def list_base_keys(model_args: Any) -> dict[str, Any]:
    """Keywords of `load` for a base that LLaMA-Factory rounds by bitsandbytes."""
    bits = model_args.quantization_bit
    if bits is None:
        return {}
    if bits not in (4, 8) or model_args.quantization_method != "bnb":
        raise InputError(f"quantization_bit: {bits} by {model_args.quantization_method}; expects 4 or 8 by bnb")
    if bits == 8:
        return {"load_in_8bit": True}
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": model_args.quantization_type,
        "bnb_4bit_use_double_quant": model_args.double_quantization,
    }


def list_adapter_keys(model_args: Any, finetuning_args: Any) -> dict[str, Any]:
    """Keywords of `load` for LLaMA-Factory's adapters. Adapters of a file bring their own settings."""
    if finetuning_args.finetuning_type != "lora":
        return {}
    base = list_base_keys(model_args)
    if paths := model_args.adapter_name_or_path:
        if len(paths) > 1 or finetuning_args.create_new_adapter:
            raise InputError("adapter_name_or_path: one directory, whose adapters train on, without create_new_adapter")
        saved = PeftConfig.from_pretrained(paths[0])
        saved.inference_mode = False  # PEFT saves True
        if saved.init_lora_weights is False:
            saved.init_lora_weights = True  # the file has the values
        return {**base, **translate_peft(saved), "lora_adapter": paths[0]}
    targets = finetuning_args.lora_target
    return base | {
        "method": "lora",
        "lora_r": finetuning_args.lora_rank,
        "lora_alpha": finetuning_args.lora_alpha,
        "lora_dropout": finetuning_args.lora_dropout,
        "lora_target_modules": "all-linear" if targets == ["all"] else targets,
        "use_rslora": finetuning_args.use_rslora,
        "use_dora": finetuning_args.use_dora,
    }


def list_packing_keys(data_args: Any) -> dict[str, Any]:
    """Keywords of `load` for LLaMA-Factory's packs, which have one token more than `cutoff_len`."""
    if not data_args.neat_packing:
        return {}
    return {"packing": True, "max_length": PAD_TO * math.ceil((data_args.cutoff_len + 1) / PAD_TO)}


def choose_dtype(training_args: Any, finetuning_args: Any) -> torch.dtype | str:
    """LLaMA-Factory widens what it trains to fp32, and leaves the base of adapters as the checkpoint has it."""
    if training_args.bf16 or training_args.fp16:
        return torch.bfloat16 if training_args.bf16 else torch.float16
    return "auto" if finetuning_args.finetuning_type == "lora" else torch.float32


def list_callbacks(finetuning_args: Any) -> list[transformers.TrainerCallback]:
    patience = finetuning_args.early_stopping_steps
    stopping = [] if patience is None else [transformers.EarlyStoppingCallback(early_stopping_patience=patience)]
    return [LogCallback(), *stopping]


def run(given: dict[str, Any]) -> StreamedFactoryTrainer:
    """Trains as LLaMA-Factory's `run_sft`. The key `spillway` has keywords of `spillway.hf.load`."""
    keys = dict(given.get("spillway") or {})
    model_args, data_args, training_args, finetuning_args, _ = get_train_args(
        {name: value for name, value in given.items() if name != "spillway"}
    )
    check(model_args, data_args, training_args, finetuning_args)
    refuse_open_packs(data_args)
    parts = load_tokenizer(model_args)
    template = get_template_and_fix_tokenizer(parts["tokenizer"], data_args)
    rows = get_dataset(template, model_args, data_args, training_args, stage="sft", **parts)
    kept = {"revision": model_args.model_revision} if model_args.model_revision != "main" else {}
    kept |= list_adapter_keys(model_args, finetuning_args) | list_packing_keys(data_args)
    if "compute_dtype" not in keys:
        kept["dtype"] = choose_dtype(training_args, finetuning_args)
    trainer = StreamedFactoryTrainer(
        model=load(model_args.model_name_or_path, **{**kept, **keys}),
        args=training_args,
        finetuning_args=finetuning_args,
        data_collator=SFTDataCollatorWith4DAttentionMask(
            template=template,
            pad_to_multiple_of=PAD_TO,
            label_pad_token_id=IGNORE_INDEX if data_args.ignore_pad_token_for_loss else parts["tokenizer"].pad_token_id,
            **parts,
        ),
        callbacks=list_callbacks(finetuning_args),
        **rows,
        **parts,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", result.metrics)
        trainer.save_metrics("train", result.metrics)
        trainer.save_state()
        if finetuning_args.plot_loss and trainer.is_world_process_zero():
            plot_loss(training_args.output_dir, keys=["loss", "eval_loss"])
    if training_args.do_eval:
        metrics = trainer.evaluate(metric_key_prefix="eval")
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    return trainer


if __name__ == "__main__":
    with_keys = read_args()
    if not isinstance(with_keys, dict):
        raise SystemExit("usage: python -m spillway.integrations.llama_factory CONFIG.yaml [KEY=VALUE ...]")
    run(with_keys)
