"""What a power cut may leave of the files below a directory, from a record of what a process did to them (recorded.c).

A name that was made, given or taken is durable when its directory was flushed after that; the bytes and the length of a
file when the file was. Of what is not durable each may have happened or not. Names are tried both in the order in which
each directory saw them, as ext4 keeps it, and in any, as POSIX allows; a rename happens whole or not at all. Bytes that
were not flushed are there, are missing, are in part there, or are zeros in a file of the new length.

Between two flushes more and more may be lost, so that the cuts right before each flush, and after all, are every cut.
"""

from __future__ import annotations

import itertools
import os
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from needs import shared_library

FEW = 4  # names of which every subset is tried
CHANCES = 6  # random subsets where there are more
Key = tuple[Any, ...]  # equal keys: equal bytes
Tree = dict[str, Any]  # what a directory holds by name: a Key, or a Tree


def library(place: Path) -> Path:
    """recorded.c, compiled. Skips where there is no compiler."""
    source = Path(__file__).with_name("recorded.c")
    why = "no C compiler, which the library that records what a process does needs"
    return shared_library(source, place / "recorded.so", why)


@dataclass(frozen=True)
class Naming:
    """Names that one call gave or took: at all, or none of them."""

    at: int  # when: the number of the record
    changes: tuple[tuple[int, str, int | None], ...]  # directory, name, what has it
    directory: int  # whose flush makes it durable


@dataclass(frozen=True)
class Writing:
    at: int
    offset: int
    content: bytes | None  # None: zeros
    count: int  # bytes
    sets_length: bool = False  # the file is `offset` long, and nothing is written

    def put(self, file: Sparse, blank: bool = False) -> None:
        if self.sets_length:
            file.cut(self.offset)
        elif self.content is None or blank:
            file.zero(self.offset, self.count, only_new=blank)
        else:
            file.write(self.offset, self.content)


class Sparse:
    """A file's bytes; long ones are mostly holes."""

    def __init__(self) -> None:
        self.length = 0
        self.parts: list[tuple[int, bytes]] = []  # later ones win

    def cut(self, length: int) -> None:
        if length < self.length:
            self.parts = [(at, part[: length - at]) for at, part in self.parts if at < length]
        self.length = length

    def zero(self, offset: int, count: int, only_new: bool) -> None:
        first = max(offset, self.length) if only_new else offset
        if first < offset + count:
            holds = any(at < offset + count and first < at + len(part) for at, part in self.parts)
            if holds:
                self.parts.append((first, bytes(offset + count - first)))
            self.length = max(self.length, offset + count)

    def write(self, offset: int, content: bytes) -> None:
        self.parts.append((offset, content))
        self.length = max(self.length, offset + len(content))

    def save(self, path: Path) -> None:
        with open(path, "wb", buffering=0) as stream:
            for at, part in self.parts:
                os.pwrite(stream.fileno(), part, at)
            os.ftruncate(stream.fileno(), self.length)

    def read_some(self, places: tuple[int, ...], count: int) -> list[bytes]:
        """Bytes at each of these places, where one part has them."""
        found = dict.fromkeys(places, b"")
        for at, part in self.parts:
            found |= {place: part[place - at : place - at + count] for place in places if at <= place < at + len(part)}
        return list(found.values())

    def read(self) -> bytes:
        content = bytearray(self.length)
        for at, part in self.parts:
            content[at : at + len(part)] = part
        return bytes(content)


@dataclass
class File:
    """An inode. What it held before the record begins is its first writing."""

    writings: list[Writing] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)  # when
    target: str = ""  # of a symbolic link

    def until(self, at: int) -> int:
        """Writings by then."""
        return bisect_right(self.writings, at, key=lambda writing: writing.at)

    def durable(self, at: int) -> int:
        """Writings that nothing takes away then."""
        flushes = bisect_right(self.flushed, at)
        return self.until(self.flushed[flushes - 1]) if flushes else 0


@dataclass
class Folder:
    flushed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class State:
    """What a cut may have left."""

    at: int  # records before the cut
    tree: Tree
    words: str  # which of what was not durable is there


class Record:
    """`root` as it was, and what was done to it."""

    def __init__(self, root: Path) -> None:
        """Before the process begins."""
        self._root = root
        self._inodes: dict[int, int] = {}  # of the file system, by now: our numbers
        self.nodes: list[File | Folder] = []
        self.namings: list[Naming] = []
        self.said: list[tuple[int, str]] = []  # when, what
        self.syncs: list[tuple[int, int, str]] = []  # when, of what, by which name
        self.synced: dict[int, int] = {}  # when: the inode of the file system
        self._live: dict[int, dict[str, int]] = {}
        self.count = 0
        self.inside: set[int] = set()  # of `part`: the inodes that are there or were
        self.root = self._found(root)

    def _found(self, path: Path) -> int:
        status = path.lstat()
        if path.is_symlink():
            return self._new(status.st_ino, File(target=os.readlink(path)))
        if not path.is_dir():
            if status.st_ino in self._inodes:
                return self._inodes[status.st_ino]
            content = path.read_bytes()
            return self._new(status.st_ino, File([Writing(-1, 0, content, len(content))], [-1]))
        number = self._new(status.st_ino, Folder([-1]))
        for item in sorted(path.iterdir()):
            self._name(-1, [(number, item.name, self._found(item))], number)
        return number

    def _new(self, inode: int, node: File | Folder) -> int:
        self.nodes.append(node)
        number = len(self.nodes) - 1
        self._inodes[inode] = number
        if isinstance(node, Folder):
            self._live[number] = {}
        return number

    def _name(self, at: int, changes: list[tuple[int, str, int | None]], directory: int) -> None:
        self.namings.append(Naming(at, tuple(changes), directory))
        for where, name, what in changes:
            if what is None:
                self._live[where].pop(name, None)
            else:
                self._live[where][name] = what

    def read(self, path: Path) -> None:
        """What the process wrote down, to the end."""
        content, place = path.read_bytes(), 0
        while place < len(content):
            end = content.index(b"\n", place)
            what, *words = content[place:end].decode().split()
            length = int(words.pop())
            more = content[end + 1 : end + 1 + length]
            assert len(more) == length
            self._take(what, [int(word) for word in words], more)
            self.count += 1
            place = end + 1 + length

    def _take(self, what: str, words: list[int], more: bytes) -> None:
        at = self.count
        if what == "say":
            self.said.append((at, more.decode(errors="replace")))
        elif what in ("file", "folder", "link", "symlink"):
            name, _, target = more.partition(b"\0")
            directory = self._inodes[words[0]]
            if what == "link":
                number = self._inodes[words[1]]
            else:
                number = self._new(words[1], Folder() if what == "folder" else File(target=target.decode()))
            self._name(at, [(directory, name.decode(), number)], directory)
        elif what == "unlink":
            directory = self._inodes[words[0]]
            self._name(at, [(directory, more.decode(), None)], directory)
        elif what == "rename":
            one, other = self._inodes[words[0]], self._inodes[words[1]]
            old, _, new = (part.decode() for part in more.partition(b"\0"))
            moved = self._live[one][old]
            back = self._live[other].get(new) if words[2] else None
            self._name(at, [(one, old, back), (other, new, moved)], other)
        elif what == "sync":
            number = self._inodes[words[0]]
            self.nodes[number].flushed.append(at)
            self.syncs.append((at, number, self.name_of(number)))
            self.synced[at] = words[0]
        else:
            file = self.nodes[self._inodes[words[0]]]
            assert isinstance(file, File)
            if what == "write":
                file.writings.append(Writing(at, words[1], more, len(more)))
            elif what == "zeros":
                file.writings.append(Writing(at, words[1], None, words[2]))
            else:
                assert what == "length", what
                file.writings.append(Writing(at, words[1], None, 0, sets_length=True))

    def name_of(self, number: int) -> str:
        """By which it is found now."""
        if number == self.root:
            return "."
        for directory, names in self._live.items():
            for name, what in names.items():
                if what == number:
                    return f"{self.name_of(directory)}/{name}".removeprefix("./")
        return "?"

    # ---- what may be left

    def part(self, name: str) -> Record:
        """What was done below one of the root's directories, which was there when the record begins and is the root of
        what is returned."""
        out = object.__new__(Record)
        out.__dict__.update(self.__dict__)
        out.root = self._live[self.root][name]
        inside = {out.root}
        for naming in self.namings:
            if naming.directory in inside:
                inside |= {what for _, _, what in naming.changes if what is not None}
        out.namings = [naming for naming in self.namings if naming.directory in inside]
        out.syncs = [(at, number, name) for at, number, name in self.syncs if number in inside]
        out.inside = inside
        return out

    def without(self, when: set[int]) -> Record:
        """As if there had been none of these flushes."""
        out = object.__new__(Record)
        out.__dict__.update(self.__dict__)
        out.nodes = [
            File(node.writings, [at for at in node.flushed if at not in when], node.target)
            if isinstance(node, File)
            else Folder([at for at in node.flushed if at not in when])
            for node in self.nodes
        ]
        out.syncs = [each for each in self.syncs if each[0] not in when]
        return out

    def told(self, at: int) -> str:
        """All that was said before."""
        return "".join(words for when, words in self.said if when < at)

    def tree(self, at: int) -> Tree:
        """As a process sees it."""
        return self._below(self.root, self._folders({}, [each for each in self.namings if each.at <= at]), at, {})

    def cuts(self) -> list[int]:
        """Records before each cut that may lose something else: the last ones before a flush, and all."""
        return sorted({when - 1 for when, _, _ in self.syncs if when > 0} | {self.count - 1})

    def states(
        self, chance: random.Random, cuts: list[int], counts: Callable[[Tree], Tree], before: int = -1
    ) -> list[State]:
        """Each that may be left, once; where it may be left at several times, the last of them. `counts`: takes away
        what nobody looks at; `before`: a cut that was tried."""
        found: dict[str, State] = {}
        for at in cuts:
            for state in self._at(at, before, chance):
                tree = counts(state.tree)
                found[repr(tree)] = replace(state, tree=tree)
            before = at
        return list(found.values())

    def _at(self, at: int, cut: int, chance: random.Random) -> Iterator[State]:
        """`cut`: the one before. What was not durable then was tried: now all of it is there, none, or by chance."""
        done = self.namings[: bisect_right(self.namings, at, key=lambda naming: naming.at)]
        pending = [naming for naming in done if not self._is_durable(naming, at)]
        pending = self._seen(pending, done)
        first = pending[0].at if pending else at + 1
        before = self._folders({}, [naming for naming in done if naming.at < first])
        after = [naming for naming in done if naming.at >= first]
        files = [
            number
            for number in self.inside
            if isinstance(node := self.nodes[number], File) and node.until(at) > node.durable(at)
        ]

        def left(kept: list[Naming], hows: dict[int, Any], words: str) -> State:
            lost = {naming.at for naming in pending} - {naming.at for naming in kept}
            folders = self._folders(before, [naming for naming in after if naming.at not in lost])
            return State(at, self._below(self.root, folders, at, hows), words)

        old, new = ([naming for naming in pending if (naming.at > cut) is late] for late in (False, True))
        subsets = list(self._subsets(new, chance))
        for kept in subsets:
            words = f"names kept: {[naming.changes[-1][1] for naming in kept]} of {len(new)}"
            for earlier in (old, []) if old else ([],):
                for how in ("all", "none", "zeros") if files else ("all",):
                    yield left([*earlier, *kept], dict.fromkeys(files, how), f"{words}, bytes: {how}")
        for number in files:
            if self._file(number).until(at) == self._file(number).until(cut):
                continue
            for how in ("none", "half", "zeros", chance.randrange(1 << 30)):
                yield left(pending, {number: how}, f"all names, {self.name_of(number)}: {how}")
        for _ in range(CHANCES if pending else 0):
            hows = {number: chance.choice(["all", "none", "half", "zeros"]) for number in files}
            yield left([naming for naming in pending if chance.random() < 0.5], hows, "by chance")

    def _file(self, number: int) -> File:
        file = self.nodes[number]
        assert isinstance(file, File)
        return file

    def _is_durable(self, naming: Naming, at: int) -> bool:
        flushed = self.nodes[naming.directory].flushed
        after = bisect_right(flushed, naming.at)
        return naming.at < 0 or (after < len(flushed) and flushed[after] <= at)

    def _seen(self, pending: list[Naming], done: list[Naming]) -> list[Naming]:
        """Without those in directories that no one finds any more, and those of temporary names alone."""
        below: dict[int, set[int]] = {}
        lost = {naming.at for naming in pending}
        for directory, names in self._folders({}, [naming for naming in done if naming.at not in lost]).items():
            below.setdefault(directory, set()).update(what for name, what in names.items() if not is_temporary(name))
        for naming in pending:
            for directory, name, what in naming.changes:
                if what is not None and not is_temporary(name):
                    below.setdefault(directory, set()).add(what)
        there, new = {self.root}, [self.root]
        while new:
            found = below.get(new.pop(), set()) - there
            there |= found
            new += found
        return [
            naming
            for naming in pending
            if any(where in there and not is_temporary(name) for where, name, _ in naming.changes)
        ]

    def _subsets(self, pending: list[Naming], chance: random.Random) -> Iterator[list[Naming]]:
        if len(pending) <= FEW:
            for count in range(len(pending) + 1):
                yield from map(list, itertools.combinations(pending, count))
            return
        for count in range(len(pending) + 1):  # in order over all, as one journal has it
            yield pending[:count]
        for directory in {naming.directory for naming in pending}:  # in order in one, all of the others
            there = [naming for naming in pending if naming.directory == directory]
            others = [naming for naming in pending if naming.directory != directory]
            for count in range(len(there) if others else 0):
                yield [*others, *there[:count]]
        for naming in pending:  # in any order
            yield [naming]
            yield [each for each in pending if each is not naming]

    def _folders(self, before: dict[int, dict[str, int]], names: list[Naming]) -> dict[int, dict[str, int]]:
        """What each directory holds after these."""
        folders = {directory: dict(holds) for directory, holds in before.items()}
        for naming in names:
            for directory, name, what in naming.changes:
                if what is None:
                    folders.get(directory, {}).pop(name, None)
                else:
                    folders.setdefault(directory, {})[name] = what
        return folders

    def _below(self, number: int, folders: dict[int, dict[str, int]], at: int, hows: dict[int, Any]) -> Tree:
        found: Tree = {}
        for name, what in sorted(folders.get(number, {}).items()):
            if isinstance(self.nodes[what], Folder):
                found[name] = self._below(what, folders, at, hows)
            else:
                found[name] = self._key(what, at, hows.get(what, "all"))
        return found

    def _key(self, number: int, at: int, how: Any) -> Key:
        file = self.nodes[number]
        assert isinstance(file, File)
        written, durable = file.until(at), file.durable(at)
        if how == "all" or written == durable:
            return (number, written)
        return (number, durable) if how == "none" else (number, durable, written, how)

    # ---- its bytes

    def content(self, key: Key) -> Sparse:
        file = self.nodes[key[0]]
        assert isinstance(file, File)
        out = Sparse()
        for writing in file.writings[: key[1]]:
            writing.put(out)
        if len(key) == 2:
            return out
        pending, how = file.writings[key[1] : key[2]], key[3]
        if how == "zeros":
            for writing in pending:
                writing.put(out, blank=True)
        elif how == "half":
            for writing in pending[: len(pending) // 2]:
                writing.put(out)
            last = pending[len(pending) // 2]
            if last.content is not None:
                out.write(last.offset, last.content[: last.count // 2])
        else:
            chance = random.Random(how)
            for writing in pending:
                if chance.random() < 0.5:
                    writing.put(out)
        return out

    @cached_property
    def _small(self) -> dict[Key, bytes]:
        return {}

    def bytes(self, key: Key) -> bytes:
        if key not in self._small:
            self._small[key] = self.content(key).read()
        return self._small[key]

    def make(self, tree: Tree, place: Path) -> None:
        """The directory, which is not there yet; files with several names as so many files."""
        place.mkdir(parents=True)
        for name, what in tree.items():
            if isinstance(what, dict):
                self.make(what, place / name)
                continue
            file = self.nodes[what[0]]
            assert isinstance(file, File)
            if file.target:
                os.symlink(file.target, place / name)
            else:
                self.content(what).save(place / name)


def is_temporary(name: str) -> bool:
    """Removed unread by whoever comes next."""
    return name.startswith(".tmp-") or name.endswith((".partial", ".new"))


def sub(tree: Tree, path: str) -> Any:
    """A directory of it, a file's key, or None."""
    found: Any = tree
    for name in Path(path).parts:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found
