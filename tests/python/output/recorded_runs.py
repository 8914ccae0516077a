"""What is recorded for the tests of power cuts: commands and loops as a user runs them, one after the other in one
process, since Python takes longer to begin than they do.

    python recorded_runs.py INPUTS ROOT SCENE ...

Each scene has a directory of its own in ROOT, which is there. What is said on standard output tells where each begins
and ends, and what a user was told was done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import once
import real_runs
from spillway.base.files import flush
from spillway.cli import main

KEYS = ["--save_steps", "2", "--logging_steps", "1"]


def say(words: str) -> None:
    print(words, flush=True)


def folder(path: Path) -> Path:
    """That is there after a power cut."""
    path.mkdir()
    flush(path.parent)
    return path


def command(*words: str, floor: int | None = None) -> None:
    """`floor`: the step that it goes back to."""
    if floor is not None:
        say(f"<floor {floor}>")
    say("<command>")
    code = main(list(words))
    sys.stdout.flush()
    assert code == 0, words


def durable(given: Path, root: Path) -> None:
    """Finished steps are durable on a path; back to a checkpoint, fewer of them, exported, then another run."""
    out, keys = root / "out", [*KEYS, *real_runs.on_path(folder(root / "storage"))]
    command(*real_runs.words(given, out, *keys, "--max_steps", "4"))
    command("resume", str(out), "--resume_from_checkpoint", str(out / "checkpoint-2"), floor=2)
    # So many steps after a checkpoint was discarded that some write where its state lay.
    command("resume", str(out), "--max_steps", "12", "--save_steps", "6", "--save_total_limit", "1")
    command("export", str(out), "--to", str(root / "exported"))
    say("exported")
    command(*real_runs.words(given, out, *keys, "--max_steps", "2", "--seed", "5", "--overwrite"), floor=0)


def in_memory(given: Path, root: Path) -> None:
    """Checkpoints stand alone; a run that goes on, and a new one in its place."""
    out, keys = root / "out", [*KEYS, "--placement", "dram", "--save_total_limit", "1"]
    command(*real_runs.words(given, out, *keys, "--max_steps", "4"))
    command("resume", str(out), "--max_steps", "6")
    command(*real_runs.words(given, out, *keys, "--max_steps", "2", "--seed", "5", "--overwrite"), floor=0)


def batches() -> dict[str, Any]:
    import torch

    ids = torch.tensor(np.random.default_rng(0).integers(5, 60, size=(2, 16)))
    return {"input_ids": ids, "labels": ids}


def loop(given: Path, root: Path) -> None:
    """Saves of a loop of one's own: in its output_dir, beside it, and where names cannot change places."""
    import spillway

    with spillway.Session(
        model=str(given / "model"), profile=str(given / "profile.json"), output_dir=str(root / "out"),
        placement="dram", max_steps=8, max_length=16, per_device_train_batch_size=2, learning_rate=0.01,
    ) as session:  # fmt: skip
        for number in (1, 2):
            session.step(batches())
            session.save()
            say(f"saved out {number}")
            session.save(root / "beside")
            say(f"saved beside {number}")
            os.environ["NO_EXCHANGE"] = "1"
            session.save(root / "by_hand")
            del os.environ["NO_EXCHANGE"]
            say(f"saved by_hand {number}")


def trainer(given: Path, root: Path) -> None:
    """transformers' Trainer, with durable steps."""
    import test_trainer_durable as durable_runs

    events = {"max_steps": 4, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2, "save_total_limit": 1}
    with_path = durable_runs.trainer(given, root / "out", root / "storage", events)
    with_path.train()
    with_path.save_model()
    with_path.close()
    say("trained")


def left(given: Path, root: Path) -> None:
    """A run without durable steps whose save fails: what it has stays on its path, and then is exported."""
    import spillway
    from spillway.integrations import own_loop
    from spillway.output import checkpoints

    folder(root / "storage")
    written = checkpoints.write

    def full(*given: Any, **more: Any) -> Path:
        raise OSError(28, "No space left on device", "here")

    with spillway.Session(
        model=str(given / "model"), profile=str(given / "profile.json"), output_dir=str(root / "out"),
        durability="none", max_steps=8, max_length=16, per_device_train_batch_size=2, learning_rate=0.01,
        storage=f"{root / 'storage'},capacity=256MiB", placement="path",
    ) as session:  # fmt: skip
        session.step(batches())
        own_loop.checkpoints.write = full  # type: ignore[assignment]
        try:
            session.save()
        except spillway.SpillwayError as error:
            say(f"left: {error}")
        own_loop.checkpoints.write = written  # type: ignore[assignment]


def library(_: Path, root: Path) -> None:
    """The engine's writer of checkpoints by itself: three files and an index, twice in one directory."""
    from spillway._engine import SafetensorsWriter

    folder(root / "model")
    for number in (1, 2):
        tensors = [(f"tensor {each}", "F32", [1000]) for each in range(3 + number)]
        writer = SafetensorsWriter(str(root / "model"), "model", tensors, 5000)
        for each in range(len(tensors)):
            values = np.full(1000, number, dtype=np.float32)
            writer.write(each, 0, values.view(np.uint8))
        writer.finish()
        say(f"written {number}")


def profile(_: Path, root: Path) -> None:
    """What was measured of a machine, twice under one name."""
    folder(root / "storage")
    for number in (1, 2):
        command("probe", "--storage", str(root / "storage"), "--output", str(root / "profile.json"))
        say(f"measured {number}")


SCENES: dict[str, Callable[[Path, Path], None]] = {
    each.__name__: each for each in (durable, in_memory, loop, trainer, left, library, profile)
}


def flushes_say_where() -> None:
    """Before each: of which inode, and in which lines of the package. Other threads' records may come between."""
    flushed = os.fsync

    def fsync(file: Any) -> None:
        say(f"<flush {os.fstat(file).st_ino} {where()}>")
        flushed(file)

    os.fsync = fsync


def where() -> str:
    """MODULE.FUNCTION:LINE of whoever asks for a flush, then of its callers."""
    frame, found = sys._getframe(2), []
    while frame is not None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module.startswith("spillway.") and (module, function) != ("spillway.base.files", "flush"):
            found.append(f"{module.removeprefix('spillway.')}.{function}:{frame.f_lineno}")
        frame = frame.f_back
    return "<".join(found[:3])


def run(given: Path, root: Path, scenes: list[str]) -> None:
    from spillway.model.checkpoint import files

    files.MAX_SHARD = 12000  # bytes: each model is three files and an index
    flushes_say_where()
    with once.is_enough():
        for name in scenes:
            place = root / name
            say(f"<begin {name}>")
            SCENES[name](given, place)
            say(f"<end {name}>")


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
