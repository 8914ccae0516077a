"""The update of an optimizer step beside PyTorch's and DeepSpeed's, on this machine's cores, in turn.

    python bench/optimizers.py KERNELS_UPDATE [--params N] [--rounds R] [--threads T] [--json FILE]

KERNELS_UPDATE is the program of bench/kernels_update.cc; it updates bf16 weights from bf16 gradients (`exact`, with
the same masters and moments as the others, and `bf16`, `int8`). torch.optim.AdamW(fused=True) and DeepSpeedCPUAdam
(left out, aloud, where it is not installed) work on fp32 masters: alone, with the fp32 gradient ready, and with the
casts that such a step needs, bf16 gradient in and bf16 weight out. Each is a process of its own; rounds alternate, so
that a noisy machine slows all. Prints G parameters a second, medians of R rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEERS = ("torch", "torch+casts", "deepspeed", "deepspeed+casts")
FORMS = ("exact", "bf16", "int8")


def timed(work, count: int = 5) -> float:
    work()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def peer(name: str, params: int, threads: int) -> float:
    """G parameters a second of one of PEERS; runs in a process of its own."""
    import torch

    torch.set_num_threads(threads)
    master = torch.nn.Parameter(torch.full((params,), 0.02))
    grad16 = torch.full((params,), 1e-3, dtype=torch.bfloat16)
    weight16 = master.detach().bfloat16()
    master.grad = grad16.float()
    if name.startswith("torch"):
        optimizer = torch.optim.AdamW([master], lr=1e-5, fused=True)
    else:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam([master], lr=1e-5, weight_decay=0.01, adamw_mode=True)

    def with_casts() -> None:
        if name.startswith("torch"):
            master.grad = grad16.float()  # a new one each step, as zero_grad() leaves none
        else:
            master.grad.copy_(grad16)  # DeepSpeed keeps its own
        optimizer.step()
        weight16.copy_(master.detach())

    return params / timed(with_casts if name.endswith("casts") else optimizer.step) / 1e9


def run_peer(name: str, options: argparse.Namespace) -> float:
    words = [sys.executable, __file__, "-", "--peer", name, "--params", str(options.params)]
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(
        [*words, "--threads", str(options.threads)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr[-600:]}")
    return float(done.stdout.split()[-1])


def run_form(form: str, options: argparse.Namespace) -> float:
    with tempfile.NamedTemporaryFile() as file:
        words = [options.program, "--form", form, "--params", str(options.params), "--rounds", "3"]
        words += ["--threads", str(options.threads), "--json", file.name]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in file.read().decode().splitlines()]
    return next(line["g_params_per_s"] for line in lines if line["threads"] == options.threads)


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {}
    missing: set[str] = set()
    for _ in range(options.rounds):
        for form in FORMS:
            rates.setdefault(form, []).append(run_form(form, options))
        for name in PEERS:
            if name in missing:
                continue
            try:
                rates.setdefault(name, []).append(run_peer(name, options))
            except RuntimeError as error:
                print(f"left out: {error}", file=sys.stderr)
                missing.add(name)
    return {name: each for name, each in rates.items() if each}


def main() -> None:
    parser = argparse.ArgumentParser(description="The update beside PyTorch's and DeepSpeed's.")
    parser.add_argument("program", help="the built kernels_update")
    parser.add_argument("--params", type=int, default=64 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        print(peer(options.peer, options.params, options.threads))
        return
    rates = measure(options)
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, rate in medians.items():
        times = f"exact is {medians['exact'] / rate:.2f} times as fast" if name in PEERS else ""
        print(f"{name:16s} {rate:6.3f} G params/s ({min(rates[name]):.3f} to {max(rates[name]):.3f})  {times}")
    if options.json:
        figures = {"params": options.params, "threads": options.threads, "g_params_per_s": rates, "medians": medians}
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
