"""`objective: text-classification` and `token-classification`: equal to transformers' classes in memory, wherever the
state lies, killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pairs
import real_runs
import tiny
from breadth import some
from folders import REPOSITORY
from hf_models import tiny_config, tiny_model
from needs import package
from spillway.data.order import Order
from test_ranks import processes
from test_reward import close, refused, require_loaded, steps_of

ROWS = 11  # 3 steps an epoch; the last micro-batch has one row
EVALUATED = 5
CLASSES = 3
NAMES = ["steady", "rising", "flooded"]
KINDS = ("classes", "numbers", "several", "tokens")
OBJECTIVES = {kind: "token-classification" if kind == "tokens" else "text-classification" for kind in KINDS}
PROBLEMS = {"classes": "single_label_classification", "numbers": "regression", "several": "multi_label_classification"}
KEYS = ("--compute_dtype", "fp32", "--num_train_epochs", "2", "--max_length", "256")


def rows_of(kind: str, count: int = ROWS) -> list[dict[str, Any]]:
    """Rows of different lengths. Names and numbers of labels are mixed."""
    found: list[dict[str, Any]] = []
    for number, row in enumerate(pairs.texts(count)):
        text = row["prompt"] + row["chosen"]
        label: Any = number % CLASSES if number % 2 else NAMES[number % CLASSES]
        if kind == "tokens":
            words = text.split()
            tags = [-100 if place % 4 == 1 else (place + number) % CLASSES for place in range(len(words))]
            found.append({"tokens": words, "ner_tags": [NAMES[tag] if tag == 1 else tag for tag in tags]})
        elif kind == "numbers":
            found.append({"text": text, "label": number / 4})
        elif kind == "several":
            found.append({"text": text, "labels": [NAMES[0], NAMES[2]] if number % 3 else [0, 1, number % 2]})
        else:
            found.append({"prompt" if number % 2 else "text": text, "label": label})
    return found


def save_models(place: Path) -> None:
    """A model with a drawn head for each number of labels and each kind, without dropout."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    for name, labels in (("numbers", 1), ("classes", CLASSES), ("tokens", CLASSES)):
        kind = AutoModelForTokenClassification if name == "tokens" else AutoModelForSequenceClassification
        names = NAMES[:labels]
        config = AutoConfig.from_pretrained(
            place / "base", id2label=dict(enumerate(names)), label2id={name: i for i, name in enumerate(names)}
        )
        config.classifier_dropout = 0.0
        torch.manual_seed(7)
        model = kind.from_pretrained(place / "base", config=config, dtype="float32")
        torch.nn.init.normal_(model.score.weight, std=0.2)
        model.save_pretrained(place / name)
        tiny.tokenizer(chat_template=tiny.PLAIN).save_pretrained(str(place / name))


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = real_runs.inputs(tmp_path_factory.mktemp("classification"))
    (place / "model").rename(place / "base")
    save_models(place)
    for kind in KINDS:
        tiny.jsonl(place / f"{kind}.jsonl", rows_of(kind))
        tiny.jsonl(place / f"{kind}-held.jsonl", rows_of(kind)[:EVALUATED])
    return place


def model_of(kind: str) -> str:
    return "classes" if kind == "several" else kind


def words_of(given: Path, kind: str, *more: str, model: str = "") -> list[str]:
    return [
        "--model", str(given / (model or model_of(kind))), "--dataset", str(given / f"{kind}.jsonl"),
        "--objective", OBJECTIVES[kind], *KEYS,
        *(("--problem_type", PROBLEMS[kind]) if kind == "several" else ()), *more,
    ]  # fmt: skip


def train(given: Path, out: Path, kind: str, *more: str, model: str = "") -> int:
    return real_runs.here(given, out, *words_of(given, kind, *more, model=model))


def plain_model(place: Path, kind: str) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    made = AutoModelForTokenClassification if kind == "tokens" else AutoModelForSequenceClassification
    model = made.from_pretrained(place, dtype="float32")
    model.config.pad_token_id = tiny.tokenizer().pad_token_id
    if kind != "tokens":
        model.config.problem_type = PROBLEMS[kind]
    return model


def encode(kind: str, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """One batch, as the library's examples make it."""
    tokenizer = tiny.tokenizer()
    if kind == "tokens":
        batch = tokenizer([row["tokens"] for row in rows], is_split_into_words=True, padding=True, return_tensors="pt")
        labels = torch.full(batch["input_ids"].shape, -100)
        for line, row in enumerate(rows):
            before = None
            for place, word in enumerate(batch.word_ids(line)):
                if word is not None and word != before:
                    labels[line, place] = number_of(row["ner_tags"][word])
                before = word
    else:
        batch = tokenizer([row.get("text") or row["prompt"] for row in rows], padding=True, return_tensors="pt")
        labels = torch.tensor([label_of(kind, row) for row in rows])
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}


def number_of(label: Any) -> int:
    return NAMES.index(label) if isinstance(label, str) else int(label)


def label_of(kind: str, row: dict[str, Any]) -> Any:
    if kind == "numbers":
        return float(row["label"])
    if kind == "classes":
        return number_of(row["label"])
    labels = row["labels"]
    return [float(name in labels) for name in NAMES] if isinstance(labels[0], str) else [float(each) for each in labels]


def accuracy_of(kind: str, model: Any, batch: dict[str, torch.Tensor]) -> float:
    logits, labels = model(**batch).logits, batch["labels"]
    if kind == "several":
        return float(((logits > 0) == (labels > 0.5)).double().mean())
    chosen = labels != -100
    return float((logits.argmax(-1) == labels)[chosen].double().mean())


def in_memory(
    model: Any, kind: str, num_train_epochs: int = 2, adam_epsilon: float = 1e-8
) -> tuple[Any, list[dict[str, float]]]:
    """The model's own loss, by torch's AdamW: a step is one batch of four rows."""
    rows, learning = rows_of(kind), [each for each in model.train().parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-3, eps=adam_epsilon, weight_decay=0.0)
    order, logged = Order(ROWS, 2, 2, 42), []
    steps = order.steps(-1, num_train_epochs)
    for step in range(steps):
        batch = encode(kind, [rows[row] for part in order.step(step) for row in part])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (steps - step) / steps
        accuracy = {} if kind == "numbers" else {"accuracy": accuracy_of(kind, model, batch)}
        loss = model(**batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        logged.append({"loss": float(loss), "grad_norm": float(norm), **accuracy})
    return model.eval(), logged


def expect_steps(out: Path, expected: list[dict[str, float]]) -> None:
    found = steps_of(out)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            assert close(one[name], value), (one["step"], name, one[name], value)


@pytest.mark.parametrize("kind", some(list(KINDS), ["classes", "several", "tokens"]))
def test_equal_to_the_librarys_class_with_state_on_a_path(given: Path, tmp_path: Path, kind: str) -> None:
    """Losses, gradient norms, accuracy and weights of 21 steps, with accumulation and remainders; an evaluation."""
    model, expected = in_memory(plain_model(given / model_of(kind), kind), kind, **pairs.LONG)
    assert len(expected) == 21
    more = ["--eval_dataset", str(given / f"{kind}-held.jsonl"), "--per_device_eval_batch_size", "2"]
    more += pairs.options(pairs.LONG)
    assert train(given, tmp_path / "ours", kind, *more, *real_runs.on_path(tmp_path / "storage")) == 0
    expect_steps(tmp_path / "ours", expected)
    weights, plain = load_file(tmp_path / "ours" / "model.safetensors"), model.state_dict()
    assert weights.keys() == plain.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5)
    (evaluation,) = steps_of(tmp_path / "ours", "eval_loss")[-1:]
    batch = encode(kind, rows_of(kind)[:EVALUATED])
    with torch.no_grad():
        assert close(evaluation["eval_loss"], float(model(**batch).loss))
        assert kind == "numbers" or close(evaluation["eval_accuracy"], accuracy_of(kind, model, batch))
    assert "eval_perplexity" not in evaluation


FAMILIES = ["qwen2", "gemma", "mixtral"]  # tied tables, scaled rows, experts


@pytest.mark.parametrize("kind", ["classes", "tokens"])
@pytest.mark.parametrize("family", some(FAMILIES, ["qwen2"]))
def test_other_families_equal_the_librarys_class(tmp_path: Path, family: str, kind: str) -> None:
    given = real_runs.inputs(tmp_path)
    tiny_model(tiny_config(family, vocab_size=320, max_position_embeddings=256)).save_pretrained(given / "base")
    save_models(given)
    tiny.jsonl(given / f"{kind}.jsonl", rows_of(kind))
    _, expected = in_memory(plain_model(given / kind, kind), kind, adam_epsilon=1e-6)
    assert train(given, tmp_path / "ours", kind, "--adam_epsilon", "1e-6") == 0
    expect_steps(tmp_path / "ours", expected)


@pytest.mark.parametrize("kind", ["classes", "tokens"])
def test_a_kill_changes_no_bit_and_the_export_loads(given: Path, tmp_path: Path, kind: str) -> None:
    """With a new head, whose labels the keys name. That for words has dropout."""
    more = ["--compute_dtype", "bf16", "--dram_budget", "2GiB", "--save_steps", "2", "--id2label", json.dumps(NAMES)]
    assert train(given, tmp_path / "dram", kind, *more, model="base") == 0
    words = words_of(given, kind, *more, *real_runs.on_path(tmp_path / "storage"), model="base")
    real_runs.kill_after("update", real_runs.words(given, tmp_path / "out", *words), calls=3)
    assert real_runs.main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]) == 0
    assert real_runs.main(["resume", str(tmp_path / "out")]) == 0
    assert real_runs.metrics(tmp_path / "out") == real_runs.metrics(tmp_path / "dram")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "dram")]
    assert weights[0] == weights[1]
    for place in ("exported", "out"):
        model = require_loaded(tmp_path / place, OBJECTIVES[kind])
        assert model.config.id2label == dict(enumerate(NAMES))
        assert kind == "tokens" or model.config.problem_type == PROBLEMS[kind]


def test_messages_and_named_columns(given: Path, tmp_path: Path) -> None:
    """A conversation goes through the chat template; other columns are named by keys."""
    rows = rows_of("classes")
    chats = [
        {"messages": [{"role": "user", "content": row.get("text") or row["prompt"]}], "label": row["label"]}
        for row in rows
    ]
    tokenizer = tiny.tokenizer(chat_template=tiny.PLAIN)
    texts = [
        {"sentence": tokenizer.apply_chat_template(row["messages"], tokenize=False), "mood": row["label"]}
        for row in chats
    ]
    tiny.jsonl(tmp_path / "chats.jsonl", chats)
    tiny.jsonl(tmp_path / "texts.jsonl", texts)
    named = ["--dataset_text_field", "sentence", "--label_field", "mood"]
    assert train(given, tmp_path / "one", "classes", "--dataset", str(tmp_path / "chats.jsonl")) == 0
    assert train(given, tmp_path / "other", "classes", "--dataset", str(tmp_path / "texts.jsonl"), *named) == 0
    assert [row["loss"] for row in steps_of(tmp_path / "one")] == [row["loss"] for row in steps_of(tmp_path / "other")]


def test_two_texts_are_classified_together(given: Path, tmp_path: Path) -> None:
    """Columns by the names of a dataset, by keys, and the tokenizer's own way to join and cut two texts."""
    rows = [(f"{row['prompt']} {number}", row["chosen"] * 4) for number, row in enumerate(pairs.texts(ROWS))]
    labels = [number % CLASSES for number in range(ROWS)]
    both = [
        dict(zip(("premise", "hypothesis", "label"), (*row, of), strict=True))
        for row, of in zip(rows, labels, strict=True)
    ]
    named = [
        dict(zip(("left", "right", "label"), (*row, of), strict=True)) for row, of in zip(rows, labels, strict=True)
    ]
    tiny.jsonl(tmp_path / "both.jsonl", both)
    tiny.jsonl(tmp_path / "named.jsonl", named)
    words = ["--max_length", "48", "--max_steps", "1", "--per_device_train_batch_size", str(ROWS)]
    words += ["--gradient_accumulation_steps", "1"]
    keys = ["--dataset_text_field", "left", "--text_pair_field", "right"]
    assert train(given, tmp_path / "one", "classes", "--dataset", str(tmp_path / "both.jsonl"), *words) == 0
    assert train(given, tmp_path / "other", "classes", "--dataset", str(tmp_path / "named.jsonl"), *words, *keys) == 0
    model = plain_model(given / "classes", "classes")
    batch = tiny.tokenizer()(
        *(list(texts) for texts in zip(*rows, strict=True)),
        truncation=True,
        max_length=48,
        padding=True,
        return_tensors="pt",
    )
    assert batch["input_ids"].shape[1] == 48
    with torch.no_grad():
        expected = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=torch.tensor(labels)).loss
    for out in ("one", "other"):
        assert close(steps_of(tmp_path / out)[0]["loss"], float(expected))


def test_a_second_text_needs_the_first(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset_text_field", "text", "--text_pair_field", "right"]
    assert train(given, tmp_path / "out", "classes", *words) == 2
    assert "the column 'right' is missing" in " ".join(capsys.readouterr().err.split())
    assert train(given, tmp_path / "out", "classes", *words[2:]) == 2
    assert "text_pair_field: it names the second text" in " ".join(capsys.readouterr().err.split())


def test_long_rows_are_cut(given: Path, tmp_path: Path) -> None:
    """At max_length, as the tokenizer's truncation does it; labels of words behind that are left out."""
    for kind in ("classes", "tokens"):
        assert train(given, tmp_path / kind, kind, "--max_length", "8", "--max_steps", "1") == 0
        (step,) = steps_of(tmp_path / kind)
        assert step["tokens"] == 4 * 8


@pytest.mark.parametrize("kind", ["several", "tokens"])
def test_check_compares_with_a_plain_loop(given: Path, tmp_path: Path, kind: str) -> None:
    words = words_of(given, kind, "--max_steps", "2")
    assert real_runs.here(given, tmp_path / "out", *words, verb="check") == 0


def test_virtual_ranks_give_the_same_loss(given: Path, tmp_path: Path) -> None:
    assert train(given, tmp_path / "one", "tokens") == 0
    assert train(given, tmp_path / "two", "tokens", "--virtual_ranks", "2") == 0
    for one, two in zip(steps_of(tmp_path / "one"), steps_of(tmp_path / "two"), strict=True):
        assert close(one["loss"], two["loss"])
        assert one["accuracy"] == two["accuracy"]


TEXTS = "text-classification"
WORDS = "token-classification"


@pytest.mark.parametrize(
    ("objective", "rows", "said"),
    [
        (TEXTS, [{"text": "a"}], "wrong.jsonl:1: the column 'label' or 'labels' is missing; found 'text'"),
        (TEXTS, [{"label": 1}], "wrong.jsonl:1: the column 'messages' or 'text' or 'prompt' or 'sentence' is missing"),
        (TEXTS, [{"text": 3, "label": 1}], "wrong.jsonl:1: the column 'text' is int; expects text, or a list of"),
        (
            TEXTS,
            [{"text": "a", "label": 3}],
            "label has 3; expects a whole number from 0 to 2, or one of steady, rising",
        ),
        (TEXTS, [{"text": "a", "label": "dry"}], "label has 'dry'; expects a whole number from 0 to 2"),
        (TEXTS, [{"text": "a", "label": None}], "label has None; expects a whole number"),
        (WORDS, [{"tokens": "a b", "ner_tags": [0, 1]}], "the column 'tokens' is no list of words"),
        (WORDS, [{"tokens": ["a", "b"], "ner_tags": [0]}], "ner_tags has 1 entries; expects a label for each of 2"),
        (WORDS, [{"tokens": ["a"], "ner_tags": 0}], "ner_tags is no list; expects a label for each of 1 words"),
        (WORDS, [{"tokens": ["a"], "ner_tags": [-100]}], "has a token with a label before max_length"),
    ],
)
def test_rows_without_their_labels_are_refused(
    given: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    objective: str,
    rows: list[dict[str, Any]],
    said: str,
) -> None:
    tiny.jsonl(tmp_path / "wrong.jsonl", rows)
    kind = "tokens" if objective == WORDS else "classes"
    code = train(given, tmp_path / "out", kind, "--dataset", str(tmp_path / "wrong.jsonl"))
    assert said in refused(capsys, code)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "labels", "said"),
    [
        ("numbers", "high", "label has 'high'; expects a number"),
        ("numbers", [1, 2], "label holds 2 numbers; expects 1"),
        ("several", 1, "labels is no list; expects names of labels, or a 0 or 1 for each"),
        ("several", [1, 2, 0], "labels is [1, 2, 0]; expects a 0 or 1 for each of 3"),
    ],
)
def test_labels_of_another_problem_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, labels: Any, said: str
) -> None:
    column = "labels" if kind == "several" else "label"
    tiny.jsonl(tmp_path / "wrong.jsonl", [{"text": "a", column: labels}])
    assert said in refused(capsys, train(given, tmp_path / "out", kind, "--dataset", str(tmp_path / "wrong.jsonl")))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model", "base"], "has no head of labels for objective text-classification; say how many labels there are"),
        (["--num_labels", "4", "--id2label", '["a", "b"]'], "num_labels: it is 4, and id2label names 2; leave num_lab"),
        (["--num_labels", "1", "--problem_type", "single_label_classification"], "needs 2 labels or more, and"),
        (["--id2label", '{"0": "a", "2": "b"}'], 'id2label: got \'{"0": "a", "2": "b"}\', expects different nam'),
        (["--packing"], "packing: objective text-classification labels rows that stand for themselves; leave it out"),
        (["--objective", "sft", "--num_labels", "2"], "num_labels: it is for objective text-classification and token-"),
        (["--no-completion_only_loss"], "completion_only_loss: the loss of objective text-classification is of labels"),
        (["--prompt_field", "a", "--completion_field", "b"], "prompt_field: objective text-classification has no such"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    more = [str(given / word) if word == "base" else word for word in more]
    assert said in refused(capsys, train(given, tmp_path / "out", "classes", *more))


def test_labels_stay_on_a_resume(given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(given, "classes", "--max_steps", "2", "--id2label", json.dumps(NAMES))
    assert real_runs.here(given, tmp_path / "out", *words) == 0
    assert real_runs.main(["resume", str(tmp_path / "out"), "--max_steps", "3"]) == 0
    more = ["--max_steps", "4", "--id2label", '["a", "b", "c"]']
    said = refused(capsys, real_runs.main(["resume", str(tmp_path / "out"), *more]))
    assert "id2label: the run was started with steady rising flooded, a resume cannot change it to a b c" in said


@pytest.mark.parametrize("method", [(), ("--method", "lora", "--lora_r", "4")])
def test_two_processes_make_what_one_makes(given: Path, tmp_path: Path, method: tuple[str, ...]) -> None:
    """Losses, accuracy and weights of words with a new head, which each process owns a share of."""
    if method:
        package("peft", "adapters")
    words = [
        "--id2label",
        json.dumps(NAMES),
        "--virtual_ranks",
        "2",
        "--eval_dataset",
        str(given / "tokens-held.jsonl"),
    ]
    every = words_of(given, "tokens", *words, *method, model="base")
    assert real_runs.here(given, tmp_path / "one", *every) == 0
    ranks = processes(2, given, tmp_path / "two", *every)
    ends = [(*process.communicate(timeout=240), process.returncode) for process in ranks]
    assert [code for *_, code in ends] == [0, 0], ends
    assert real_runs.metrics(tmp_path / "two") == real_runs.metrics(tmp_path / "one")
    name = "adapter_model.safetensors" if method else "model.safetensors"
    assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_described_machine_has_a_plan(given: Path, tmp_path: Path) -> None:
    machine = next((REPOSITORY / "profiles").glob("*.json"))
    words = ["plan", *words_of(given, "classes", "--num_labels", "3", model="base"), "--profile", str(machine)]
    assert real_runs.main([*words, "--output_dir", str(tmp_path / "out")]) == 0
