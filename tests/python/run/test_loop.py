"""spillway.Session, for a loop of one's own: steps as a plain loop makes them, runs that go on, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import real_runs
import spillway
import tiny
from needs import package
from spillway.errors import DoesNotFit, InputError
from spillway.run import trackers


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_runs.inputs(tmp_path_factory.mktemp("loop"))


def keys(given: Path, **more: Any) -> dict[str, Any]:
    values = {
        "model": given / "model",
        "profile": given / "profile.json",
        "compute_dtype": "fp32",
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_length": 64,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
    }
    return {key: str(value) for key, value in {**values, **more}.items()}


def batches(count: int, first: int = 0) -> list[list[dict[str, torch.Tensor]]]:
    """Steps of two micro-batches of two rows."""
    tokenizer = tiny.tokenizer(padding_side="right")
    texts = [row["text"] for row in tiny.text_rows(4 * (first + count))]
    steps = []
    for step in range(first, first + count):
        parts = [texts[4 * step : 4 * step + 2], texts[4 * step + 2 : 4 * step + 4]]
        steps.append([labelled(tokenizer(part, padding=True, return_tensors="pt")) for part in parts])
    return steps


def labelled(encoded: Any) -> dict[str, torch.Tensor]:
    ids, mask = encoded["input_ids"][:, :64], encoded["attention_mask"][:, :64]
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_steps_are_those_of_a_plain_loop(given: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(given / "model", dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    with spillway.Session(keys(given)) as session:
        for step in batches(3):
            count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in step)
            losses = [model(**batch, num_items_in_batch=count).loss for batch in step]
            torch.stack(losses).sum().backward()
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
            row = session.step(step)
            assert row["loss"] == pytest.approx(sum(loss.item() for loss in losses), rel=1e-5)
            assert row["grad_norm"] == pytest.approx(norm, rel=1e-4)
            assert row["tokens"] == sum(int(batch["attention_mask"].sum()) for batch in step)
        held_out = batches(1, first=3)[0]
        found = session.evaluate(held_out)
        assert found["eval_perplexity"] == pytest.approx(math.exp(found["eval_loss"]))
        session.save(tmp_path / "saved")
    with torch.no_grad():
        count = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in held_out)
        plain = sum(float(model(**batch, num_items_in_batch=count).loss) for batch in held_out)
    assert found["eval_loss"] == pytest.approx(plain, rel=1e-5) and found["label_tokens"] == count
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for name, value in saved.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-4, atol=2e-6, msg=name)
    assert (tmp_path / "saved/tokenizer_config.json").exists()


def test_a_loop_goes_on_from_what_it_saved(given: Path, tmp_path: Path) -> None:
    def losses(config: dict[str, Any], steps: list[Any], to: Path | None = None) -> list[float]:
        with spillway.Session(config) as session:
            found = [session.step(step)["loss"] for step in steps]
            if to is not None:
                session.save(to)
            return found

    whole = losses(keys(given), batches(4))
    first = losses(keys(given), batches(2), tmp_path / "half")
    again = keys(given, output_dir=tmp_path / "second", resume_from_checkpoint=tmp_path / "half")
    assert first + losses(again, batches(2, first=2)) == whole


def test_a_durable_loop_goes_on_after_its_last_step(given: Path, tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    places = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": "path", "output_dir": tmp_path / "out"}
    with spillway.Session(keys(given)) as session:
        whole = [session.step(step)["loss"] for step in batches(4)]
    with spillway.Session(keys(given, **places)) as session:
        assert session.plan["durability"] == "step"
        first = [session.step(step)["loss"] for step in batches(3)]
    with pytest.raises(InputError, match="holds a run already"):
        spillway.Session(keys(given, **places))
    with spillway.Session(keys(given, **places, resume_from_checkpoint="true")) as session:
        assert session.steps == 3
        last = [session.step(step)["loss"] for step in batches(1, first=3)]
        session.save()
    assert first + last == whole
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4] and [row["loss"] for row in rows] == whole
    assert real_runs.main(["report", str(tmp_path / "out")]) == 0
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


class Notes:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []
        self.ended = False

    def on_train_begin(self, *_: Any, **__: Any) -> None: ...

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        self.logs.append(logs)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.ended = True


def test_a_loop_leaves_what_a_run_of_the_command_line_does(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package("accelerate", "TrainingArguments needs accelerate")
    notes = Notes()
    monkeypatch.setattr(trackers, "make_tracker", lambda name: notes)
    out = tmp_path / "out"
    given_keys = keys(given, output_dir=out, max_steps=4, logging_steps=2, report_to="wandb", bf16="false")
    with spillway.Session(given_keys, gradient_checkpointing=True) as session:
        losses = [session.step(step)["loss"] for step in batches(4)]
        found = session.evaluate(batches(1)[0])
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 4]
    assert [row["loss"] for row in rows[:2]] == [math.fsum(losses[:2]) / 2, math.fsum(losses[2:]) / 2]
    assert rows[2]["eval_loss"] == found["eval_loss"]
    assert [row.get("loss", row.get("eval_loss")) for row in rows] == [
        logs.get("loss", logs.get("eval_loss")) for logs in notes.logs
    ]
    assert notes.ended
    assert {"config.yaml", "plan.json", "summary.json", "timeline.json.gz", "loss.png", "report.html"} <= {
        path.name for path in out.iterdir()
    }
    assert "Time of a step" in (out / "report.html").read_text() or "<svg" in (out / "report.html").read_text()
    assert capsys.readouterr().err.count("gradient_checkpointing") == 1


def test_rows_after_the_last_durable_step_go_when_a_loop_goes_on(given: Path, tmp_path: Path) -> None:
    """A process that was killed may have written a row of a step that is to be done again."""
    (tmp_path / "storage").mkdir()
    places = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": "path", "output_dir": tmp_path / "out"}
    with spillway.Session(keys(given, **places)) as session:
        for step in batches(2):
            session.step(step)
    with open(tmp_path / "out/metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"step": 3, "loss": 9.0}) + "\n" + '{"step": 4, "lo')
    with spillway.Session(keys(given, **places, resume_from_checkpoint="true")) as session:
        loss = session.step(batches(1, first=2)[0])["loss"]
    rows = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[2]["loss"] == loss


@pytest.mark.parametrize("where", ["dram", "path"])
def test_the_model_of_a_session_generates(given: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "storage").mkdir()
    places = {"storage": f"{tmp_path / 'storage'},capacity=256MiB", "placement": "path"} if where == "path" else {}
    ids = batches(1)[0][0]["input_ids"][:, :9]
    with spillway.Session(keys(given, **places, learning_rate=0.03)) as session:
        for step in batches(3):
            session.step(step)
        session.save(tmp_path / "saved")
        logits = session.model(ids).logits
        last = session.model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1).logits
        text = session.model.generate(ids, max_new_tokens=6, do_sample=False)
        with pytest.raises(InputError, match="max_length"):
            session.model(torch.ones(9, 60, dtype=torch.int64))
        with pytest.raises(InputError, match="padding before a row"):
            session.model(ids, attention_mask=torch.zeros_like(ids))
        session.step(batches(1)[0])  # and training goes on
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    with torch.no_grad():
        expected = plain(ids).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, expected[:, -1:], rtol=1e-4, atol=1e-5)
    assert text.tolist() == plain.generate(ids, max_new_tokens=6, do_sample=False).tolist()
    assert text.shape[1] > ids.shape[1]


def test_rates_come_from_the_schedule_or_the_caller(given: Path) -> None:
    linear = keys(given, lr_scheduler_type="linear")
    with spillway.Session(linear, max_steps=4) as session:
        rates = [session.step(step)["learning_rate"] for step in batches(2)]
        assert rates == pytest.approx([1e-3, 7.5e-4])
        assert session.step(batches(1)[0], learning_rate=0.5)["learning_rate"] == 0.5
    with spillway.Session(linear) as session, pytest.raises(InputError, match="max_steps"):
        session.step(batches(1)[0])


def test_packed_rows_are_kept_apart(given: Path) -> None:
    """Two rows in one sequence, told apart by positions: the loss of the rows by themselves."""
    one, two = (batches(1)[0][place] for place in (0, 1))
    rows = [part["input_ids"][row, : int(part["attention_mask"][row].sum())] for part in (one, two) for row in (0, 1)][
        :2
    ]
    joined = torch.cat(rows)[None]
    labels = joined.clone()
    labels[0, len(rows[0])] = -100
    positions = torch.cat([torch.arange(len(row)) for row in rows])[None]
    with spillway.Session(keys(given, packing="true")) as session:
        packed = session.evaluate({"input_ids": joined, "labels": labels, "position_ids": positions})
    with spillway.Session(keys(given)) as session:
        apart = session.evaluate([{"input_ids": row[None], "labels": row[None]} for row in rows])
        with pytest.raises(InputError, match="packing"):
            session.evaluate({"input_ids": joined, "labels": labels, "position_ids": positions})
    assert packed["label_tokens"] == apart["label_tokens"]
    assert packed["eval_loss"] == pytest.approx(apart["eval_loss"], rel=1e-5)


def wrong(**change: Any) -> dict[str, Any]:
    ids = torch.ones(2, 6, dtype=torch.int64)
    return {**{"input_ids": ids, "labels": ids}, **change}


@pytest.mark.parametrize(
    ("batch", "word"),
    [
        ({"input_ids": torch.ones(2, 6, dtype=torch.int64)}, "labels is missing"),
        (wrong(labels=torch.ones(2, 5, dtype=torch.int64)), "one a token"),
        (wrong(input_ids=torch.ones(6, dtype=torch.int64)), "rows, length"),
        (wrong(token_type_ids=torch.ones(2, 6)), "token_type_ids"),
        (wrong(attention_mask=torch.tensor([[0, 1, 1, 1, 1, 1]] * 2)), "right"),
        (wrong(attention_mask=torch.tensor([[1, 1, 1, 0, 0, 0]] * 2)), "-100"),
        (wrong(position_ids=torch.tensor([[0, 1, 2, 4, 5, 6]] * 2)), "count from 0"),
        ({key: torch.ones(9, 60, dtype=torch.int64) for key in ("input_ids", "labels")}, "max_length"),
        ([wrong(), wrong(), wrong()], "gradient_accumulation_steps"),
        ([], "gradient_accumulation_steps"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_batches_that_cannot_be_streamed_are_refused(given: Path, batch: Any, word: str) -> None:
    session = spillway.Session(keys(given))
    with pytest.raises(InputError, match=word):
        session.step(batch)
    session.close()


def test_what_a_session_is_refused_for(given: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="output_dir"):
        spillway.Session(keys(given, durability="step", storage=tmp_path))
    with pytest.raises(InputError, match="learning_rate"):
        spillway.Session(keys(given), learning_rat=1)
    with pytest.raises(InputError, match="report_to"):
        spillway.Session(keys(given, report_to="tensorboard"))
    with pytest.raises(InputError, match="logging_steps"):
        spillway.Session(keys(given, logging_steps=0.5))
    with pytest.raises(DoesNotFit, match="dram"):
        spillway.Session(keys(given), dram_budget="1MiB")
