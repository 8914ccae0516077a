"""Whose volumes these are: output_dir/spillway/run.json."""

import json
import os
from pathlib import Path

import pytest

from spillway.config.values import StoragePath
from spillway.errors import InputError
from spillway.output import identity, volumes
from spillway.output.identity import RUN, Identity


def test_no_two_runs_have_the_same_and_each_fits_a_superblock(tmp_path: Path) -> None:
    assert identity.new(tmp_path).run != identity.new(tmp_path).run
    assert identity.new(tmp_path).run.startswith(str(tmp_path) + " ")
    long = identity.new(Path("/", *["ordner mit ä" * 3] * 9)).run
    assert len(long.encode()) <= 256 and "ordner" in long


def test_read_back_as_written(tmp_path: Path) -> None:
    assert identity.load(tmp_path) is None
    known = Identity("a run", {"seed": 4}, "step", 12, 6)
    known.save(tmp_path / "out")
    assert identity.load(tmp_path / "out") == known


@pytest.mark.parametrize(
    ("text", "part"),
    [("", "cannot be read"), ("[]", "cannot be read"), ('{"format": 9}', "has format 9, this release reads 1"),
     ('{"format": 1, "name": "x"}', "cannot be read")],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "spillway").mkdir()
    (tmp_path / RUN).write_text(text)
    with pytest.raises(InputError) as caught:
        identity.load(tmp_path)
    assert str(tmp_path / RUN) in str(caught.value) and part in str(caught.value)


def test_a_claim_is_there_before_the_volumes_and_goes_when_they_cannot_be_made(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "out"
    known = Identity("a run")
    with known.claim(out):
        assert identity.load(out) == known
    assert identity.load(out) == known
    (out / RUN).unlink()
    os.rmdir(out / "spillway")
    (out / "notes").write_text("mine")
    with pytest.raises(OSError, match="no room"), known.claim(out):
        assert identity.load(out) == known
        raise OSError("no room")
    assert [path.name for path in out.iterdir()] == ["notes"]
    with pytest.raises(KeyboardInterrupt), known.claim(tmp_path / "c" / "out"):
        raise KeyboardInterrupt
    assert not (tmp_path / "c").exists()


def test_a_claim_that_was_there_stays_as_it_is(tmp_path: Path) -> None:
    Identity("a run", {"seed": 1}).save(tmp_path)
    before = (tmp_path / RUN).read_bytes()
    with pytest.raises(OSError, match="no room"), Identity("a run", {"seed": 1}, "step").claim(tmp_path):
        raise OSError("no room")
    assert (tmp_path / RUN).read_bytes() == before and json.loads(before)["run"] == "a run"


def test_volumes_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file by its name, a device by what it begins with."""
    device, empty = tmp_path / "sda", tmp_path / "sdb"
    device.write_bytes(bytes(524288) + b"SPILLWAY" + bytes(1000))  # the first superblock was lost
    empty.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(Path, "is_block_device", lambda path: path in (device, empty))
    paths = [StoragePath(str(place)) for place in (tmp_path, device, empty, tmp_path / "none")]
    monkeypatch.setattr(Path, "is_file", lambda path: path.exists() and path not in (device, empty))
    assert volumes.present(paths) == [device]
    (tmp_path / "spillway.volume").write_bytes(bytes(3 << 20))
    assert volumes.present(paths) == [tmp_path / "spillway.volume", device]
    assert volumes.held(paths[0]) >= 3 << 20 and volumes.held(paths[3]) == 0
    assert volumes.told(tmp_path / "spillway.volume") == f"{tmp_path}/spillway.volume (3.00 MiB)"
    assert volumes.told(device) == str(device)


def test_earlier_lists_of_a_runs_processes_are_read(tmp_path: Path) -> None:
    (tmp_path / identity.FOLDER).mkdir()
    old = {"format": 1, "run": "a run", "line": 7, "shared": True, "world": 2}
    places = [["a", ["/one", "/two"]], ["b", ["/three", "/four"]]]
    before = {"line": 5, "world": 1, "places": [["a", ["/one", "/two"]]]}
    more = {"processes": [["a", 0, 1], ["b", 0, 1]], "places": places, "before": before}
    for content in (old | more, old | {"places": places, "before": before}):
        (tmp_path / identity.RUN).write_text(json.dumps(content))
        known = identity.load(tmp_path)
        assert known is not None and known.world == 2
        assert known.processes == [["a", 0, 1, ["/one", "/two"]], ["b", 0, 1, ["/three", "/four"]]]
        assert known.before == {"line": 5, "world": 1, "processes": [["a", 0, 1, ["/one", "/two"]]]}
        known.save(tmp_path)
        assert identity.load(tmp_path) == known
    earliest = {"format": 1, "run": "a run", "line": 7, "processes": [["a", 0, 2], ["a", 1, 2]]}
    (tmp_path / identity.RUN).write_text(json.dumps(earliest))
    known = identity.load(tmp_path)
    assert known is not None and (known.world, known.processes[1]) == (2, ["a", 1, 2, []])
