"""A step with layers that keep what autograd saves of them, or spill it, beside one in which all compute it again.

    python bench/saved_activations.py [--shape 0.5b] [--sequence 1024] [--micro-batches 1] [--rounds 2] [--steps 3]
                                      [--peer plain] [--storage DIR]

Everything in DRAM; in every round each side runs in a process of its own, in turn, and the first step of each is not
counted; of one more side half of the layers keep. All rounds are kept, those of earlier calls too; the losses of
Spillway's sides have to be the same bits. `passes`: seconds of forward and backward passes, by the last step's own
timeline, of which the median layer stands for all that do the same, since others on the machine hold some up; `gone`:
what these are less than where all layers compute again, in parts of the seconds that computing again takes: those of a
forward pass that keeps what autograd saves, but for its last product (`recomputed`), whose result no backward pass
needs. With `--peer plain` PyTorch's own loop in fp32 with gradient
checkpointing is a third side: run so, with ONEDNN_MAX_CPU_ISA=AVX2 and ATEN_CPU_CAPABILITY=avx2, this is a CPU without
instructions for bf16. With `--storage` a further side sends what every layer saves to that directory and back, all
else in DRAM; its bits have to be the same, too. Results go to bench/results/saved-activations.json, where those of
other settings stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from figures import RESULTS, machine, processor, save
from shapes import config_of

from spillway.report.facts import Reader
from spillway.report.timeline import Span, steps

HERE = Path(__file__).parent
NAME = "saved-activations"
SIDES = {
    "recompute": ("engine_run.py", "--set", "activation_recompute=all"),
    "keep": ("engine_run.py", "--set", "activation_recompute=auto", "--set", "activation_spill=never"),
    "half": ("engine_run.py", "--set", "activation_spill=never"),  # and how many recompute
    "spill": ("engine_run.py", *"--set activation_recompute=none --set activation_spill=all --durability none".split()),
    "plain": ("peers.py", "plain", "--dtype", "fp32"),
}


def measured(side: str, words: list[str], storage: str | None) -> dict[str, Any]:
    program, *more = SIDES[side]
    if side == "spill":
        more += ["--storage", str(storage)]
    if side == "plain":
        said = told(program, *more, *words)
        return {"counted": said["seconds"][1:], "peak_bytes": said["peak_bytes"], "loss": said["loss"]}
    with tempfile.TemporaryDirectory() as name:
        said = told(program, *more, *words, "--timelines", name)
        last = max(Path(name).iterdir(), key=lambda file: int(file.name.split(".")[0]))
        done = steps(Reader(Path(name)).events(last))["measured"]
    kept = said["plan"].get("saved_activations", {})
    blocks = kept.get("blocks", []) + kept.get("spilled_blocks", [])  # of which the first is the embedding
    passes = passes_of(done.lanes["compute"], {block - 1 for block in blocks})
    return {
        "counted": said["seconds"][1:], "peak_bytes": said["peak_bytes"], "loss": said["loss"], "passes": passes,
        "layers": kept.get("keep", 0), "bytes": kept.get("bytes", 0), "losses": said["losses"],
        "spilled_layers": kept.get("spill", 0), "spilled_bytes": kept.get("spilled_bytes", 0),
        "predicted_seconds": said["plan"]["predicted_step_seconds"],
    }  # fmt: skip


def told(program: str, *words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(HERE / program), *words], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def passes_of(spans: list[Span], keeping: set[int]) -> dict[str, float]:
    """`keeping`: numbers of the layers that do not compute again. A layer's number is in its tasks' names."""
    found: dict[tuple[str, bool], list[float]] = {}
    for span in spans:
        if span.kind in ("forward", "backward"):
            number = int(re.findall(r"\d+", span.name)[0])
            found.setdefault((span.kind, number in keeping), []).append(span.end - span.start)
    passes = {"forward": 0.0, "backward": 0.0}
    for (kind, _), seconds in found.items():
        passes[kind] += len(seconds) * statistics.median(seconds)
    return passes


def recomputed(config: Any, sequence: int) -> float:
    """The share of a layer's forward operations that a backward pass does again: not those of the down projection."""
    hidden, inner = config.hidden_size, config.intermediate_size
    keys = hidden * config.num_key_value_heads // config.num_attention_heads
    attention = 2 * hidden * (hidden + keys) + hidden * sequence  # of a token, which sees half of its row
    return (attention + 2 * hidden * inner) / (attention + 3 * hidden * inner)


def gone(side: dict[str, Any], recompute: dict[str, Any], keep: dict[str, Any], share: float) -> float:
    """`share`: of a forward pass that is computed again."""
    saved = sum(recompute["passes"].values()) - sum(side["passes"].values())
    return float(saved / (share * keep["passes"]["forward"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="0.5b")
    for name, default in (("sequence", 1024), ("micro-batches", 1), ("rounds", 2), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peer", choices=("plain",))
    parser.add_argument("--storage", help="a directory: adds a side that spills to it")
    arguments = parser.parse_args()
    words = ["--shape", arguments.shape]
    for name in ("sequence", "micro_batches", "steps"):
        words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    config = config_of(arguments.shape)
    share = recomputed(config, arguments.sequence)
    SIDES["half"] += ("--set", f"activation_recompute={config.num_hidden_layers // 2}")
    sides = ["recompute", "keep", "half", *(["spill"] if arguments.storage else []), *filter(None, [arguments.peer])]
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    parts = [arguments.shape.replace(".", "_"), arguments.sequence, arguments.micro_batches, *([isa] if isa else [])]
    parts += ["spill"] if arguments.storage else []
    setting = "-".join(map(str, parts))
    rounds = []
    for number in range(arguments.rounds):
        rounds.append({side: measured(side, words, arguments.storage) for side in sides})
        recompute, keep = rounds[-1]["recompute"], rounds[-1]["keep"]
        for side, each in rounds[-1].items():
            if side not in ("recompute", "plain"):
                assert recompute["losses"] == each["losses"], f"{side}: the bits are others"
                each["gone"] = gone(each, recompute, keep, share)
            print(number, side, each["counted"], each.get("passes"), each.get("gone"), flush=True)
    file = RESULTS / f"{NAME}.json"
    before = json.loads(file.read_text()) if file.is_file() else {}
    earlier = before.get(setting, {}).get("rounds", [])
    found = {"processor": processor(), "machine": machine(), "held_to": isa or None, "rounds": earlier + rounds}
    save(NAME, before | {setting: found})


if __name__ == "__main__":
    main()
