"""A small durable run whose steps are marked for whoever traces its system calls; a process of its own.

    python marked_steps.py MODEL STORAGE

A window lies between two writes to /dev/null, "begin NAME" and "end NAME". In "steady" there are steps as they are; in
each of the others there is one, and somebody does what no step may do.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import native
from hf_models import batch, random_ids
from spillway.model.batches.batch import WorkShape
from spillway.run.session import EngineSession

WARM, STEADY = 3, 4  # steps


def main(model: Path, storage: Path) -> None:
    shape = WorkShape(micro_batches=2, batch=2, length=12, eval_batch=0, eval_length=0)
    session = native.opened(model, shape, storage=storage, placement="path", durability="step")
    assert session.plan["durability"] == "step"
    session.commit({"step": 0})
    first = run(session, 0, WARM)
    with window("steady"):
        first = run(session, first, STEADY)
    for name, deed in DEEDS.items():
        with window(name):
            deed(storage)
            first = run(session, first, 1)
    session.close()


def run(session: EngineSession, first: int, count: int) -> int:
    for step in range(first, first + count):
        session.step([batch(random_ids(2, 12, step)), batch(random_ids(1, 9, step + 50))], 1e-3)
        session.commit({"step": step + 1})
    return first + count


@contextmanager
def window(name: str) -> Iterator[None]:
    os.write(MARKS, f"begin {name}".encode())
    yield
    os.write(MARKS, f"end {name}".encode())


def opens(storage: Path) -> None:
    os.close(os.open(storage / "spillway.volume", os.O_RDONLY))


def creates_in_a_thread(storage: Path) -> None:
    thread = threading.Thread(target=lambda: (storage / "more").touch())
    thread.start()
    thread.join()


def renames(storage: Path) -> None:
    (storage / "more").rename(storage / "other")


def opens_elsewhere_in_a_thread(_: Path) -> None:
    thread = threading.Thread(target=lambda: os.close(os.open("/dev/null", os.O_RDONLY)))
    thread.start()
    thread.join()


def extends(_: Path) -> None:
    os.ftruncate(OTHER, 1 << 20)


DEEDS: dict[str, Callable[[Path], None]] = {
    "open": opens,
    "create": creates_in_a_thread,
    "rename": renames,
    "thread": opens_elsewhere_in_a_thread,
    "extend": extends,
}

if __name__ == "__main__":
    MARKS = os.open("/dev/null", os.O_WRONLY)
    OTHER = os.open(Path(sys.argv[2]) / "another", os.O_WRONLY | os.O_CREAT)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
