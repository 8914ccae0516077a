"""The parts of docs/reference/configuration.md that no key's line can say: values, notes, and others' defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spillway.config.key import NAMES
from spillway.config.objective_keys import quote
from spillway.config.objectives import OBJECTIVES, ObjectiveEntry
from spillway.config.optimizers import OPTIMIZERS

Row = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A table below that of a group, with notes. `keys`: their lines link to it."""

    heading: str
    keys: tuple[str, ...]
    head: Row = ()
    rows: Sequence[Row] = ()
    notes: tuple[str, ...] = ()
    intro: str = ""


COMMON = (  # keys of the first table
    "model", "dataset", "eval_dataset", "output_dir", "objective", "max_length", "packing",
    "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "learning_rate",
    "lr_scheduler_type", "warmup_steps", "save_steps", "resume_from_checkpoint", "device", "gpu_memory", "dram_budget",
    "storage", "durability", "method", "load_in_4bit", "lora_r", "lora_target_modules",
)  # fmt: skip

SAME_BITS = (  # keys that change no bit of a result; tests/python/run/test_same_bits.py trains with each
    "logging_steps", "eval_steps", "save_steps", "save_whole_steps", "save_total_limit", "save_only_model",
    "eval_on_start", "dram_budget", "placement", "window", "activation_recompute", "activation_spill", "storage",
    "durability", "update_schedule", "speculative_updates", "replay_steps", "replay_action", "memory_file",
)  # fmt: skip
SAME = "the same"
# Defaults that differ: key, Spillway's, and those of transformers' TrainingArguments, TRL's configs and PEFT's
# LoraConfig; "": the class has no such key.
DEFAULTS: tuple[Row, ...] = (
    ("learning_rate", "2e-5", "5e-5", SAME, ""),
    ("logging_steps", "1", "500", "10", ""),
    ("eval_strategy", "epoch, with `eval_dataset`", "no", "no", ""),
    ("save_strategy", "no: the last step alone", "steps", "steps", ""),
    ("save_steps", "none", "500", "500", ""),
    ("hub_strategy", "end", "every_save", "every_save", ""),
    ("full_determinism", "true", "false", "false", ""),
    ("ddp_backend", "gloo", "none", "none", ""),
    ("dataset_text_field", "found by name", "", "text", ""),
    ("assistant_only_loss", "true", "", "false", ""),
    ("precompute_ref_log_probs", "true; false with new adapters", "", "false", ""),
    ("max_completion_length", "256", "", "512", ""),
    ("lora_r", "16", "", SAME, "8"),
    ("lora_alpha", "32", "", SAME, "8"),
    ("lora_dropout", "0.05; 0 with `lora_target_parameters`", "", SAME, "0.0"),
)

# Keys with a page of their own.
PAGES = {
    "precompute_ref_log_probs": "../how-to/preferences.md",
    "id2label": "../how-to/classification.md#rows",
    "teacher": "../how-to/distillation.md",
    "reward_funcs": "../how-to/reinforcement.md#sampling-in-the-run",
    "prompt_template": "data.md#prompts-of-instruction-rows",
    "dataset": "data.md#files",
    "max_length": "data.md#cutting-and-packing",
    "packing": "data.md#cutting-and-packing",
    "model": "../how-to/hub.md",
    "push_to_hub": "../how-to/after-training.md#push-to-the-hub",
    "gpu_memory": "gpu.md#set-the-memory",
    "node": "../how-to/nodes.md",
    "memory_file": "../how-to/memory-files.md",
    "profile": "../how-to/plan-elsewhere.md#profiles",
    "replay_steps": "../how-to/silent-errors.md",
    "trainable": "../how-to/adapters.md#frozen-parameters",
    "freeze_vision_tower": "data.md#train-the-vision-tower",
    "lora_r": "../how-to/adapters.md#lora",
    "lora_target_parameters": "../how-to/adapters.md#adapters-on-experts",
    "load_in_4bit": "../how-to/adapters.md#a-base-of-4-or-8-bits",
    "expert_loading": "../how-to/adapters.md#experts-on-demand",
    "lsp_projectors": "../how-to/adapters.md#projectors",
    "save_whole_steps": "../how-to/verify.md#a-volume-that-loses-its-file",
    "muon_learning_rate": "../how-to/optimizer.md#muon",
}

FORMS = {  # columns of rows whose objective names none
    "sft": "[several forms](data.md#columns)",
    "distill": "those of `sft`",
    "text-classification": "[a text or messages, and a label](../how-to/classification.md#rows)",
    "token-classification": "[words and their labels](../how-to/classification.md#rows)",
    "reward": "`chosen`, `rejected`; also `prompt` and `margin`",
    "grpo": "`prompt`, `completions`, `rewards`, `old_logprobs`; with `reward_funcs` only `prompt`",
}


def describe_reference(each: ObjectiveEntry) -> str:
    """The model that an objective compares with."""
    if each.has_reference:
        return "the model before the first step"
    if each.has_teacher:
        return "`teacher`"
    return "with `beta` above 0, the model before the first step" if each.is_sampled else "none"


def list_objectives() -> list[Row]:
    return [
        (
            f"`{each.name}`",
            each.help,
            FORMS.get(each.name) or ", ".join(f"`{name}`" for name in each.columns),
            describe_reference(each),
        )
        for each in OBJECTIVES.values()
    ]


def list_objective_keys() -> list[Row]:
    return [
        (
            f"`{each.name}`",
            f"{each.learning_rate:.0e}".replace("e-0", "e-"),
            ", ".join(f"`{name}`" for name in each.losses) or "-",
            ", ".join(f"`{name}`" for name in each.defaults if name != "loss_type") or "-",
        )
        for each in OBJECTIVES.values()
    ]


def list_optimizers() -> list[Row]:
    others = {name: [alias for alias, of in NAMES.items() if of == name and alias != name] for name in OPTIMIZERS}
    return [
        (
            f"`{it.name}`",
            it.words,
            quote(format for format in it.formats),
            ", ".join(f"`{name}`" for name in others[it.name]) or "-",
        )
        for it in OPTIMIZERS.values()
    ]


VALUE = ("value", "meaning")
SECTIONS: dict[str, list[Section]] = {
    "Objective": [
        Section(
            "Values of `objective`",
            ("objective",),
            ("value", "trained for", "columns of a row", "reference or teacher"),
            list_objectives(),
        ),
        Section(
            "Losses and keys of each objective",
            ("loss_type", "beta"),
            ("objective", "`learning_rate`", "`loss_type`, the default first", "other keys"),
            list_objective_keys(),
            (
                "`label_smoothing` is for `robust` with `dpo`, and for `sigmoid` and `simpo` with `cpo`.",
                "`cpo_alpha: 0` with `loss_type: simpo` is SimPO as published.",
                "`beta: 0` is for `grpo` alone, and needs no reference.",
            ),
        ),
        Section(
            "Values of `problem_type`",
            ("problem_type",),
            ("value", "labels of a row", "default for"),
            [
                ("`single_label_classification`", "one class", "several labels"),
                ("`multi_label_classification`", "any number of classes", "-"),
                ("`regression`", "numbers", "one label"),
            ],
            ("A model's own `problem_type` comes before these defaults.",),
        ),
    ],
    "Output": [
        Section(
            "Values of `resume_from_checkpoint`",
            ("resume_from_checkpoint",),
            VALUE,
            [
                (
                    "`true`",
                    "the newest durable step, on the storage paths or in a checkpoint. Without one: exit code 2",
                ),
                ("`auto`", "that step, or a fresh start"),
                ("a directory", "that checkpoint. All later steps are dropped"),
            ],
        ),
    ],
    "Steps": [
        Section(
            "Values of `full_determinism`",
            ("full_determinism",),
            ("value", "kernels of PyTorch on a GPU", "results"),
            [
                ("`true`", "a fixed order of additions", "resumed runs and all placements have the same bits"),
                ("`false`", "the fastest, such as cuDNN's attention and FA3", "they agree within rounding"),
            ],
            ("On CPUs the order is always fixed.",),
        ),
        Section(
            "Several processes",
            ("virtual_ranks", "gradient_accumulation_steps", "ddp_backend", "shard_frozen"),
            notes=(
                "Micro-batch i of a step is in group i modulo `virtual_ranks`. The sums of groups are added as a tree.",
                "`gradient_accumulation_steps` counts the micro-batches of each process. If `virtual_ranks` is given, "
                "it counts those of all processes together.",
                "`ddp_backend: nccl` needs `device: cuda`. Both transports give the same bits.",
                "`shard_frozen` keeps the base of an adapter once, and not once for each process. It changes no bit.",
                "`storage` and `storage_device` name one place for all processes of a machine, which divide its "
                "`capacity` and `endurance`. A path with `{local_rank}` or `{rank}` belongs to one process.",
                "`node` and `memory_file` give a size for each process.",
            ),
            intro="[The page on processes](../how-to/several-processes.md#what-a-step-is) has examples.",
        ),
    ],
    "Optimizer": [
        Section(
            "Values of `optim`",
            ("optim",),
            ("value", "update", "`state_format`", "other accepted names"),
            list_optimizers(),
        ),
    ],
    "Precision": [
        Section(
            "Values of `weight_dtype`",
            ("weight_dtype",),
            ("value", "weights, gradients and saved files", "master weight", "bytes of a parameter with AdamW"),
            [
                ("`bf16`", "bf16", "the weight and 16 more bits: exact fp32", "12"),
                ("`fp16`", "fp16, with a dynamically scaled loss", "fp32 beside the weight", "14"),
                ("`fp32`", "fp32, for checks", "the weight", "12"),
            ],
            (
                "The bytes are those of weight, master and exact fp32 moments. A gradient comes on top.",
                "Gradients of micro-batches are summed in fp32, and the sum is rounded once to `weight_dtype`. AdamW "
                "then updates exact fp32 masters and moments by that gradient.",
                "Parameters that the model's class keeps in fp32 stay fp32, with their gradients and saved tensors.",
            ),
        ),
        Section(
            "Values of `compute_dtype`",
            ("compute_dtype",),
            ("value", "layers multiply in"),
            [
                (
                    "`auto`",
                    "on CPUs `weight_dtype` or fp32, whichever a measurement during planning finds faster; on a "
                    "GPU `weight_dtype`",
                ),
                ("`bf16`, `fp16`", "this type, which `weight_dtype` has, too"),
                ("`fp32`", "fp32. Weights are widened one block at a time, and activations are fp32"),
            ],
            (
                "config.yaml records the type that `auto` chose.",
                "`fp16` or `fp32` without a `weight_dtype` sets both keys.",
            ),
        ),
        Section(
            "Values of `state_format`",
            ("state_format",),
            ("value", "moments", "bytes of a bf16 parameter with AdamW"),
            [
                ("`exact`", "fp32", "12"),
                ("`bf16`", "bf16, rounded stochastically", "8"),
                ("`int8`", "codes of 8 bits, with one scale for 256", "6"),
            ],
            (
                "Master weights are exact in every format.",
                "A resume from a checkpoint that stands alone may choose another format.",
            ),
        ),
    ],
    "Places": [
        Section(
            "Values of `device`",
            ("device",),
            ("value", "layers compute on", "needs"),
            [
                (
                    "`auto`",
                    "`cuda`, otherwise `cpu`",
                    "for `cuda`: a GPU for each process of the machine, Spillway's "
                    "kernels, and no `activation_spill: all`",
                ),
                ("`cpu`", "the CPUs", "-"),
                ("`cuda`", "the GPU of the environment's LOCAL_RANK, or the first", "an NVIDIA GPU"),
                ("`cuda:N`", "the GPU with this number", "an NVIDIA GPU"),
                ("`simulated`", "host memory that behaves like a device", "-"),
            ],
            (
                "`auto` of a resume takes the CPUs if the run started on CPUs.",
                "The simulated device has the link and the updates of the first GPU of `profile`. Without a profile, "
                "its link is as fast as memory, and it makes no updates.",
            ),
        ),
        Section(
            "Values of `placement`",
            ("placement",),
            VALUE,
            [
                ("`auto`", "the plan chooses"),
                ("`dram`, `path`", "all state in DRAM, or on storage paths"),
                ("`weight=dram,state=path`", "a tier for each group: `weight`, `state`, `grad`, `activation`"),
                ("`state=50%`", "the share in DRAM; the rest is on paths"),
                ("`grad=numa:2,activation=file:0`", "a NUMA node or a `memory_file`, for these two groups"),
            ],
            (
                "The key does not move the part that is on a device.",
                "`auto` spills gradients and boundary activations to nodes and files if that makes room, in proportion "
                "to their speed.",
            ),
        ),
        Section(
            "Activations",
            ("activation_recompute", "activation_spill"),
            ("key and value", "activations of a layer"),
            [
                ("`activation_recompute: all`", "are computed again in backward"),
                ("`activation_recompute: none`", "are kept where the layer computes, or spilled"),
                ("`activation_recompute: 8`", "are computed again in 8 layers, and kept in the others"),
                ("`activation_recompute: auto`", "are computed again in as many layers as the plan finds fastest"),
                ("`activation_spill: never`", "stay where they are kept"),
                ("`activation_spill: all`", "go to a storage path, another NUMA node or a `memory_file`, if kept"),
                ("`activation_spill: auto`", "go there for as many layers as is fastest, or as memory requires"),
            ],
            (
                "Layers that cannot keep their activations recompute, and the plan gives the reason.",
                "Kept activations of layers on a GPU do not spill to a path. `device: simulated` also spills to host "
                "memory.",
            ),
        ),
        Section(
            "Passes, kernels and tiles",
            ("pass_tokens", "fused_kernels", "token_tile"),
            ("key", "`auto` on a GPU", "`auto` on CPUs", "another value changes"),
            [
                (
                    "`pass_tokens`",
                    "32768",
                    "0: a pass for each micro-batch",
                    "the last bits of gradients, not the loss",
                ),
                (
                    "`fused_kernels`",
                    "each part of a layer that computes exactly this; a line at the start lists them",
                    "`never`: the model's own code",
                    "results within rounding",
                ),
                (
                    "`token_tile`",
                    "eight times the hidden size, at least 32768",
                    "twice the hidden size, at least 1024",
                    "the last bits, if a micro-batch has several tiles",
                ),
            ],
            (
                "Placement changes no bit with any of these values.",
                "A pass holds one micro-batch with objectives that compare rows, `method: lsp`, several "
                "`virtual_ranks`, and routers that add a loss.",
                "Layers run whole, without tiles, with several `virtual_ranks`.",
                "[This list](../gpu-internals.md#parts-that-no-gpu-has-run) names the parts that no GPU has run.",
            ),
        ),
        Section(
            "Storage paths",
            ("storage", "storage_device", "erase"),
            ("part", "meaning"),
            [
                ("`DIR`", "a directory on a drive, or with `storage_device` a raw block device"),
                ("`capacity=SIZE`", "bytes to use; all free space without it"),
                (
                    "`endurance=SIZE`",
                    "bytes that the drive is rated for in its life, such as 600TB. The plan then "
                    "states the drive's life",
                ),
            ],
            ("`storage: /mnt/a/spillway,capacity=400GiB,endurance=600TB` uses all three parts.",),
        ),
        Section(
            "Values of `durability`",
            ("durability",),
            ("value", "a kill or a power cut leaves"),
            [
                ("`step`", "the last finished step"),
                ("`checkpoint`", "the last checkpoint"),
                ("`none`", "the last checkpoint, which is a copy of the whole state"),
            ],
            ("A resume may change `step` to `checkpoint` and back, but not to `none`.",),
        ),
        Section(
            "Values of `update_schedule`",
            ("update_schedule", "speculative_updates"),
            ("value", "the optimizer updates", "needs"),
            [
                ("`deferred`", "during the next forward pass", "-"),
                (
                    "`early`",
                    "during backward",
                    "memory for old values, so that a skipped step can be undone; `max_grad_norm: 0` or "
                    "`speculative_updates`",
                ),
                ("`auto`", "early if the plan finds it faster", "-"),
            ],
            (
                "The free memory limits the number of parameters that update early.",
                "`speculative_updates` predicts the factor of clipping: 1 while recent norms were below "
                "`max_grad_norm`.",
            ),
        ),
        Section(
            "Values of `replay_action`",
            ("replay_action",),
            ("value", "if the two computations differ"),
            [
                ("`stop`", "the run ends with exit code 1 and the state of the step before"),
                ("`continue`", "a third computation decides. The run goes on if it equals one of the two"),
            ],
        ),
    ],
    "Method": [
        Section(
            "Values of `method`",
            ("method",),
            ("value", "trains", "gradients and moments"),
            [
                ("`full`", "every weight", "of the size of the weights"),
                (
                    "`lora`",
                    "PEFT's adapters. The frozen base streams from its tier and is never written",
                    "of the size of the adapters",
                ),
                ("`lsp`", "every weight, the matrices of layers in small subspaces", "d x d instead of m x n"),
            ],
        ),
    ],
}
