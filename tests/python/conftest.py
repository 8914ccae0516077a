"""What holds for every test: what a machine must have, seeds, and what the runs inside this process need not repeat."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

import seeds
from folders import FOLDERS
from interposed import PLACE
from needs import needs, required

# A shell starts what it leaves in the background with Ctrl-C ignored, which the runs of the tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

sys.path += [str(folder) for folder in FOLDERS if str(folder) not in sys.path]  # a test file imports another

NIGHTLY = os.environ.get("SPILLWAY_NIGHTLY", "0") not in ("", "0")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability, there, why): as needs.needs(), before the fixtures are made")
    try:
        required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    seeds.choose()
    if PLACE not in os.environ:  # the first process of the session; the others take it over
        os.environ[PLACE] = tempfile.mkdtemp(prefix="spillway-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(PLACE), ignore_errors=True))


def pytest_report_header() -> str:
    return f"kills at random instants: {seeds.said()}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        needs(*mark.args)


def pytest_collection_finish() -> None:
    """The libraries' hundreds of thousands of objects are not looked through at every collection of every run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def without_a_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs that name no device compute on the CPUs beside a GPU, too, but in the tests that need one."""
    if any(mark.args[0] == "gpu" for mark in request.node.iter_markers("needs")):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        if (torch := sys.modules.get("torch")) is not None:
            patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def once_is_enough() -> Iterator[None]:
    """Runs inside this process repeat less; those of the installed command, and of `make nightly`, repeat it all."""
    if NIGHTLY or "torch" not in sys.modules:  # then no test that was chosen has such runs
        yield
        return
    import once

    with once.is_enough():
        yield
