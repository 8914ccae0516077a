"""Every key of the configuration, in one table: name, kind, default, meaning.

The command line, the file reader, `--help` and docs/reference/configuration.md are all made from this table. A key
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
from spillway.config.optimizers import OPTIMIZERS
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
            "directory with config.json and safetensors, or the name of a model on the Hugging Face Hub, such as "
            "`Qwen/Qwen2.5-1.5B`. Downloads follow HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT",
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
            "`true`: the newest durable step, on the storage paths or in a checkpoint; exit code 2 if there is none. "
            "`auto`: that step, or a fresh start. A directory: that checkpoint, and all later steps are dropped",
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
            "on a GPU: PyTorch uses kernels with a fixed order of additions, so resumed runs and all placements have "
            "the same bits. `false`: PyTorch uses its fastest kernels, such as cuDNN's attention and FA3, and "
            "results agree within rounding. On CPUs the order is always fixed",
        ),
    ],
    "Optimizer": [
        Key(
            "learning_rate",
            NOT_NEGATIVE,
            None,
            "highest rate of the schedule",
            "2e-5; 1e-6 with objectives that compare rows, as in TRL",
        ),
        Key("lr_scheduler_type", choice(*SCHEDULES), "linear", "transformers' schedule: " + ", ".join(SCHEDULES)),
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
            "; ".join(f"`{it.name}`: {it.words}" for it in OPTIMIZERS.values())
            + ". Transformers' other names for them work, too",
            absent=describe_other_optimizer,
        ),
    ],
    "Precision": [
        Key(
            "weight_dtype",
            choice("bf16", "fp16", "fp32"),
            None,
            "type in which weights and gradients are stored and moved, and of saved files. `bf16`: a remainder of 16 "
            "bits beside each weight makes it an exact fp32 master. `fp16`: fp32 masters (2 bytes per parameter "
            "more) and a dynamically scaled loss. `fp32`: for checks. Parameters that the model's class keeps in "
            "fp32 stay fp32, with their gradients and saved tensors",
            default_text="bf16; with `compute_dtype` `fp16` or `fp32` the same type",
        ),
        Key(
            "compute_dtype",
            choice("bf16", "fp16", "fp32", "auto"),
            "auto",
            "type in which layers multiply: `weight_dtype`, or `fp32`. For `fp32` weights are widened one block at "
            "a time, and activations are fp32. `auto`: on CPUs the faster one, measured once during planning and "
            "recorded in config.yaml; on a GPU `weight_dtype`. `fp16` or `fp32` without a `weight_dtype` sets both "
            "keys. `bf16: true` and `fp16: true` mean `bf16` and `fp16`",
        ),
        Key(
            "state_format",
            choice("exact", "bf16", "int8"),
            "exact",
            "type of the optimizer's moments, with bytes per parameter for weight and state. `exact`: fp32, 12. "
            "`bf16`: rounded stochastically, 8. `int8`: codes with one scale for 256 elements, 6. Master weights are "
            "exact in all of them. A checkpoint that stands alone can be resumed in another format",
        ),
    ],
    "Places": [
        Key(
            "device",
            TEXT,
            "auto",
            "device that computes layers. `cpu`: the CPUs. `cuda`: the NVIDIA GPU of the environment's LOCAL_RANK, "
            "or the first. `cuda:N`: the GPU with this number. `simulated`: host memory that behaves like a device, "
            "with the link and updates of the `profile`'s first GPU; without a profile its link is as fast as memory "
            "and it makes no updates. `auto`: `cuda` if each process of the machine has a GPU that takes Spillway's "
            "kernels, and no key needs the CPUs (`activation_spill: all`); otherwise `cpu`. A run "
            "that started on CPUs resumes on CPUs",
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
            "hard limit of the memory of the GPU or simulated device. For `plan` with a `profile`: of the described "
            "GPU. If a GPU has less free, the run takes the free memory less the driver's context, and the plan says "
            "how much",
            "on a GPU the free memory less a margin; on a simulated device a quarter of `dram_budget`",
        ),
        Key(
            "placement",
            PLACEMENT,
            "auto",
            "`auto`, `dram`, `path`, or a tier for each group: `weight=dram,state=path,grad=50%,activation=dram`. A "
            "share is the part in DRAM. Gradients and boundary activations may name a NUMA node or a `memory_file`: "
            "`grad=numa:2,activation=file:0`. The part on a device is not affected. `auto` spills them to such "
            "tiers if that makes room, in proportion to the speed of each",
        ),
        Key("window", whole(1), None, "blocks in flight in backward. Fewer take less memory", "by plan"),
        Key(
            "activation_recompute",
            RECOMPUTE,
            "auto",
            "layers that compute their activations again in backward instead of keeping them. `all`. `none`: every "
            "layer keeps them in the memory that it computes in, or spills them (`activation_spill`). A number: so "
            "many layers recompute. `auto`: the number that the plan finds fastest in the given memory. The results "
            "are bit-identical. Layers that cannot keep their activations recompute, and the plan says why "
            "(`gradient_checkpointing` true means `all`, false `none`)",
        ),
        Key(
            "activation_spill",
            choice("auto", "never", "all"),
            "auto",
            "whether kept activations of layers go to a storage path, another NUMA node or a `memory_file` between "
            "forward and backward. `never`. `all` of them. `auto`: of as many layers as the plan finds fastest, or "
            "as memory requires if `activation_recompute` is a number. The `simulated` device also spills to the "
            "host's memory. The results are bit-identical. Saved activations of layers on a GPU do not spill to a path",
        ),
        *PASSES,
        Key(
            "storage",
            STORAGE,
            [],
            "storage directory: `DIR[,capacity=SIZE][,endurance=SIZE]`. Several may be given, and their bandwidths "
            "add. `endurance`: bytes that the drive is rated for in its life, such as 600TB. The directory serves "
            "all processes of a machine, and each has an equal part of `capacity` and `endurance`. A path with "
            "`{local_rank}` or `{rank}` belongs to one process, and so do its sizes",
            "none",
        ),
        Key(
            "storage_device",
            DEVICE,
            [],
            "raw block device, with the options and `{local_rank}` of `storage`. A device that holds anything is "
            "refused without `erase`",
            "none",
        ),
        Key("erase", FLAG, False, "the contents of the block devices of `storage_device` may be erased"),
        Key(
            "durability",
            choice("none", "checkpoint", "step"),
            None,
            "what survives a kill or a power cut. `step`: the last finished step. `checkpoint`: the last checkpoint. "
            "`none`: only checkpoints, each a copy of the whole state",
            "`step` if state is on storage, otherwise `none`",
        ),
        Key(
            "update_schedule",
            choice("auto", "deferred", "early"),
            "auto",
            "time of the updates. `deferred`: during the next forward pass. `early`: during backward, for as many "
            "parameters as free memory can hold the old versions of, so that a skipped step can be undone. `auto`: "
            "`early` if the plan finds it faster. The results are bit-identical",
        ),
        Key(
            "speculative_updates",
            FLAG,
            False,
            "with clipping, early updates use a predicted factor (1 while recent norms were below `max_grad_norm`). "
            "If the prediction was wrong, they are undone. Without this key only steps that do not clip update early",
        ),
        *REPLAYS,
        Key(
            "node",
            NODE,
            [],
            "NUMA node of DRAM or CXL memory, and how much of it to use: `N=SIZE`. Several may be given, and their "
            "update rates add. The size is for each process",
            "all nodes, with their free memory divided among the processes of a machine",
        ),
        Key(
            "memory_file",
            MEMORY_FILE,
            [],
            "directory in which a file is mapped as memory, and its size: `DIR=SIZE`. Several may be given. It is "
            "for memory behind a file system: DAX (persistent memory, CXL) or tmpfs. Each is a tier `file:N`, which "
            "`dram_budget` does not count. The size is for each process, in a shared directory or one that "
            "`{local_rank}` names",
            "none",
        ),
        Key(
            "profile",
            TEXT,
            None,
            "file with the rates of a machine, which `spillway probe` writes. It replaces measuring. If it names "
            "another `machine`, `plan` answers for that machine and reads only config.json of the model. Installed "
            "profiles, by name: `laptop`, `workstation`, `server`, `two-drives`, `cluster`, `rtx-3090`, `rtx-4090`, "
            "`rtx-5090`, `l40s`, `a100`, `h100`, `h200`, `b200` and `gb10`",
            "this machine's",
        ),
    ],
    "Method": [
        Key(
            "trainable",
            PATTERN,
            [],
            "regular expression (`re.search`) for the names of parameters to train. Several may be given",
            "all",
        ),
        Key(
            "frozen",
            PATTERN,
            [],
            "regular expression for the names of parameters that stay frozen. It wins over `trainable`. Several may "
            "be given. A frozen parameter has no gradient, moments or remainder, and no step writes it",
            "none",
        ),
        Key(
            "freeze_vision_tower",
            FLAG,
            True,
            "of a model with images: `false` trains its vision tower. `trainable` and `frozen` find its parameters, "
            "too. For `method` `full` and `lora`",
        ),
        Key(
            "freeze_multi_modal_projector",
            FLAG,
            True,
            "of a model with images: `false` trains the projector between vision tower and text. For `method` `full` "
            "and `lora`",
        ),
        Key(
            "method",
            choice("full", "lora", "lsp"),
            "full",
            "`full`: every weight. `lora`: PEFT's adapters on a frozen base, which streams from its tier and is "
            "never written. `lsp`: the matrices of layers in small subspaces (arXiv 2406.10181), with gradients and "
            "moments of d x d instead of m x n. Every weight is trained",
        ),
        *ADAPTERS,
        Key(
            "load_in_4bit",
            FLAG,
            False,
            "with `method: lora`: keeps the linear layers and fused experts of the frozen base as NF4 (QLoRA, arXiv "
            "2305.14314): 4 bits for a weight, and an fp32 scale for 64 weights. This holds in memory, on storage "
            "paths and on the way to a device. Weights are rounded when they are read, and each pass widens those of "
            "its layer. Embedding, head, routers, norms and biases keep `weight_dtype`",
        ),
        Key(
            "load_in_8bit",
            FLAG,
            False,
            "like `load_in_4bit` with codes of 8 bits. The scale of 64 weights is their largest magnitude (int8, "
            "absmax)",
        ),
        Key(
            "bnb_4bit_quant_type",
            choice("nf4", "fp4"),
            "nf4",
            "values of the codes of `load_in_4bit`: `nf4` alone, and `fp4` is refused",
            absent=describe_other_codes,
        ),
        Key(
            "bnb_4bit_use_double_quant",
            FLAG,
            False,
            "with `load_in_4bit`: keeps the scales as codes, too, with 8 bits for a scale and two fp32 numbers for "
            "256 scales (double quantisation, QLoRA). The checkpoint is read twice, because the codes depend on the "
            "mean of a tensor's scales",
        ),
        Key(
            "expert_loading",
            choice("whole", "on_demand"),
            "whole",
            "when the experts of a layer come to its pass. `whole`: all before it. `on_demand`: each when a token is "
            "routed to it, so that the pass does not read the others. Updates of trained experts wait until then, "
            "unless steps are durable. Adapters on experts come whole. The results are bit-identical. A resume keeps "
            "the value",
        ),
        Key("lsp_rank", whole(1), None, "size d, a multiple of `lsp_nonzeros`", "half of each matrix's smaller side"),
        Key("lsp_nonzeros", whole(1), None, "values in each row of a projector", "4"),
        Key(
            "lsp_modules",
            PATTERN,
            [],
            "regular expression (`re.search`) for the names of linear layers to train in subspaces. Several may be "
            "given. All other trainable parameters are trained in full",
            "all linear layers inside the model's layers, except those too small for `lsp_nonzeros`",
        ),
        Key(
            "lsp_projectors",
            choice("fitted", "published"),
            None,
            "kind of projectors. `fitted`: values in blocks, fitted to a gradient by eigenvectors. `published`: those "
            "of the paper, for comparisons. Values lie at random places, and descent on the error of a micro-batch's "
            "gradient sets them. After `lsp_check_every` updates the next such gradient is computed whole. If they "
            "miss more of it than `lsp_threshold` (alpha), new ones are learned from it. The learning rate counts as "
            "it is, so the best rate is another one. A resume keeps the value",
            "fitted",
        ),
        Key(
            "lsp_master",
            choice("exact", "bf16"),
            None,
            "master of each matrix in a subspace. `exact`: a bf16 weight with a remainder of 16 bits. `bf16`: "
            "the weight alone, which updates round stochastically by seed, step and element. A parameter takes 2 bytes "
            "less in host memory, and 2 bytes less on a GPU that keeps a copy. A resume keeps the value",
            "exact",
        ),
        Key(
            "lsp_check_every",
            whole(1),
            None,
            "updates between checks of how much of the gradients the projectors miss",
            "100",
        ),
        Key(
            "lsp_threshold",
            POSITIVE,
            None,
            "largest part of a gradient that projectors may miss (0: nothing, 1: all of it). Beyond it, the matrix's "
            "projectors are refitted and its moments carried over. `lsp_residual: rotating` starts the moments "
            "anew",
            "0.9",
        ),
        Key(
            "lsp_residual",
            choice("none", "rotating"),
            None,
            "treatment of the directions that projectors miss. `rotating`: each matrix gets new projectors every "
            "`lsp_rotate_every` updates, so that every direction is trained in time. `none`: those directions stay "
            "untrained until `lsp_threshold` leads to a refit, as with `lsp_projectors: published`",
            "rotating, or none with published projectors",
        ),
        Key(
            "lsp_rotate_every",
            whole(1),
            None,
            "with `lsp_residual: rotating`: updates between two refits of a matrix's projectors. The matrices take "
            "turns",
            "20",
        ),
    ],
}

KEYS: dict[str, Key] = {key.name: key for keys in GROUPS.values() for key in keys}
