"""Every model type of the installed transformers that makes text, in small: through Spillway and in plain PyTorch.

    python scripts/sweep_models.py [--out docs/reference/models.md] [--rows FILE] [--command] [TYPE ...]

For each type: random weights are saved by the library, loaded by a Session from there, trained ten steps by the engine
and by a plain loop with torch.optim.AdamW in fp32; losses and every weight must agree, and what the Session saves must
hold the keys, shapes and types that the library's own save_pretrained writes for the plain model. Adapters are compared
with PEFT's, and types that keep parameters in fp32 beside bf16 once more in that. Types that are refused are listed
with the reason. Of multimodal types the tower of text is trained, and every other tensor has to stay as it is; the
installed command trains them, too, is killed and resumed (sweep_commands.py), and with --command that alone is done.
With --rows each type's row is kept in FILE as soon as it is made, and what is there and does not differ is not done
again: a sweep that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "python" / "support")]

SECONDS = 300  # for one type, and as much for its commands
LARGEST = 150_000_000  # parameters of what is compared
RANDOM = ("phimoe",)  # draws random numbers while it trains, whatever is configured
FUSED = ("mlp", "experts", "feed_forward", "gate_proj")  # in names for which PEFT adapts fused experts, too
COEFFICIENTS = ("router_aux_loss_coef", "aux_loss_coef")


@dataclass
class Row:
    kind: str
    verdict: str = ""  # "works", "refused", "differs", "not built", "not compared"
    words: str = ""
    loss: float = 0.0  # largest relative difference
    weight: float = 0.0
    seconds: float = 0.0
    adapters: str = ""  # LoRA: largest relative difference of an adapter, or why there is none
    mixed: str = ""  # parameters that stay fp32 in bf16, and the difference of the first loss; or why there is none
    command: str = ""  # multimodal: tensors that were carried along by commands that worked, or what did not


def examine(kind: str) -> Row:
    """One type, in this process, in limited time."""
    from small_configs import wraps_models

    try:
        with limited():
            row = compared(kind)
    except TimeoutError as error:
        return Row(kind, "differs", str(error))
    if row.verdict == "works" and wraps_models(kind):
        row.command = by_command(kind).command
    return row


@contextmanager
def limited() -> Iterator[None]:
    """TimeoutError after SECONDS."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def by_command(kind: str) -> Row:
    """Only what the installed command does with it."""
    quieten()
    from sweep_commands import killed_and_resumed

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        try:
            with limited():
                said = killed_and_resumed(kind, Path(directory))
        except Exception as error:
            said = f"differs: {reason(error, directory)}"
    return Row(kind, command=said, seconds=time.perf_counter() - began)


def compared(kind: str) -> Row:
    quieten()
    from both_ways import Magnified, compare
    from small_configs import small_config, wraps_models
    from spillway.errors import InputError

    try:
        config = with_routers(small_config(kind))
    except Exception as error:
        return Row(kind, "not built", first_line(error))
    if (count := parameters(config)) > LARGEST:
        return Row(kind, "not compared", f"its small copy has {count:,} parameters")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        try:
            found = compare(config, Path(directory), random=kind in RANDOM)
        except InputError as error:
            if lost := not_loaded_again(Path(directory) / "model"):
                return Row(kind, "not built", f"the library does not find {lost} in what it saves itself")
            return Row(kind, "refused", reason(error, directory))
        except Magnified as error:
            return Row(kind, "not compared", first_line(error))
        except AssertionError as error:
            return Row(kind, "differs", first_line(error))
        except NotImplementedError as error:
            return Row(kind, "not built", first_line(error))
        except TimeoutError:
            raise
        except Exception as error:
            return Row(kind, "differs", f"{type(error).__name__}: {first_line(error)}")
    told, also = adapters(kind), "" if wraps_models(kind) else mixed(kind)
    return Row(kind, "works", "", found.loss, found.weight, time.perf_counter() - began, told, also)


def not_loaded_again(directory: Path) -> str:
    """A parameter that the library's own class lacks when it has loaded what it saved; empty: none, or it cannot."""
    from transformers import AutoConfig

    from spillway.model.source.source import auto_class

    try:
        made = auto_class(AutoConfig.from_pretrained(directory))
        lost = made.from_pretrained(directory, output_loading_info=True)[1]["missing_keys"]
    except Exception:
        return ""
    return min(map(str, lost), default="")


def parameters(config: Any) -> int:
    """Without making them; 0: it cannot be built, which its own comparison says."""
    import copy

    import torch

    from spillway.model.meta.on_meta import from_config

    try:
        with torch.device("meta"):
            return sum(each.numel() for each in from_config(copy.deepcopy(config), torch.float32).parameters())
    except Exception:
        return 0


def adapters(kind: str) -> str:
    """What the table says of LoRA on a type that works."""
    from both_ways import compare_adapters, linear_names
    from small_configs import small_config
    from spillway.errors import InputError

    said = ""
    linears = linear_names(small_config(kind))
    outside_mlps = [name for name in linears if not any(part in name for part in FUSED)]
    for targets in (["all-linear"], linears, outside_mlps or linears):  # PEFT itself adds fused experts to MLPs
        with tempfile.TemporaryDirectory() as directory:
            try:
                config = with_routers(small_config(kind))
                return f"{compare_adapters(config, Path(directory), targets, random=kind in RANDOM).weight:.0e}"
            except (InputError, ValueError) as error:  # PEFT's
                said = f"refused: {reason(error, directory)}"
            except TimeoutError:
                raise
            except Exception as error:
                return f"differs: {first_line(error)}"
    return said


def mixed(kind: str) -> str:
    """What the table says of parameters that are kept in fp32; empty where there are none."""
    import torch

    from both_ways import compare_mixed
    from small_configs import small_config
    from spillway.errors import InputError
    from spillway.model.meta.building import build

    meta_model = build(small_config(kind), torch.bfloat16)
    if not any(meta_model.wide(parameter) for parameter in meta_model.model.parameters()):
        return ""
    with tempfile.TemporaryDirectory() as directory:
        try:
            found = compare_mixed(small_config(kind), Path(directory))
            besides = "".join(f"; {name} in bf16" for name in sorted(found.tables))
            return f"{len(found.names)}, {found.loss:.0e}{besides}"
        except InputError as error:
            return f"refused: {reason(error, directory)}"
        except TimeoutError:
            raise
        except Exception as error:
            return f"differs: {first_line(error)}"


def with_routers(config: Any) -> Any:
    """The auxiliary loss of routers is asked for, and large, where the library computes it by its usual function."""
    from both_ways import usual_router_loss

    if usual_router_loss(config):
        config.output_router_logits = True
        for name in COEFFICIENTS:
            if hasattr(config, name):
                setattr(config, name, 0.5)
    return config


def quieten() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)


def reason(error: BaseException, directory: str) -> str:
    return first_line(error).replace(directory, "").split("by this release: ")[-1]


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def table(rows: list[Row], version: str) -> str:
    from small_configs import wraps_models

    working = [row for row in rows if row.verdict == "works"]
    works = [row for row in working if not wraps_models(row.kind)]
    towers = [row for row in working if wraps_models(row.kind)]
    others = [row for row in rows if row.verdict != "works"]
    lines = [
        "# Model types",
        "",
        f"Made by `python scripts/sweep_models.py` with transformers {version}.",
        "",
        "The program tries every causal language model type of the library, and every multimodal type that makes",
        "text. Each model is small and has random weights. The model trains ten steps of AdamW (epsilon 1e-4) in",
        "fp32, once in the engine and once in plain PyTorch. The program also compares loading and saving with the",
        "library's own.",
        "",
        "- **loss, weights.** The largest relative difference of a step's loss, and of a weight tensor (to its",
        "  largest element). The limit is 1e-5.",
        "- **Mixtures of experts** train with the auxiliary loss of their routers, if the library has one for the",
        "  type.",
        "- **LoRA.** The same comparison for adapters on a frozen base (`method: lora`), against PEFT in memory, on",
        "  every linear layer or on the layers that PEFT takes. Adapters begin at zero and stay small, so the limit",
        "  is 1e-4.",
        "- **Decay of adapters.** AdamW in memory does not decay an adapter that the model's code never reads.",
        "  Spillway does not decay an adapter if no layer reads one of its name. If some layers do, all adapters of",
        "  that name decay. The comparison then decays them in plain PyTorch, too.",
        "- **in bf16.** The parameters that the type's class keeps in fp32, and the difference of the first step's",
        "  loss from that of plain PyTorch. `from_pretrained(dtype=torch.bfloat16)` loads these parameters as fp32.",
        "  The model's code, AdamW and `save_pretrained` keep them in fp32, and Spillway does the same. Plain PyTorch",
        "  updates all other parameters in bf16, where a change below 1/256 of a weight is lost. Spillway has fp32",
        "  masters for them.",
        "",
        f"## Works: {len(works)} types",
        "",
        "| type | loss | weights | LoRA | in bf16 |",
        "|---|---|---|---|---|",
        *(f"| `{row.kind}` | {row.loss:.0e} | {row.weight:.0e} | {row.adapters} | {row.mixed} |" for row in works),
        "",
        f"## Works on text: {len(towers)} multimodal types",
        "",
        "The tower of text is trained, in the library's own multimodal class, and compared as above; every other",
        "tensor of the checkpoint is in what is saved, bit for bit.",
        "",
        "By command: each is trained in bf16 by the installed `spillway train` with every state on a path, under a",
        "budget, and durable; once more, killed with SIGKILL after a few steps, and ended by `spillway resume`. Losses",
        "and files of both are the same bytes, `spillway verify` finds no damage, and the library's class loads what",
        "was saved. The column says how many tensors of other modalities were carried along, byte for byte; where it",
        "is empty, this has not been tried.",
        "",
        "| type | loss | weights | LoRA | by command |",
        "|---|---|---|---|---|",
        *(f"| `{row.kind}` | {row.loss:.0e} | {row.weight:.0e} | {row.adapters} | {row.command} |" for row in towers),
        "",
        f"## Refused by name, before anything is read, or not compared: {len(others)} types",
        "",
        "| type | reason |",
        "|---|---|",
        *(
            f"| `{row.kind}` | {row.words if row.verdict == 'refused' else row.verdict + ': ' + row.words} |"
            for row in others
        ),
        "",
    ]
    return "\n".join(lines)


def kept(path: Path | None) -> dict[str, Row]:
    if path is None or not path.exists():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        found.setdefault(row["kind"], {}).update(row)
    return {kind: Row(**row) for kind, row in found.items()}


def keep(row: Row, path: Path | None) -> None:
    if path is not None:
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({name: value for name, value in asdict(row).items() if value}) + "\n")


def is_done(row: Row, command: bool) -> bool:
    """`command`: what the command line does with a type that works, or may."""
    done = row.command or row.verdict not in ("", "works") if command else row.verdict
    return bool(done) and not differs(row)


def differs(row: Row) -> bool:
    return "differs" in (row.verdict, row.adapters[:7], row.mixed[:7], row.command[:7])


def line(row: Row) -> str:
    numbers = f"command {row.command} {row.seconds:.0f} s"
    if row.verdict == "works":
        numbers = f"loss {row.loss:.1e} weights {row.weight:.1e} lora {row.adapters} bf16 {row.mixed} {numbers}"
    return f"{row.kind:28} {row.verdict:9} {row.words or numbers}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help="model types; all by default")
    parser.add_argument("--out", type=Path, help="write the table there")
    parser.add_argument("--rows", type=Path, help="keep rows there, and go on from those that are there")
    parser.add_argument("--command", action="store_true", help="of multimodal types what the command line does, alone")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    quieten()
    import transformers

    from small_configs import kinds, wraps_models

    chosen = [kind for kind in options.kinds or kinds() if not options.command or wraps_models(kind)]
    done = kept(options.rows)
    missing = [kind for kind in chosen if not is_done(done.get(kind, Row(kind)), options.command)]
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=8) as pool:
        for row in pool.imap_unordered(by_command if options.command else examine, missing):
            keep(row, options.rows)
            done[row.kind] = replace(done.get(row.kind, row), command=row.command) if options.command else row
            print(line(row), flush=True)
    rows = [done[kind] for kind in chosen]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in ("works", "refused", "differs", "not built", "not compared")
    }
    counts["by command"] = sum(row.command.isdigit() for row in rows)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    if options.out:
        options.out.write_text(table(rows, transformers.__version__), encoding="utf-8")
    return 1 if any(map(differs, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
