"""Models, tokenizers and data by the names that they have on the Hugging Face Hub.

All of it goes through `huggingface_hub`, with its cache, token and switches (HF_HOME, HF_TOKEN, HF_HUB_OFFLINE,
HF_ENDPOINT). A name is settled once: the commit that a branch points to when a run begins is written into the run's
config.yaml, and what lies in the cache of that commit is never asked for again.

Descriptions and tokenizers are a few megabytes, and are fetched when a run is planned. Weights are fetched when it
begins, in a process of their own, since what a download takes of memory is not in the run's budget:

python -m spillway.model.source.hub NAME COMMIT FILE...
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.base.documents import read_json
from spillway.base.files import existing
from spillway.base.sizes import decimal
from spillway.config.checks import DATA_SUFFIXES, is_path_like
from spillway.errors import InputError, first_line

if TYPE_CHECKING:
    from spillway.config import Config

Tell = Callable[[str], None]
SETTLED = ("model", "tokenizer", "data")

MAIN = "main"  # the branch that a name alone means
COMMIT = re.compile("[0-9a-f]{40}")
DESCRIPTION = "config.json"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".codes", ".bpe")  # endings of tokenizers' files
NO_TEXTS = ("license", "notice", "readme", "requirements")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
SECONDS = 10.0  # that the hub has for an answer
WAYS = "`hf auth login`, or HF_TOKEN"


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: Mapping[str, int]  # bytes by name

    def described_by(self) -> list[str]:
        """The files that describe the model and its tokenizer: no weights, no code. The description comes last, so that
        the others are in the cache where it is."""
        return sorted(filter(is_small, self.files), key=lambda name: (name == DESCRIPTION, name))


def is_small(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    if folder:
        return folder == "additional_chat_templates" and file.endswith(".jinja")
    if file.endswith(".index.json"):
        return file == INDEX
    return file.endswith(TEXTS) and not file.lower().startswith(NO_TEXTS)


def resolve_commits(config: Config, tell: Tell | None = None, only: Iterable[str] = SETTLED) -> Config:
    """`config` with the commit of everything that it names on the hub, and `model` and `tokenizer` in the cache but for
    their weights. Where the hub does not answer, what the cache has is taken. InputError where that is nothing, where
    the repository has no safetensors, and where the file system has no room for them."""
    pins: dict[str, str] = {}
    if "model" in only and is_name(config.model):
        pins["model_revision"] = pinned("model", config.model, config.model_revision, tell)
        if config.init == "pretrained":
            check_weights(config.model, pins["model_revision"], tell)
    if "tokenizer" in only and config.tokenizer != config.model and is_name(config.tokenizer):
        pins["tokenizer_revision"] = pinned("tokenizer", config.tokenizer, config.tokenizer_revision, tell)
    for key in ("dataset", "eval_dataset") if "data" in only else ():
        source, revision = getattr(config, key), getattr(config, f"{key}_revision")
        if source is not None and is_name(source) and (commit := commit_of_data(source, revision)):
            pins[f"{key}_revision"] = commit
    return config.replaced(**pins) if pins else config


def is_name(value: str) -> bool:
    """True if the value is nothing here, and may be the name of a repository."""
    try:
        there = Path(value).expanduser().exists()
    except OSError:  # a name that no file can have
        there = False
    return not there and not is_path_like(value) and not value.endswith(DATA_SUFFIXES)


def model_directory(config: Config) -> Path:
    """The directory of the model: itself, or its commit in the cache; its weights may not be there yet."""
    return directory("model", config.model, config.model_revision)


def tokenizer_directory(config: Config) -> Path:
    if config.tokenizer == config.model:
        return model_directory(config)
    return directory("tokenizer", config.tokenizer, config.tokenizer_revision)


def directory(key: str, name: str, revision: str | None = None) -> Path:
    """The directory that `name` is, or that the hub's cache has of it, fetched where it has none. InputError."""
    place = Path(name).expanduser()
    if place.is_dir():
        return place
    if place.exists():
        raise InputError(f"{key}: {name} is a file; a directory with config.json is needed")
    if is_path_like(name):
        raise InputError(f"{key}: there is no directory {name}")
    return snapshot(name, pinned(key, name, revision, None))


def pinned(key: str, name: str, revision: str | None, tell: Tell | None) -> str:
    """The commit that `name` is at, with what is small of it in the cache."""
    if revision is not None and is_commit(revision) and is_described(snapshot(name, revision)):
        return revision
    try:
        listing = listed("model", name, revision or MAIN)
        if key == "model" and DESCRIPTION not in listing.files:
            raise InputError(f"{key}: {name} has no {DESCRIPTION}; expects a model as transformers saves it")
        fetch_small(name, revision or MAIN, listing)
    except InputError:
        raise
    except Exception as error:  # the hub's client has many kinds of "no"
        words = reason(name, revision, error)
        commit = cached(name, revision)
        if commit is None:
            raise InputError(f"{key}: {words}") from error
        if tell is not None and not is_offline():
            tell(f"{key}: {words.partition(';')[0]}; going on with commit {commit[:8]} of it, which is in the cache")
        return commit
    return listing.commit


def is_commit(revision: str) -> bool:
    return COMMIT.fullmatch(revision) is not None


def is_described(place: Path) -> bool:
    return any((place / name).exists() for name in (DESCRIPTION, *TOKENIZERS))


def has_tokenizer(place: Path) -> bool:
    return any((place / name).is_file() for name in TOKENIZERS)


def cached(name: str, revision: str | None) -> str | None:
    """The commit of the cache that a revision was when the hub was asked last."""
    commit = revision or MAIN
    if not is_commit(commit):
        try:
            commit = (repository(name) / "refs" / commit).read_text(encoding="utf-8").strip()
        except OSError:
            return None
    return commit if is_described(snapshot(name, commit)) else None


def snapshot(name: str, commit: str) -> Path:
    """The folder where the cache has a commit, or would have it."""
    return repository(name) / "snapshots" / commit


def repository(name: str) -> Path:
    return cache() / f"models--{name.replace('/', '--')}"


def cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


@functools.cache
def listed(kind: str, name: str, revision: str) -> Listing:
    """Asks the hub."""
    from huggingface_hub import HfApi

    ask: Any = HfApi().model_info if kind == "model" else HfApi().dataset_info
    answer = ask(name, revision=revision, timeout=SECONDS, files_metadata=kind == "model")
    return Listing(str(answer.sha), {entry.rfilename: entry.size or 0 for entry in answer.siblings or []})


def fetch_small(name: str, revision: str, listing: Listing) -> None:
    """Into the cache, with a note of the commit that the branch is at, as the hub's client leaves it."""
    from huggingface_hub import hf_hub_download

    files = listing.described_by()
    for file in files:
        hf_hub_download(name, file, revision=listing.commit)
    if not is_commit(revision):
        note = repository(name) / "refs" / revision
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_name(f".{note.name}-{os.getpid()}")
        temporary.write_text(listing.commit, encoding="utf-8")
        os.replace(temporary, note)


# ---- weights


def check_weights(name: str, commit: str, tell: Tell | None) -> None:
    """InputError where there are none to be had, or no room for them."""
    missing = missing_weights(name, commit)
    if not missing:
        return
    needed, free = sum(missing.values()), free_bytes()
    if needed > free:
        raise InputError(
            f"model: the weights of {name} take {decimal(needed)} of {cache()}, which has {decimal(free)} free; make "
            "room there, or name another place with HF_HOME"
        )
    if tell is not None:
        tell(
            f"the weights of {name} (commit {commit[:8]}) are downloaded when training begins: {decimal(needed)} into "
            f"{cache()}, which has {decimal(free)} free"
        )


def missing_weights(name: str, commit: str) -> dict[str, int]:
    """Files of the weights that the cache does not have, and their bytes. InputError where the repository has none."""
    place = snapshot(name, commit)
    files = files_of_weights(place)
    if files is not None and all((place / file).exists() for file in files):
        return {}
    try:
        listing = listed("model", name, commit)
    except Exception as error:
        raise InputError(f"model: its weights are not in the cache, and {reason(name, commit, error)}") from error
    if files is None and SINGLE in listing.files:
        files = [SINGLE]
    if files is None:
        others = sorted(file for file in listing.files if file.endswith((".bin", ".gguf", ".pth", ".safetensors")))
        hint = f"; {others[0]} is there: save it as safetensors first" if others else ""
        raise InputError(f"model: {name} has no {SINGLE} and no {INDEX}{hint}")
    if lost := [file for file in files if file not in listing.files]:
        raise InputError(f"model: {INDEX} of {name} names {lost[0]}, which the repository does not have")
    return {file: listing.files[file] for file in files if not (place / file).exists()}


def files_of_weights(place: Path) -> list[str] | None:
    """The weight files that the index names, else the one file; None: nobody knows yet."""
    index = place / INDEX
    if not index.exists():
        return [SINGLE] if (place / SINGLE).exists() else None
    try:
        return sorted(set(read_json(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"model: {index} cannot be read: {error!r}") from None


def free_bytes() -> int:
    return shutil.disk_usage(existing(cache())).free


def fetch_weights(config: Config, tell: Tell | None = None) -> None:
    """Fetches the weights of a pretrained model that is named into the cache, unless they are there already.
    InputError."""
    if config.init != "pretrained" or not is_name(config.model):
        return
    commit = pinned("model", config.model, config.model_revision, tell)
    if missing := missing_weights(config.model, commit):
        check_weights(config.model, commit, None)
        fetch_apart(config.model, commit, missing, tell or to_stderr)


def to_stderr(words: str) -> None:
    print(words, file=sys.stderr)


def fetch_apart(name: str, commit: str, files: Mapping[str, int], tell: Tell) -> None:
    """In another process, file by file; whatever ends this one's waiting ends that, too."""
    command = [sys.executable, "-m", "spillway.model.source.hub", name, commit, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said: dict[str, Any] = {}
        try:
            for line in child.stdout:
                said = json.loads(line)
                if "file" in said:
                    place = f"file {said['number']} of {len(files)}, {decimal(files[said['file']])}"
                    tell(f"downloading {said['file']} of {name} ({place})")
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise InputError(f"model: {said.get('error', f'the download of {name} ended with {child.returncode}')}")


def fetch(name: str, commit: str, files: Iterable[str]) -> int:
    """The work of the download process. Returns its exit code."""
    from huggingface_hub import hf_hub_download

    try:
        for number, file in enumerate(files, start=1):
            print(json.dumps({"file": file, "number": number}), flush=True)
            hf_hub_download(name, file, revision=commit)
    except Exception as error:
        print(json.dumps({"error": reason(name, commit, error)}), flush=True)
        return InputError.exit_code
    return 0


# ---- data


def commit_of_data(name: str, revision: str | None) -> str | None:
    """None where the hub does not say: the package datasets may have it, or knows what is wrong."""
    if revision is not None and is_commit(revision):
        return revision
    try:
        return listed("dataset", name, revision or MAIN).commit
    except Exception:
        return None


# ---- what went wrong


def reason(name: str, revision: str | None, error: BaseException) -> str:
    """Why nothing comes from the hub, and what to do."""
    from huggingface_hub import errors

    at = f" at revision {revision}" if revision else ""
    if isinstance(error, errors.OfflineModeIsEnabled) or is_offline():
        return (
            f"{name}{at} is no directory and is not in the cache {cache()}, and HF_HUB_OFFLINE is set; leave that out, "
            f"or `hf download {name}` where there is a network and bring the cache along (HF_HOME)"
        )
    if isinstance(error, errors.HFValidationError):
        return f"{name} is no directory, and no name that a repository can have: {first_line(error)}"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated, and this token has no access; accept its conditions at {endpoint()}/{name}, then log in "
            f"({WAYS})"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} has no revision {revision}; name a branch, a tag or a commit that {endpoint()}/{name} has"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{name} is no directory here, and no repository at {endpoint()} that may be read; check the name, and log "
            f"in where it is private ({WAYS})"
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"{endpoint()} refuses access to {name} (HTTP {status}); log in with a token that may read it ({WAYS})"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return f"{name} cannot be kept in {cache()}: {error.strerror}; make room there, or name another place (HF_HOME)"
    return (
        f"{endpoint()} cannot be reached for {name}{at} ({first_line(error)}); try again, or where there is a network "
        f"`hf download {name}` and bring the cache along (HF_HOME)"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the run says what an interruption does
    sys.exit(fetch(sys.argv[1], sys.argv[2], sys.argv[3:]))
