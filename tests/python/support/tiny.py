"""Small inputs made on the spot: a model directory with its own tokenizer, and rows to train on."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

SENTENCES = [
    "The river rises in the hills and runs to the sea.",
    "A spillway lets the water pass when the lake is full.",
    "Who opens the gate, and who closes it again?",
    "Seven boats lay at the quay; two of them were new.",
    "He counted the stones: one, two, three, four.",
    "Nothing was lost, and nothing was found twice.",
    "She wrote the letter, read it, and wrote it again.",
    "Rain fell all night. In the morning the road was gone.",
]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 320,
}
SPECIAL = ["<pad>", "<bos>", "<eos>"]
MARKED = (
    "{% for m in messages %}{{ bos_token }}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant: {% endif %}"
)
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


@cache
def tokenizer_json() -> str:
    """A byte-level BPE of 320 tokens, trained on the sentences above."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return str(tokenizer.to_str())


def tokenizer(**options: Any) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", **options}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json()), **names)


def model_directory(path: Path, **tokenizer_options: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    tokenizer(**tokenizer_options).save_pretrained(str(path))
    return path


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text_rows(count: int) -> list[dict[str, str]]:
    """Rows of different lengths, each different."""
    return [{"text": f"{number}: " + " ".join(SENTENCES[: number % 4 + 1])} for number in range(count)]
