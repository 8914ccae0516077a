"""The command as a process: verbs, help, what it imports, and two signals in a row."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
import warm
from spillway.cli import main
from spillway.cli.arguments import parse
from spillway.cli.help import MAIN
from spillway.config.keys import KEYS

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("words", "part"),
    [([], "a verb is missing"), (["trian"], "unknown verb 'trian'"), (["resume"], "OUTPUT_DIR"),
     (["resume", "/nowhere"], "holds no run"), (["train"], "model: this key is required"),
     (["train", "--json"], "unknown key 'json'")],
)  # fmt: skip
def test_bad_command_lines(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    caught = capsys.readouterr()
    assert part in caught.err and caught.err.count("\n") == 1
    assert caught.out == ""


@pytest.mark.parametrize("verb", ["resume", "verify", "export", "merge"])
def test_a_damaged_configuration_of_a_run_is_named(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in ("", "seed: 3\n"):
        (tmp_path / "config.yaml").write_text(content)
        target = ["--to", str(tmp_path / "to")] if verb in ("export", "merge") else []
        assert main([verb, str(tmp_path), *target]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"spillway: {verb}: {tmp_path / 'config.yaml'} names no model"), error
        assert error.count("\n") == 1 and not (tmp_path / "to").exists()


def test_help_names_every_key_and_only_verbs_that_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    overview = capsys.readouterr().out
    assert all(verb in overview for verb in ("train", "plan", "resume"))
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    named = [name for name in KEYS if f"  --{name} " in short]
    assert named and sorted(named) == sorted(MAIN) and len(MAIN) == 15
    words = short[short.index("Example:") :].partition("\n\n")[0].replace("\\\n", " ").split()[2:]
    assert {"model", "dataset", "output_dir", "storage"} <= parse(words[1:]).values.keys()
    assert main(["train", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{name} " in text for name in KEYS)


def test_help_of_a_verb_that_takes_no_keys_lists_none(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("doctor", "probe", "report"):
        assert main([verb, "--help-all"]) == 0
        assert "--learning_rate" not in capsys.readouterr().out


def test_errors_and_help_are_quick_and_a_traceback_is_shown_when_asked() -> None:
    program = (
        "import sys; from spillway.cli import main\n"
        "code = main(['train', '--learning_rat', '1'])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert main(['train', '--help']) == 0 and not heavy, heavy\n"
        "sys.exit(code)\n"
    )
    for asked in ("", "1"):
        environment = os.environ | {"SPILLWAY_TRACEBACK": asked}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert done.returncode == 2
        assert "did you mean 'learning_rate'?" in done.stderr
        assert ("Traceback" in done.stderr) is bool(asked)


def test_version_of_the_module_and_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    import spillway

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spillway {spillway.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "spillway", "--version"], capture_output=True, text=True)
    assert done.stdout == f"spillway {spillway.__version__}\n"


@pytest.mark.parametrize(
    ("signals", "said", "saved"),
    [
        ("step:2:SIGINT step:2:SIGTERM", "the steps since the last checkpoint are not saved", False),
        ("step:2:SIGINT close:2:SIGTERM", "all is saved", True),
    ],
)
def test_a_second_signal_stops_at_once_and_says_so(tmp_path: Path, signals: str, said: str, saved: bool) -> None:
    model = tiny.model_directory(tmp_path / "model")
    data = tiny.jsonl(tmp_path / "train.jsonl", tiny.text_rows(8))
    out = tmp_path / "out"
    command = [HERE / "fake_spillway.py", "train", "--model", model, "--dataset", data, "--output_dir", out]
    process = warm.python(*command, env={"FAKE_SIGNAL": signals})
    _, error = process.communicate()
    assert process.returncode == 143
    assert "finishing the step in progress" in error
    assert f"stopping at once, {said}" in error
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-2"] * saved


def test_memory_that_runs_out_inside_the_engine_is_said_in_words() -> None:
    from spillway.base.calls import OUT_OF_MEMORY, translated
    from spillway.errors import DoesNotFit

    with pytest.raises(DoesNotFit) as refusal, translated():
        raise MemoryError("std::bad_alloc")
    assert str(refusal.value) == OUT_OF_MEMORY and refusal.value.exit_code == 3
