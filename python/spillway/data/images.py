"""Images in messages, as TRL's vision examples have them, prepared by the model's own processor.

A row keeps its text and where its images are. The processor makes the row's tokens while rows are read, and its pixels
when a micro-batch needs them. A digest of the pixels is part of the rows' fingerprint.
"""

from __future__ import annotations

import hashlib
import inspect
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spillway.base.documents import read_json
from spillway.data.files import Record
from spillway.data.turns import Messages
from spillway.errors import InputError, first_line

if TYPE_CHECKING:
    import torch

TOKENS = ("input_ids", "attention_mask")
PLACES = ("image", "path", "bytes")  # keys of a part of a message under which its image is
REMOTE = ("http://", "https://", "data:")


@dataclass(frozen=True)
class Picture:
    """The images of one row, and the text that they stand in."""

    where: str
    text: str
    sources: tuple[Any, ...]  # a path or an encoded file each
    digest: str  # of all that the processor makes of them
    bytes: int  # of that


class ImageReader:
    """The processor of a model's directory, loaded when the first image is read."""

    def __init__(self, directory: Path, tokenizer: Any, arguments: frozenset[str]) -> None:
        """`arguments`: names that the model's forward pass takes."""
        self._directory, self._tokenizer, self._arguments = directory, tokenizer, arguments
        self._loaded: Any = None

    def make(self, where: str, text: str, sources: Sequence[Any]) -> tuple[list[int], dict[str, torch.Tensor]]:
        """The tokens of a text with its images, and the model's arguments beside them."""
        return self.process(where, text, [open_image(where, source) for source in sources])

    def process(self, where: str, text: str, opened: Sequence[Any]) -> tuple[list[int], dict[str, torch.Tensor]]:
        """`make` of images that `open_image` has opened."""
        images = {"images": [[*opened]]} if opened else {}
        try:
            made = self._processor()(text=[text], **images, add_special_tokens=False, return_tensors="pt")
        except InputError:
            raise
        except Exception as error:  # the library raises whatever its processors raise
            raise InputError(f"{where}: the model's processor refuses these images: {first_line(error)}") from None
        others = {name: value for name, value in made.items() if name not in TOKENS and name in self._arguments}
        return made["input_ids"][0].tolist(), others

    def _processor(self) -> Any:
        if self._loaded is None:
            self._loaded = load_processor(self._directory)
            self._loaded.tokenizer = self._tokenizer
        return self._loaded


class ImageTokenizer:
    """Stands for the tokenizer where a conversation with images is encoded: each image has the tokens that the
    processor gives it."""

    def __init__(self, tokenizer: Any, reader: ImageReader, chat: Messages) -> None:
        self._tokenizer, self._reader, self._chat = tokenizer, reader, chat
        self.chat_template = tokenizer.chat_template
        self._opened: list[Any] = []  # images of the conversation, in order, as far as a text had them

    def get_chat_template(self, *positional: Any, **named: Any) -> Any:
        return self._tokenizer.get_chat_template(*positional, **named)

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tokenize: bool = True,
        return_dict: bool = True,
        return_assistant_tokens_mask: bool = False,
        **options: Any,
    ) -> Any:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        if not tokenize:
            return text
        count = min(sum(map(count_images, messages)), len(self._chat.images))
        ids = self.make(text, count)[0]
        if not return_assistant_tokens_mask:
            return {"input_ids": ids}
        labelled = [0] * len(ids)
        for begin, end in self._spans(messages, **options):
            first, last = (self._count_common(ids, text[:place], count) for place in (begin, end))
            labelled[first:last] = [1] * (last - first)
        return {"input_ids": ids, "assistant_masks": labelled}

    def make(self, text: str, count: int) -> tuple[list[int], dict[str, torch.Tensor]]:
        """`ImageReader.make` of a text with the first `count` images, each of which is opened once."""
        where = self._chat.where
        self._opened += [open_image(where, source) for source in self._chat.images[len(self._opened) : count]]
        return self._reader.process(where, text, self._opened[:count])

    def _count_common(self, ids: list[int], text: str, count: int) -> int:
        """The tokens that `ids` has in common with the beginning `text`."""
        beginning = self.make(text, count)[0]
        pairs = zip(ids, beginning, strict=False)
        return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(beginning)))

    def _spans(self, messages: list[dict[str, Any]], **options: Any) -> list[tuple[int, int]]:
        """The places of the assistant's words in the text, by the template's markers."""
        encoded = self._tokenizer.apply_chat_template(
            messages,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"return_offsets_mapping": True},
            **options,
        )
        spans: list[tuple[int, int]] = []
        before = False
        for flag, (begin, end) in zip(encoded["assistant_masks"], encoded["offset_mapping"], strict=True):
            if flag:
                spans[-1:] = [(spans[-1][0], end)] if before else [*spans[-1:], (begin, end)]
            before = bool(flag)
        return spans


def load_processor(directory: Path) -> Any:
    """InputError where the directory has none that can be loaded here."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises whatever its readers raise
        try:
            return load_without_video(directory)
        except Exception:  # the first error says what is wrong
            reason = first_line(error)
        raise InputError(f"model: no processor for images can be loaded from {directory}: {reason}") from None
    if not hasattr(processor, "image_processor"):
        raise InputError(f"model: {directory} has no processor for images (preprocessor_config.json)")
    return processor


def load_without_video(directory: Path) -> Any:
    """The processor without its part for videos, which needs Torchvision. Images and texts need no more."""
    import transformers
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(directory, **options)
    kind = AutoConfig.from_pretrained(directory, **options).model_type
    made: Any = getattr(transformers, PROCESSOR_MAPPING_NAMES[kind])
    file = directory / "processor_config.json"
    settings = read_json(file) if file.is_file() else {}

    class WithoutVideo(made):  # type: ignore[misc]
        def check_argument_for_proper_class(self, part: str, value: Any) -> Any:
            return None if part == "video_processor" else super().check_argument_for_proper_class(part, value)

    parts = {"image_processor": AutoImageProcessor.from_pretrained(directory, **options), "tokenizer": tokenizer}
    known = inspect.signature(made.__init__).parameters
    more = {key: value for key, value in settings.items() if key in known and key not in (*parts, "video_processor")}
    more |= {"video_processor": None} if "video_processor" in known else {}
    WithoutVideo.__name__ = made.__name__  # which a save writes
    processor = WithoutVideo(**parts, **{"chat_template": tokenizer.chat_template, **more})
    attributes = [name for name in made.get_attributes() if name != "video_processor"]
    processor.get_attributes = lambda: attributes  # the parts that a save writes
    return processor


def attach_images(record: Record, chat: Messages, directory: Path | None) -> Messages:
    """The conversation with its images: those in its parts, and the others from the columns, in order. A conversation
    of texts has all images before the text of its first user turn. `directory`: where relative paths begin."""
    loose = list_images(record)
    messages = [dict(message) for message in chat.messages]
    if loose and not any(map(count_images, messages)):
        place_images(record, messages, len(loose))
    if not any(map(count_images, messages)):
        return chat
    sources: list[Any] = []
    used = 0
    for message in messages:
        if isinstance(message.get("content"), str) and message["role"] != "tool":
            message["content"] = [{"type": "text", "text": message["content"]}]
        if not isinstance(message.get("content"), list):
            continue
        for part in message["content"]:
            if part.get("type") != "image":
                continue
            own = next((part[name] for name in PLACES if part.get(name) is not None), None)
            if own is None:
                own, used = loose[used] if used < len(loose) else None, used + 1
            sources.append(own)
        message["content"] = [{"type": "image"} if part.get("type") == "image" else part for part in message["content"]]
    if used != len(loose):
        raise InputError(
            f"{record.where}: the messages have {used} parts of type 'image' without an image of their own, and the "
            f"columns hold {len(loose)} images; give one image for each"
        )
    located = tuple(find_source(record.where, source, directory) for source in sources)
    return replace(chat, messages=messages, images=located)


def list_images(record: Record) -> list[Any]:
    images = record.row.get("images")
    if isinstance(images, list | tuple):
        return list(images)
    several = [images, record.row.get("image")]
    return [each for each in several if each not in (None, "", {})]


def place_images(record: Record, messages: list[dict[str, Any]], count: int) -> None:
    """Puts parts for images before the text of the first user turn."""
    first = next((message for message in messages if message["role"] == "user"), None)
    if first is None:
        raise InputError(f"{record.where}: there is no user turn for the images to stand in")
    content = first["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    first["content"] = [*({"type": "image"} for _ in range(count)), *parts]


def count_images(message: dict[str, Any]) -> int:
    content = message.get("content")
    return sum(part.get("type") == "image" for part in content) if isinstance(content, list) else 0


def find_source(where: str, value: Any, directory: Path | None) -> Any:
    """A path or the bytes of an encoded image."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str) and value.startswith(REMOTE):
        raise InputError(f"{where}: the image {value[:40]!r} is no file here; download it and give its path")
    if isinstance(value, str):
        return str((directory or Path()) / value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if hasattr(value, "save") and hasattr(value, "convert"):  # one of Pillow's
        file = io.BytesIO()
        value.convert("RGB").save(file, "PNG")
        return file.getvalue()
    raise InputError(f"{where}: an image is {type(value).__name__}; expects a path, the bytes of a file or a PIL image")


def open_image(where: str, source: Any) -> Any:
    """The image in RGB, turned as its file says."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise InputError(f"{where}: images need the package Pillow; install it with `pip install pillow`") from None
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a damaged file may raise any error
        said = "the bytes of an image" if isinstance(source, bytes) else f"the image {source}"
        raise InputError(f"{where}: {said} cannot be read: {first_line(error)}") from None


def digest_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()


def prepare(picture: Picture, reader: ImageReader) -> dict[str, torch.Tensor]:
    """The model's arguments for one row. InputError where its images are others than those that the run began with."""
    made = reader.make(picture.where, picture.text, picture.sources)[1]
    if digest_tensors(made) != picture.digest:
        raise InputError(f"{picture.where}: an image of the row has changed since the rows were read; put it back")
    return made


def join_images(rows: Sequence[dict[str, torch.Tensor]], length: int) -> dict[str, torch.Tensor] | None:
    """The arguments of a micro-batch from those of its rows, of which each of `length` tokens. Types of tokens have one
    row each; of all else there is one after the other, filled up with zeros to one shape."""
    import torch

    from spillway.data.batches import TOKEN_TYPES

    joined: dict[str, torch.Tensor] = {}
    for name in sorted({name for row in rows for name in row}):
        held = [row[name] for row in rows if name in row]
        if name in TOKEN_TYPES:
            types = torch.zeros(len(rows), length, dtype=held[0].dtype)
            for place, row in enumerate(rows):
                if name in row:
                    types[place, : row[name].shape[1]] = row[name][0]
            joined[name] = types
        else:
            shape = [max(sizes) for sizes in zip(*(each.shape[1:] for each in held), strict=True)]
            joined[name] = torch.cat([fill_up(each, shape) for each in held])
    return joined or None


def fill_up(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Adds zeros at the end of every dimension but the first."""
    if list(tensor.shape[1:]) == list(shape):
        return tensor
    filled = tensor.new_zeros(len(tensor), *shape)
    filled[(slice(None), *(slice(size) for size in tensor.shape[1:]))] = tensor
    return filled
