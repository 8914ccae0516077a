"""Bytes that steps read of experts on demand, with experts that swap places in memory and without.

    hot_experts.py --storage DIR [--minutes 8] [--steps 96] [--tokens 64 16] [--shares 50] [--text DIR]

The model is that of experts_met.py with experts that are wide enough to be packed, trained on text for some minutes.
Adapters over its NF4 base then read text that the model has not seen, so many consecutive tokens a step. A share of the
weights lies in memory, the rest on the path. Experts of `moving` swap places every 16 steps, those of `still` keep the
places of the plan. The program fails if a loss or a gradient norm of the two differs in a bit.

A row has the bytes that a step read by the counters of the path, those of swaps included: the mean without the first
step, the mean of the second half, and the mean of each 16 steps. Beside them are the bytes that the plan counts on, the
share of a layer's experts that steps met, the planned share, and the part of the met experts that lay in memory.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from experts_met import HELD_OUT, make_model, read_tokens, train
from figures import processor, save

from spillway.cli.arguments import parse
from spillway.model.batches.batch import Batch, WorkShape
from spillway.run import engine_spec
from spillway.run.experts_met import PERIOD
from spillway.run.protocol import StartPoint
from spillway.run.session import EngineSession

NAME = "hot-experts"
EXPERTS, TOP, LAYERS, WIDTH = 128, 8, 2, 256
ADAPTERS = ["--method", "lora", "--lora_target_modules", "all-linear", "--load_in_4bit", "true"]
LEARNING_RATE = 1e-4


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8, help="of training the model")
    parser.add_argument("--steps", type=int, default=96)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 16], help="of a step")
    parser.add_argument("--shares", type=int, nargs="+", default=[50], help="of the weights in memory, in percent")
    parser.add_argument(
        "--text", type=Path, default=Path(sysconfig.get_paths()["stdlib"]), help="a folder of .py or .txt"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def run_steps(model: Path, rows: list[torch.Tensor], words: list[str]) -> dict[str, Any]:
    """A step over each row: what it computed, read and met."""
    common = ["--model", str(model), "--dataset", "none", "--durability", "none", "--expert_loading", "on_demand"]
    with tempfile.TemporaryDirectory() as output:
        config = parse([*common, *ADAPTERS, *words, "--output_dir", output, "--overwrite"]).config()
        session = EngineSession(config, WorkShape(1, 1, len(rows[0]), 0, 0))
        session.start(StartPoint())
        results = [session.step([Batch(ids[None], ids[None], None, len(ids))], LEARNING_RATE) for ids in rows]
        measured, plan = session.measured(), session.plan
        session.close()
    read = [sum(path["read"] for path in result.path_bytes.values()) for result in results]
    met = measured["experts_met"]
    return {
        "computed": [(result.loss_sum, result.grad_norm) for result in results],
        "pieces": plan["pieces"],
        "planned_read": sum(path["read"] for path in plan["path_bytes_per_step"].values()),
        "read": statistics.mean(read[1:]),
        "read_second_half": statistics.mean(read[len(read) // 2 :]),
        "read_by_period": [statistics.mean(read[first : first + PERIOD]) for first in range(0, len(read), PERIOD)],
        "met": met["mean"],
        "met_planned": met["planned"]["share"],
        **{key: met[key] for key in ("resident", "resident_unswapped", "swaps")},
    }


@contextmanager
def keep_places() -> Iterator[None]:
    """Experts stay where the plan puts them."""
    make = engine_spec.engine_settings

    def make_still(*positional: Any, **named: Any) -> Any:
        settings = make(*positional, **named)
        settings.piece_period = 0
        return settings

    with mock.patch.object(engine_spec, "engine_settings", make_still):
        yield


def compare(model: Path, rows: list[torch.Tensor], storage: Path, share: int) -> dict[str, Any]:
    words = ["--storage", str(storage), "--placement", f"weight={share}%"]
    moving = run_steps(model, rows, words)
    with keep_places():
        still = run_steps(model, rows, words)
    if moving.pop("computed") != still.pop("computed"):
        raise SystemExit(f"tokens {len(rows[0])}, share {share}: losses or gradient norms differ")
    if still["swaps"]:
        raise SystemExit("the side without swaps has swapped")
    return {"tokens": len(rows[0]), "share": share, "moving": moving, "still": still}


def describe(row: dict[str, Any]) -> Iterator[str]:
    for name in ("moving", "still"):
        side = row[name]
        read, later = side["read"] / 2**20, side["read_second_half"] / 2**20
        yield (
            f"{row['tokens']} tokens, {row['share']} % in memory, {name}: {read:.2f} MiB a step, {later:.2f} in the "
            f"second half; memory had {side['resident']:.0%} of the met experts; {side['swaps']} swaps"
        )


def main() -> None:
    arguments = parser().parse_args()
    torch.manual_seed(arguments.seed)
    tokens = read_tokens(arguments.text, arguments.seed)
    model = make_model(EXPERTS, TOP, LAYERS, WIDTH)
    training = train(model.train(), tokens[HELD_OUT:], arguments.minutes, arguments.seed)
    shape = {"experts": EXPERTS, "top": TOP, "layers": LAYERS, "width": WIDTH}
    result = {"processor": processor(), **shape, "steps": arguments.steps, "training": training, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        del model
        for count, share in itertools.product(arguments.tokens, arguments.shares):
            rows = list(tokens[: count * arguments.steps].split(count))
            result["rows"].append(compare(Path(folder), rows, arguments.storage, share))
            save(NAME, result)
            print(*describe(result["rows"][-1]), sep="\n", flush=True)


if __name__ == "__main__":
    main()
