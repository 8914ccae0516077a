"""Every key of the configuration, in one table: name, kind, default, meaning.

The command line, the file reader, `--help` and docs/reference/configuration.md are all made from this table. A key
whose feature is not in this release stands here too, so that it is refused by name and never silently ignored.
"""

from __future__ import annotations

from spillway.config.hub_keys import UPLOAD
from spillway.config.key import (
    BETA,
    NOT_NEGATIVE,
    OPTIMIZER,
    POSITIVE,
    SCHEDULES,
    STRATEGY,
    Key,
    describe_other_codes,
    describe_other_optimizer,
    optimizer_keys,
    unknown_device,
)
from spillway.config.objective_keys import OBJECTIVE
from spillway.config.optimizers import OPTIMIZERS
from spillway.config.pass_keys import PASSES
from spillway.config.replay_keys import REPLAYS
from spillway.config.values import (
    DEVICE,
    FLAG,
    INTERVAL,
    MAPPING,
    MEMORY_FILE,
    NODE,
    PATTERN,
    PLACEMENT,
    RECOMPUTE,
    REPORTERS,
    RESUME,
    SIZE,
    STEPS,
    STORAGE,
    TEXT,
    TEXTS,
    choice,
    whole,
)

GROUPS: dict[str, list[Key]] = {
    "Model": [
        Key(
            "model",
            TEXT,
            None,
            "directory with config.json and safetensors, or the name of a model on the Hugging Face Hub, such as "
            "`Qwen/Qwen2.5-1.5B`, which is downloaded into the hub's cache (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and "
            "HF_ENDPOINT mean what they mean there)",
            required=True,
        ),
        Key(
            "model_revision",
            TEXT,
            None,
            "branch, tag or commit of a `model` on the hub; the commit that it was is written into config.yaml, so "
            "that a resume reads the same",
            "main",
        ),
        Key("tokenizer", TEXT, None, "directory or name on the hub of the tokenizer", "the model's"),
        Key("tokenizer_revision", TEXT, None, "the same of a `tokenizer` of its own", "main"),
        Key("chat_template_path", TEXT, None, "a Jinja file, or a directory with a tokenizer", "the tokenizer's"),
        Key(
            "init",
            choice("pretrained", "random"),
            "pretrained",
            "`random`: weights drawn from `seed`; only the config and the tokenizer are read, and downloaded",
        ),
    ],
    "Data": [
        Key(
            "dataset",
            TEXT,
            None,
            "file (.jsonl, .json, .csv, .tsv, .txt, .parquet), a directory of data, or a dataset on the hub",
            required=True,
        ),
        Key("dataset_config", TEXT, None, "configuration of a named dataset"),
        Key("dataset_split", TEXT, "train", "split of a named dataset"),
        Key("dataset_revision", TEXT, None, "branch, tag or commit of a named dataset, as `model_revision`", "main"),
        Key("eval_dataset", TEXT, None, "held-out file or dataset name"),
        Key("eval_dataset_split", TEXT, "test", "split of a named `eval_dataset`"),
        Key("eval_dataset_revision", TEXT, None, "branch, tag or commit of a named `eval_dataset`", "main"),
        Key("dataset_text_field", TEXT, None, "column with the text", "found by name"),
        Key("prompt_field", TEXT, None, "column with the prompt", "found by name"),
        Key("completion_field", TEXT, None, "column with the completion", "found by name"),
        Key("messages_field", TEXT, None, "column with the messages", "found by name"),
        Key("completion_only_loss", FLAG, True, "prompt tokens carry no loss"),
        Key("assistant_only_loss", FLAG, True, "in messages, only the assistant's turns carry loss"),
        Key("max_length", whole(2), 1024, "most tokens in a row; longer rows are cut"),
        Key("packing", FLAG, False, "join rows and cut them into pieces of `max_length`"),
        Key("eval_packing", FLAG, None, "the same for `eval_dataset`", "as `packing`"),
    ],
    "Objective": OBJECTIVE,
    "Output": [
        Key("output_dir", TEXT, None, "directory of the run", required=True),
        Key("overwrite", FLAG, False, "remove the run that `output_dir` or a storage path holds and start afresh"),
        Key(
            "resume_from_checkpoint",
            RESUME,
            None,
            "`true`: the newest durable step, on the storage paths or in a checkpoint (exit 2 if there is none); "
            "`auto`: that, or a fresh start; a directory: go back to that checkpoint, dropping what came after it",
        ),
        Key("logging_steps", INTERVAL, 1, "steps between rows of metrics.jsonl; below 1 a share of all steps"),
        Key("eval_steps", INTERVAL, None, "steps between evaluations; below 1 a share"),
        Key("save_steps", INTERVAL, None, "steps between checkpoints; below 1 a share", "only the last step is saved"),
        Key("save_total_limit", whole(1), None, "keep this many newest checkpoints", "all are kept"),
        Key("save_only_model", FLAG, False, "checkpoints without what a resume needs"),
        Key(
            "eval_strategy",
            STRATEGY,
            None,
            "`no`, `steps` or `epoch`; the last step is evaluated too unless `no`",
            "`steps` with `eval_steps`, else `epoch` with `eval_dataset`, else `no`",
        ),
        Key("eval_on_start", FLAG, False, "evaluate once before the first step"),
        Key(
            "save_strategy",
            STRATEGY,
            None,
            "`no`, `steps` or `epoch`; the last step is always saved",
            "`steps` with `save_steps`, else `no`",
        ),
        Key(
            "report_to",
            REPORTERS,
            [],
            "trackers that see every logged row, through transformers' own callbacks (they need the package accelerate "
            "and the tracker's own); `all`: those that are installed",
            "none",
        ),
        *UPLOAD,
    ],
    "Steps": [
        Key("per_device_train_batch_size", whole(1), 8, "rows in a micro-batch"),
        Key(
            "gradient_accumulation_steps",
            whole(1),
            1,
            "micro-batches in a step: of each process where there are several and `virtual_ranks` is not given, else "
            "of all together",
        ),
        Key(
            "virtual_ranks",
            whole(1),
            None,
            "groups of a step's micro-batches whose gradients are summed by themselves, and then as a tree, as if each "
            "group had a process of its own: micro-batch i belongs to group i modulo `virtual_ranks`. It says in which "
            "order numbers are added, and nothing else: where it is given, the batch stays that of "
            "`gradient_accumulation_steps`, and any number of processes up to it gives the same bits; a resume keeps "
            "it",
            "the number of processes",
        ),
        Key(
            "ddp_backend",
            choice("gloo", "nccl"),
            "gloo",
            "how the model's bytes go between processes: `gloo`, from host memory to host memory; `nccl`, by way of "
            "the GPU that each computes on, so with `device: cuda`. It only moves bytes, and no result depends on it",
        ),
        Key("per_device_eval_batch_size", whole(1), 8, "rows in an evaluation micro-batch"),
        Key("max_steps", STEPS, -1, "steps to train; -1: `num_train_epochs` decides"),
        Key("num_train_epochs", POSITIVE, 3.0, "passes over the data; may be a fraction"),
        Key("seed", whole(0), 42, "seed of random weights and dropout"),
        Key("data_seed", whole(0), None, "seed of the order of rows", "`seed`"),
        Key(
            "full_determinism",
            FLAG,
            True,
            "on a GPU: PyTorch takes kernels that add in one order, so that a resumed run and every placement have the "
            "same bits. `false`: it takes the fastest, such as cuDNN's attention and FA3, and a resumed run has the "
            "same bits only within rounding. CPUs add in one order in any case",
        ),
    ],
    "Optimizer": [
        Key(
            "learning_rate",
            NOT_NEGATIVE,
            None,
            "the schedule's highest rate",
            "2e-5; with the objectives that compare rows 1e-6, as in TRL",
        ),
        Key("lr_scheduler_type", choice(*SCHEDULES), "linear", "transformers' schedule: " + ", ".join(SCHEDULES)),
        Key("lr_scheduler_kwargs", MAPPING, None, "further arguments of the schedule"),
        Key(
            "warmup_steps", NOT_NEGATIVE, 0, "steps of warm-up; below 1 a share of all steps (old name: `warmup_ratio`)"
        ),
        Key(
            "weight_decay", NOT_NEGATIVE, 0.0, "decay of what transformers decays; decoupled but with `adam` and `sgd`"
        ),
        *optimizer_keys(),
        Key("max_grad_norm", NOT_NEGATIVE, 1.0, "clip to this global norm; 0: no clipping"),
        Key(
            "optim",
            OPTIMIZER,
            "adamw",
            "; ".join(f"`{it.name}`: {it.words}" for it in OPTIMIZERS.values())
            + ". Transformers' other names for them mean the same",
            absent=describe_other_optimizer,
        ),
    ],
    "Precision": [
        Key(
            "weight_dtype",
            choice("bf16", "fp16", "fp32"),
            None,
            "what weights and gradients are kept and moved in, and what files hold. `bf16`: with a remainder of 16 "
            "bits beside each weight, which makes it an exact fp32 master; `fp16`: with fp32 masters (2 bytes per "
            "parameter more) and a loss scaled dynamically; `fp32`: for checks. Parameters that the model's class "
            "keeps in fp32 beside bf16 or fp16 stay fp32, their gradients and their tensors in files, too",
            default_text="bf16; with `compute_dtype` `fp16` or `fp32` the same as that",
        ),
        Key(
            "compute_dtype",
            choice("bf16", "fp16", "fp32", "auto"),
            "auto",
            "what layers multiply in: `weight_dtype`, or `fp32`, for which weights are widened a block at a time and "
            "activations are fp32. `auto`: the faster on this machine, of which both are measured once when the run is "
            "planned, and written into config.yaml as what it was; on a GPU `weight_dtype`. `fp16` or `fp32` without a "
            "`weight_dtype` means both, and so does any of them in a config.yaml of before there were two keys "
            "(`bf16: true` and `fp16: true` mean `bf16` and `fp16`)",
        ),
        Key(
            "state_format",
            choice("exact", "bf16", "int8"),
            "exact",
            "how the moments are kept, and bytes per parameter with the weight: `exact` fp32, 12; `bf16` rounded "
            "stochastically, 8; `int8` codes with a scale for 256 elements, 6. Master weights are exact in all "
            "of them. A checkpoint that stands alone may be resumed from in another format: it is converted",
        ),
    ],
    "Places": [
        Key(
            "device",
            TEXT,
            "auto",
            "where layers compute: `cpu`; `simulated`: a device with memory of its own, made of host memory, with the "
            "link and updates of the `profile`'s first GPU, or else a link as fast as memory and no updates, to see "
            "what a GPU would do and that the results are the same; `cuda:N`: the NVIDIA GPU of that number, `cuda`: "
            "that of the environment's LOCAL_RANK, or the first, so that each of several processes has its own; "
            "`auto`: `cuda` where each process of the machine has a GPU that takes Spillway's kernels, and no other "
            "key needs the CPUs (`memory_file`, `activation_spill: all`), else `cpu`; what was begun on the CPUs goes "
            "on there",
            absent=unknown_device,
        ),
        Key(
            "dram_budget",
            SIZE,
            None,
            "hard limit of the whole process's memory",
            "what is free, less a margin; of several processes of a machine each has a part of it",
        ),
        Key(
            "gpu_memory",
            SIZE,
            None,
            "hard limit of the memory of a `device` that has its own, or for `plan` with the `profile` of a machine "
            "with a GPU. It may be more than a GPU has free: the run takes what is free less the driver's context, and "
            "the plan says how much",
            "a quarter of `dram_budget` for a simulated device, what is free less a margin on a GPU",
        ),
        Key(
            "placement",
            PLACEMENT,
            "auto",
            "`auto`, `dram`, `path`, or per group `weight=dram,state=path,grad=50%,activation=dram` "
            "(a share is the part in DRAM). Gradients and boundary activations may be placed on one tier of host "
            "memory, as in `grad=numa:2,activation=file:0`, a NUMA node and a `memory_file`, but for "
            "what of them stays on a device; with `auto` they go to such tiers where that makes room, in proportion to "
            "how fast these are",
        ),
        Key("window", whole(1), None, "blocks in flight in backward; fewer of them take less memory", "by plan"),
        Key(
            "activation_recompute",
            RECOMPUTE,
            "auto",
            "layers that compute again in backward what autograd saved of them in forward: `all`; `none`, which keeps "
            "it in the memory that layers compute in, or spills it (`activation_spill`); a number of layers, the "
            "others do not; `auto`: as many as the plan says is fastest in the memory there is. The results are "
            "bit-identical. Layers that cannot keep it so recompute, and the plan says why (`gradient_checkpointing` "
            "true means `all`, false `none`)",
        ),
        Key(
            "activation_spill",
            choice("auto", "never", "all"),
            "auto",
            "whether what autograd saves of layers that do not recompute goes to a storage path in forward and comes "
            "back for backward, or lies on another NUMA node or `memory_file` meanwhile: `never`; `all` of it; "
            "`auto`: of as many layers as the plan says is fastest, or of as many as have no room for it in memory "
            "where `activation_recompute` says how many recompute. From the `simulated` device it goes to the host's "
            "memory, too. The results are bit-identical. Not where layers compute on a GPU",
        ),
        *PASSES,
        Key(
            "storage",
            STORAGE,
            [],
            "storage directory, `DIR[,capacity=SIZE][,endurance=SIZE]`; may be given several times, their bandwidths "
            "add; `endurance`: bytes that may be written to the drive in its life, as it is rated, such as 600TB; "
            "of several processes it serves all of a machine, each of which has an equal part of `capacity` and "
            "`endurance`; `{local_rank}` and `{rank}` in it are a process's own numbers, and the sizes are then each "
            "one's",
            "none",
        ),
        Key(
            "storage_device",
            DEVICE,
            [],
            "raw block device, with the same options and `{local_rank}` and `{rank}` in it; one that holds anything is "
            "refused without `erase`",
            "none",
        ),
        Key("erase", FLAG, False, "whatever the block devices of `storage_device` hold may be erased"),
        Key(
            "durability",
            choice("none", "checkpoint", "step"),
            None,
            "what a kill or a power cut leaves: `step`: the last finished step; `checkpoint`: the last checkpoint; "
            "`none`: checkpoints alone, each a copy of the whole state",
            "`step` when anything is on storage, else `none`",
        ),
        Key(
            "update_schedule",
            choice("auto", "deferred", "early"),
            "auto",
            "when parameters are updated: `deferred`: behind the next forward pass; `early`: during backward, as many "
            "as the memory that is left holds old versions of, so that a step that is skipped can be undone; `auto`: "
            "early where the plan says that is faster. The results are bit-identical",
        ),
        Key(
            "speculative_updates",
            FLAG,
            False,
            "with clipping, early updates go by a predicted factor (1 while the last norms were below "
            "`max_grad_norm`), and are undone where it was another; without it only steps that do not clip are early",
        ),
        *REPLAYS,
        Key(
            "node",
            NODE,
            [],
            "NUMA node (of DRAM or CXL) to use and how much of its memory, `N=SIZE`; may be given several times, and "
            "their update rates add. Each of several processes may use as much",
            "all, what is free, of which each of several processes of a machine has a part",
        ),
        Key(
            "memory_file",
            MEMORY_FILE,
            [],
            "directory in which a file is mapped as memory, and how much of it, `DIR=SIZE`; may be given several "
            "times. For memory behind a file system: DAX (persistent memory, CXL), tmpfs. What lies there is a tier "
            "`file:N` of its own, and `dram_budget` does not count it. Of several processes each has as much, in a "
            "directory of all or one that `{local_rank}` names",
            "none",
        ),
        Key(
            "profile",
            TEXT,
            None,
            "a file with a machine's rates (`spillway probe` writes one), used instead of measuring this one. Where it "
            "names another `machine`, `plan` answers for that, and reads nothing of the model but config.json. "
            "These are installed and given by name: `laptop`, `workstation`, `server`, `two-drives`, `cluster`, "
            "`rtx-3090`, `rtx-4090`, `rtx-5090`, `l40s`, `a100`, `h100`, `h200`, `b200` and `gb10`",
            "this machine's",
        ),
    ],
    "Method": [
        Key(
            "trainable",
            PATTERN,
            [],
            "regular expression (`re.search`) of the names of parameters that train; may be given several times",
            "all",
        ),
        Key(
            "frozen",
            PATTERN,
            [],
            "regular expression of those that do not, whatever `trainable` says; may be given several times. What is "
            "frozen has no gradient, no moments and no remainder, and no step writes it",
            "none",
        ),
        Key(
            "method",
            choice("full", "lora", "lsp"),
            "full",
            "`full`; `lora`: adapters of PEFT on a frozen base, which streams from where it lies and is never written; "
            "`lsp`: the matrices of layers are trained in small subspaces (arXiv 2406.10181): d x d instead of m x n "
            "for gradients and moments, and every weight is trained",
        ),
        Key("lora_r", whole(1), None, "rank of the adapters", "16"),
        Key("lora_alpha", whole(1), None, "the adapters' product is multiplied by `lora_alpha` / `lora_r`", "32"),
        Key("lora_dropout", BETA, None, "dropout of the adapters' input", "0.05"),
        Key(
            "lora_target_modules",
            TEXTS,
            [],
            "names, or ends of names, of the linear layers that get an adapter, or `all-linear`; may be given several "
            "times",
            "PEFT's own for the model type",
        ),
        Key(
            "lora_target_parameters",
            TEXTS,
            [],
            "names, or ends of names, of the parameters with the experts of a layer, such as `mlp.experts.down_proj`. "
            "Each expert gets an adapter; may be given several times. Without `lora_target_modules` these train alone",
            "none",
        ),
        Key(
            "lora_adapter",
            TEXT,
            None,
            "directory of adapters of a run or PEFT, of the same rank, factor and targets, that a new run begins with",
            "PEFT's first values",
        ),
        Key(
            "load_in_4bit",
            FLAG,
            False,
            "with method lora: the frozen base's linear layers and fused experts are kept as NF4 (QLoRA, arXiv "
            "2305.14314), 4 bits for a weight and a scale in fp32 for 64, in memory, on storage paths and on the way "
            "to a device. They are rounded when they are read, and each pass of a layer converts its own to what "
            "layers multiply in. Embedding, head, routers, norms and biases stay as `weight_dtype` says",
        ),
        Key(
            "load_in_8bit",
            FLAG,
            False,
            "the same with codes of 8 bits and the scale of their largest magnitude for 64 (int8, absmax)",
        ),
        Key(
            "bnb_4bit_quant_type",
            choice("nf4", "fp4"),
            "nf4",
            "the values of `load_in_4bit`'s codes",
            absent=describe_other_codes,
        ),
        Key(
            "bnb_4bit_use_double_quant",
            FLAG,
            False,
            "with load_in_4bit: the scales are kept as codes, too, 8 bits for a scale and two numbers in fp32 for 256 "
            "(double quantisation, QLoRA). A checkpoint is read twice, since the codes follow from the mean of a "
            "tensor's scales",
        ),
        Key("lsp_rank", whole(1), None, "size d, a multiple of `lsp_nonzeros`", "half of each matrix's smaller side"),
        Key("lsp_nonzeros", whole(1), None, "values in each row of a projector", "4"),
        Key(
            "lsp_modules",
            PATTERN,
            [],
            "regular expression (`re.search`) of the names of linear layers that are trained in subspaces; may be "
            "given several times; everything else that is trainable is trained in full",
            "all linear layers inside the model's layers, but those too small for `lsp_nonzeros`",
        ),
        Key(
            "lsp_check_every",
            whole(1),
            None,
            "updates between two checks of how much of its gradients each matrix's projectors miss",
            "100",
        ),
        Key(
            "lsp_threshold",
            POSITIVE,
            None,
            "how much they may miss, relative to the gradient (0: nothing, 1: all of it): beyond that a matrix's "
            "projectors are refitted and its moments carried over (with `lsp_residual: rotating` they begin anew)",
            "0.9",
        ),
        Key(
            "lsp_residual",
            choice("none", "rotating"),
            None,
            "what becomes of what the projectors miss: with `rotating` each matrix gets new ones every "
            "`lsp_rotate_every` updates whatever they miss, so that in time every direction is trained; with `none` "
            "the others are left untrained until `lsp_threshold` says so",
            "rotating",
        ),
        Key(
            "lsp_rotate_every",
            whole(1),
            None,
            "with `lsp_residual: rotating`: updates between two refits of a matrix's projectors, the matrices in turn",
            "20",
        ),
    ],
}

KEYS: dict[str, Key] = {key.name: key for keys in GROUPS.values() for key in keys}
