"""Power cuts of the file system: volumes, checkpoints, saves and the files of a run, as recorded while they are made,
and every legal subset of what had not been flushed when the power went (power_cuts.py).

What was promised is there, whole: a checkpoint that can be listed, a step that was told of, a save as it was or as it
is. And each flush counts: a record without it breaks a promise."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

import power_cuts
import real_runs
import seeds
from breadth import some
from folders import PYTHONPATH
from power_cuts import Record, State, Tree, sub
from spillway.cli import main
from spillway.config import read_file, resolve
from spillway.errors import InputError
from spillway.output import directory, identity, left, saved, volumes
from spillway.output.position import Log, Position
from spillway.run.stored import stored
from warm import NIGHTLY

PROGRAM = Path(__file__).with_name("recorded_runs.py")
USUAL = ["durable", "loop", "library"]
ALL = [*USUAL, "in_memory", "trainer", "left", "profile"]
CUTS = 10**9 if NIGHTLY else 80  # of a scene, at most
DEEP = 10**9 if NIGHTLY else 40  # states of a scene that the engine reads, at most
LIMIT = 600  # seconds that the recorded process may take


@dataclass
class Scene:
    """One of recorded_runs.SCENES, as it was recorded."""

    name: str
    record: Record
    begin: int
    end: int

    @cached_property
    def states(self) -> list[State]:
        """By default of some of the cuts, each time others."""
        chance = seeds.instants(self.name)
        cuts = [at for at in self.record.cuts() if self.begin <= at < self.end]
        some_cuts = cuts if len(cuts) <= CUTS else sorted(chance.sample(cuts, CUTS))
        return self.record.states(chance, [*some_cuts, self.end], without_temporaries)

    def told(self, at: int) -> str:
        return "".join(words for when, words in self.record.said if self.begin <= when <= at)

    def live(self, at: int) -> Tree:
        if at not in self._live:
            self._live[at] = self.record.tree(at)
        return self._live[at]

    @cached_property
    def _live(self) -> dict[int, Tree]:
        return {}

    def same(self, one: Any, other: Any) -> bool:
        """Byte by byte."""
        if one == other:
            return True
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(self.same(one[name], other[name]) for name in one)
        if isinstance(one, tuple) and isinstance(other, tuple):
            return self.record.bytes(one) == self.record.bytes(other)
        return False

    def versions(self, path: str) -> list[Any]:
        """What had the name, one after the other."""
        if path not in self._versions:
            found: list[Any] = []
            for naming in self.record.namings:
                names = [name for _, name, _ in naming.changes] if self.begin <= naming.at <= self.end else []
                if Path(path).name in names:
                    now = sub(self.live(naming.at), path)
                    if now is not None and (not found or now != found[-1]):
                        found.append(now)
            self._versions[path] = found
        return self._versions[path]

    @cached_property
    def checkpoints(self) -> list[tuple[int, str]]:
        """Those that a user was told of, and when."""
        said = [(at, words) for at, words in self.record.said if self.begin <= at <= self.end]
        return [(at, name) for at, words in said for name in re.findall(r"saved (checkpoint-\d+)", words)]

    def ends(self, path: str, words: str) -> list[Any]:
        """What had the name each time that the words were said."""
        told = [at for at, said in self.record.said if self.begin <= at <= self.end and words in said]
        return [sub(self.live(at), path) for at in told]

    @cached_property
    def _versions(self) -> dict[str, list[Any]]:
        return {}


def without_temporaries(tree: Tree) -> Tree:
    """Files that are not yet whole, and what is in directories of the kind: they are removed unread."""
    found: Tree = {}
    for name, what in tree.items():
        temporary = power_cuts.is_temporary(name)
        if isinstance(what, dict):
            found[name] = {} if temporary else without_temporaries(what)
        elif not temporary:
            found[name] = what
    return found


# ---- recording


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    place = tmp_path_factory.mktemp("power_cuts")
    given, root = real_runs.inputs(place), place / "root"
    names = ALL if NIGHTLY else USUAL
    for name in names:
        (root / name).mkdir(parents=True)
    record = Record(root)
    watched = {"LD_PRELOAD": str(power_cuts.library(place)), "RECORDED": str(root), "RECORD": str(place / "record")}
    command = [sys.executable, str(PROGRAM), str(given), str(root), *names]
    environment = os.environ | watched | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    record.read(place / "record")
    check_record(record, root, place / "made")
    return dict(scenes_of(record))


def check_record(record: Record, root: Path, place: Path) -> None:
    """Nothing was missed: all that was written down makes what is there."""
    record.make(record.tree(record.count), place)
    found = subprocess.run(["diff", "-r", "-q", str(root), str(place)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    shutil.rmtree(place)
    shutil.rmtree(root)


def scenes_of(record: Record) -> Iterator[tuple[str, Scene]]:
    begins: dict[str, int] = {}
    for at, words in record.said:
        for kind, name in re.findall(r"<(begin|end) (\w+)>", words):
            if kind == "begin":
                begins[name] = at
            else:
                yield name, Scene(name, record.part(name), begins[name], at)


# ---- what is promised

Promise = Callable[["Scene", State], Iterator[str]]  # what is broken, in words


def checkpoints_are_whole(scene: Scene, state: State) -> Iterator[str]:
    """One that is listed is one that was made; one that a user was told of is there until it is removed."""
    out = adopted(scene, sub(state.tree, "out"))
    live = sub(scene.live(state.at), "out") or {}
    for name, what in out.items():
        if re.fullmatch(r"checkpoint-\d+", name) and not any(
            scene.same(what, version) for version in scene.versions(f"out/{name}")
        ):
            yield f"{name} is not whole"
    for when, name in scene.checkpoints:
        if when <= state.at and name in live and name not in out and live[name] == scene.live(when)["out"][name]:
            yield f"{name} is lost"


def adopted(scene: Scene, out: Tree | None) -> Tree:
    """As the next run finds it."""
    if not out or not any(name.startswith(".old-checkpoint-") for name in out):
        return out or {}
    missing = {name.removeprefix(".old-") for name in out if name.startswith(".old-checkpoint-")} - out.keys()
    found = dict(out)
    for name in missing:
        old = out[f".old-{name}"]
        if any(scene.same(old, version) for version in scene.versions(f"out/.old-{name}")[-1:]):
            found[name] = old
    return found


def volumes_have_a_run(scene: Scene, state: State) -> Iterator[str]:
    """No volume is there whose run does not know it."""
    found = state.tree
    if sub(found, "storage/spillway.volume") is None:
        return
    run = sub(found, "out/spillway/run.json")
    if run is None or not is_json(scene, run):
        yield "there is a volume, and nobody knows whose"
    volume = scene.record.content(sub(found, "storage/spillway.volume"))
    if volumes.MAGIC not in volume.read_some(volumes.SUPERBLOCKS, len(volumes.MAGIC)):
        yield "the volume is none"


BY_TRANSFORMERS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def small_files_are_whole(scene: Scene, state: State) -> Iterator[str]:
    out = sub(state.tree, "out") or {}
    if scene.name == "trainer" and "trained" not in scene.told(state.at):  # save_model() writes over what is there
        out = {name: what for name, what in out.items() if name not in BY_TRANSFORMERS}
    elif END.search(scene.told(state.at).split("<command>")[-1]) and (lost := set(BY_TRANSFORMERS) - out.keys()):
        yield f"{lost} lost"
    for folder in (out, out.get("spillway", {})):
        for name, what in folder.items():
            if name == "lock.json":  # says who has the lock: after a cut nobody has
                continue
            if name.endswith(".json") and isinstance(what, tuple) and not is_json(scene, what):
                yield f"{name} is not whole"
    for name in ("config.yaml", "timeline.json.gz", "report.html"):
        if name in out and not any(scene.same(out[name], version) for version in scene.versions(f"out/{name}")):
            yield f"{name} is not whole"


def is_json(scene: Scene, key: Any) -> bool:
    try:
        json.loads(scene.record.bytes(key))
    except ValueError:
        return False
    return True


def rows_are_there(scene: Scene, state: State) -> Iterator[str]:
    """Each step that a user was told is finished, but the last, has its row; where steps are not durable, up to the
    last checkpoint."""
    floor, _ = finished(scene, state.at, "loss|saved" if scene.name in DEEPLY else "saved")
    metrics = sub(state.tree, "out/metrics.jsonl")
    found = scene.record.bytes(metrics).decode() if metrics is not None else ""
    for step in range(1, floor + 1):
        if f'{{"step": {step},' not in found:
            yield f"the row of step {step} is lost"


def finished(scene: Scene, at: int, telling: str = "loss|saved") -> tuple[int, bool]:
    """The last step that is durable by what a user was told, and whether it may be an earlier run's."""
    step, changing = 0, False
    for found in re.finditer(rf"<floor (\d+)>|step (\d+)/\d+  ({telling})", scene.told(at)):
        if found[1]:
            step, changing = min(step, int(found[1])), True
        elif found[2]:
            step, changing = int(found[2]) - (found[3] == "loss"), False
    return step, changing


MODEL = re.compile(r"model.*\.safetensors(\.index\.json)?")


def model_files(tree: Tree | None) -> Tree:
    return {name: what for name, what in (tree or {}).items() if MODEL.fullmatch(name)}


def one_model(scene: Scene, path: str, versions: Iterable[Tree], state: State) -> Iterator[str]:
    """Where an index says that files are one model, or one file is all of it, they are."""
    found = model_files(sub(state.tree, path) or None)
    if "model.safetensors.index.json" not in found and "model.safetensors" not in found:
        return
    if not any(is_one(scene, found, model_files(version)) for version in versions):
        yield f"{path} is no model that was saved: {sorted(found)}"


def is_one(scene: Scene, found: Tree, version: Tree) -> bool:
    """Files that no index names are looked at by nobody."""
    return bool(version) and all(name in found and scene.same(found[name], what) for name, what in version.items())


def published(scene: Scene, state: State) -> Iterator[str]:
    """The model at the root is a checkpoint's."""
    changes = [change for naming in scene.record.namings for change in naming.changes]
    names = {name for _, name, _ in changes if re.fullmatch(r"checkpoint-\d+", name)}
    made = [version for name in sorted(names) for version in scene.versions(f"out/{name}")]
    yield from one_model(scene, "out", made, state)
    if END.search(scene.told(state.at).split("<command>")[-1]):
        found, live = (model_files(sub(tree, "out")) for tree in (state.tree, scene.live(state.at)))
        if not scene.same(found, live):
            yield "the model at the root is not the last"


END = re.compile(r"The model is in|trained|saved out 2")


def what_was_told_stays(scene: Scene, state: State, path: str, words: str) -> Iterator[str]:
    """What a user was told is saved is there as it was, until something else takes its place."""
    versions, told = scene.ends(path, words), scene.told(state.at).count(words)
    live = sub(scene.live(state.at), path)
    if told and scene.same(live, versions[told - 1]) and not scene.same(sub(state.tree, path), live):
        yield f"{path} is not as it was saved"


def is_saved(path: str, words: str) -> Promise:
    """Nothing else than what a user was told is saved; and that, until something else takes its place."""

    def check(scene: Scene, state: State) -> Iterator[str]:
        found = sub(state.tree, path)
        yield from what_was_told_stays(scene, state, path, words)
        if found is not None and not any(scene.same(found, version) for version in scene.versions(path)):
            yield f"{path} is neither as it was nor as it is"

    return check


def parts_are_refused(path: str, words: str) -> Promise:
    """Files that are renamed one by one: what is loaded as one save is one."""

    def check(scene: Scene, state: State) -> Iterator[str]:
        versions, found = scene.ends(path, words), sub(state.tree, path)
        yield from what_was_told_stays(scene, state, path, words)
        if not found or sub(found, "spillway/run.json") is None or any(scene.same(found, each) for each in versions):
            return
        with made(scene.record, found) as place, contextlib.suppress(InputError):
            saved.check_files(place)
            if (place / saved.FILES).is_file():
                yield f"{path} is loaded as one save, and is none: {state.words}"

    return check


def is_left(scene: Scene, state: State) -> Iterator[str]:
    """What could not be saved is found, once a user was told where it is."""
    if "left:" not in scene.told(state.at):
        return
    with made(scene.record, state.tree) as place:
        paths = resolve({"storage": [str(place / "storage")]}, {}).paths
        if left.found(place / "out", paths) is None or not (place / "out" / "config.yaml").is_file():
            yield "what was left is lost"


def steps_are_there(scene: Scene, state: State) -> Iterator[str]:
    """The engine reads all that counts on the path, and the step that it finds is the one that was told of, or a
    later one."""
    floor, changing = finished(scene, state.at)
    with made(scene.record, state.tree) as place:
        directory.adopt(place / "out")
        said = said_by("verify", str(place / "out"), "--storage", str(place / "storage"))
    found = re.search(r"durable step (\d+): (no|\d+) damage", said.words)  # of which torn copies are listed
    damage = [line for line in said.words.splitlines() if line.startswith("damaged:") and not TORN.search(line)]
    if "Traceback" in said.words or (damage and not changing):  # who asks for --overwrite gives up what is there
        yield f"verify ends with {said}"
    elif floor and not changing and (found is None or int(found[1]) < floor):
        yield f"step {floor} is lost: {said}"


# Torn while it was written: another copy, or the one before, counts.
TORN = re.compile(r"the copy of its superblock|the commit in slot|the record of")


def log_is_there(scene: Scene, state: State) -> Iterator[str]:
    """A Trainer's run goes on only where its log has the rows of the durable step."""
    with made(scene.record, state.tree) as place:
        if not (place / "out" / "config.yaml").is_file() or not (place / "storage" / "spillway.volume").is_file():
            return
        values = {"storage": [str(place / "storage")], "output_dir": str(place / "out")}
        try:
            with stored(resolve(read_file(place / "out" / "config.yaml"), values)).engine() as engine:
                found = engine.read_back(None)
        except InputError:
            return
        position = json.loads(found.payload)["run"].get("position") if found.has_step else None
        rows = len(Log(place / "out" / identity.TRAINER_LOG).rows)
        if position and Position.of(position).rows > rows:
            yield f"the log has {rows} rows, and the durable step knows of {Position.of(position).rows}"


@dataclass(frozen=True)
class Said:
    code: int
    words: str


def said_by(*words: str) -> Said:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        code = main(list(words))
    return Said(code, stream.getvalue())


@contextlib.contextmanager
def made(record: Record, tree: Tree) -> Iterator[Path]:
    """In memory where there is a place for it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        record.make(tree, Path(place, "made"))
        yield Path(place, "made")


def shards_are_one(scene: Scene, state: State) -> Iterator[str]:
    versions, told = scene.ends("model", "written"), scene.told(state.at).count("written")
    yield from one_model(scene, "model", versions, state)
    live = sub(scene.live(state.at), "model")
    if told and scene.same(live, versions[told - 1]) and not scene.same(sub(state.tree, "model"), live):
        yield "the model is not as it was written"


OF_A_RUN = [checkpoints_are_whole, small_files_are_whole, published]
PROMISES: dict[str, list[Promise]] = {
    "durable": [*OF_A_RUN, volumes_have_a_run, rows_are_there, is_saved("exported", "exported")],
    "in_memory": [*OF_A_RUN, rows_are_there],
    "loop": [*OF_A_RUN, is_saved("beside", "saved beside"), parts_are_refused("by_hand", "saved by_hand")],
    "trainer": [*OF_A_RUN, volumes_have_a_run],
    "left": [small_files_are_whole, is_left],
    "library": [shards_are_one],
    "profile": [is_saved("profile.json", "measured")],
}  # fmt: skip


def engine_reads(scene: Scene, state: State) -> Iterator[str]:
    yield from steps_are_there(scene, state)
    if scene.name == "trainer":
        yield from log_is_there(scene, state)


DEEPLY: dict[str, Promise] = {"durable": engine_reads, "trainer": engine_reads}


def broken(scene: Scene, states: Iterable[State], promises: list[Promise]) -> Iterator[str]:
    for state in states:
        for promise in promises:
            for words in promise(scene, state):
                yield f"{words} (cut after record {state.at}: {state.words})"


@pytest.mark.parametrize("name", some(ALL, USUAL))
def test_what_was_promised_is_there_after_every_cut(scenes: dict[str, Scene], name: str) -> None:
    scene = scenes[name]
    assert len(scene.states) > 10
    assert not list(itertools.islice(broken(scene, scene.states, PROMISES[name]), 5)), seeds.said()


def deep(scene: Scene) -> list[State]:
    """Some that differ in what the engine reads."""
    found = {repr(without_results(state.tree)): state for state in scene.states}
    states = list(found.values())
    return states if len(states) <= DEEP else seeds.instants(scene.name).sample(states, DEEP)


def without_results(tree: Tree) -> Tree:
    out = tree.get("out")
    if not isinstance(out, dict):
        return tree
    kept = {name: what for name, what in out.items() if isinstance(what, dict) or name == "config.yaml"}
    return {"out": kept, "storage": tree.get("storage")}


@pytest.mark.parametrize("name", some(DEEPLY, USUAL))
def test_the_engine_finds_what_was_promised(scenes: dict[str, Scene], name: str) -> None:
    """Through `spillway verify`."""
    scene = scenes[name]
    assert not list(itertools.islice(broken(scene, deep(scene), [DEEPLY[name]]), 3)), seeds.said()


# ---- every flush counts

# Flushes that could be left out, each with what makes up for it.
MADE_UP_FOR = {
    r"output\.checkpoints\.go_back": "who goes on flushes the directory before its first step or checkpoint is told of",
}


def flushes(scene: Scene) -> dict[str, set[int]]:
    """When the lines of the package that ask for one did, and when the engine flushed files of a kind."""
    said = [(at, found) for at, words in scene.record.said if (found := re.search(r"<flush (\d+) ([^>]*)>", words))]
    places = {(at, int(found[1])): found[2] for at, found in said if scene.begin <= at <= scene.end}
    found: dict[str, set[int]] = {}
    for at, _, name in scene.record.syncs:
        if not scene.begin <= at <= scene.end:
            continue
        asked = [(when, inode) for when, inode in places if when < at and inode == scene.record.synced[at]]
        place = places.pop(max(asked)).split("<") if asked else [f"engine: {kind(name)}"]
        found.setdefault(place[0], set()).add(at)
        if place[0].partition(":")[0] in HELPERS and len(place) > 1:
            found.setdefault("<".join(place[:2]), set()).add(at)
    return found


HELPERS = ("output.checkpoints.flush_tree", "output.checkpoints.flush_files", "output.records.sync")


def kind(name: str) -> str:
    """Names of temporary directories and checkpoints are those of whoever writes one."""
    last = Path(name).name
    if last.endswith((".safetensors.partial", ".json.partial", "manifest.bin")):
        return "a file of a checkpoint"
    of_one = last in ("model", "spillway", "by_hand") or "checkpoint-" in last or last.startswith(".")
    return "a checkpoint" if of_one else last


SOME = 6  # cuts after a flush that is left out, besides the last before the next one


def is_noticed(scene: Scene, place: str, left_out: set[int], deeply: bool) -> bool:
    promises = [*PROMISES[scene.name], *([DEEPLY[scene.name]] if deeply and scene.name in DEEPLY else [])]
    less = copy.copy(scene)  # what had which name when is known already
    less.record = scene.record.without(left_out)
    numbers = {at: number for at, number, _ in scene.record.syncs}
    for at in sorted(left_out):
        flushed = less.record.nodes[numbers[at]].flushed
        before = max((when for when in flushed if when < at), default=-1)
        later = min((when for when in flushed if when > at), default=scene.end)
        cuts = [cut for cut in less.record.cuts() if at <= cut < later][:SOME] + [later - 1]
        chance = seeds.instants(place)
        if any(broken(less, less.record.states(chance, sorted(set(cuts)), without_temporaries, before), promises)):
            return True
    return False


def test_every_flush_counts(scenes: dict[str, Scene]) -> None:
    """Without those of any one line of the package a promise is broken in some scene."""
    unnoticed: dict[str, set[str]] = {}
    noticed = set()
    for scene in scenes.values() if NIGHTLY else [scenes["library"]]:
        for place, left_out in flushes(scene).items():
            if place in noticed:
                continue
            if is_noticed(scene, place, left_out, deeply=NIGHTLY):
                noticed.add(place)
            else:
                unnoticed.setdefault(place, set()).add(scene.name)
    assert not {place: names for place, names in unnoticed.items() if place not in noticed and not made_up_for(place)}


def made_up_for(place: str) -> bool:
    return any(re.fullmatch(pattern, re.sub(r":\d+", "", place)) for pattern in MADE_UP_FOR)
