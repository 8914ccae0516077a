"""Unsupported keys of other trainers, and the advice for each: transformers' TrainingArguments, TRL's SFTConfig and
DPOConfig, PEFT's LoraConfig, and other names of this project's keys."""

from __future__ import annotations

from pathlib import Path

from spillway.config import front_ends

HUB = "not supported: `push_to_hub` uploads once, at the end of the run"
WHERE = "`storage`, `dram_budget` and `placement` say where the engine keeps the state"
BEST = "not supported by the command: `spillway.hf.Trainer` takes the key; metrics.jsonl has every `eval_loss`"
LOADING = "not needed: rows are read and encoded before the first step"
LOSS = "not supported: the loss is plain cross-entropy"
SIZE = "not supported: `spillway plan` names the largest `per_device_train_batch_size` that fits"
ORDER = "not supported: `data_seed` alone sets the order of rows"
LIGER = "not needed: `fused_kernels` has such kernels for a GPU"
EAGER = "not supported: layers run the library's own code"
METRICS = "not supported by the command: `spillway.hf.Trainer` takes `compute_metrics`; the command gives `eval_loss`"
ROWS = "not supported: metrics.jsonl has a row every `logging_steps` steps, and `report_to` names trackers for it"
GATHERED = "not needed: the engine moves the bytes between processes; `ddp_backend` names the transport"
PADDING = "not supported: rows are padded on the right to the longest row of their micro-batch"
TOKENS = "not needed: the tokenizer has this token; `tokenizer` names another one"
RECOMPUTE = "`activation_recompute` says which layers recompute"
CODE = "not supported: a model's own code is never run; save the model as a type of transformers"

REFERENCE = "not supported: the reference is the model before the first step"
PRECOMPUTED = "not needed: a first pass takes as many rows as a step"
NESTED = "its name is `bnb_4bit_use_double_quant`"
OF_DPO = front_ends.OF_DPO

AUXILIARY = "not needed: config.json has the value, and its `output_router_logits` turns the loss on"

OF_TRAINERS = {
    "accelerator_config": WHERE,
    "activation_checkpointing_kwargs": RECOMPUTE,
    "activation_offloading": "`activation_spill` sends activations to other memory or to a path",
    "auto_find_batch_size": SIZE,
    "average_tokens_across_devices": "not needed: a loss is always the mean over all label tokens of a step",
    "batch_eval_metrics": METRICS,
    "bf16_full_eval": "not supported: evaluations compute in `compute_dtype`, like training",
    "bnb_4bit_compute_dtype": "its name is `compute_dtype`",
    "bnb_4bit_quant_storage": "not supported: codes are stored as bytes",
    "dataloader_drop_last": "not supported: the last step of an epoch takes the remaining rows",
    "dataloader_in_order": LOADING,
    "dataloader_multiprocessing_context": LOADING,
    "dataloader_num_workers": LOADING,
    "dataloader_persistent_workers": LOADING,
    "dataloader_pin_memory": LOADING,
    "dataloader_prefetch_factor": LOADING,
    "dataset_kwargs": "not supported: rows are always encoded; `dataset_text_field` and the like name their columns",
    "dataset_num_proc": "not needed: the tokenizer encodes rows in threads of its own",
    "ddp_broadcast_buffers": GATHERED,
    "ddp_bucket_cap_mb": GATHERED,
    "ddp_find_unused_parameters": GATHERED,
    "ddp_static_graph": GATHERED,
    "ddp_timeout": GATHERED,
    "debug": "not needed: `spillway report` shows the timeline of a run",
    "deepspeed": WHERE,
    "disable_tqdm": "not needed: only a terminal shows the bar",
    "discopop_tau": OF_DPO,
    "do_eval": "not needed: a run with an `eval_dataset` evaluates it",
    "do_predict": METRICS,
    "do_train": "not needed: the command (`spillway train`) selects the action",
    "enable_jit_checkpoint": "not needed: a run that gets a signal always saves its state",
    "eos_token": TOKENS,
    "eval_accumulation_steps": "not needed: an evaluation keeps no logits",
    "eval_delay": "not supported: `eval_steps` and `eval_strategy` set the first evaluation",
    "eval_do_concat_batches": METRICS,
    "eval_use_gather_object": METRICS,
    "f_alpha_divergence_coef": OF_DPO,
    "f_divergence_type": OF_DPO,
    "fp16_full_eval": "not supported: evaluations compute in `compute_dtype`, like training",
    "fsdp": WHERE,
    "fsdp_config": WHERE,
    "gradient_checkpointing_kwargs": RECOMPUTE,
    "greater_is_better": BEST,
    "group_by_length": ORDER,
    "hub_always_push": HUB,
    "hub_revision": HUB,
    "ignore_data_skip": "not supported: a resumed run always continues with the next row",
    "include_for_metrics": METRICS,
    "include_num_input_tokens_seen": "not needed: each row of metrics.jsonl has `tokens`",
    "label_names": "not needed: labels come from the columns of the rows",
    "label_smoothing_factor": LOSS,
    "ld_alpha": OF_DPO,
    "length_column_name": ORDER,
    "liger_kernel_config": LIGER,
    "load_best_model_at_end": BEST,
    "local_rank": "not needed: the launcher sets LOCAL_RANK for each process",
    "log_level": "not supported: messages always go to standard error, and figures to metrics.jsonl",
    "log_level_replica": "not supported: only rank 0 logs",
    "log_on_each_node": "not supported: only rank 0 logs",
    "logging_dir": "not supported: TensorBoard's files are in OUTPUT_DIR/runs",
    "logging_first_step": "not needed: `logging_steps` is 1 by default, which logs every step",
    "logging_nan_inf_filter": "not needed: a step whose gradient is not finite is reported and updates nothing",
    "logging_strategy": "`logging_steps`",
    "loss_weights": OF_DPO,
    "max_prompt_length": "not supported: `max_length` cuts whole rows, not prompts",
    "metric_for_best_model": BEST,
    "model_init_kwargs": "`weight_dtype`, `compute_dtype` and `model_revision` say how a model is read",
    "neftune_noise_alpha": "not supported: Spillway adds no noise to embeddings",
    "no_cuda": "`device: cpu`",
    "num_workers": LOADING,
    "optim_args": "`adam_beta2`, `adam_epsilon` and so on: each hyperparameter has a key",
    "optim_target_modules": "not supported: `optim` updates all parameters; `method: lsp` reduces gradients",
    "packing_strategy": "not supported: `packing` joins rows in their order and cuts them at `max_length`",
    "pad_to_multiple_of": PADDING,
    "pad_token": TOKENS,
    "padding_free": PADDING,
    "parallelism_config": WHERE,
    "precompute_ref_batch_size": PRECOMPUTED,
    "prediction_loss_only": METRICS,
    "project": ROWS,
    "ref_model": REFERENCE,
    "ref_model_mixup_alpha": REFERENCE,
    "ref_model_sync_steps": REFERENCE,
    "remove_unused_columns": "not needed: other columns are ignored",
    "restore_callback_states_from_checkpoint": "not needed: only `report_to` has callbacks",
    "router_aux_loss_coef": AUXILIARY,
    "rpo_alpha": OF_DPO,
    "run_name": ROWS,
    "save_on_each_node": "not needed: rank 0 writes `output_dir`",
    "shuffle_dataset": ORDER,
    "skip_memory_metrics": "not needed: summary.json always has the peaks of memory",
    "sync_ref_model": REFERENCE,
    "tf32": "not supported: PyTorch's own settings apply",
    "torch_compile": EAGER,
    "torch_compile_backend": EAGER,
    "torch_compile_mode": EAGER,
    "torch_empty_cache_steps": "not needed: memory is planned before the first step",
    "trackio_bucket_id": ROWS,
    "trackio_space_id": ROWS,
    "trackio_static_space_id": ROWS,
    "train_sampling_strategy": ORDER,
    "truncation_mode": "not supported: rows are cut at their end, as with `keep_start`",
    "trust_remote_code": CODE,
    "use_bnb_nested_quant": NESTED,
    "use_cache": "not needed: training keeps no cache of keys and values",
    "use_cpu": "`device: cpu`",
    "use_liger_kernel": LIGER,
    "use_peft": "`method: lora`",
    "use_weighting": OF_DPO,
}

FROZEN = f"{front_ends.FROZEN}; `method: full` with `trainable` trains a part"
PLAIN = "not supported: adapters are LoRA, rsLoRA or DoRA"
BEGIN = "not supported: adapters start with PEFT's default: A drawn from `seed`, B zero"
TARGETS = "`lora_target_modules` names the linear layers, by the ends of their names"

OF_PEFT = {
    "alora_invocation_tokens": PLAIN,
    "arrow_config": PLAIN,
    "auto_mapping": "not needed: the adapters' own file names their model",
    "bias": FROZEN,
    "corda_config": BEGIN,
    "ensure_weight_tying": FROZEN,
    "eva_config": BEGIN,
    "exclude_modules": TARGETS,
    "fan_in_fan_out": "not needed: the class of a layer says how its matrix is stored",
    "inference_mode": "not supported: Spillway only trains adapters",
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
    "peft_type": "`method: lora`",
    "peft_version": "not needed: Spillway uses the installed PEFT",
    "qalora_group_size": PLAIN,
    "runtime_config": PLAIN,
    "task_type": "not needed: `objective` decides the head of the model",
    "trainable_token_indices": FROZEN,
    "use_bdlora": PLAIN,
    "use_qalora": PLAIN,
    "velora_config": PLAIN,
}

BALANCE = (
    "not supported: the biases by which routers choose experts (`e_score_correction_bias`) keep the values of the "
    "checkpoint, as in transformers"
)
Z_LOSS = "not supported: no z-loss is added"
CAPACITY = "not supported: an expert computes all tokens that its router sends, as in the decoders of transformers"

OF_EXPERTS = {  # of Megatron, ms-swift and libraries of experts
    "capacity_factor": CAPACITY,
    "expert_capacity": CAPACITY,
    "expert_capacity_factor": CAPACITY,
    "moe_aux_loss_coeff": AUXILIARY,
    "moe_expert_capacity_factor": CAPACITY,
    "moe_pad_expert_input_to_capacity": CAPACITY,
    "moe_router_bias_update_rate": BALANCE,
    "moe_router_enable_expert_bias": BALANCE,
    "moe_token_drop_policy": CAPACITY,
    "moe_z_loss_coeff": Z_LOSS,
    "router_z_loss_coef": Z_LOSS,
}

# Names in other trainers' configurations, and the key that means the same.
RENAMED = {
    "alpha_pattern": "lora_alpha_pattern",
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
    "rank_pattern": "lora_rank_pattern",
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


RENAMES = {name: name_key(own) for name, own in RENAMED.items()}
FOREIGN = dict(sorted((OF_TRAINERS | OF_PEFT | OF_EXPERTS | RENAMES).items()))


def advise(name: str) -> str:
    """What to write instead of a key of another trainer; empty for any other name."""
    if name in FOREIGN:
        return FOREIGN[name]
    words = next((own[name] for own in front_ends.OWN.values() if name in own), "")
    return name_key(words) if words.isidentifier() else words


def describe_foreign(name: str) -> str:
    """The sentence that refuses a key of another trainer; empty for any other name."""
    words = advise(name)
    if not words:
        return ""
    refusal = f"Spillway does not take this key of {name_owner(name)}"
    return f"{refusal}. N{words[1:]}. Remove the key" if words.startswith("not ") else f"{refusal}: {words}"


def describe_foreign_value(name: str, value: object) -> str:
    """The sentence that refuses another trainer's value of a name that Spillway takes, unless a directory has it."""
    tool, values, words = front_ends.VALUES.get(name, ("", (), ""))
    if str(value).lower() not in values or Path(str(value)).is_dir():
        return ""
    return f"{name}: Spillway does not take the value {value} of {tool}: {words}"


def name_owner(name: str) -> str:
    if name in OF_PEFT:
        return "PEFT"
    if name in OF_TRAINERS:
        return "transformers or TRL"
    own = [tool for tool, names in front_ends.SHARED.items() if name in names or name in front_ends.OWN.get(tool, {})]
    return " and ".join(own) or "other trainers"
