"""The same as plain.py through the engine: streamed.py WEIGHTS_DIR OUTPUT_DIR STORAGE"""

import sys
from functools import partial

import torch
from decoder import Decoder

import spillway

weights, output_dir, storage = sys.argv[1:4]

decoder = spillway.Blocks(
    build=partial(Decoder, vocabulary=300, width=64, heads=4, depth=3),
    small=partial(Decoder, vocabulary=97, width=16, heads=2, depth=2),
    layers="blocks",
    embedding="words",
    head="head",
)
session = spillway.Session(
    module=decoder,
    model=weights,
    storage=storage,
    placement="path",
    compute_dtype="fp32",
    learning_rate=1e-3,
    lr_scheduler_type="constant",
    max_length=32,
    per_device_train_batch_size=2,
)

generator = torch.Generator().manual_seed(1)
with session:
    for _ in range(6):
        ids = torch.randint(0, 300, (2, 32), generator=generator)
        print(f"loss {session.step({'input_ids': ids, 'labels': ids})['loss']:.6f}")
    session.save(output_dir)
