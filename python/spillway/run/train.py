"""From a configuration to a finished run: look at everything first, start second, write last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from spillway.base import stages, streams
from spillway.base.documents import make_document, read_json
from spillway.config import Config, normalised, read_file, resolve
from spillway.config.checks import check, check_model, check_required
from spillway.config.values import MOST_STEPS
from spillway.data.order import Order
from spillway.data.prompts import Prompts
from spillway.errors import InputError, Interrupted, SpillwayError
from spillway.machine import auto, process_memory, products
from spillway.model.batches.batch import WorkShape
from spillway.model.source import hub
from spillway.output import checkpoints, directory, saved, state, volumes
from spillway.output.directory import Start
from spillway.output.identity import Identity
from spillway.output.known_runs import load_identity
from spillway.output.state import RunState
from spillway.output.summary import describe_skipped_run, endurance
from spillway.report import tables
from spillway.run import beginning, image_rows, publication, reference, room, sampling, teacher
from spillway.run.alike import places, same
from spillway.run.interruption import Interruption
from spillway.run.lateness import account
from spillway.run.leaving import close_after_failure
from spillway.run.loop import Loop, Work
from spillway.run.machines import described, plan_elsewhere, refuse_elsewhere
from spillway.run.progress import Display
from spillway.run.protocol import Keeping, Recovery, Saving, SessionProtocol
from spillway.run.rows import open_source, read_model_config
from spillway.run.run import Run, open_run
from spillway.run.teacher import Teaching
from spillway.run.trial_save import try_save
from spillway.run.world import OneProcess, World, opened

Tell = Callable[[str], None]


def train(config: Config | Mapping[str, Any] | str | Path, **values: Any) -> dict[str, Any]:
    """Runs `spillway train`; `values` are keys beside the file's. Returns the content of summary.json. Every process
    that a launcher has started, or that belongs to a process group of torch.distributed, calls it alike.

    Raises errors.InputError, errors.DoesNotFit, errors.Interrupted (state saved) or errors.SpillwayError.
    """
    if isinstance(config, Config):
        config = config.values() | ({"virtual_ranks": None} if config.any_ranks else {})
    with streams.guard(), opened() as world:
        file_values = normalised(config, "config") if isinstance(config, Mapping) else read_file(Path(config))
        name = "config" if isinstance(config, Mapping) else str(config)
        return train_config(resolve(file_values, normalised(values, "train()"), name), Console(), world)


def train_config(config: Config, console: Console, world: World | None = None) -> dict[str, Any]:
    """`world`: of the run's processes, all of which call this; None: there is one."""
    world = world or OneProcess()
    config, known, _ = beginning.load_existing_run(config, world)
    config = beginning.restrict_to_one_process(config, known, world)
    check(config)
    publication.require_token(config)
    refuse_elsewhere(config)
    places(world, config)
    display = Display(console if world.leads else Console(quiet=True), endurance(config))
    with Interruption() as interruption:
        world.held, interruption.speaks = interruption.held, world.leads
        with beginning.hold_directory(config, world, display.note):
            run = open_run(config, world, display.note, display.open_log)
            saved = run.load_state()
            run.config = beginning.resolve_auto_keys(run.config, world, display.note)
            training = Training(run, saved, display, interruption)
            summary = training.go()
            if run.config.push_to_hub and world.leads:
                training.publish()
            world.gather(None)  # a signal during the wait for other processes' last files changes nothing
            return summary


def plan_config(
    config: Config, tell: Tell, graph: Path | None = None, show: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """The plan that `train` would follow. Nothing is started; raises DoesNotFit with the refused plan. `graph`: a file
    for the picture of a step, SVG or, by its ending, Graphviz's; nothing else is written. `show` gets the plan as soon
    as it is made, without the answers for other settings, which take longer."""
    if config.profile is not None and (profile := elsewhere(config)):
        if config.objective_entry.has_teacher:
            tell("teacher: the plan of a described machine leaves the teacher's pass out")
        return plan_elsewhere(config, profile, tell, graph, show)
    check(config, required=("model", "dataset"))
    named = config.output_dir is not None
    config = config.replaced(output_dir=config.output_dir or str(Path.cwd()))  # nothing is written there
    fixed: dict[str, Any] | None = None
    if (
        named
        and config.resume_from_checkpoint
        and (known := load_identity(Path(config.output_dir), paths=config.paths))
        and known.fixed
    ):
        fixed = known.fixed
        config = state.same_revisions(fixed, state.same_products(fixed, config))
    stages.say("reading the configuration")
    config = hub.resolve_commits(auto.settled(beginning.same_device(config) if named else config), tell)
    stages.say("reading tokenizer and data")
    work = load_work(config, tell, state.read_start(fixed))
    try_save(config, read_model_config(config), work.tokenizer)
    stages.say("building the model without weights")
    output_dir = Path(config.output_dir)
    run = Run(config, predict_start(config, output_dir, named), Identity("plan"))
    taught, stored = teacher.plan_pass(config, work, output_dir) if work.taught else ({}, 0)
    most = count_checkpoints(config, work, run.manifests() if config.resume_from_checkpoint else [])
    kept = run.keep(most, saving(run, work, 0, stored) if named else None)
    with work.explain_refusals():
        session = open_session(config, work.shape, kept, only_plan=True)
    try:
        session.plan.update(taught)
        if graph is not None:
            graph.write_text(session.graph(graph.suffix[1:]), encoding="utf-8")
        for notice in session.list_plan_notices():
            tell(notice)
        show(session.plan)
        stages.say("planning what else fits")
        return session.plan | make_document(session.what_fits())
    finally:
        session.close()


def elsewhere(config: Config) -> str | None:
    """The profile of another machine that a plan is asked for."""
    check_required(config, ("model",))
    check_model(config)
    return described(config) or described(config, "machines")


@dataclass
class Training:
    """One call of train, its arguments checked as far as they can be without reading data."""

    run: Run
    saved: RunState | None  # `run.load_state()`
    display: Display
    interruption: Interruption
    taught: dict[str, Any] = field(default_factory=dict)  # `teacher` of plan.json

    def __post_init__(self) -> None:
        self.config, self.world, self.output_dir = self.run.config, self.run.world, self.run.output_dir

    def go(self) -> dict[str, Any]:
        started = self.world.agreed(lambda: state.read_start(self.saved.fixed if self.saved else None))
        work = load_work(self.config, self.display.note, started)
        try_save(self.config, read_model_config(self.config), work.tokenizer)
        if self.world.ranks.world > 1:
            same(self.world, {"dataset": work.train.fingerprint()})
        self.state = self.saved or RunState(fixed=state.fixed_keys(self.config))
        if self.saved:
            state.check_data(self.saved.fixed, self.config, work.train)
        state.fix_data(self.state.fixed, self.config, work.train, work.started)
        held, start = self.run.manifests(), self.run.start
        self.run.open_trackers()
        loop = Loop(self.run, work, self.state, self.display, self.interruption)
        if start.resume and self.world.agreed(loop.complete):
            return self.already_complete(work, start.resume)
        if start.resume and not start.durable:
            loop.find_references()
        if work.taught:
            self.teach(work, held)
        with work.explain_refusals():
            session = open_session(self.config, work.shape, self.keep(work, held), world=self.world)
        with close_after_failure(
            self.world,
            session.close,
            describe_state=lambda error: self.leave(loop, error),
            is_announced=lambda: self.interruption.together,
        ):
            session.plan.update(self.taught)
            if self.world.leads:
                room.require_file_size(self.config, session.description)
            summary = self.train(loop, session)
        session.close()
        if self.world.leads and (page := self.run.write_report()):
            self.display.say(f"The report is {page}.")
        return summary

    def keep(self, work: Work, held: list[tuple[int, Path]], stored: int = 0) -> Keeping:
        """`held`: checkpoints whose state lies on the storage paths; `stored`: bytes of a teacher that are to come."""
        most = count_checkpoints(self.config, work, self.stay(held))
        return self.run.keep(most, saving(self.run, work, self.state.step, stored) if self.world.leads else None)

    def teach(self, work: Work, held: list[tuple[int, Path]]) -> None:
        """Rows come with what the teacher gives for them: it is stored, or the teacher's session computes it here."""
        teaching = teacher.find_teaching(self.config, work, self.output_dir)
        summary = teaching.summary()
        if not teaching.whole:
            summary = self.ask_teacher(teaching, held)
            process_memory.give_back()  # the run's own session is planned beside what stays
        teaching.give()
        self.taught = {"teacher": summary}

    def ask_teacher(self, teaching: Teaching, held: list[tuple[int, Path]]) -> dict[str, Any]:
        """Computes what is missing; returns `teacher` of plan.json. The run's own plan and the teacher's are refused
        before anything is written."""
        run = self.run
        if run.start.from_paths:
            raise teacher.refuse_lost(teaching)
        own = open_session(self.config, teaching.work.shape, self.keep(teaching.work, held, teaching.remaining))
        own.close()

        def begin(found: dict[str, Any]) -> None:
            own.plan["teacher"] = found
            directory.prepare(run.start, fresh=run.start.resume is None)
            run.start = replace(run.start, clear=False)
            run.identity.fixed = self.state.fixed  # with durability none, until the run's own volumes are there
            run.write_description(own)

        return teaching.ask(run.identity.run, run.output_dir, begin, self.display)

    def leave(self, loop: Loop, error: BaseException) -> str:
        """Words about the state of a run that a failure ends. Empty where the failure says all, and for several
        processes, which need each other for a save."""
        if self.world.ranks.world > 1:
            return ""
        return loop.leave() if isinstance(error, Exception) and not isinstance(error, Interrupted) else ""

    def stay(self, held: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
        """The checkpoints on the paths that are kept: those that came after one that is gone back to are removed."""
        named = self.run.start.resume is not None and not self.run.start.durable
        return [(step, path) for step, path in held if not named or step <= self.state.step]

    def already_complete(self, work: Work, resume: Path) -> dict[str, Any]:
        output_dir = self.output_dir
        done, asked = self.state.step, work.steps
        past = f" The configuration asks for {asked}." if done > asked else ""
        self.display.say(f"The run is complete: step {done} of {max(done, asked)} is in {resume}.{past}")
        if self.world.agreed(lambda: resume.resolve().parent == output_dir.resolve()):
            self.end_again(output_dir, resume)
        try:
            return dict(read_json(output_dir / "summary.json"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            self.display.note(f"summary.json cannot be read: {error}")
            return {}

    def end_again(self, output_dir: Path, last: Path) -> None:
        """Does the work at the end of a run for a run that was killed in the middle of it. `last`: its last
        checkpoint."""
        alone = not self.world.agreed(lambda: directory.manifests(output_dir))
        if self.world.leads:
            checkpoints.publish(last, output_dir)
            if alone:
                directory.prepare(self.run.start, fresh=False)
        name = self.run.identity.run
        for volume in volumes.of_run(self.config.paths, name) if alone else ():
            volumes.remove(volume, name)

    def train(self, loop: Loop, session: SessionProtocol) -> dict[str, Any]:
        self.display.show(lambda console: tables.show_plan(console, session.plan))
        self.identify(loop.work)
        if self.config.push_to_hub:
            self.world.agreed(lambda: publication.make_repository(self.config))
        run = self.run
        recovery = run.restore(session, self.display.say)
        if recovery:
            self.state = loop.state = RunState.of(recovery.state, self.state.fixed)
        for notice in session.notices():
            self.display.note(notice)
        self.interruption.finish_steps()
        if session.planned.durability == "step":
            self.interruption.steps_are_durable()
        run.begin(session, recovery, self.state.step, self.state.moving())
        if run.goes_on(recovery):
            self.tell_recovery(recovery)
        loop.train(session, self.world.agreed(self.checkpoint_of_step))
        return self.finish(loop, session)

    def identify(self, work: Work) -> None:
        identity = self.run.identity
        identity.fixed, identity.steps, identity.steps_per_epoch = (
            self.state.fixed,
            work.steps,
            work.order.steps_per_epoch,
        )

    def tell_recovery(self, recovery: Recovery | None) -> None:
        if recovery and recovery.words:
            self.display.say(recovery.words)
        start = self.run.start
        named = start.resume is not None and (recovery is None or not start.durable)
        source = start.resume if named else "the storage paths"
        self.display.say(f"going on after step {self.state.step}, from {source}")

    def checkpoint_of_step(self) -> Path | None:
        """The checkpoint that holds the step the run starts from."""
        if self.state.step == 0:
            return None
        own = self.output_dir / f"checkpoint-{self.state.step}"
        if own.is_dir():
            return own
        return self.run.start.resume if self.saved is not None and self.state is self.saved else None

    def finish(self, loop: Loop, session: SessionProtocol) -> dict[str, Any]:
        summary = loop.summary(session)
        if self.world.ranks.world > 1:
            own = account(self.world.ranks.rank, session.measured(), self.world.waited())
            summary["ranks"] = self.world.gather(own)
        self.run.write_summary(session, summary)
        self.display.show(lambda console: tables.show_summary(console, summary))
        if session.planned.durability != "none":
            self.leave_volumes(session)
        self.require_an_update()
        self.display.say(f"The model is in {self.output_dir}.")
        return summary

    def require_an_update(self) -> None:
        """SpillwayError if every step was skipped."""
        if words := describe_skipped_run(self.state.step, self.state.skipped):
            raise SpillwayError(f"{words}. The model in {self.output_dir} is the one that the run began with")

    def publish(self) -> None:
        """Uploads the model that the run has ended with."""
        repository = publication.make_repository(self.config)
        self.display.say(f"uploading the model to {repository}")
        self.display.say(f"The model is at {publication.upload(self.config, repository)}.")

    def leave_volumes(self, session: SessionProtocol) -> None:
        """Removes or keeps the volumes of a finished run."""
        if not self.run.give_up_volumes(session) and (there := volumes.present(self.config.paths)):
            self.display.say(
                f"Its state stays in {', '.join(map(volumes.told, there))}: the checkpoints need it to go on from. "
                "`spillway export` writes one that stands alone; deleting the checkpoint directories and the volumes "
                "frees the space."
            )


def count_checkpoints(config: Config, work: Work, held: list[tuple[int, Path]]) -> int:
    """The most checkpoints that hold places on the storage paths at once; `held`: those that do already."""
    saves = {step for step in work.events.list_saves(0) if step < work.steps and not work.events.whole_due(step)}
    count = len(saves | {step for step, _ in held})
    if config.save_total_limit is not None:
        count = min(count, max(config.save_total_limit, len(held)) + 1)
    return len(held) if config.save_only_model else count


def saving(run: Run, work: Work, begun: int, stored: int = 0) -> Saving:
    """The saves that come after step `begun`, or after the newest checkpoint where a later durable step is continued.
    `stored`: bytes of a teacher that are to come."""
    config, start = run.config, run.start
    if start.resume is None or start.durable:
        begun = max([begun, *(step for step, _ in directory.checkpoints(start.output_dir) if not start.clear)])
    events = work.events
    saves, rows = [run.alone or events.whole_due(step) for step in events.list_saves(begun)], events.count_rows()
    return room.estimate_saving(config, start, begun, saves, rows, work.reference_values * reference.ROW_BYTES, stored)


def predict_start(config: Config, output_dir: Path, named: bool) -> Start:
    """The start that `train` would make there, were nothing refused. `named`: `output_dir` is the run's."""
    goes_on = bool(config.resume_from_checkpoint)
    durable = named and goes_on and bool(directory.durable_volumes(config, output_dir))
    return Start(output_dir, None, durable, clear=named and not goes_on and bool(directory.run_files(output_dir)))


def load_work(config: Config, tell: Tell, started: datetime | None = None) -> Work:
    """The work of a session, which its plan depends on. Bad data is refused here. `started`: the start of the run;
    None: now."""
    from spillway.run import rates
    from spillway.run.events import Events

    for notice in products.warnings(config):
        tell(notice)
    saved.check_files(hub.model_directory(config), key="model")
    source = open_source(config, started)
    if config.objective_entry.has_teacher:
        teacher.check_teacher(config, source.tokenizer, source.vocabulary)
    train_rows = source.load("dataset", tell)
    held_out = source.load("eval_dataset", tell) if config.eval_dataset else None
    sampler = None
    if isinstance(train_rows, Prompts):
        sampler = sampling.open_sampler(config, train_rows, source.tokenizer, source.model)
    order = make_order(config, len(train_rows))
    steps = count_steps(config, order)
    most = sampling.count_most(config, len(train_rows)) if sampler else len(train_rows)
    shape = WorkShape(
        micro_batches=min(config.gradient_accumulation_steps, math.ceil(most / config.per_device_train_batch_size)),
        batch=config.rows_each * min(config.per_device_train_batch_size, most),
        length=train_rows.longest,
        eval_batch=config.rows_each * min(config.per_device_eval_batch_size, len(held_out)) if held_out else 0,
        eval_length=held_out.longest if held_out else 0,
        packed_rows=train_rows.packed_rows,
        teacher_top_k=config.teacher_top_k or 0,
        largest_images=image_rows.find_largest(config, train_rows, held_out),
        refers=config.refers_in_step,
        between=sampler.memory.on_host if sampler else 0,
        between_on_device=sampler.memory.on_device if sampler else 0,
    )
    assert not isinstance(held_out, Prompts)
    rate, events = rates.schedule(config, steps), Events(config, order, steps)
    told = source.clock.started if source.clock.is_read else None
    work = Work(train_rows, held_out, source.tokenizer, order, rate, events, shape, told, sampler)
    if not work.preferences:
        return work
    passes = sum(len(work.passes(config, name).parts(data, 0)) for name, data in work.preferences.items())
    return replace(work, shape=replace(shape, pairs=work.pairs, passes=passes))


def count_steps(config: Config, order: Order) -> int:
    """The steps of the run. InputError for more than a run can count."""
    key = "max_steps" if config.max_steps > 0 else "num_train_epochs"
    each = 1 if config.max_steps > 0 else order.steps_per_epoch
    given = getattr(config, key)
    if given * each > MOST_STEPS:
        raise InputError(f"{key}: got {given}, and a run has at most {MOST_STEPS} steps; give less")
    return order.steps(config.max_steps, config.num_train_epochs)


def make_order(config: Config, rows: int) -> Order:
    """The order of the rows; of a run that samples, that of its prompts."""
    if config.reward_funcs:
        return Order(rows, sampling.count_prompts(config), 1, config.data_seed)
    iterations = config.num_iterations or 1
    return Order(
        iterations * rows,
        config.per_device_train_batch_size,
        config.gradient_accumulation_steps,
        config.data_seed,
        config.objective_entry.is_sequential,
        iterations,
    )


def open_session(
    config: Config, shape: WorkShape, keeping: Keeping, only_plan: bool = False, world: World | None = None
) -> SessionProtocol:
    """Plans; raises DoesNotFit. The engine is imported here, since that is slow and large."""
    module = import_module("spillway.run.session")
    several = {} if world is None or world.ranks.world == 1 else {"world": world}
    session: SessionProtocol = module.EngineSession(config, shape, keeping=keeping, only_plan=only_plan, **several)
    return session
