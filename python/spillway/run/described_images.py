"""Images in the plan of a described machine: the row with the most images among the first of the dataset. A row that
cannot be read has one image of an assumed size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.base.sizes import duration, size
from spillway.errors import InputError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from spillway._engine import PassSeconds
    from spillway.config import Config
    from spillway.data.images import ImageReader
    from spillway.data.turns import Messages
    from spillway.model.batches.batch import Batch, WorkShape
    from spillway.model.measure.image_memory import ImageMemory
    from spillway.model.measure.tower_operations import TowerShape
    from spillway.model.meta.meta_model import MetaModel

SEEN = 100  # rows of the dataset that are looked at
SIDE = 1024  # pixels of an assumed image
ASK = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "?"}]}]


@dataclass(frozen=True)
class DescribedImages:
    """Images of a micro-batch, and the bytes that they take there."""

    batch: Batch
    shape: TowerShape
    memory: ImageMemory
    images: int  # of a row
    tokens: int  # of the images of a row
    source: str  # of these numbers, in words

    def summarise(self, seconds: PassSeconds, shape: WorkShape, tell: Callable[[str], None]) -> dict[str, Any]:
        """Their part of the plan; `tell` hears it in words. `seconds`: of passes, as planned."""
        tower, features = seconds.entry_forward + seconds.entry_backward, shape.largest_share * self.memory.features
        weights = f"; the frozen tower takes {size(self.memory.tower)}" if self.memory.tower else ""
        tell(
            f"images: each row has {self.images}, {self.tokens} tokens in all ({self.source}){weights}. The features "
            f"of a step take {size(features)}, and the tower {duration(tower)} by its products and attention"
        )
        figures = {
            "images_of_a_row": self.images,
            "image_tokens_of_a_row": self.tokens,
            "tower_bytes": self.memory.tower,
            "feature_bytes": features,
            "tower_seconds": tower,
            "source": self.source,
        }
        return {"images": figures}


def plan_images(
    config: Config, model_config: Any, meta_model: MetaModel, on_gpu: bool, tell: Callable[[str], None]
) -> DescribedImages | None:
    """The images of the run. None: its rows are text, or nobody knows; `tell` hears why. InputError if a row of the
    dataset is refused."""
    from spillway.data.media import media_of

    media = media_of(model_config, config)
    if media.no_images:
        return None
    chat, source = find_row(config, media), "the most among the first rows of the dataset"
    if chat is None and not meta_model.tower:
        tell(f"images: the plan has none, since {say_unread(config)}")
        return None
    if chat is None:
        source = f"assumed: one of {SIDE} x {SIDE} pixels, in the size of the model's processor"
    try:
        ids, arguments = process_row(config, model_config, chat)
    except InputError as error:
        tell(f"images: the plan has none: {first_line(error)}")
        return None
    tokens = sum(token in media.image_tokens for token in ids)
    meta_model.take_images()
    batch = make_batch(config, ids, arguments)
    return measure(meta_model, batch, on_gpu, (1 if chat is None else len(chat.images), tokens, source))


def say_unread(config: Config) -> str:
    if config.dataset and is_here(config.dataset):
        return "no row among the first of the dataset has one"
    return "no dataset that names them can be read here; a `dataset` in a file shows its images"


def is_here(source: str) -> bool:
    from spillway.config.checks import is_data_file, is_saved_dataset

    return is_saved_dataset(Path(source)) or (is_data_file(source) and Path(source).exists())


def find_row(config: Config, media: Any) -> Messages | None:
    """The row with the most images among the first of the dataset. None: none has images, or none can be read."""
    from spillway.data.loading import read_examples
    from spillway.data.turns import Messages

    if not config.dataset or not is_here(config.dataset):
        return None
    examples = read_examples(config, config.dataset, config.dataset_split, media=media)
    rows = [each for each in islice(examples, SEEN) if isinstance(each, Messages) and each.images]
    return max(rows, key=lambda row: len(row.images), default=None)


def process_row(config: Config, model_config: Any, chat: Messages | None) -> tuple[list[int], dict[str, torch.Tensor]]:
    """Tokens and the model's arguments of a row, by the model's processor. `chat`: None for an assumed image."""
    from spillway.data.loading import load_tokenizer
    from spillway.run.image_rows import open_reader

    tokenizer = load_tokenizer(config)
    reader = open_reader(config, model_config, tokenizer)
    where, messages = ("an assumed image", ASK) if chat is None else (chat.where, chat.messages)
    options = {} if chat is None else chat.options
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # a template may raise any error
        raise InputError(f"{where}: the chat template refuses it: {first_line(error)}") from error
    return reader.make(where, text, chat.images) if chat is not None else process_blank(reader, where, text)


def process_blank(reader: ImageReader, where: str, text: str) -> tuple[list[int], dict[str, torch.Tensor]]:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need the package Pillow; install it with `pip install pillow`") from None
    return reader.process(where, text, [Image.new("RGB", (SIDE, SIDE))])


def make_batch(config: Config, ids: list[int], arguments: dict[str, torch.Tensor]) -> Batch:
    """A micro-batch of such rows. InputError where `max_length` is too short for one."""
    import torch

    from spillway.data.images import join_images
    from spillway.model.batches.batch import Batch

    if len(ids) > config.max_length:
        raise InputError(
            f"max_length: a row with its images has {len(ids)} tokens, more than max_length: {config.max_length}; "
            "raise max_length"
        )
    rows = config.per_device_train_batch_size
    tokens = torch.zeros(rows, config.max_length, dtype=torch.int64)
    tokens[:, : len(ids)] = torch.tensor(ids)
    images = join_images([arguments] * rows, config.max_length)
    return Batch(tokens, tokens, None, tokens.numel(), images=images)


def measure(meta_model: MetaModel, batch: Batch, on_gpu: bool, row: tuple[int, int, str]) -> DescribedImages:
    """`row`: images of a row, their tokens, and the source of these numbers."""
    import torch

    from spillway.machine.place import HOST, Place
    from spillway.model.batches.batch import count_bytes
    from spillway.model.measure.image_memory import ImageMemory
    from spillway.model.measure.tower_operations import feature_bytes, find_shape
    from spillway.model.meta.image_tower import ImageTower

    assert batch.images is not None
    rows, width = batch.input_ids.shape[0], meta_model.width
    shape = find_shape(meta_model.config, batch.images, rows * row[1])
    element = meta_model.dtype.itemsize
    trained = bool(meta_model.tower)
    memory = ImageMemory(
        tower=0 if trained else ImageTower(meta_model).bytes,
        computing=shape.computing_bytes(element, trained),
        kept=(shape.levels - 1) * batch.tokens * width * element,
        pixels=count_bytes(batch.images),
        features=0 if trained else feature_bytes(meta_model, shape),
        place=Place(torch.device("cuda", 0)) if on_gpu else HOST,
    )
    return DescribedImages(batch, shape, memory, *row)


def add_work(work: Any, images: DescribedImages | None, meta_model: MetaModel, shape: WorkShape) -> Any:
    """The work of a described step with that of its images."""
    from spillway.model.measure.tower_operations import trace_tower

    if images is None:
        return work
    own = shape.largest_share
    work.host_bytes = images.memory.host_bytes(shape.micro_batches, own)
    work.device_bytes = images.memory.device_bytes(own)
    if (traced := work.trace) is not None:
        traced.passes = dict(traced.passes) | trace_tower(meta_model, images.shape)
        work.trace = traced
    return work
