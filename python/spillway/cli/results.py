"""Verbs that make of a run what other programs read: `export`, `merge`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from spillway.cli.arguments import Arguments
from spillway.cli.libraries import quiet_libraries
from spillway.errors import InputError


def export(arguments: Arguments) -> int:
    run = arguments.parse_stored_run("export")
    if "to" not in run.named:
        raise InputError("to: export needs the directory to write: --to DIR")
    config = run.config()
    quiet_libraries()
    from spillway.run.export import export as export_config

    if "gguf" in run.options and config.method == "lora":
        raise InputError(f"gguf: {config.output_dir} holds adapters; `spillway merge` makes a whole model, with --gguf")
    convert = plan_gguf(arguments, "export")
    named = run.named.get("checkpoint") or config.resume_from_checkpoint
    checkpoint = Path(named) if isinstance(named, str) and named != "auto" else None
    to = Path(run.named["to"])
    step = export_config(config, checkpoint, to)
    print(f"step {step} of {config.output_dir} is in {to}, which needs no storage path.")
    convert(to)
    return 0


def merge(arguments: Arguments) -> int:
    if "to" not in arguments.named:
        raise InputError("to: merge needs the directory to write: --to DIR")
    place, to = Path(arguments.find_stored_place("merge")), Path(arguments.named["to"])
    values = {key: value for key, value in arguments.values.items() if key not in ("weight_dtype", "output_dir")}
    is_run = (place / "config.yaml").is_file()
    if not is_run and not (place / "adapter_config.json").is_file():
        raise InputError(f"merge: {place} has neither config.yaml, as a run has it, nor adapter_config.json")
    dtype, named = arguments.values.get("weight_dtype"), arguments.named.get("checkpoint")
    if dtype not in (None, "bf16", "fp16", "fp32"):
        raise InputError(f"weight_dtype: got {dtype!r}, expects one of bf16, fp16, fp32")
    quiet_libraries()
    convert = plan_gguf(arguments, "merge")
    from spillway.run.merge import Wanted, describe_adapters
    from spillway.run.merge import merge as merge_adapters

    run = Arguments([str(place)], values)
    config = run.parse_stored_run("merge").config() if is_run else describe_adapters(place, values)
    wanted = Wanted(config, place, to, is_run, dtype, Path(named) if named else None)
    base = merge_adapters(wanted, lambda text: print(f"note: {text}", file=sys.stderr))
    print(f"The adapters of {place} and their base {base} are one model in {to}.")
    convert(to)
    return 0


def plan_gguf(arguments: Arguments, verb: str) -> Callable[[Path], None]:
    """The conversion that --gguf asks for, of the directory that a verb writes; nothing without --gguf."""
    if "gguf" not in arguments.options:
        if "outtype" in arguments.named:
            raise InputError("outtype: it is the type of a GGUF file; give --gguf, too")
        return lambda directory: None
    from spillway.run import gguf

    outtype = gguf.check_type(arguments.named.get("outtype", gguf.TYPES[0]))
    place, to = Path(arguments.find_stored_place(verb)), Path(arguments.named["to"])
    converter = gguf.find_converter(verb, place, to)

    def convert(directory: Path) -> None:
        print(f"{gguf.convert(converter, directory, outtype)} is the same for llama.cpp.")

    return convert
