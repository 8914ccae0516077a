"""The upload of a model to the Hugging Face Hub when its run has ended: `push_to_hub`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spillway import __version__
from spillway.config import Config
from spillway.errors import InputError, SpillwayError, first_line
from spillway.model.source import hub
from spillway.output import saved
from spillway.output.directory import MODEL_FILES

CARD = "README.md"
MESSAGE = "End of training"  # the Trainer's


def require_token(config: Config) -> None:
    """InputError if nothing could be uploaded from here. Nobody is asked."""
    if not config.push_to_hub:
        return
    if hub.is_offline():
        raise InputError("push_to_hub: HF_HUB_OFFLINE is set, so nothing can be uploaded; leave one of the two out")
    if find_token(config) is None:
        raise InputError(f"push_to_hub: there is no token for {hub.endpoint()}; log in ({hub.WAYS}), or give hub_token")


def find_token(config: Config) -> str | None:
    from huggingface_hub import get_token

    return config.hub_token or get_token()


def make_repository(config: Config) -> str:
    """The name of the repository, which exists from here on. InputError if the token may not make it."""
    name = config.hub_model_id or Path(config.output_dir).name
    try:
        made = open_api(config).create_repo(name, private=config.hub_private_repo, exist_ok=True)
    except Exception as error:  # the hub's client has many kinds of "no"
        raise InputError(
            f"push_to_hub: {hub.endpoint()} makes no repository {name} for this token: {describe(error)}"
        ) from error
    return str(made.repo_id)


def upload(config: Config, repository: str) -> str:
    """One commit of what `from_pretrained` reads. Returns the address. SpillwayError if it fails."""
    from huggingface_hub import CommitOperationAdd

    output_dir = Path(config.output_dir)
    files: dict[str, Any] = {name: output_dir / name for name in list_model(output_dir)}
    files.setdefault(CARD, write_card(config).encode())
    try:
        operations = [CommitOperationAdd(name, content) for name, content in files.items()]
        open_api(config).create_commit(repository, operations, commit_message=MESSAGE)
    except Exception as error:
        raise SpillwayError(
            f"push_to_hub: the upload to {repository} failed: {describe(error)}; the model in {output_dir} is whole, "
            f"and `spillway resume {output_dir}` tries again"
        ) from error
    return f"{hub.endpoint()}/{repository}"


def list_model(output_dir: Path) -> list[str]:
    """The files of the model in a run's directory, and a card that somebody wrote."""
    listed = saved.read_list(output_dir) or {}
    names = {name for name in listed if name.split("/")[0] != str(saved.FOLDER)}
    names = names or {path.name for pattern in MODEL_FILES for path in output_dir.glob(pattern)}
    return sorted(name for name in {*names, CARD} if (output_dir / name).is_file())


def write_card(config: Config) -> str:
    """The model card: the base and the method, which the Hub's pages read."""
    library = "peft" if config.method == "lora" else "transformers"
    head = ["---", f"library_name: {library}", "tags:", "- spillway", f"- {config.objective}"]
    if hub.is_name(config.model):
        head.insert(1, f"base_model: {config.model}")
    title = Path(config.output_dir).name
    words = f"Fine-tuned by Spillway {__version__} (`method: {config.method}`, `objective: {config.objective}`)."
    return "\n".join([*head, "---", "", f"# {title}", "", words, ""])


def open_api(config: Config) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=hub.endpoint(), token=find_token(config))


def describe(error: Exception) -> str:
    """Why the Hub refuses, without the address of the request."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    words = getattr(error, "server_message", None) or first_line(error)
    return f"HTTP {status}: {words}" if status and str(status) not in words else words
