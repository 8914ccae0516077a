"""What the trainer itself carries from step to step, and across a resume: checkpoint-N/spillway/run.json."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.base.documents import read_json
from spillway.base.files import PRIVATE, write_json
from spillway.base.sums import Mean
from spillway.config import Config, methods
from spillway.config.keys import KEYS
from spillway.config.objectives import OWN_KEYS
from spillway.data.origins import ROWS, TEMPLATE, TOKENIZER
from spillway.errors import InputError, other_format
from spillway.model.source import hub
from spillway.output import saved
from spillway.output.directory import RUN_STATE
from spillway.output.records import is_number

if TYPE_CHECKING:
    from spillway.data.loading import Rows

FORMAT = 2
ORIGINS, STARTED = "origins", "started"  # in `fixed`: digests of the rows' inputs, and the start of the run
LISTED = 1  # the format in which the losses were a list
FIXED = (  # keys that a resumed run cannot change and still be the same run
    "seed",
    "data_seed",
    "max_length",
    "packing",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "virtual_ranks",
    "shard_frozen",
    "fused_kernels",
    "pass_tokens",
    "token_tile",
    "compute_dtype",
    "weight_dtype",
    "state_format",
    "optim",
    "method",
    "trainable",
    "frozen",
    "freeze_vision_tower",
    "freeze_multi_modal_projector",
    *methods.OWN,
    "load_in_4bit",
    "load_in_8bit",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "expert_loading",
    "objective",
    *(name for name in OWN_KEYS if name != "teacher"),  # its files say which one it is
)

# By runs that left it out, when there was no other.
MEANT = {
    **methods.MEANT,
    "virtual_ranks": 1,
    "shard_frozen": False,
    "expert_loading": "whole",
    "fused_kernels": "auto",
    "pass_tokens": "auto",
}


def earlier(saved: dict[str, Any], name: str) -> Any:
    """What a run's key was, whichever release began it."""
    if name == "weight_dtype" and name not in saved:  # before the two were told apart
        return require_entry(saved, "compute_dtype")
    return saved.get(name, KEYS[name].default)


def same_products(saved: dict[str, Any], config: Config) -> Config:
    """`config` with what the run's layers multiply in, unless it says so itself."""
    if config.compute_dtype != "auto" and not config.chosen:
        return config
    return config.computing(earlier(saved, "compute_dtype"), "as the run was begun")


ENCODING = (  # keys besides FIXED that decide the tokens of rows, named when the rows' tokens changed
    "dataset_split",
    "dataset_config",
    "dataset_text_field",
    "prompt_field",
    "completion_field",
    "messages_field",
    "prompt_template",
    "completion_only_loss",
    "assistant_only_loss",
)
NAMED = ("model", "tokenizer", "dataset", "eval_dataset")  # keys that may name something on the hub


def revision_of(config: Config, key: str) -> str | None:
    found: str | None = getattr(config, f"{key}_revision")
    return found


def same_revisions(saved: dict[str, Any], config: Config) -> Config:
    """`config` with the commits that the run was begun with, where it names no other: branches move on."""
    begun = {}
    for key, (name, commit) in saved.get("revisions", {}).items():
        given = revision_of(config, key)
        if getattr(config, key) == name and (given is None or not hub.is_commit(given)):
            begun[f"{key}_revision"] = commit
    return config.replaced(**begun) if begun else config


@dataclass
class RunState:
    """Position and running sums. The order of rows follows from the step and the seeds, so no generator is kept."""

    step: int = 0  # steps done
    epoch: float = 0.0
    tokens_seen: int = 0
    skipped: int = 0  # steps whose gradient was not finite
    losses: Mean = field(default_factory=Mean)  # of the steps since the last logged row
    told: dict[str, Mean] = field(default_factory=dict)  # what the objective tells besides, of their micro-batches
    reference: dict[str, str] = field(default_factory=dict)  # digests of the reference's log-probabilities, by file
    fixed: dict[str, Any] = field(default_factory=dict)  # values of FIXED, and the model's and the data's identity

    def moving(self) -> dict[str, Any]:
        """What changes from step to step, small however many steps lie between two logged rows."""
        content = asdict(self)
        del content["fixed"]
        return content

    @classmethod
    def of(cls, moving: dict[str, Any], fixed: dict[str, Any]) -> RunState:
        told = {name: Mean(**mean) for name, mean in moving.get("told", {}).items()}
        return cls(**{**moving, "losses": Mean(**moving["losses"]), "told": told}, fixed=fixed)

    def save(self, checkpoint: Path) -> None:
        path = checkpoint / RUN_STATE
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_json(path, {"format": FORMAT, **asdict(self)}, PRIVATE)

    @classmethod
    def load(cls, checkpoint: Path) -> RunState:
        saved.check_files(checkpoint, RUN_STATE)
        path = checkpoint / RUN_STATE
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise InputError(f"resume_from_checkpoint: {path} cannot be read: {error}") from None
        found = content.pop("format", None) if isinstance(content, dict) else None
        if isinstance(found, int) and found not in (LISTED, FORMAT):
            raise InputError(f"resume_from_checkpoint: {path} has {other_format(found, FORMAT)}")
        try:
            if found == LISTED:
                content["losses"] = asdict(mean_of(content["losses"]))
            if not (wrong := describe_wrong_field(content, found)):
                return cls.of(content, content.pop("fixed"))
        except (ValueError, KeyError, AttributeError, TypeError):
            wrong = "its running means are not as a run writes them"
        raise InputError(f"resume_from_checkpoint: {path} is damaged: {wrong}; name another checkpoint")


def describe_wrong_field(content: Any, form: Any) -> str:
    """A sentence about the first invalid field of a checkpoint's state; empty without one. `form`: the format."""
    if not isinstance(content, dict):
        return "it holds no JSON object"
    if form not in (LISTED, FORMAT):
        return "it has no `format` that a release has written"
    for name in ("step", "losses", "fixed"):
        if name not in content:
            return f"`{name}` is missing"
    for name in ("step", "tokens_seen", "skipped", "epoch"):
        value = content.get(name, 0)
        if not is_number(value) or value < 0 or not (isinstance(value, int) or name == "epoch"):
            return f"`{name}` is {value!r}"
    for name in ("losses", "told", "reference", "fixed"):
        if not isinstance(content.get(name, {}), dict):
            return f"`{name}` is {content[name]!r:.80}"
    return ""


def mean_of(values: list[float]) -> Mean:
    mean = Mean()
    for value in values:
        mean.add(value)
    return mean


def fixed_keys(config: Config) -> dict[str, Any]:
    """What can be compared before any data is read."""
    return {name: getattr(config, name) for name in FIXED} | {
        "model": config.model,
        "revisions": {key: [getattr(config, key), commit] for key in NAMED if (commit := revision_of(config, key))},
        "model_config": model_config(config),
        "dataset": config.dataset,
    }


def model_config(config: Config) -> str:
    """Identity of the model's config.json; empty where there is none."""
    path = hub.model_directory(config) / "config.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def converted(saved: RunState, config: Config, alone: bool) -> None:
    """A state that stands `alone` is read in any format; from then on the run has the new one."""
    if alone:
        saved.fixed["state_format"] = config.state_format
    elif (before := earlier(saved.fixed, "state_format")) != config.state_format:
        raise InputError(
            f"state_format: the run was started with {before}, and its state lies on the storage paths; a resume "
            f"cannot change it to {config.state_format}. `spillway export` writes a checkpoint that a new run can "
            "go on from in any format"
        )


def check_keys(saved: dict[str, Any], config: Config) -> None:
    """Raises InputError naming the first key that is not as it was. A model or file that only moved is the same."""
    now = fixed_keys(config)
    for name in FIXED:
        before = earlier(saved, name)
        if before is None and now[name] is not None:
            before = MEANT.get(name)
        if before != now[name]:
            raise InputError(
                f"{name}: the run was started with {told(before)}, a resume cannot change it to {told(now[name])}"
            )
    begun, given = saved.get("revisions", {}).get("model"), revision_of(config, "model")
    if begun and given and begun[0] == config.model and begun[1] != given:
        raise InputError(f"model_revision: the run was started with {begun[1]}, a resume cannot change it to {given}")
    before, model = require_entry(saved, "model_config"), require_entry(saved, "model")
    same = before == now["model_config"] if before else model == now["model"]
    if not same:
        raise InputError(changed("model", model, now["model"], "its config.json"))


def told(value: Any) -> str:
    return (" ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def same_durability(before: str, config: Config) -> Config:
    """`config` with the durability that the run had, where none is given. A resume may choose another, but not none."""
    if before == "none":
        return config
    if config.durability is None:
        return config.replaced(durability=before)
    if config.durability == "none":
        raise InputError(
            f"durability: the run's state lies on its storage paths (durability {before}), a resume cannot change that "
            "to none; `spillway export` writes a checkpoint that a new run can go on from"
        )
    return config


def require_entry(saved: dict[str, Any], name: str) -> Any:
    """A value of the run's state. InputError if it is missing."""
    if name not in saved:
        raise InputError(f"resume_from_checkpoint: the state of the run is damaged: `fixed` has no `{name}`")
    return saved[name]


def read_start(saved: dict[str, Any] | None) -> datetime:
    """The start of the run that templates render; for a new run, or one without a stored start, the present time."""
    stored = (saved or {}).get(STARTED)
    try:
        return datetime.fromisoformat(stored) if stored is not None else datetime.now()
    except (ValueError, TypeError):
        raise InputError(
            f"resume_from_checkpoint: the state of the run is damaged: `{STARTED}` of `fixed` is {stored!r}, no time"
        ) from None


def fix_data(fixed: dict[str, Any], config: Config, dataset: Rows, started: datetime | None) -> None:
    """Adds the digests of the rows and of their inputs to a run's `fixed` values, unless they have them. `started`: the
    time that a template rendered."""
    fixed.setdefault("data", dataset.fingerprint())
    fixed.setdefault(ORIGINS, {**dataset.origins, "keys": {name: getattr(config, name) for name in ENCODING}})
    if started is not None:
        fixed.setdefault(STARTED, started.isoformat())


def check_data(saved: dict[str, Any], config: Config, dataset: Rows) -> None:
    """InputError that names what changed: the rows, the tokenizer, the template, a revision, or a key."""
    if "data" not in saved:
        raise InputError(
            f"output_dir: the run in {config.output_dir} was begun by a Session or a Trainer, which gives it its rows; "
            "go on with it there"
        )
    if saved["data"] == dataset.fingerprint():
        return
    before, now = require_entry(saved, "dataset"), config.dataset
    origins = saved.get(ORIGINS)
    if not isinstance(origins, dict) or not dataset.origins:
        raise InputError(changed("dataset", before, now, "its rows, or the tokenizer,"))
    changes = [*describe_changed_revisions(saved, config), *describe_changed_origins(origins, config, dataset, before)]
    raise InputError("; ".join(changes) or changed("dataset", now, now, "the tokens that a template makes of the rows"))


def describe_changed_revisions(saved: dict[str, Any], config: Config) -> list[str]:
    """Sentences with the commits that differ from the run's start."""
    changes = []
    for key, (name, commit) in saved.get("revisions", {}).items():
        revision = revision_of(config, key)
        if key in ("tokenizer", "dataset") and getattr(config, key) == name and revision not in (None, commit):
            changes.append(
                f"{key}_revision: the run was started with {commit}, a resume cannot change it to {revision}"
            )
    return changes


def describe_changed_origins(origins: dict[str, Any], config: Config, dataset: Rows, before: str) -> list[str]:
    """Sentences with the changed inputs of the rows. `before`: the dataset's name at the start of the run."""
    template = ("chat_template_path", config.chat_template_path) if config.chat_template_path else ("tokenizer", None)
    parts = {
        ROWS: ("dataset", before, config.dataset, "the rows"),
        TOKENIZER: ("tokenizer", config.tokenizer, config.tokenizer, "the vocabulary or the rules"),
        TEMPLATE: (template[0], *[template[1] or config.tokenizer] * 2, "the chat template"),
    }
    changes = [changed(*parts[name]) for name in parts if origins.get(name) != dataset.origins.get(name)]
    for name, value in origins.get("keys", {}).items():
        if name in ENCODING and (now := getattr(config, name)) != value:
            changes.append(f"{name}: the run was started with {value}, a resume cannot change it to {now}")
    return changes


def changed(name: str, before: str, now: str, part: str) -> str:
    if before != now:
        return f"{name}: the run was started with {before}, a resume cannot change it to {now}"
    return f"{name}: {part} of {now} changed since the run was started; a resume needs what it was started with"
