#!/bin/bash
# The installed `spillway` command, from a folder without a checkout: a small model with random weights is fine-tuned on
# the samples, all its state on the disk, to a checkpoint that transformers reads; then what else one does with a run.
#   first_run.sh TRY     TRY: a folder with samples/
set -euo pipefail
try=$1
source "$try/steps.sh"
export HF_HUB_OFFLINE=1 COLUMNS=118

engine() {
  python -c 'import spillway._engine as engine; print(engine.__file__, "kernels for GPUs:", engine.gpu_kernels())'
}

model() {
  python - <<END
from pathlib import Path
from spillway.demo.sample_model import make_model
text = Path("$try/samples/shakespeare.train.txt").read_text()
print(make_model(Path("model"), text, seed=1), "parameters")
END
}

reloaded() {
  python - <<END
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained("run"), AutoTokenizer.from_pretrained("run")
words = model.generate(**tokenizer("ROMEO:", return_tensors="pt"), max_new_tokens=40, do_sample=False)
print(repr(tokenizer.decode(words[0])))
END
}

cat >run.yaml <<END
model: model
dataset: $try/samples/shakespeare.train.txt
eval_dataset: $try/samples/shakespeare.heldout.txt
output_dir: run
max_length: 128
per_device_train_batch_size: 8
gradient_accumulation_steps: 2
max_steps: 20
learning_rate: 4e-3
eval_on_start: true
eval_steps: 10
logging_steps: 2
placement: path
storage:
  - disk
END
mkdir disk

step spillway --version
step engine
step spillway doctor --storage disk
step spillway probe --storage disk
step model
step spillway plan run.yaml
step spillway train run.yaml
step spillway verify run
step spillway export run --to alone
step spillway report run
step spillway resume run --max_steps 22
step reloaded
step ls -l run
