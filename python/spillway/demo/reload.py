"""What plain transformers says of a checkpoint: its loss on held-out text, and what it writes.

As a program, `python -m spillway.demo.reload DIRECTORY PROMPT` shows what the model goes on with."""

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Opinion:
    loss: float  # nats per token of the held-out text
    text: str  # what the model goes on with after the prompt


def pieces(tokens: list[int], length: int) -> list[list[int]]:
    """Held-out tokens in the pieces that the loss is taken over; a last one of a single token predicts nothing."""
    cut = [tokens[at : at + length] for at in range(0, len(tokens), length)]
    return [piece for piece in cut if len(piece) > 1]


def ask(directory: Path, held_out: list[list[int]], prompt: str, new_tokens: int) -> Opinion:
    """Loads `directory` by from_pretrained, and computes in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches(held_out):
            ids = torch.tensor(batch)
            predicted = ids.shape[0] * (ids.shape[1] - 1)
            total += model(input_ids=ids, labels=ids).loss.item() * predicted
            count += predicted
        torch.manual_seed(0)
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        written = model.generate(**inputs, max_new_tokens=new_tokens, do_sample=True, top_k=40, temperature=0.8)
    return Opinion(total / count if count else math.nan, tokenizer.decode(written[0], skip_special_tokens=True))


def batches(rows: list[list[int]], size: int = 16) -> Iterator[list[list[int]]]:
    """At most `size` neighbours of one length at a time."""
    for _, group in itertools.groupby(rows, len):
        while batch := list(itertools.islice(group, size)):
            yield batch


if __name__ == "__main__":
    print(ask(Path(sys.argv[1]), [], sys.argv[2], 200).text)
