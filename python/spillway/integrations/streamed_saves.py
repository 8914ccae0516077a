"""A Trainer's checkpoints: the engine's weights and state in place of the library's."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from spillway.integrations.durable import SAVING, keep_newest, payload, saving
from spillway.integrations.loading import LOGGER
from spillway.integrations.streamed_session import StreamedSession
from spillway.model.source import hub
from spillway.model.source.source import DTYPES, copy_processors, set_dtype
from spillway.output import checkpoints, saved, unsaved
from spillway.output.position import random_name
from spillway.run.start_points import STATE
from spillway.run.trial_save import Save, try_files

SCHEDULER = "scheduler.pt"
ARGUMENTS = "training_args.bin"


class StreamedSaves(StreamedSession):
    """Writes and reads checkpoints; where a save fails, the state stays on the storage paths."""

    _saving_in: str | None  # instead of output_dir

    def _get_output_dir(self, *positional: Any, **named: Any) -> str:
        return self._saving_in or super()._get_output_dir(*positional, **named)  # type: ignore[misc, no-any-return]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """All processes call it; rank 0 writes."""
        with self._end_together():
            if self._world.leads:
                super().save_model(output_dir, _internal_call)  # type: ignore[misc]
            else:
                self._save(output_dir)
            self._world.gather(None)

    def _save_checkpoint(self, *positional: Any, **named: Any) -> None:
        state: Any = self.state  # type: ignore[attr-defined]
        run, release = self._run, self.session.release
        trial = named["trial"] if "trial" in named else (*positional, None, None)[1]
        output_dir = Path(super()._get_output_dir(trial=trial))  # type: ignore[misc]
        leads = self._world.leads
        if self.args.push_to_hub:  # the library uploads from the directory of the save
            super()._save_checkpoint(*positional, **named)  # type: ignore[misc]
            if leads:
                saved.record_files(output_dir / f"checkpoint-{state.global_step}")
            return None
        written = run.saving(self) if run else saving(output_dir, release, lambda made: None)
        with written if leads else nullcontext(output_dir / SAVING) as place:
            self._saving_in = str(place)
            try:
                super()._save_checkpoint(*positional, **named)  # type: ignore[misc]
            finally:
                self._saving_in = None
            best = Path(state.best_model_checkpoint or "")
            if leads and best.parent == place:
                state.best_model_checkpoint = os.path.join(output_dir, best.name)
                state.save_to_json(str(best / "trainer_state.json"))
        limit, chosen = self.args.save_total_limit, state.best_model_checkpoint
        if leads and run is not None:
            run.keep_newest(limit, chosen)
        elif leads:
            keep_newest(output_dir, limit, chosen, release)
        state.best_model_checkpoint = self._world.agreed(lambda: chosen)
        return None

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        place = Path(output_dir or self.args.output_dir)
        if self._world.leads:
            self._write(place)
        else:
            self.session.save_model(place)
        if place == Path(self.args.output_dir):
            self._saved = self.state.global_step  # type: ignore[attr-defined]

    def _write(self, place: Path) -> None:
        with self._leave_on_failure():
            place.mkdir(parents=True, exist_ok=True)
            self.session.save_model(place)
            if not self._adapted:
                self._save_configs(place)
            tokenizer = self._find_tokenizer()
            if tokenizer is not None:
                tokenizer.save_pretrained(place)
            torch.save(self.args, place / ARGUMENTS)
            if self._saving_in is None:
                saved.record_files(place, (*checkpoints.MODEL_FILES, ARGUMENTS))
                checkpoints.flush_files(place)
        if self._saving_in is None:
            self._take_back()

    def write_for_server(self, place: Path) -> None:
        self.session.save_model(place)
        if not self._adapted:
            self._save_configs(place)
        if (tokenizer := self._find_tokenizer()) is not None:
            tokenizer.save_pretrained(place)

    @contextmanager
    def _leave_on_failure(self) -> Iterator[None]:
        """A failure to save leaves the state on the storage paths and says so."""
        try:
            yield
        except Exception as error:
            if self._world.ranks.world == 1:
                LOGGER.error(f"{unsaved.why(error)}. {self._leave()}")
            raise

    def _leave(self) -> str:
        session, position = self.session, self._run.position if self._run is not None else None
        assert self._session_run is not None
        try:
            words = self._session_run.leave_state(session, payload(position))
            self._left = True
            return f"The step is not saved, but {words}"
        except Exception as error:
            words = "The session still has the state: save_model() elsewhere before it closes"
            return f"{self._save_weights_alone()}{words} ({unsaved.why(error)})"

    def _save_weights_alone(self) -> str:
        """Saves the weights alone, as no storage path has the state. Returns a notice; empty on failure."""
        step = self.state.global_step  # type: ignore[attr-defined]
        place = Path(self.args.output_dir) / f"weights-of-step-{step}"
        with suppress(Exception):
            checkpoints.write_directory(place, self.session.save_weights_alone)
            return f"The weights of step {step} alone are saved in {place}. "
        return ""

    def _save_configs(self, directory: Path) -> None:
        for _, save in self._config_files():
            save(directory)

    def _config_files(self) -> list[tuple[str, Save]]:
        """The files beside the weights: the name of each in errors, and the function that saves it."""
        source = hub.model_directory(self._origin.config)
        files: list[tuple[str, Save]] = [(str(source / "config.json"), self._save_config)]
        if self.model.can_generate():
            files.append(("model.generation_config", self.model.generation_config.save_pretrained))
        return [*files, (str(source), lambda directory: copy_processors(source, directory))]

    def _save_config(self, directory: Path) -> None:
        saved = copy.deepcopy(self.model.config)
        set_dtype(saved, DTYPES[self._origin.config.weight_dtype])
        saved.architectures = [type(self.model).__name__]
        saved.save_pretrained(directory)

    def _try_save(self) -> None:
        """Tries what a save writes beside the weights, before the first step."""
        if not self._world.leads:
            return
        saves = [] if self._adapted else self._config_files()
        tokenizer = self._find_tokenizer()
        if tokenizer is not None:
            saves.append(("processing_class", tokenizer.save_pretrained))
        saves.append(("TrainingArguments", lambda place: torch.save(self.args, place / ARGUMENTS)))
        try_files(saves)

    def _find_tokenizer(self) -> Any:
        return self.processing_class or getattr(self.data_collator, "tokenizer", None)  # type: ignore[attr-defined]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        with self._leave_on_failure():
            self.session.save_state(Path(output_dir))
            if not self._world.leads:
                return
            if self._pairs is not None:
                self._pairs.save(Path(output_dir))
        self._record_experts()
        torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER))  # type: ignore[attr-defined]

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves the random state of every process, in rank 0's files."""
        if self._world.ranks.world == 1:
            return self._save_own_rng_state(output_dir)
        with tempfile.TemporaryDirectory() as own:
            self._save_own_rng_state(own)
            every = self._world.gather(
                Path(own, random_name(self.args.world_size, self.args.process_index)).read_bytes()
            )
        for rank, content in enumerate(every) if self._world.leads else ():
            Path(output_dir, random_name(len(every), rank)).write_bytes(content)
        return None

    def _save_own_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)  # type: ignore[misc]

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._run is not None:
            return  # the session is at that step
        checkpoint = Path(resume_from_checkpoint)
        self._reopen_from(checkpoint, with_state=(checkpoint / STATE / "session.json").is_file())

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """The optimizer's part has come with the session, but for the rates that the schedule had reached."""
        path = Path(checkpoint or "", SCHEDULER)
        if checkpoint is None or not path.is_file():
            return
        schedule: Any = self.lr_scheduler  # type: ignore[attr-defined]
        schedule.load_state_dict(torch.load(path, weights_only=True))
        if hasattr(schedule, "get_last_lr"):
            for group, rate in zip(self.optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group["lr"] = rate
