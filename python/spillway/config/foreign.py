"""Unsupported keys of other trainers, and the advice for each: transformers' TrainingArguments, TRL's SFTConfig and
DPOConfig, PEFT's LoraConfig, and other names of this project's keys."""

from __future__ import annotations

from spillway.config import front_ends

HUB = "one upload, when the run has ended, is `push_to_hub`"
WHERE = "the engine spreads the state itself: `storage`, `dram_budget` and `placement` say where it lies"
BEST = "under transformers' own Trainer (`from spillway.hf import Trainer`); here metrics.jsonl has every `eval_loss`"
LOADING = "rows are read and encoded before the run, so nothing is loaded beside it"
LOSS = "the loss is plain cross-entropy, computed in slices of the vocabulary"
SIZE = "`spillway plan` says what fits; `per_device_train_batch_size` is what is asked for"
ORDER = "the order of rows follows from `data_seed` alone"
EAGER = "layers run as the library has them"
METRICS = "an evaluation gives `eval_loss`; further metrics need transformers' own Trainer"
ROWS = "metrics.jsonl has a row for every `logging_steps` steps, `report_to` sends them on"
GATHERED = "the engine moves what processes share; `ddp_backend` says how"
PADDING = "rows are padded on the right to the longest of their micro-batch, and padding is no label"
TOKENS = "the tokenizer says so; name another one with `tokenizer`"
RECOMPUTE = "`activation_recompute` says which layers compute again"
CODE = "code that a model brings is not run: save the model in a type that transformers has"

PRECOMPUTED = "the reference's log-probabilities are always computed by a first pass, and kept with the run"
NESTED = "its name is `bnb_4bit_use_double_quant`"
OF_DPO = "of DPO's losses there are those of `loss_type`"

OF_TRAINERS = {
    "accelerator_config": WHERE,
    "activation_checkpointing_kwargs": RECOMPUTE,
    "activation_offloading": "`activation_spill` says what of it goes to other memory or to a path",
    "auto_find_batch_size": SIZE,
    "average_tokens_across_devices": "a loss is always the mean over all label tokens of a step",
    "batch_eval_metrics": METRICS,
    "bf16_full_eval": "evaluations compute in `compute_dtype`, as training does",
    "bnb_4bit_compute_dtype": "its name is `compute_dtype`",
    "bnb_4bit_quant_storage": "codes are kept as bytes",
    "dataloader_drop_last": "an epoch's last step takes the remainder",
    "dataloader_in_order": LOADING,
    "dataloader_multiprocessing_context": LOADING,
    "dataloader_num_workers": LOADING,
    "dataloader_persistent_workers": LOADING,
    "dataloader_pin_memory": LOADING,
    "dataloader_prefetch_factor": LOADING,
    "dataset_kwargs": "rows are always encoded, with the columns that `dataset_text_field` and its neighbours name",
    "dataset_num_proc": "the tokenizer encodes many rows at a time, in threads of its own",
    "ddp_broadcast_buffers": GATHERED,
    "ddp_bucket_cap_mb": GATHERED,
    "ddp_find_unused_parameters": GATHERED,
    "ddp_static_graph": GATHERED,
    "ddp_timeout": GATHERED,
    "debug": "`timeline.json.gz` and `spillway report` show what a run did",
    "deepspeed": WHERE,
    "disable_tqdm": "the bar is shown on a terminal alone",
    "discopop_tau": OF_DPO,
    "do_eval": "`eval_dataset` is evaluated where it is given",
    "do_predict": METRICS,
    "do_train": "the command (`spillway train`) selects the action",
    "enable_jit_checkpoint": "a signal ends a run with its state saved in any case",
    "eos_token": TOKENS,
    "eval_accumulation_steps": "logits are never whole, so nothing accumulates",
    "eval_delay": "evaluations begin with the first that `eval_steps` or `eval_strategy` asks for",
    "eval_do_concat_batches": METRICS,
    "eval_use_gather_object": METRICS,
    "f_alpha_divergence_coef": OF_DPO,
    "f_divergence_type": OF_DPO,
    "fp16_full_eval": "evaluations compute in `compute_dtype`, as training does",
    "fsdp": WHERE,
    "fsdp_config": WHERE,
    "gradient_checkpointing_kwargs": RECOMPUTE,
    "greater_is_better": BEST,
    "group_by_length": ORDER,
    "hub_always_push": HUB,
    "hub_revision": HUB,
    "ignore_data_skip": "a resumed run goes on with the row that comes next",
    "include_for_metrics": METRICS,
    "include_num_input_tokens_seen": "the rows of metrics.jsonl have `tokens`",
    "label_names": "labels are made of the rows' own columns",
    "label_smoothing_factor": LOSS,
    "ld_alpha": OF_DPO,
    "length_column_name": ORDER,
    "liger_kernel_config": EAGER,
    "load_best_model_at_end": BEST,
    "local_rank": "the launcher tells each process its rank, as LOCAL_RANK",
    "log_level": "standard error has what a person should know, metrics.jsonl the rest",
    "log_level_replica": "rank 0 alone tells",
    "log_on_each_node": "rank 0 alone tells",
    "logging_dir": "TensorBoard's files are in OUTPUT_DIR/runs",
    "logging_first_step": "`logging_steps` says when; its default 1 has every step",
    "logging_nan_inf_filter": "a step whose gradient is not finite is told and updates nothing",
    "logging_strategy": "`logging_steps` says when",
    "loss_weights": OF_DPO,
    "max_prompt_length": "rows are cut at `max_length`, prompts are not cut by themselves",
    "metric_for_best_model": BEST,
    "model_init_kwargs": "`weight_dtype`, `compute_dtype` and `model_revision` say how a model is read",
    "neftune_noise_alpha": "embeddings are read as they are",
    "no_cuda": "`device: cpu` says so",
    "num_workers": LOADING,
    "optim_args": "each hyperparameter has a key of its own, such as `adam_beta2` and `adam_epsilon`",
    "optim_target_modules": "`optim` is for all that trains; `method: lsp` with `lsp_modules` reduces gradients",
    "packing_strategy": "with `packing` rows are joined in their order and cut at `max_length`",
    "pad_to_multiple_of": PADDING,
    "pad_token": TOKENS,
    "padding_free": PADDING,
    "parallelism_config": WHERE,
    "precompute_ref_batch_size": PRECOMPUTED,
    "precompute_ref_log_probs": PRECOMPUTED,
    "prediction_loss_only": METRICS,
    "project": ROWS,
    "ref_model": "the reference is the model as it is before the first step",
    "ref_model_mixup_alpha": PRECOMPUTED,
    "ref_model_sync_steps": PRECOMPUTED,
    "remove_unused_columns": "columns are found by name, others are left alone",
    "restore_callback_states_from_checkpoint": "there are no callbacks but those of `report_to`",
    "router_aux_loss_coef": "the model's config.json has it; `output_router_logits` there asks for the loss",
    "rpo_alpha": OF_DPO,
    "run_name": ROWS,
    "save_on_each_node": "rank 0 writes `output_dir`",
    "shuffle_dataset": ORDER,
    "skip_memory_metrics": "summary.json has the peaks of memory",
    "sync_ref_model": PRECOMPUTED,
    "tf32": "PyTorch's own settings of precision are left as they are",
    "torch_compile": EAGER,
    "torch_compile_backend": EAGER,
    "torch_compile_mode": EAGER,
    "torch_empty_cache_steps": "memory is planned before the first step, and nothing is left to empty",
    "trackio_bucket_id": ROWS,
    "trackio_space_id": ROWS,
    "trackio_static_space_id": ROWS,
    "train_sampling_strategy": ORDER,
    "truncation_mode": "rows are cut at their end, which is `keep_start`",
    "trust_remote_code": CODE,
    "use_bnb_nested_quant": NESTED,
    "use_cache": "training keeps no cache of keys and values",
    "use_cpu": "`device: cpu` says so",
    "use_liger_kernel": EAGER,
    "use_peft": "`method: lora` says so",
    "use_weighting": OF_DPO,
}

FROZEN = "with `method: lora` all of the base is frozen; `method: full` with `trainable` trains what its patterns find"
PLAIN = "adapters are plain LoRA, `lora_r`, `lora_alpha` and `lora_dropout` alike in every layer"
BEGIN = "adapters begin as PEFT's do by default: A drawn from `seed`, B zero"
TARGETS = "`lora_target_modules` names the linear layers, by the ends of their names"

OF_PEFT = {
    "alora_invocation_tokens": PLAIN,
    "alpha_pattern": PLAIN,
    "arrow_config": PLAIN,
    "auto_mapping": "the adapters' own file says which model they are for",
    "bias": FROZEN,
    "corda_config": BEGIN,
    "ensure_weight_tying": FROZEN,
    "eva_config": BEGIN,
    "exclude_modules": TARGETS,
    "fan_in_fan_out": "the class of a layer says how its matrix lies",
    "inference_mode": "what is trained here is not for inference alone",
    "init_lora_weights": BEGIN,
    "kasa_config": PLAIN,
    "layer_replication": PLAIN,
    "layers_pattern": TARGETS,
    "layers_to_transform": TARGETS,
    "loftq_config": BEGIN + ", over the base that `load_in_4bit` rounds",
    "lora_bias": PLAIN,
    "lora_ga_config": BEGIN,
    "megatron_config": PLAIN,
    "megatron_core": PLAIN,
    "modules_to_save": FROZEN,
    "monteclora_config": PLAIN,
    "peft_type": "`method: lora` says so",
    "peft_version": "the installed PEFT is used",
    "qalora_group_size": PLAIN,
    "rank_pattern": PLAIN,
    "runtime_config": PLAIN,
    "task_type": "a causal language model is what is trained",
    "trainable_token_indices": FROZEN,
    "use_bdlora": PLAIN,
    "use_dora": PLAIN,
    "use_qalora": PLAIN,
    "use_rslora": "adapters are scaled by `lora_alpha` / `lora_r`; give `lora_alpha` times the square root of `lora_r`",
    "velora_config": PLAIN,
}

# Names in other trainers' configurations, and the key that means the same.
RENAMED = {
    "base_model": "model",
    "base_model_name_or_path": "model",
    "batch_size": "per_device_train_batch_size",
    "cutoff_len": "max_length",
    "epochs": "num_train_epochs",
    "eval_batch_size": "per_device_eval_batch_size",
    "grad_clip": "max_grad_norm",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "max_seq_length": "max_length",
    "micro_batch_size": "per_device_train_batch_size",
    "model_max_length": "max_length",
    "model_name_or_path": "model",
    "num_epochs": "num_train_epochs",
    "optimizer": "optim",
    "overwrite_output_dir": "overwrite",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "r": "lora_r",
    "revision": "model_revision",
    "sample_packing": "packing",
    "sequence_len": "max_length",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "tokenizer_name": "tokenizer",
    "tokenizer_name_or_path": "tokenizer",
    "train_file": "dataset",
    "validation_file": "eval_dataset",
}


def name_key(own: str) -> str:
    return f"its name is `{own}`"


FOREIGN = dict(sorted((OF_TRAINERS | OF_PEFT | {name: name_key(own) for name, own in RENAMED.items()}).items()))


def advise(name: str) -> str:
    """What to write instead of a key of another trainer; empty for any other name."""
    if name in FOREIGN:
        return FOREIGN[name]
    words = next((own[name] for own in front_ends.OWN.values() if name in own), "")
    return name_key(words) if words.isidentifier() else words


def describe_foreign(name: str) -> str:
    """The sentence that refuses a key of another trainer; empty for any other name."""
    words = advise(name)
    return f"a key of {name_owner(name)} that is not taken here: {words}" if words else ""


def name_owner(name: str) -> str:
    if name in OF_PEFT:
        return "PEFT"
    if name in OF_TRAINERS:
        return "transformers or TRL"
    own = [tool for tool, names in front_ends.SHARED.items() if name in names or name in front_ends.OWN.get(tool, {})]
    return " and ".join(own) or "other trainers"
