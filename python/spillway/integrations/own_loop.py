"""`spillway.Session`: a run for a training loop of your own.

    with spillway.Session(model="./Qwen2.5-1.5B", storage=["/mnt/nvme/spillway"], dram_budget="4GiB",
                          learning_rate=1e-5, max_steps=1000, max_length=1024,
                          per_device_train_batch_size=1, gradient_accumulation_steps=8) as session:
        for micro_batches in my_batches:            # dictionaries of input_ids and labels
            metrics = session.step(micro_batches)   # loss, grad_norm, learning_rate ...
        session.save("tuned")

In several processes, which a launcher has started, each gives its own micro-batches, as with DistributedDataParallel,
and all make the same calls in the same order; a step is over the micro-batches of all of them.

With an `output_dir` it is a run as `spillway train` makes one: a bar on a terminal, its metrics in metrics.jsonl and
for `report_to`, finished steps durable where its state lies on a path, `resume_from_checkpoint` goes on with it, and
when it closes it leaves summary.json, timeline.json.gz, loss.png and report.html.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spillway.base import streams
from spillway.base.sums import Mean, add_told
from spillway.config import Config
from spillway.errors import InputError, SpillwayError
from spillway.integrations.own_loop_parts import MicroBatch, check_count, name_columns, refuse_a_run, same_place
from spillway.integrations.own_loop_run import OwnRun
from spillway.output import checkpoints, left, saved, unsaved
from spillway.output.summary import perplexity
from spillway.run.leaving import close_after_failure, close_all, close_in_order
from spillway.run.world import interleaved, joined

if TYPE_CHECKING:
    from spillway.model.source.own import Blocks
    from spillway.run.run import Run

SAVE_AGAIN = "the session still has the state: save it to another directory before it closes"


class Session(OwnRun):
    """Construction plans (DoesNotFit, InputError) and allocates nothing; `open`, or `with`, or the first use starts."""

    def __init__(
        self,
        config: Config | Mapping[str, Any] | str | Path | None = None,
        module: Blocks | None = None,
        images: MicroBatch | None = None,
        **values: Any,
    ) -> None:
        """Keys as everywhere; `values` win. The largest step is `gradient_accumulation_steps` micro-batches of
        `per_device_train_batch_size` rows of `max_length` tokens; evaluations take `per_device_eval_batch_size` rows
        where that is given, else as many. `module`: code of your own, whose weights lie in the directory `model`, as
        safetensors under the names of its state_dict; None: transformers' own, by the config.json there. `images`: a
        micro-batch with the largest images there will be; None: rows are text."""
        streams.open_missing()
        self._world = joined(stays=True)
        self._opened = self._closed = False
        self._lock = None
        try:
            with self._end_together():
                self._plan(config, module, images, values)
        except BaseException:
            self._unlock()
            raise

    @property
    def steps(self) -> int:
        """Done so far, those before a resume too: how far a loop has to skip in its data."""
        return self._state.step

    @property
    def model(self) -> Any:
        """The model as it is now, to be called (`model(input_ids).logits`) and for `model.generate(input_ids)`. Every
        pass streams its layers, so text comes slowly. Good until the session closes."""
        if self._config.objective_entry.has_head:
            raise InputError("model: scores are computed in steps and evaluations alone; save() writes the model")
        return self.open()._engine.model

    def open(self) -> Session:
        """Maps the memory, opens the storage paths, loads weights or what the run goes on from. Once."""
        if self._opened:
            return self
        self._opened = True
        with (
            self._end_together(),
            close_after_failure(self._world, self._let_go, is_announced=lambda: self._world.ended),
        ):
            if self._run is None:
                self._session_run.restore(self._engine)
            else:
                self._begin(self._run)
        self._tell_notices()
        return self

    def step(self, batches: MicroBatch | Sequence[MicroBatch], learning_rate: float | None = None) -> dict[str, Any]:
        """One optimizer step over one micro-batch or several, of each process; the row of metrics.jsonl.
        `learning_rate`: instead of the schedule's."""
        with self._end_together():
            most = self._shape.micro_batches
            taken = interleaved(self._parts("step", self._take_batches(batches, most)))
            check_count(len(taken), 1, most)
            rate = self._rate(self._state.step) if learning_rate is None else learning_rate
            engine = self.open()._engine
            self._take_back()
            result = engine.step(taken, rate)
            return self._record(result, sum(batch.tokens for batch in taken), rate)

    def reference(self, batches: MicroBatch | Iterable[MicroBatch]) -> list[dict[str, Any]]:
        """The micro-batches of pairs with two more columns, `ref_chosen_logps` and `ref_rejected_logps`, [pairs] fp64.
        The columns are the log-probabilities that the current model gives their rows. For `objective: dpo`, before the
        first step.

        A micro-batch of pairs is what TRL's DataCollatorForPreference makes: input_ids, attention_mask and
        completion_mask, [rows, length], rows that were chosen and then as many that were rejected. `step` and
        `evaluate` take those that have both columns, of this model or of any other. With new adapters they also take
        micro-batches without the columns, and compute the reference by the base. A run that is resumed is not its
        reference any more: keep what this returns, with `torch.save`."""
        if not self._config.objective_entry.has_reference:
            raise InputError(f"reference: it is for objective dpo, and the objective is {self._config.objective}")
        self.open()
        if self._state.step:
            raise InputError(
                f"reference: the reference is the model before the first step, and this one has made "
                f"{self._state.step}; give the micro-batches that it returned then"
            )
        referred: list[dict[str, Any]] = []
        with self._end_together():
            for batch, parts in self._rounds("reference", batches, referred=False):
                rows = self._engine.log_probabilities(interleaved(parts))
                if batch is not None:
                    referred.append({**batch, **name_columns(rows[sum(map(len, parts[: self._world.ranks.rank]))])})
        return referred

    def evaluate(self, batches: MicroBatch | Iterable[MicroBatch]) -> dict[str, Any]:
        """Loss over all label tokens of all batches, those of other processes too: eval_loss, eval_perplexity,
        label_tokens. Of pairs eval_loss, what TRL tells besides (eval_rewards/margins ...), pairs. Of a classifier
        eval_loss, eval_accuracy, labels."""
        self.open()
        sums, count = [], 0
        means: dict[str, Mean] = {}
        with self._end_together():
            for _, parts in self._rounds("evaluate", batches):
                for loss_sum, units in self._engine.evaluate_each(interleaved(parts)):
                    sums.append(loss_sum)
                    count += units
                if self._unit != "label_tokens":
                    add_told(means, self._engine.list_figures())
        if not count:
            raise InputError("batch: nothing to evaluate, no token has a label")
        loss = math.fsum(sums) / count
        figures = {"eval_loss": loss}
        if self._unit == "label_tokens":
            figures["eval_perplexity"] = perplexity(loss)
        figures |= {f"eval_{name}": mean.value() for name, mean in means.items()}
        self._log({"step": self._state.step, **figures})
        return {**figures, self._unit: count}

    def save(self, to: str | Path | None = None) -> Path:
        """The model as `from_pretrained` reads it, in `to` or else in `output_dir`; and, unless finished steps are
        durable on the storage paths anyway, what `resume_from_checkpoint: DIR` needs to go on bit by bit: in `to`, or
        in a checkpoint in `output_dir`. It is there whole or not at all, and an earlier save until then.

        Where it fails, the session still has the state, for another directory; of a run in an `output_dir` it stays on
        the storage paths, too, for `spillway export`."""
        place = to or self._config.output_dir
        if place is None:
            raise InputError("save: neither a directory nor an output_dir is given")
        target = Path(place)
        in_run = self._run is not None and same_place(target, self._run.output_dir)
        with self._end_together():
            if not in_run and self._world.leads:
                refuse_a_run(target)
            self.open()
            self._write(target, in_run) if self._world.leads else self._give(target)
            self._world.gather(None)  # it is there in all processes
        self._take_back()
        return target

    def _write(self, target: Path, in_run: bool) -> None:
        try:
            self._save_in_run(self._run) if in_run and self._run else checkpoints.write_directory(target, self._fill)
        except InputError:
            raise
        except Exception as error:
            if self._world.ranks.world > 1:
                raise SpillwayError(f"save: {unsaved.why(error)}") from error
            raise SpillwayError(f"save: {unsaved.why(error)}; {SAVE_AGAIN}{self._leave()}") from error

    def _give(self, place: Path) -> None:
        """Writes this process's part of the files that rank 0 writes."""
        self._engine.save_model(place)
        if self._engine.planned.durability == "none":
            self._engine.save_state(place)

    def _fill(self, place: Path) -> None:
        """An empty directory."""
        if self._engine.planned.durability == "none":
            return self._fill_whole(place)
        self._engine.save_model(place)
        self._save_tokenizer(place)
        saved.record_files(place)
        return None

    def _fill_whole(self, place: Path) -> None:
        """Saves the model and its state."""
        self._engine.save_model(place)
        self._save_tokenizer(place)
        self._engine.save_state(place)
        self._state.save(place)
        saved.record_files(place)

    def _save_in_run(self, run: Run) -> None:
        """A checkpoint with the state in place of the one before, or where steps are durable without, the model alone;
        and that at the root."""
        if self._engine.planned.durability != "none":
            return run.write_model(self._fill)
        made, before = self._write_checkpoint(run), self._made
        checkpoints.publish(made, run.output_dir)
        run.keep_newest(self._engine)
        if self._config.save_total_limit is None and before is not None and before != made and before.is_dir():
            for words in checkpoints.tried(before, self._engine.release):
                self._display.note(words)
        self._made = made

    def _leave(self) -> str:
        """Leaves the state that could not be saved where it is; returns words that continue a sentence."""
        if self._run is None:
            return ""
        try:
            self._left = True
            return "; " + self._run.leave_state(self._engine, self._state.moving())
        except Exception as error:
            return f"; it cannot stay on a storage path: {unsaved.why(error)}"

    def _take_back(self) -> None:
        """It was saved after all, or training goes on."""
        if self._left and self._run is not None:
            left.forget(self._run.output_dir, self._config.paths)
            self._engine.take_back()
        self._left = False

    def close(self) -> None:
        """Gives memory and storage paths back. In an `output_dir` it leaves summary, timeline, loss curve and page."""
        if self._closed:
            return
        close_in_order(self._close_together, self._unlock)
        self._world.close()

    def _close_together(self) -> None:
        with self._end_together():
            self._closed = True
            close_in_order(self._display.stop, self._write_summary, self._close_records, self._engine.close)
            self._world.gather(None)
        if self._run is not None and self._seconds and self._world.leads:
            self._run.write_report()

    def _write_summary(self) -> None:
        if self._run is not None and self._run.records and self._world.leads:
            self._run.write_summary(self._engine, self._summary())

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return self.close()
        if not self._closed:
            with suppress(type(error), SpillwayError), self._end_together():
                raise error
        return close_all(self.close)

    def _save_tokenizer(self, target: Path) -> None:
        """Saves the tokenizer if the session has one: a user's own loop may do without."""
        from spillway.data.loading import load_tokenizer

        try:
            tokenizer = load_tokenizer(self._config)
        except InputError:
            return
        tokenizer.save_pretrained(str(target))
