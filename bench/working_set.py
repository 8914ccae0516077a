"""The working set of one step as three ways have it: a run's heap, the dry run, and the trace of shapes.

    working_set.py [--rounds 1] [--threads N] [--only NAME ...]

Each number comes from a process of its own, because a heap keeps its holes. The ways:

    step      growth of the heap over two steps of the largest micro-batch
    few       the same over the fewest tokens that a plan measures first
    run       the same over two such steps and steps of many shorter rows, as a dataset has them
    dry_run   the bytes that a run's dry run counts, without its slack
    traced    the trace of a described machine's plan, and of the fewest tokens
    lengths   a trace of the dry run's steps in one stream: two of the largest micro-batch, and those of shorter rows

Errors are against `run`. `by_ratio` and `by_difference` are of `lengths`, corrected by the ratio or the difference
of `few` and its trace. `kept` and `kept_traced` are the bytes that a layer keeps of each token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

from figures import RESULTS, processor, save

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/python/support"))
NAME = "working-set"
ROWS, LENGTH = 2, 256
SIZES = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4,
         "head_dim": 64, "vocab_size": 16384, "max_position_embeddings": 1024}  # fmt: skip
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
# Model type, what else it has, and the method's keys
SHAPES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dense": ("llama", {}, {}),
    "lora": ("llama", {}, {"method": "lora"}),
    "nf4": ("llama", {}, {"method": "lora", "load_in_4bit": True}),
    "experts": ("qwen3_moe", EXPERTS, {}),
    "kept": ("llama", {}, {}),
    "images": ("gemma3", {}, {}),
}
WAYS = ("step", "few", "run", "dry_run", "traced", "lengths")
ONCE = ("dry_run", "traced", "lengths")  # ways that are not repeated
DRAWN = 6  # shorter rows of `run`


def make_model(name: str) -> Any:
    import torch

    from hf_models import tiny_config
    from image_models import IMAGE, image_config
    from spillway.config import resolve
    from spillway.model.adapters import quantised
    from spillway.model.adapters.lora import adapters_of
    from spillway.model.meta.building import build

    kind, more, keys = SHAPES[name]
    if kind == "gemma3":
        config = image_config(kind)
        for key, value in SIZES.items():
            setattr(config.text_config, key, value)
        assert config.text_config.vocab_size > IMAGE
    else:
        config = tiny_config(kind, **SIZES, **more)
    model = build(config, torch.bfloat16)
    asked = resolve({}, keys)
    if (adapters := adapters_of(asked)) is not None:
        adapters.adapt(model)
        quantised.choose(model, asked)
    if name == "images":
        model.take_images()
    return model


def measure(name: str, way: str) -> dict[str, float]:
    """In a process of its own."""
    from spillway.model.batches.batch import WorkShape
    from spillway.model.measure import dry_run
    from spillway.model.measure.slack import SLACK

    model, saved, shape = make_model(name), name == "kept", WorkShape(1, ROWS, LENGTH, 0, 0)
    if way in ("traced", "lengths"):
        return trace(model, shape, saved, way == "lengths")
    if way == "dry_run":
        dry_run.LEAST_RUNS = dry_run.MOST_RUNS = 2  # seconds are not looked at
        result = dry_run.profile_dry_run(model, "bf16", shape, False, saved=saved)
        return {"bytes": result.work_bytes / (1 + SLACK), "kept": result.saved.token_bytes}
    return {"bytes": count(model, shape, saved, way)}


def trace(model: Any, shape: Any, saved: bool, lengths: bool) -> dict[str, float]:
    from spillway.model.measure.narrow import NarrowStep, narrow_of_its_kind
    from spillway.model.measure.quick_dry_run import other_lengths
    from spillway.model.measure.synthetic import sample
    from spillway.model.measure.trace import Tracer, trace_step

    if not lengths:
        traced = trace_step(model, "bf16", shape, (), "" if saved else "not asked")
        return {"bytes": traced.whole.bytes, "few": traced.few.bytes, "kept": traced.saved.token_bytes}
    small = narrow_of_its_kind(model, saved)
    tracer = Tracer(NarrowStep(small, shape, "bf16"))
    with tracer._opened() as (stream, _):  # one stream for all steps, as in a run
        for length in (LENGTH, LENGTH, *other_lengths(LENGTH)):
            stream.step(sample(small, ROWS, length))
    return {"bytes": tracer._heap.most}


def count(model: Any, shape: Any, saved: bool, way: str) -> int:
    """Bytes by which steps let the heap grow."""
    import torch

    from spillway.machine import process_memory
    from spillway.machine.place import HOST
    from spillway.model.layers.token_tiles import ALL_AT_ONCE
    from spillway.model.measure.dry_run import Measurement
    from spillway.model.measure.quick_dry_run import shapes

    rows, length = shapes(ROWS, LENGTH)[0] if way == "few" else (ROWS, LENGTH)
    measurement = Measurement(model, "bf16", shape, False, (), None, HOST, None, saved, ALL_AT_ONCE, False)
    measurement._engine.touch(ROWS * LENGTH)
    process_memory.give_back()
    before = process_memory.anonymous()
    lengths = torch.randint(LENGTH // 4, LENGTH, (DRAWN,), generator=torch.Generator().manual_seed(0)).tolist()
    for each in [length, length, *(lengths if way == "run" else ())]:
        measurement._stream.step(measurement._sample(rows, each))
    grown = process_memory.anonymous() - before
    measurement.close()
    return grown


def ask(name: str, way: str) -> dict[str, float]:
    """`measure` in a child of this process, which has computed nothing."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writes, json.dumps(measure(name, way)).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writes)
    with open(reads, "rb") as answer:
        said = answer.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{name}, {way}: failed")
    result: dict[str, float] = json.loads(said)
    return result


def compare(name: str, rounds: int) -> dict[str, Any]:
    answers = {way: [ask(name, way) for _ in range(1 if way in ONCE else rounds)] for way in WAYS}
    row: dict[str, Any] = {"shape": name}
    for way in WAYS:
        row[way] = [each["bytes"] for each in answers[way]]
    traced, (lengths,) = answers["traced"][0], row["lengths"]
    row["traced_few"] = traced["few"]
    row["kept"], row["kept_traced"] = answers["dry_run"][0]["kept"], traced["kept"]
    run, few = (statistics.median(row[way]) for way in ("run", "few"))
    row["error"] = {
        "traced": traced["bytes"] / run - 1,
        "lengths": lengths / run - 1,
        "by_ratio": lengths * few / traced["few"] / run - 1,
        "by_difference": (lengths + few - traced["few"]) / run - 1,
        "dry_run": statistics.median(row["dry_run"]) / run - 1,
    }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(SHAPES))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    import torch

    import hf_models  # noqa: F401  which sets the number of threads
    from spillway.machine import process_memory
    from spillway.model.measure import trace  # noqa: F401  all of it once, for every child

    torch.set_num_threads(arguments.threads)
    process_memory.settle()
    for name in arguments.only:
        row = compare(name, arguments.rounds) | {"threads": arguments.threads}
        print(json.dumps(row), flush=True)
        keep(row)


def keep(row: dict[str, Any]) -> None:
    """Puts a row into the file, in place of an earlier one of its shape and threads."""
    path = RESULTS / f"{NAME}.json"
    rows = json.loads(path.read_text())["shapes"] if path.exists() else []
    rows = [each for each in rows if (each["shape"], each["threads"]) != (row["shape"], row["threads"])] + [row]
    rows.sort(key=lambda each: (-each["threads"], list(SHAPES).index(each["shape"])))
    save(NAME, {"processor": processor(), "rows": ROWS, "length": LENGTH, "shapes": rows})


if __name__ == "__main__":
    main()
