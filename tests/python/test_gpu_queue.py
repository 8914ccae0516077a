"""`make gpu-queue`: every word of every row is one that its program takes, which rows are open and have room, what a
row leaves, and the table. Rows run on a GPU; in small, over the simulated device, in `make nightly`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import gpu_queue
from gpu_queue import Queue, Row, alike, chosen, counted, is_open, lines, table, tiny
from gpu_tools import BUNDLE, DoesNotFit, Failed

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "bench"))
ROWS = gpu_queue.rows()
PARTS = [pytest.param(words, id=f"{row.name}: {name}") for row in ROWS for name, words in row.parts.items()]


def placed(words: list[str], folder: Path) -> list[str]:
    values = {
        "{device}": "cuda:0",
        "{check}": "cuda:0",
        "{built}": "built",
        "{out}": str(folder),
        "{drive}": str(folder),
    }
    for name, value in values.items():
        words = [word.replace(name, value) for word in words]
    return words


@pytest.mark.parametrize("small", [False, True], ids=["whole", "tiny"])
@pytest.mark.parametrize("words", PARTS)
def test_a_program_takes_every_word_of_its_part(words: list[str], small: bool, tmp_path: Path) -> None:
    program, *rest = placed(tiny(words) if small else words, tmp_path)
    assert not [word for word in rest if "{" in word]
    if program == "-m":
        assert rest[0] == "pytest" and (ROOT / rest[-1]).is_file()
        return
    module = importlib.import_module(Path(program).stem)
    assert Path(module.__file__ or "").resolve() == (ROOT / program).resolve()
    arguments = module.parser().parse_args(rest)
    if Path(program).stem == "engine_run":
        assert module.configured(arguments, tmp_path).gpu_memory > 0


def test_each_row_has_a_name_a_reason_and_fits_a_command_of_ten_minutes() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 19
    assert all(row.decides and row.parts and 0 < row.minutes <= 8.5 for row in ROWS)


def test_packages_that_peers_need_are_packed() -> None:
    import gpu_bundle

    packed = {"deepspeed", *gpu_bundle.PEERS}
    assert {name for row in ROWS for name in row.needs} == packed
    for row in ROWS:
        used = {"deepspeed"} if any("deepspeed" in words for words in row.parts.values()) else set()
        used |= {"liger-kernel"} if any("liger" in word for words in row.parts.values() for word in words) else set()
        used |= {"torchao"} if any("torchao" in words for words in row.parts.values()) else set()
        assert used == set(row.needs), row.name


def test_in_small_shapes_are_tiny_and_no_kernel_for_gpus_is_asked_for() -> None:
    words = ["bench/peers.py", "fsdp2", "--liger", "--shape", "7b", "--micro-batches", "1", "4", "--set", "optim=sgd"]
    assert tiny(words) == [
        "bench/peers.py",
        "fsdp2",
        "--shape",
        "tiny",
        "--micro-batches",
        "1",
        "2",
        "--set",
        "optim=sgd",
    ]


def row(name: str, minutes: float = 1, **more: Any) -> Row:
    return Row(name, minutes, "nothing", {"one": ["-c", "one"], "two": ["-c", "two"]}, **more)


def left_by(results: Path, name: str, **parts: dict[str, Any]) -> None:
    (results / f"{name}.json").write_text(json.dumps({"facts": {}, "parts": parts}))


def test_rows_that_are_open_run_in_order_as_far_as_the_minutes_go(tmp_path: Path) -> None:
    every = [row("done"), row("first", 4), row("long", 5), row("failed", 2), row("short", 2)]
    left_by(tmp_path, "done", one={"good": True}, two={"good": True})
    left_by(tmp_path, "failed", one={"good": True}, two={"good": False})
    left_by(tmp_path, "short", one={"good": True})  # a part was added since
    assert [each.name for each in every if is_open(each, tmp_path)] == ["first", "long", "failed", "short"]
    assert [each.name for each in chosen(every, tmp_path, 8)] == ["first", "failed", "short"]
    assert [each.name for each in chosen(every, tmp_path, 1.5)] == []
    assert [each.name for each in chosen(every, tmp_path, 8, ["done", "long"])] == ["done", "long"]


class Said:
    """What programs say, by their last word."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.asked: list[list[str]] = []

    def python(self, *words: str, seconds: float) -> str:
        self.asked.append(list(words))
        found = self.said[words[-1]]
        if isinstance(found, Exception):
            raise found
        return json.dumps(found)


def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> Queue:
    monkeypatch.setattr("gpu_check.facts", lambda device, programs: {"gpu": "NVIDIA H100 80GB HBM3"})
    made = Queue("cuda:0", tmp_path, tmp_path, 1, small=False)
    made.programs = said  # type: ignore[assignment]
    return made


def test_a_row_leaves_a_file_and_what_fails_or_does_not_fit_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(one={"seconds": [9.0, 2.0, 1.0, 3.0]}, two=DoesNotFit("needs 80 GiB"))
    asked = row("both")
    assert queue(tmp_path, monkeypatch, said).run(asked) and not is_open(asked, tmp_path)
    found = json.loads((tmp_path / "both.json").read_text())
    assert found["row"] == "both" and found["facts"]["gpu"] == "NVIDIA H100 80GB HBM3"
    assert found["parts"]["two"] | {"part_seconds": 0} == {
        "words": ["-c", "two"], "fits": False, "refusal": "needs 80 GiB", "good": True, "part_seconds": 0,
    }  # fmt: skip
    said.said["one"] = Failed("it fell over")
    assert not queue(tmp_path, monkeypatch, said).run(asked) and is_open(asked, tmp_path)
    assert lines(asked, json.loads((tmp_path / "both.json").read_text())) == [
        ["both", "one", "failed: it fell over"], ["both", "two", "does not fit"],
    ]  # fmt: skip


def test_parts_that_shall_be_alike_are_compared_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(one={"losses": [1.0, 0.5]}, two={"losses": [1.0, 0.5]})
    asked = row("same", alike=("losses",))
    assert queue(tmp_path, monkeypatch, said).run(asked)
    said.said["two"] = {"losses": [1.0, 0.5000001]}
    assert not queue(tmp_path, monkeypatch, said).run(asked)
    with pytest.raises(Failed, match=r"losses of two: \[1\.0, 0\.5000001\]; of one: \[1\.0, 0\.5\]"):
        alike(json.loads((tmp_path / "same.json").read_text())["parts"], ["losses"])


def test_the_table_has_medians_rates_and_the_share_of_the_cards_peak() -> None:
    words = ["bench/engine_run.py", "--shape", "7b", "--sequence", "2048", "--layers", "8"]
    part = {"good": True, "words": words, "seconds": [9.0, 2.0, 1.0, 3.0], "tokens": 32768, "device_peak": 1 << 30}
    found = lines(row("seven"), {"facts": {"gpu": "NVIDIA H100 80GB HBM3"}, "parts": {"one": part}})
    # 8 layers of 233,046,016 weights of products, a head of 152,064 x 3,584, causal attention; the last two count.
    operations = 32768 * (6 * (8 * 233_046_016 + 152_064 * 3584) + 6 * 8 * 3584 * 2048)
    assert found == [
        ["seven", "one", "2 s (1 to 3)", "16384 tokens/s",
         f"{operations / 2 / 1e12:.3g} TFLOP/s, {operations / 2 / 989e12:.0%} of its peak", "1.0 GiB of the GPU",
         "0.0 GiB of the host"],
    ]  # fmt: skip
    assert counted([5.0, 4.0]) == [4.0] and table([["a", "bb"], ["ccc"]]) == "a    bb\nccc"


def test_a_row_that_is_none_and_the_list(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert gpu_queue.main(["--row", "7b-24gbi"]) == 2
    assert "no row 7b-24gbi; there are host, launches-1.5b" in capsys.readouterr().err
    left_by(tmp_path, "host", host={"good": True})
    assert gpu_queue.main(["--list", "--out", str(tmp_path)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(ROWS) and listed[0].split()[:4] == ["host", "1.0", "min", "done"]
    assert listed[1].split()[3] == "open"


@pytest.mark.nightly
@pytest.mark.needs("packages", BUNDLE.parent.is_dir(), "nothing is built here")
def test_every_row_runs_in_small(tmp_path: Path) -> None:
    assert gpu_queue.main(["--tiny", "--minutes", "120", "--out", str(tmp_path)]) == 0
