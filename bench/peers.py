"""Times the alternatives of a user on the same model and batch: a plain PyTorch loop, DeepSpeed ZeRO, FSDP2, or
MegaTrain.

    peers.py plain|deepspeed|fsdp2|megatrain --shape 0.5b --sequence 1024 --steps 4 [--storage DIR] [--layers N]
             [--batch N --micro-batches N] [--dtype bf16|fp32] [--no-checkpointing] [--liger]
             [--stage 2|3] [--sub-group ELEMENTS] [--bf16-masters]
             [--device cuda:0 --device-memory BYTES] [--sources DIR]
    peers.py io --storage DIR [--block-size BYTES --queue-depth N --io-threads N]

Random weights, random tokens, gradient checkpointing, bf16 compute with fp32 masters or fp32, AdamW, clipping at 1.0.
Prints one JSON line; exit code 3 where it does not fit. DeepSpeed (`pip install deepspeed`, not a dependency) keeps its
optimizer state in files below DIR, without one in host memory; on a GPU parameters are offloaded, too. `io` writes and
reads a gigabyte by DeepSpeed's asynchronous I/O. FSDP2 keeps fp32 masters, states and gradients in host memory
(CPUOffloadPolicy), and multiplies in `--dtype`. `--liger`: Liger's fused norms, SwiGLU and loss. `--bf16-masters`:
DeepSpeed's masters, gradients and states are bf16, half of the memory and of the numerics. `--sources`: MegaTrain's
clone. Its numerics are its own (megatrain_peer.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from shapes import config_of, device_peak, peak_watch, random_tokens, refuses, settle, use_liger

TYPES = {"bf16": "bfloat16", "fp32": "float32"}


def plain(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config_of(arguments.shape, arguments.layers), dtype=getattr(torch, TYPES[arguments.dtype])
    )
    if arguments.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    weights = list(model.parameters())
    apart = arguments.dtype != "fp32"  # the masters are
    masters = [weight.detach().float().requires_grad_() for weight in weights] if apart else weights
    optimizer = torch.optim.AdamW(masters, lr=1e-5, fused=True)
    seconds, loss = [], 0.0
    for step in range(arguments.steps):
        batches = tokens_of(arguments, step)
        began = time.perf_counter()
        for ids in batches:
            result = model(input_ids=ids, labels=ids).loss / len(batches)
            result.backward()
        if apart:
            for weight, master in zip(weights, masters, strict=True):
                master.grad = weight.grad.float()
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if apart:
            with torch.no_grad():
                for weight, master in zip(weights, masters, strict=True):
                    weight.copy_(master)
        seconds.append(time.perf_counter() - began)
        loss = float(result) * len(batches)
    return {"seconds": seconds, "loss": loss}


def deepspeed(arguments: argparse.Namespace) -> dict[str, Any]:
    kind, _, number = arguments.device.partition(":")
    os.environ |= {"DS_ACCELERATOR": kind, "RANK": "0", "LOCAL_RANK": number or "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    import deepspeed as ds
    import torch
    import torch._dynamo  # noqa: F401  before zero.Init replaces torch.Tensor's constructors
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    device = torch.device(arguments.device)
    limit_memory(device, arguments.device_memory)
    ds.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
    adam = own_adam()
    settings = deepspeed_settings(arguments, adam)
    keep = HfDeepSpeedConfig(settings)
    torch.manual_seed(0)
    with ds.zero.Init(config_dict_or_path=settings, enabled=arguments.stage == 3):
        model = AutoModelForCausalLM.from_config(
            config_of(arguments.shape, arguments.layers), dtype=getattr(torch, TYPES[arguments.dtype])
        )
    if arguments.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    engine, *_ = ds.initialize(model=model, config=settings, model_parameters=model.parameters())
    seconds, loss = [], 0.0
    for step in range(arguments.steps):
        batches = tokens_of(arguments, step)
        began = time.perf_counter()
        for ids in batches:
            result = engine(input_ids=ids.to(device), labels=ids.to(device)).loss
            engine.backward(result)
            engine.step()
        loss = float(result)  # waits for the device
        seconds.append(time.perf_counter() - began)
    del keep
    return {"seconds": seconds, "loss": loss, "device_peak": device_peak(device), "its_own_adam": adam}


def fsdp2(arguments: argparse.Namespace) -> dict[str, Any]:
    """FSDP2 on one device, with fp32 masters in host memory."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": "29519"}
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    from transformers import AutoModelForCausalLM

    device = torch.device(arguments.device)
    on_gpu = device.type == "cuda"
    limit_memory(device, arguments.device_memory)
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_of(arguments.shape, arguments.layers), dtype=torch.float32)
    if arguments.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    for buffer in model.buffers():  # fully_shard moves parameters alone
        buffer.data = buffer.to(device)
    mesh = dist.init_device_mesh(device.type, (1,))
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, TYPES[arguments.dtype]), reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if on_gpu else OffloadPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seconds, loss = [], 0.0
    for step in range(arguments.steps):
        batches = tokens_of(arguments, step)
        began = time.perf_counter()
        for number, ids in enumerate(batches):
            model.set_requires_gradient_sync(number == len(batches) - 1)
            result = model(input_ids=ids.to(device), labels=ids.to(device)).loss / len(batches)
            result.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = float(result) * len(batches)
        seconds.append(time.perf_counter() - began)
    dist.destroy_process_group()
    return {"seconds": seconds, "loss": loss, "device_peak": device_peak(device)}


def megatrain(arguments: argparse.Namespace) -> dict[str, Any]:
    """The loop of MegaTrain's training script, on one GPU."""
    os.environ["DS_ACCELERATOR"] = arguments.device.partition(":")[0]
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as MegaTrain's script
    import torch
    from megatrain_peer import CausalMask, import_package, make_optimizer, open_model, read_source
    from transformers import AutoModelForCausalLM

    package = import_package(arguments.sources)  # missing sources end the run before the GPU works
    device = torch.device(arguments.device)
    limit_memory(device, arguments.device_memory)
    torch.manual_seed(0)
    with device:  # a GPU draws the weights within seconds
        model = AutoModelForCausalLM.from_config(
            config_of(arguments.shape, arguments.layers), dtype=getattr(torch, TYPES[arguments.dtype]),
            attn_implementation="sdpa",
        ).cpu()  # fmt: skip
    forget_peak(device)
    adam = own_adam()
    seconds, loss = [], 0.0
    with open_model(package, arguments, model) as master:
        weights = master.get_parameters()
        optimizer = make_optimizer(weights, adam)
        for step in range(arguments.steps):
            batches = tokens_of(arguments, step)
            began = time.perf_counter()
            for ids in batches:
                loss, *_ = master.forward_and_backward(ids, CausalMask(), ids)
            # MegaTrain adds the mean gradients of the micro-batches. AdamW does not depend on their scale.
            torch.nn.utils.clip_grad_norm_(weights, 1.0 * len(batches))
            optimizer.step()
            master._sync_params_to_gpu()
            master.zero_grad()
            optimizer.zero_grad()
            settle(device)
            seconds.append(time.perf_counter() - began)
    figures = {"seconds": seconds, "loss": loss, "device_peak": device_peak(device), "its_own_adam": adam}
    return figures | {"source": read_source(arguments.sources)}


def forget_peak(device: Any) -> None:
    """Gives unused memory of a GPU back, and measures its peak from here."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def limit_memory(device: Any, memory: int) -> None:
    """Limits PyTorch to so many bytes of the GPU; 0: no limit."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (memory or total) / total), device)


def io(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds to write and to read a gigabyte by DeepSpeed's asynchronous handle."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = (
        AsyncIOBuilder()
        .load()
        .aio_handle(arguments.block_size, arguments.queue_depth, False, True, arguments.io_threads)
    )
    buffer = handle.new_cpu_locked_tensor(1 << 30, torch.empty(0, dtype=torch.uint8))
    file = arguments.storage / "deepspeed-io.data"
    try:
        began = time.perf_counter()
        handle.sync_pwrite(buffer, str(file))
        written = time.perf_counter()
        handle.sync_pread(buffer, str(file))
        return {"write_seconds": written - began, "read_seconds": time.perf_counter() - written}
    finally:
        file.unlink(missing_ok=True)


def tokens_of(arguments: argparse.Namespace, step: int) -> list[Any]:
    """A step's micro-batches, [batch, sequence] each."""
    count = arguments.batch * arguments.sequence
    numbers = range(step * arguments.micro_batches, (step + 1) * arguments.micro_batches)
    return [random_tokens(arguments.shape, count, number).view(arguments.batch, -1) for number in numbers]


def own_adam() -> bool:
    """Whether DeepSpeed's Adam for CPUs can be compiled here; torch's stands in for it."""
    from deepspeed.ops.op_builder import CPUAdamBuilder

    try:
        CPUAdamBuilder().load()
    except Exception as error:  # a compiler, a library: it says on its own what is missing
        print(error, file=sys.stderr)
        return False
    return True


def deepspeed_settings(arguments: argparse.Namespace, adam: bool) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": arguments.stage, "overlap_comm": True, "contiguous_gradients": True,
        "sub_group_size": arguments.sub_group,
    }  # fmt: skip
    if arguments.stage == 3:
        zero["stage3_param_persistence_threshold"] = 100_000
    if arguments.params_on_storage:
        config = config_of(arguments.shape, arguments.layers)
        largest = max(150_000_000, config.vocab_size * config.hidden_size)  # a buffer holds any parameter
        zero["offload_param"] = {
            "device": "nvme", "nvme_path": str(arguments.storage), "buffer_count": 26, "buffer_size": largest,
            "max_in_cpu": 0,
        }  # fmt: skip
    elif arguments.device != "cpu" and arguments.stage == 3:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if arguments.storage:
        if arguments.device == "cpu":  # so that it takes little memory there; GPUs have DeepSpeed's defaults
            zero |= {"stage3_max_live_parameters": 40_000_000, "stage3_prefetch_bucket_size": 15_000_000}
        zero["offload_optimizer"] = {
            "device": "nvme", "nvme_path": str(arguments.storage), "buffer_count": arguments.buffers,
            "fast_init": False, "pipeline_read": arguments.pipeline, "pipeline_write": arguments.pipeline,
        }  # fmt: skip
    else:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": arguments.device != "cpu"}
    bf16: dict[str, Any] = {"enabled": arguments.dtype == "bf16"}
    adamw = {"lr": 1e-5, "weight_decay": 0.01, "torch_adam": not adam}
    if arguments.bf16_masters:
        adamw["fp32_optimizer_states"] = False
        bf16 |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    return {
        "train_micro_batch_size_per_gpu": arguments.batch, "gradient_accumulation_steps": arguments.micro_batches,
        "gradient_clipping": 1.0, "zero_force_ds_cpu_optimizer": adam,
        "bf16": bf16, "zero_optimization": zero, "steps_per_print": 10**9,
        "aio": {"block_size": arguments.block_size, "queue_depth": arguments.queue_depth,
                "thread_count": arguments.io_threads, "single_submit": False, "overlap_events": True},
        "optimizer": {"type": "AdamW", "params": adamw},
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=tuple(PEERS))
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int, default=1, help="rows of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of DeepSpeed, FSDP2 and MegaTrain")
    parser.add_argument("--device-memory", type=int, default=0, help="that PyTorch may use there; 0: all")
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--buffers", type=int, default=5)
    parser.add_argument("--pipeline", action="store_true")
    parser.add_argument("--params-on-storage", action="store_true", help="DeepSpeed's parameters on the storage, too")
    parser.add_argument("--dtype", choices=tuple(TYPES), default="bf16")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    parser.add_argument("--block-size", type=int, default=1 << 20, help="of DeepSpeed's I/O, bytes")
    parser.add_argument("--queue-depth", type=int, default=16)
    parser.add_argument("--io-threads", type=int, default=1)
    parser.add_argument("--stage", type=int, choices=(2, 3), default=3, help="of DeepSpeed's ZeRO")
    parser.add_argument("--sub-group", type=int, default=100_000_000, help="elements that DeepSpeed updates at once")
    parser.add_argument("--bf16-masters", action="store_true")
    parser.add_argument("--liger", action="store_true")
    parser.add_argument("--sources", type=Path, default=Path("build/gpu-bundle/MegaTrain"), help="MegaTrain's clone")
    return parser


PEERS = {"plain": plain, "deepspeed": deepspeed, "fsdp2": fsdp2, "megatrain": megatrain, "io": io}


def main() -> None:
    arguments = parser().parse_args()
    if arguments.liger:
        use_liger()
    with refuses(), peak_watch() as watch:
        figures = PEERS[arguments.peer](arguments)
    tokens = arguments.sequence * arguments.batch * arguments.micro_batches
    print(json.dumps(figures | {"peak_bytes": watch.bytes, "tokens": tokens}))


if __name__ == "__main__":
    main()
