"""The check of sizes, fed with what is too long by a line and with what just is not."""

import subprocess
import sys
from pathlib import Path

from folders import REPOSITORY


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "scripts" / "check_sizes.py", tree]
    return subprocess.run(command, capture_output=True, text=True)


def write(tree: Path, file: str, content: str) -> None:
    (tree / file).parent.mkdir(parents=True, exist_ok=True)
    (tree / file).write_text(content)


def type_of(lines: int) -> str:
    head = "/// Class, {\ntemplate <class T>\nclass Some : Other {"
    return head + "\n  void f() {\n  }" * ((lines - 2) // 2) + "\n};\n"


def largest(place: Path, more: int = 0) -> None:
    """A file and classes as long as they may be, or longer; and a header with a source file."""
    write(place, "spillway/plan/a.cc", "\n" * (500 + more))
    write(place, "spillway/plan/b.cc", type_of(350 + 2 * more))
    write(place, "python/spillway/d.py", "class Thing:\n" + "    pass\n" * (349 + more))
    write(place, "spillway/journal/e.h", "")
    write(place, "spillway/journal/e.cc", "")


def test_this_tree_keeps_its_sizes() -> None:
    result = check(REPOSITORY)
    assert result.returncode == 0, result.stdout


def test_what_is_as_long_as_it_may_be_is_allowed(tmp_path: Path) -> None:
    largest(tmp_path)
    write(tmp_path, "tests/journal/e_test.cc", type_of(400))
    result = check(tmp_path)
    assert result.returncode == 0, result.stdout


def test_a_line_more_is_refused(tmp_path: Path) -> None:
    largest(tmp_path, more=1)
    for number in range(26):
        write(tmp_path, f"spillway/state/f{number}.h", "// Of LSP.\n")
    result = check(tmp_path)
    assert result.returncode == 1
    said = result.stdout.splitlines()
    expected = [
        "spillway/plan/a.cc:1: file a.cc has 501 lines",
        "python/spillway/d.py:1: class Thing has 351 lines",
        "spillway/plan/b.cc:3: class Some has 352 lines",
        "spillway/state/f9.h:1: is one of 26 files that name LSP",
        "spillway/journal/e.h:1: has no tests/journal/e_test.cc",
        "sizes: 5 ",
    ]
    for line, begins in zip(said, expected, strict=True):
        assert line.startswith(begins), line


def write_class(tree: Path, members: int) -> None:
    """A class of 6 lines in a header, and members of 4 lines in two source files."""
    write(tree, "spillway/plan/a.h", "class Some {\n public:\n  Some();\n\n  int a = 0;\n};\n")
    forms = (
        "Some::Some()\n    : a{1} {\n  b();\n}\n\n",
        "std::vector<Other::Kind> Some::list(int a,\n                                    int b) const {\n  b();\n}\n\n",
        "bool Some::operator<(int a) const {\n  b();\n  c();\n}\n\n",
        "void Other::list() {\n  b();\n}\n\nint Some::a() { return 1; }\nint Some::b() { return 1; }\n"
        "int Some::c() { return 1; }\nSome::~Some() = default;\n\n",
    )
    texts = [forms[number % len(forms)] for number in range(members)]
    write(tree, "spillway/plan/a.cc", "".join(texts[::2]))
    write(tree, "spillway/plan/b.cc", "".join(texts[1::2]))


def test_members_outside_of_a_class_count(tmp_path: Path) -> None:
    write_class(tmp_path, members=86)
    write(tmp_path, "spillway/plan/c.cc", "struct Some {\n};\n\nint Some::own() {\n  return 1;\n}\n")
    assert check(tmp_path).returncode == 0
    write_class(tmp_path, members=87)
    result = check(tmp_path)
    assert result.returncode == 1
    said = result.stdout.splitlines()[0]
    assert said == "spillway/plan/a.h:1: class Some has 354 lines with its members; at most 350"
