"""Every key of the configuration, in one table: name, kind, default, meaning.

The command line, the file reader, `--help` and docs/reference/configuration.md are all made from this table. The
reference explains values in tables of its own (scripts/reference_sections.py), so `help` is one or two lines. A key
whose feature is not in this release stands here too, so that it is refused by name and never silently ignored.
"""

from __future__ import annotations

from spillway.config.adapter_keys import ADAPTERS
from spillway.config.hub_keys import UPLOAD
from spillway.config.key import (
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
from spillway.config.pass_keys import PASSES
from spillway.config.process_keys import PROCESSES
from spillway.config.replay_keys import REPLAYS
from spillway.config.row_keys import ROWS
from spillway.config.save_keys import SAVES
from spillway.config.values import (
    DEVICE,
    FLAG,
    INTERVAL,
    MAPPING,
    MEMORY_FILE,
    MOST_SEED,
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
    choice,
    whole,
)

GROUPS: dict[str, list[Key]] = {
    "Model": [
        Key(
            "model",
            TEXT,
            None,
            "directory with config.json and safetensors, or a name on the Hugging Face Hub, such as "
            "`Qwen/Qwen2.5-1.5B`",
            required=True,
        ),
        Key(
            "model_revision",
            TEXT,
            None,
            "branch, tag or commit of a `model` on the hub. config.yaml records the commit, so a resume reads the "
            "same files",
            "main",
        ),
        Key("tokenizer", TEXT, None, "directory of the tokenizer, or its name on the hub", "the model's"),
        Key("tokenizer_revision", TEXT, None, "branch, tag or commit of a `tokenizer` on the hub", "main"),
        Key("chat_template_path", TEXT, None, "Jinja file, or a directory with a tokenizer", "the tokenizer's"),
        Key(
            "init",
            choice("pretrained", "random"),
            "pretrained",
            "`random`: weights drawn from `seed`. The model's own are neither read nor downloaded",
        ),
    ],
    "Data": ROWS,
    "Objective": OBJECTIVE,
    "Output": [
        Key("output_dir", TEXT, None, "directory of the run", required=True),
        Key("overwrite", FLAG, False, "removes the run that `output_dir` or a storage path holds, and starts afresh"),
        Key(
            "resume_from_checkpoint",
            RESUME,
            None,
            "step to resume from: `true` is the newest, `auto` that or a fresh start, else a checkpoint directory",
        ),
        Key("logging_steps", INTERVAL, 1, "steps between rows of metrics.jsonl. Below 1: a share of all steps"),
        Key("eval_steps", INTERVAL, None, "steps between evaluations. Below 1: a share of all steps"),
        *SAVES,
        Key(
            "eval_strategy",
            STRATEGY,
            None,
            "`no`, `steps` or `epoch`. Unless `no`, the last step is evaluated, too",
            "`steps` with `eval_steps`, else `epoch` with `eval_dataset`, else `no`",
        ),
        Key("eval_on_start", FLAG, False, "evaluates once before the first step"),
        Key(
            "save_strategy",
            STRATEGY,
            None,
            "`no`, `steps` or `epoch`. The last step is always saved",
            "`steps` with `save_steps`, else `no`",
        ),
        Key(
            "report_to",
            REPORTERS,
            [],
            "trackers that get every logged row, by transformers' callbacks. They need the package accelerate and "
            "the tracker's own. `all`: every installed tracker",
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
            "micro-batches of each process in a step. If `virtual_ranks` is given: of all processes together",
        ),
        *PROCESSES,
        Key("per_device_eval_batch_size", whole(1), 8, "rows in an evaluation micro-batch"),
        Key("max_steps", STEPS, -1, "number of steps. -1: `num_train_epochs` decides"),
        Key("num_train_epochs", POSITIVE, 3.0, "passes over the data. May be a fraction"),
        Key("seed", whole(0, MOST_SEED), 42, "seed of random weights and dropout"),
        Key("data_seed", whole(0, MOST_SEED), None, "seed of the order of rows", "`seed`"),
        Key(
            "full_determinism",
            FLAG,
            True,
            "on a GPU: kernels with a fixed order of additions, for the same bits in every run. `false`: the fastest "
            "kernels",
        ),
    ],
    "Optimizer": [
        Key(
            "learning_rate",
            NOT_NEGATIVE,
            None,
            "highest rate of the schedule",
            "2e-5 with `sft`; other objectives have TRL's",
        ),
        Key("lr_scheduler_type", choice(*SCHEDULES), "linear", "transformers' schedule"),
        Key("lr_scheduler_kwargs", MAPPING, None, "further arguments of the schedule"),
        Key(
            "warmup_steps",
            NOT_NEGATIVE,
            0,
            "steps of warm-up. Below 1: a share of all steps (old name: `warmup_ratio`)",
        ),
        Key(
            "weight_decay",
            NOT_NEGATIVE,
            0.0,
            "decay of the parameters that transformers decays. It is decoupled, except with `adam` and `sgd`",
        ),
        *optimizer_keys(),
        Key("max_grad_norm", NOT_NEGATIVE, 1.0, "global norm to which gradients are clipped. 0: no clipping"),
        Key(
            "optim",
            OPTIMIZER,
            "adamw",
            "rule of updates. Transformers' other names for these rules work, too",
            absent=describe_other_optimizer,
        ),
    ],
    "Precision": [
        Key(
            "weight_dtype",
            choice("bf16", "fp16", "fp32"),
            None,
            "type of stored weights, of stored gradients and of saved files",
            "bf16; with `compute_dtype` `fp16` or `fp32` that type",
        ),
        Key(
            "compute_dtype",
            choice("bf16", "fp16", "fp32", "auto"),
            "auto",
            "type in which layers multiply. `auto`: on CPUs the faster one, on a GPU `weight_dtype`",
        ),
        Key(
            "state_format",
            choice("exact", "bf16", "int8"),
            "exact",
            "type of the optimizer's moments. `exact` is fp32; the other types are rounded",
        ),
    ],
    "Places": [
        Key(
            "device",
            TEXT,
            "auto",
            "device that computes layers: `auto`, `cpu`, `cuda`, `cuda:N` or `simulated`",
            absent=unknown_device,
        ),
        Key(
            "dram_budget",
            SIZE,
            None,
            "hard limit of the memory of the whole process",
            "free memory less a margin, divided among the processes of a machine",
        ),
        Key(
            "gpu_memory",
            SIZE,
            None,
            "hard limit of the memory of the GPU or simulated device",
            "on a GPU the free memory less a margin; on a simulated device a quarter of `dram_budget`",
        ),
        Key(
            "placement",
            PLACEMENT,
            "auto",
            "tier of each group of state: `auto`, `dram`, `path`, or such as `weight=dram,state=path,grad=50%`",
        ),
        Key("window", whole(1), None, "blocks in flight in backward. Fewer take less memory", "by plan"),
        Key(
            "activation_recompute",
            RECOMPUTE,
            "auto",
            "layers that compute their activations again in backward: `auto`, `all`, `none` or their number",
        ),
        Key(
            "activation_spill",
            choice("auto", "never", "all"),
            "auto",
            "layers whose kept activations leave memory between forward and backward",
        ),
        *PASSES,
        Key(
            "storage",
            STORAGE,
            [],
            "directory for state: `DIR[,capacity=SIZE][,endurance=SIZE]`. Several add their bandwidths",
            "none",
        ),
        Key(
            "storage_device",
            DEVICE,
            [],
            "raw block device, with the options of `storage`. A device that holds anything needs `erase`",
            "none",
        ),
        Key("erase", FLAG, False, "the contents of the block devices of `storage_device` may be erased"),
        Key(
            "durability",
            choice("none", "checkpoint", "step"),
            None,
            "last state that survives a kill or a power cut",
            "`step` if state is on storage, otherwise `none`",
        ),
        Key(
            "update_schedule",
            choice("auto", "deferred", "early"),
            "auto",
            "updates in the next forward pass (`deferred`), during backward (`early`), or the faster one (`auto`)",
        ),
        Key(
            "speculative_updates",
            FLAG,
            False,
            "with clipping, early updates use a predicted factor, and a wrong prediction is undone",
        ),
        *REPLAYS,
        Key(
            "node",
            NODE,
            [],
            "NUMA node of DRAM or CXL memory, and the size to use: `N=SIZE`. Several add their update rates",
            "all nodes",
        ),
        Key(
            "memory_file",
            MEMORY_FILE,
            [],
            "directory in which a file is mapped as memory, and its size: `DIR=SIZE`",
            "none",
        ),
        Key(
            "profile",
            TEXT,
            None,
            "file with the rates of a machine, which replaces measuring, or an installed profile such as `rtx-4090`",
            "this machine's",
        ),
    ],
    "Method": [
        Key("trainable", PATTERN, [], "regular expression (`re.search`) for the names of parameters to train", "all"),
        Key(
            "frozen",
            PATTERN,
            [],
            "regular expression for the names of parameters that stay frozen. It wins over `trainable`",
            "none",
        ),
        Key(
            "freeze_vision_tower",
            FLAG,
            True,
            "of a model with images: `false` trains its vision tower, with `method` `full` or `lora`",
        ),
        Key(
            "freeze_multi_modal_projector",
            FLAG,
            True,
            "of a model with images: `false` trains the projector between vision tower and text",
        ),
        Key(
            "method",
            choice("full", "lora", "lsp"),
            "full",
            "weights that are trained: `full` (all), `lora` (adapters on a frozen base) or `lsp` (all, in small "
            "subspaces)",
        ),
        Key(
            "expert_loading",
            choice("whole", "on_demand"),
            "whole",
            "experts that come to a pass: `whole` all of its layer, `on_demand` those that tokens meet",
        ),
    ],
    "Adapters": [
        *ADAPTERS,
        Key(
            "load_in_4bit",
            FLAG,
            False,
            "with `method: lora`: the frozen base has 4 bits for a weight (NF4, as in QLoRA)",
        ),
        Key("load_in_8bit", FLAG, False, "with `method: lora`: the frozen base has 8 bits for a weight"),
        Key(
            "bnb_4bit_quant_type",
            choice("nf4", "fp4"),
            "nf4",
            "values of the codes of `load_in_4bit`. `fp4` is refused",
            absent=describe_other_codes,
        ),
        Key("bnb_4bit_use_double_quant", FLAG, False, "with `load_in_4bit`: scales are stored as codes, too"),
    ],
    "Subspaces": [
        Key("lsp_rank", whole(1), None, "size d, a multiple of `lsp_nonzeros`", "half of each matrix's smaller side"),
        Key("lsp_nonzeros", whole(1), None, "values in each row of a projector", "4"),
        Key(
            "lsp_modules",
            PATTERN,
            [],
            "regular expression for the names of linear layers to train in subspaces. Other parameters are trained in "
            "full",
            "all large ones in the model's layers",
        ),
        Key(
            "lsp_projectors",
            choice("fitted", "published"),
            None,
            "kind of projectors: `fitted` to gradients by eigenvectors, or `published`, those of the paper",
            "fitted",
        ),
        Key(
            "lsp_master",
            choice("exact", "bf16"),
            None,
            "master of each matrix: `exact` has 16 more bits beside the bf16 weight, `bf16` is rounded stochastically",
            "exact",
        ),
        Key(
            "lsp_check_every",
            whole(1),
            None,
            "updates between checks of the share of gradients that projectors miss",
            "100",
        ),
        Key(
            "lsp_threshold",
            POSITIVE,
            None,
            "largest share of a gradient that projectors may miss, from 0 to 1. Beyond it they are refitted",
            "0.9",
        ),
        Key(
            "lsp_residual",
            choice("none", "rotating"),
            None,
            "directions that projectors miss: `rotating` trains all in turn, `none` leaves them until a refit",
            "rotating; none with published projectors",
        ),
        Key(
            "lsp_rotate_every",
            whole(1),
            None,
            "with `lsp_residual: rotating`: updates between two refits of a matrix's projectors",
            "20",
        ),
    ],
}

KEYS: dict[str, Key] = {key.name: key for keys in GROUPS.values() for key in keys}
