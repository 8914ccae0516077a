#!/bin/sh
# Trains by GRPO in rounds: rounds.sh MODEL PROMPTS.jsonl DIRECTORY ROUNDS [options of spillway train]
#
# Each round samples completions with the newest model, scores them, and trains on them. If it was killed, start it again
# with the same words: it goes on where it was.
set -e
model=$1 prompts=$2 directory=$3 rounds=$4
shift 4
mkdir -p "$directory"
round=1
while [ "$round" -le "$rounds" ]; do
    rollouts=$directory/rollouts-$round.jsonl
    if [ ! -e "$rollouts" ]; then
        python "$(dirname "$0")/sample.py" "$model" "$prompts" "$rollouts.part" "$round"
        mv "$rollouts.part" "$rollouts"
    fi
    spillway train --objective grpo --model "$model" --dataset "$rollouts" --output_dir "$directory/round-$round" \
        --num_train_epochs 1 --resume_from_checkpoint auto "$@"
    model=$directory/round-$round
    round=$((round + 1))
done
