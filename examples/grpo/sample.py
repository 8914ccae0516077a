"""Samples completions and scores them for `objective: grpo`: sample.py MODEL PROMPTS.jsonl ROLLOUTS.jsonl SEED"""

import json
import sys

import torch
from reward import reward_format
from transformers import AutoModelForCausalLM, AutoTokenizer

GROUP, LONGEST = 8, 16  # completions of a prompt, and tokens of a completion

path, prompts, rollouts, seed = sys.argv[1:5]
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
torch.manual_seed(int(seed))


def sample(prompt):
    """One row: a prompt, its completions, and the log-probability of each sampled token."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(
        ids, do_sample=True, top_k=0, max_new_tokens=LONGEST, num_return_sequences=GROUP, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    values = torch.stack(made.logits, dim=1).log_softmax(-1)
    sampled = made.sequences[:, ids.shape[1] :]
    chosen = values.gather(2, sampled[:, :, None])[:, :, 0]
    ends = [(row == tokenizer.eos_token_id).nonzero() for row in sampled]
    counts = [int(end[0]) + 1 if len(end) else len(row) for end, row in zip(ends, sampled, strict=True)]
    tokens = [row[:count].tolist() for row, count in zip(sampled, counts, strict=True)]
    return {
        "prompt_ids": ids[0].tolist(),
        "completion_ids": tokens,
        "rewards": reward_format([tokenizer.decode(each, skip_special_tokens=True) for each in tokens]),
        "old_logprobs": [row[:count].tolist() for row, count in zip(chosen, counts, strict=True)],
    }


with open(prompts, encoding="utf-8") as lines, open(rollouts, "w", encoding="utf-8") as rows, torch.no_grad():
    for line in lines:
        rows.write(json.dumps(sample(json.loads(line)["prompt"])) + "\n")
