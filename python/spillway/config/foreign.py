"""Keys of transformers' TrainingArguments, TRL's SFTConfig and DPOConfig that are not taken here, and what to do."""

from __future__ import annotations

HUB = "nothing is uploaded; `hf upload NAME OUTPUT_DIR` does it when the run has ended"
WHERE = "the engine spreads the state itself: `storage`, `dram_budget` and `placement` say where it lies"
BEST = "under transformers' own Trainer (`from spillway.hf import Trainer`); here metrics.jsonl has every `eval_loss`"
LOADING = "rows are read and encoded before the run, so nothing is loaded beside it"
LOSS = "the loss is plain cross-entropy, computed in slices of the vocabulary"
SIZE = "`spillway plan` says what fits; `per_device_train_batch_size` is what is asked for"

PRECOMPUTED = "the reference's log-probabilities are always computed by a first pass, and kept with the run"
NESTED = "the scales of `load_in_4bit` are kept in fp32, half a bit for a weight"
OF_DPO = "of DPO's losses there are those of `loss_type`"

FOREIGN = {
    "auto_find_batch_size": SIZE,
    "bnb_4bit_compute_dtype": "its name is `compute_dtype`",
    "bnb_4bit_quant_storage": "codes are kept as bytes",
    "bnb_4bit_use_double_quant": NESTED,
    "dataloader_drop_last": "an epoch's last step takes the remainder",
    "dataloader_num_workers": LOADING,
    "dataloader_pin_memory": LOADING,
    "deepspeed": WHERE,
    "disable_tqdm": "the bar is shown on a terminal alone",
    "discopop_tau": OF_DPO,
    "do_eval": "`eval_dataset` is evaluated where it is given",
    "do_train": "the verb says what is done",
    "eval_accumulation_steps": "logits are never whole, so nothing accumulates",
    "f_alpha_divergence_coef": OF_DPO,
    "f_divergence_type": OF_DPO,
    "fsdp": WHERE,
    "fsdp_config": WHERE,
    "full_determinism": "the same configuration always gives the same bits",
    "greater_is_better": BEST,
    "group_by_length": "the order of rows follows from `data_seed` alone",
    "hub_model_id": HUB,
    "hub_private_repo": HUB,
    "hub_strategy": HUB,
    "hub_token": HUB,
    "label_smoothing_factor": LOSS,
    "ld_alpha": OF_DPO,
    "load_best_model_at_end": BEST,
    "logging_dir": "TensorBoard's files are in OUTPUT_DIR/runs",
    "logging_strategy": "`logging_steps` says when",
    "loss_weights": OF_DPO,
    "max_prompt_length": "rows are cut at `max_length`, prompts are not cut by themselves",
    "max_seq_length": "its name is `max_length`",
    "metric_for_best_model": BEST,
    "model_name_or_path": "its name is `model`",
    "neftune_noise_alpha": "embeddings are read as they are",
    "no_cuda": "`device: cpu` says so",
    "num_workers": LOADING,
    "overwrite_output_dir": "its name is `overwrite`",
    "padding_free": "rows are padded to the longest of their micro-batch",
    "per_gpu_train_batch_size": "its name is `per_device_train_batch_size`",
    "precompute_ref_batch_size": PRECOMPUTED,
    "precompute_ref_log_probs": PRECOMPUTED,
    "push_to_hub": HUB,
    "ref_model": "the reference is the model as it is before the first step",
    "ref_model_mixup_alpha": PRECOMPUTED,
    "ref_model_sync_steps": PRECOMPUTED,
    "remove_unused_columns": "columns are found by name, others are left alone",
    "rpo_alpha": OF_DPO,
    "sync_ref_model": PRECOMPUTED,
    "tf32": "PyTorch's own settings of precision are left as they are",
    "tokenizer_name": "its name is `tokenizer`",
    "torch_compile": "layers run as the library has them",
    "train_file": "its name is `dataset`",
    "truncation_mode": "rows are cut at their end, which is `keep_start`",
    "use_bnb_nested_quant": NESTED,
    "use_cpu": "`device: cpu` says so",
    "use_liger_kernel": "layers run as the library has them",
    "use_peft": "`method: lora` says so",
    "use_weighting": OF_DPO,
    "validation_file": "its name is `eval_dataset`",
}
