"""The teacher of `objective: distill`: a first streamed session, forward only, under the budgets of the run.

It ends before the model's own session begins, so one model streams at a time. What it gives lies with the run
(`output.teacher_files`), and a run that goes on does not ask it again.
"""

from __future__ import annotations

import copy
import hashlib
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway._engine import PlanSummary
from spillway.base.sizes import size
from spillway.config import Config
from spillway.data.dataset import Dataset
from spillway.errors import DoesNotFit, InputError, Interrupted, first_line
from spillway.output.base_files import read_fingerprint
from spillway.output.state import RunState
from spillway.output.teacher_files import TeacherFile, place_of
from spillway.run.protocol import Keeping, Saving, StartPoint
from spillway.run.reference import Pass

if TYPE_CHECKING:
    from spillway.model.batches.batch import WorkShape
    from spillway.run.loop import Work
    from spillway.run.progress import Display
    from spillway.run.session import EngineSession

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


@dataclass(frozen=True)
class Teaching:
    """The teacher's figures for the rows of a run."""

    config: Config
    work: Work
    files: dict[str, TeacherFile]  # by dataset

    @property
    def whole(self) -> bool:
        return all(each.whole for each in self.files.values())

    @property
    def passes(self) -> int:
        """Forward passes that are missing."""
        return sum(len(self._parts(name)) for name, each in self.files.items() if not each.whole)

    @property
    def remaining(self) -> int:
        """Bytes that the files grow by."""
        return sum(each.remaining for each in self.files.values())

    @property
    def rows(self) -> int:
        return sum(len(each.tokens) for each in self.files.values())

    @property
    def stored_rows(self) -> int:
        return sum(each.rows for each in self.files.values())

    @property
    def file_bytes(self) -> int:
        """Size of the files, once they are whole."""
        return sum(each.size for each in self.files.values())

    @property
    def sentence(self) -> str:
        """The sentence that a user reads when the pass begins."""
        rows = self.rows - self.stored_rows
        stored = size(self.file_bytes)
        return f"teacher: a first pass of {self.config.teacher} over {rows} rows; what it gives takes {stored}"

    def open(self, run: str, output_dir: Path, only_plan: bool = False) -> EngineSession:
        """A session of the teacher, planned. DoesNotFit says that it is the teacher's."""
        saving = Saving(output_dir, saves=0, beside=self.remaining)
        try:
            config, shape = teacher_config(self.config), self.work.shape
            return open_forward(config, shape, Keeping(run, saving=saving), only_plan)
        except DoesNotFit as error:
            raise DoesNotFit(f"teacher: {self.config.teacher} does not fit: {error}", error.plan) from error

    def interrupted(self, output_dir: Path, signal: int) -> Interrupted:
        return Interrupted(
            f"interrupted: the teacher has done {self.stored_rows} of {self.rows} rows, which are stored; go on with: "
            f"spillway resume {shlex.quote(str(output_dir))}",
            signal,
        )

    def ask(
        self, run: str, output_dir: Path, begin: Callable[[dict[str, Any]], None], display: Display
    ) -> dict[str, Any]:
        """Computes what is missing; returns `summary`, which `begin` hears before anything is written. DoesNotFit,
        Interrupted."""
        with closing(self.open(run, output_dir)) as session:
            summary = self.summary(session.planned)
            begin(summary)
            display.say(self.sentence)
            try:
                self.compute(session, lambda done, total: display.share(done, total, "rows"))
            except Interrupted as error:
                raise self.interrupted(output_dir, error.exit_code - 128) from None
        return summary

    def compute(self, session: EngineSession, tell: Callable[[int, int], None]) -> None:
        """Computes the missing rows. `session` is planned, and starts here. `tell` receives the rows done, and all
        rows."""
        session.start(StartPoint())
        for name, file in self.files.items():
            if file.whole:
                continue
            parts, data = self._parts(name), self.work.taught[name]
            file.begin(len(data) - sum(len(rows) for group in parts for rows in group))
            for group in parts:
                answers = session.top_tokens([data.batch(rows) for rows in group], file.top_k, self.config.temperature)
                for rows, tokens in zip(group, answers, strict=True):
                    file.add(tokens, len(rows))
                tell(self.stored_rows, self.rows)
            file.end()

    def give(self) -> None:
        """Rows come with what the teacher gave for them from here on."""
        for name, file in self.files.items():
            self.work.taught[name].teacher = file

    def summary(self, plan: PlanSummary | None = None) -> dict[str, Any]:
        """`teacher` of plan.json. `plan`: of the teacher's own session; None: none is needed."""
        summary: dict[str, Any] = {
            "rows": self.rows,
            "tokens": sum(int(each.tokens.sum()) for each in self.files.values()),
            "top_k": self.config.teacher_top_k,
            "bytes": self.file_bytes,
            "passes": self.passes,
        }
        if plan is None:
            return summary
        seconds = plan.predicted_step_seconds
        peaks = {"tiers": [{"name": tier.name, "planned_peak": tier.planned_peak} for tier in plan.tiers]}
        return summary | peaks | ({"predicted_seconds": self.passes * seconds} if seconds else {})

    def _parts(self, name: str) -> list[list[Any]]:
        """The rows of each forward pass that is missing, by micro-batch. A pass that was cut short is done again, so
        that its rows have the same bits."""
        how: Pass = self.work.passes(self.config, name)
        every = how.pairs * how.groups
        return how.parts(self.work.taught[name], self.files[name].rows // every * every)


def find_teaching(config: Config, work: Work, output_dir: Path) -> Teaching:
    """The teacher's stored figures in a run's directory, and the rows that they lack."""
    files = {
        name: TeacherFile(place_of(output_dir, name), header_of(config, data), data.label_counts())
        for name, data in work.taught.items()
    }
    for each in files.values():
        each.find()
    return Teaching(config, work, files)


def header_of(config: Config, data: Dataset) -> dict[str, Any]:
    directory = Path(config.teacher)
    return {
        "data": data.fingerprint(),
        "teacher": read_fingerprint(directory),
        "teacher_config": hashlib.sha256((directory / "config.json").read_bytes()).hexdigest(),
        "top_k": config.teacher_top_k,
        "temperature": config.temperature,
        "compute_dtype": config.compute_dtype,
        "weight_dtype": config.weight_dtype,
    }


def teacher_config(config: Config) -> Config:
    """The run's, of a session that computes the teacher and nothing else. Its weights are kept as `weight_dtype` says,
    and there is next to no other state."""
    return config.replaced(
        model=config.teacher,
        model_revision=None,
        init="pretrained",
        method="full",
        adapter=None,
        trainable=[],
        frozen=[],
        load_in_4bit=False,
        load_in_8bit=False,
        bnb_4bit_use_double_quant=False,
        optim="adamw",
        state_format="exact",
        virtual_ranks=1,
        activation_recompute="all",
        activation_spill="auto",
        durability="none",
        replay_steps=None,
        resume_from_checkpoint=None,
    )


def open_forward(config: Config, shape: WorkShape, keeping: Keeping, only_plan: bool) -> EngineSession:
    """A session that is not trained. The engine plans steps of a model that learns something, so one vector of the last
    layer counts as trainable; nothing updates it."""
    from spillway.model.checkpoint.ties import build_as_stored
    from spillway.model.source import hub
    from spillway.model.source.source import DTYPES, load_config
    from spillway.run.session import EngineSession

    directory = hub.model_directory(config)
    model_config = load_config(directory)
    types = (DTYPES[config.compute_dtype], DTYPES[config.weight_dtype])
    meta_model = build_as_stored(copy.deepcopy(model_config), directory, *types).meta_model
    smallest = min(meta_model.layers[-1].parameters(), key=lambda parameter: parameter.numel())
    every = {meta_model.names[id(parameter)] for parameter in meta_model.model.parameters()}
    frozen = every - {meta_model.names[id(smallest)]}
    return EngineSession(config, shape, keeping=keeping, only_plan=only_plan, frozen=frozen)


def check_teacher(config: Config, tokenizer: Any, vocabulary: Any) -> None:
    """InputError where the teacher cannot judge the model's tokens. `vocabulary`: entries of the model's."""
    from spillway.model.source.source import load_config, text_config

    size = getattr(text_config(load_config(Path(config.teacher))), "vocab_size", None)
    if size != vocabulary:
        raise InputError(
            f"teacher: {config.teacher} has a vocabulary of {size} entries, and {config.model} one of {vocabulary}; "
            "name a teacher with the model's vocabulary"
        )
    if config.teacher_top_k > int(vocabulary):
        raise InputError(
            f"teacher_top_k: {config.teacher_top_k} are more than the {vocabulary} entries of the vocabulary; give "
            f"{vocabulary} or fewer"
        )
    if words := describe_other_tokens(config, tokenizer):
        raise InputError(
            f"teacher: the tokenizer of {config.teacher} {words}; name a teacher with the model's tokenizer"
        )


def describe_other_tokens(config: Config, tokenizer: Any) -> str:
    """A sentence's end with the first token that is another one of the teacher's tokenizer; empty where none is. A
    directory without a tokenizer has the model's."""
    from transformers import AutoTokenizer

    if not any((Path(config.teacher) / name).is_file() for name in TOKENIZERS):
        return ""
    try:
        other = AutoTokenizer.from_pretrained(config.teacher, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises whatever its readers raise
        return f"cannot be loaded: {first_line(error)}"
    own, others = tokenizer.get_vocab(), other.get_vocab()
    differing = sorted(token for token in own.keys() | others.keys() if own.get(token) != others.get(token))
    if not differing:
        return ""
    token = differing[0]
    return f"has {token!r} as token {others.get(token, 'none')}, and the model's has it as {own.get(token, 'none')}"


def refuse_lost(teaching: Teaching) -> InputError:
    """The refusal of a run that has made steps, and whose state lies where a teacher would have to stream."""
    lost = next(each for each in teaching.files.values() if not each.whole)
    return InputError(
        f"teacher: {lost.path} does not hold what the run's teacher gave for these rows before the first step "
        f"({lost.rows} of {len(lost.tokens)} rows are as they were); put the file back, or the data, or begin anew "
        "with `--overwrite`"
    )


def require_same(state: RunState, taught: Mapping[str, Dataset]) -> None:
    """InputError where a teacher gives these rows something else than when the run was started."""
    for name, data in taught.items():
        digest = "" if data.teacher is None else data.teacher.digest
        if state.step and state.reference.get(name, digest) != digest:
            raise InputError(
                f"teacher: what is stored for the rows of {name} differs from what the run was started with; put the "
                "teacher's files or the stored ones back, or begin anew with `--overwrite`"
            )
        state.reference[name] = digest


def plan_pass(config: Config, work: Work, output_dir: Path) -> tuple[dict[str, Any], int]:
    """`teacher` for plan.json, and the bytes that it stores. DoesNotFit where the teacher has no room."""
    teaching = find_teaching(config, work, output_dir)
    if teaching.whole:
        return {"teacher": teaching.summary()}, 0
    with closing(teaching.open("plan", output_dir, only_plan=True)) as session:
        return {"teacher": teaching.summary(session.planned)}, teaching.remaining
