"""Conversations in the form that one chat template takes. Other forms are rewritten with the same meaning; content that
the template leaves out is refused or named.

Most templates were written for one model and ignore other roles and keys. Short conversations of marked
texts show what a template writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from spillway.base.documents import parse_json
from spillway.data.turns import REASONING_KEYS, Messages
from spillway.errors import InputError

MARK = "spillwaymark"  # a text that no row holds
TEMPLATE_ROLES = ("system", "developer", "user", "assistant", "tool")
ASK = {"role": "user", "content": "Question"}
Turns = list[dict[str, Any]]


class TemplateFit:
    """Rewrites conversations for one template. `notices`: one sentence for each kind of change or loss."""

    def __init__(self, tokenizer: Any, template: str | None = None) -> None:
        self.notices: dict[str, str] = {}
        self._tokenizer = tokenizer
        self._template = template  # None for the tokenizer's own template
        self._answers: dict[str, bool] = {}  # answers by question about the template
        self._shown_turns: set[object] = set()
        self._shown_keys: set[tuple[str, str]] = set()
        self._variables: set[str] | None = None

    def fit(self, chat: Messages) -> Messages:
        """The conversation in the template's form. InputError if the template leaves out a turn."""
        if not self._tokenizer.chat_template:
            return chat
        messages = self.fit_calls(chat, [dict(message) for message in chat.messages])
        messages = self.fit_reasoning(chat.where, messages)
        messages = self.fit_forms(messages)
        self.note_options(chat)
        self.check_turns(chat, messages)
        self.note_keys(chat, messages)
        return replace(chat, messages=messages)

    def render(self, messages: Turns, options: dict[str, Any] | None = None) -> str | None:
        """The text of the conversation; None if the template refuses it."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, chat_template=self._template, **(options or {})
                )
            )
        except Exception:  # a template may raise any error
            return None

    def note(self, kind: str, where: str, text: str) -> None:
        self.notices.setdefault(kind, f"{where}: {text}")

    def answer(self, question: str, ask: Callable[[], bool]) -> bool:
        """The answer to a question about the template, computed once."""
        if question not in self._answers:
            self._answers[question] = ask()
        return self._answers[question]

    def fit_calls(self, chat: Messages, messages: Turns) -> Turns:
        """The messages with tool calls in the template's form."""
        if not any("tool_calls" in message for message in messages):
            return messages
        if not self.answer("calls", self.writes_calls):
            return self.write_calls_as_texts(chat, messages)
        if self.answer("objects", self.wants_objects):
            for call in find_text_arguments(messages):
                arguments = read_object(call["arguments"])
                if arguments is not None:
                    call["arguments"] = arguments
                    self.note("objects", chat.where, "arguments given as JSON text reach the chat template as objects")
        elif self.answer("texts", self.wants_texts):
            for call in find_object_arguments(messages):
                call["arguments"] = json.dumps(call["arguments"], ensure_ascii=False)
                self.note("texts", chat.where, "arguments of calls reach the chat template as JSON text")
        return messages

    def write_calls_as_texts(self, chat: Messages, messages: Turns) -> Turns:
        """The messages with ShareGPT's calls as the texts of the row."""
        for index, message in enumerate(messages):
            if "tool_calls" in message and index not in chat.call_texts:
                raise InputError(
                    f"{chat.where}: the chat template leaves out the tool_calls of turn {index + 1}; set "
                    "chat_template_path to one that writes them, or leave the row out"
                )
            if "tool_calls" in message:
                message.pop("tool_calls")
                message["content"] = chat.call_texts[index]
                self.note("calls", chat.where, "the chat template has no tool calls, so their JSON is the turn's text")
        return messages

    def writes_calls(self) -> bool:
        texts = [
            self.render([ASK, make_calling_turn({"key": MARK})]),
            self.render([ASK, make_calling_turn(json.dumps({"key": MARK}))]),
        ]
        return any(MARK in text for text in texts if text is not None) or texts == [None, None]

    def wants_objects(self) -> bool:
        """True if the template quotes or refuses arguments that are JSON text."""
        text = self.render([ASK, make_calling_turn(json.dumps({"key": MARK}))])
        if text is None:
            return self.render([ASK, make_calling_turn({"key": MARK})]) is not None
        return '\\"key\\"' in text

    def wants_texts(self) -> bool:
        return self.render([ASK, make_calling_turn({"key": MARK})]) is None and self.writes_calls()

    def fit_reasoning(self, where: str, messages: Turns) -> Turns:
        """The messages with reasoning under the template's key. InputError if the template has none."""
        for index, message in enumerate(messages):
            for key in [key for key in REASONING_KEYS if message.get(key)]:
                reads = [name for name in (key, *REASONING_KEYS) if self.answer(name, lambda: self.writes_key(name))]  # noqa: B023
                if not reads:
                    raise InputError(
                        f"{where}: the chat template leaves out the {key!r} of turn {index + 1}; write it into the "
                        "content, or set chat_template_path to one that takes it"
                    )
                if reads[0] != key:
                    message[reads[0]] = message.pop(key)
                    self.note(key, where, f"the key {key!r} reaches the chat template as {reads[0]!r}, which it reads")
        return messages

    def writes_key(self, key: str) -> bool:
        text = self.render([ASK, {"role": "assistant", "content": "Answer", key: MARK}])
        return text is not None and MARK in text

    def fit_forms(self, messages: Turns) -> Turns:
        """The messages with roles and contents in the template's forms."""
        for message in messages:
            if message["role"] == "developer" and not self.answer("developer", self.writes_developer):
                message["role"] = "system"
                self.note("developer", "messages", "the chat template has no role 'developer'; it stands as 'system'")
            if message["content"] is None and not self.answer("null", self.takes_null):
                message["content"] = ""
            if is_parts(message["content"]) and not self.answer("parts", self.takes_parts):
                message["content"] = "".join(part["text"] for part in message["content"])
        return messages

    def writes_developer(self) -> bool:
        text = self.render([{"role": "developer", "content": MARK}, ASK])
        return text is not None and MARK in text

    def takes_null(self) -> bool:
        """True if a content of null leaves no word such as None in the text."""
        calls = self.answer("calls", self.writes_calls)
        as_text = calls and not self.answer("objects", self.wants_objects) and self.answer("texts", self.wants_texts)
        turn = make_calling_turn("{}" if as_text else {}) if calls else {"role": "assistant"}
        texts = [self.render([ASK, {**turn, "content": content}]) for content in (None, "")]
        return texts[0] is not None and (texts[1] is None or count_nulls(texts[0]) == count_nulls(texts[1]))

    def takes_parts(self) -> bool:
        text = self.render([{"role": "user", "content": [{"type": "text", "text": MARK}]}])
        return text is not None and MARK in text and "'type'" not in text and '"type"' not in text

    def note_options(self, chat: Messages) -> None:
        for name in chat.options:
            if name not in self.variables():
                label = name if name in ("tools", "documents") else f"chat_template_kwargs, {name}"
                self.note(f"option {name}", chat.where, f"the chat template does not read {label}; it is not used")

    def variables(self) -> set[str]:
        """The names that the template reads from its caller."""
        if self._variables is None:
            from jinja2 import Environment, TemplateError, meta

            text = self._template or "".join(list_templates(self._tokenizer))
            try:
                bare = re.sub(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}", r"{%\1 if true \3%}{%\1 endif \3%}", text)
                self._variables = meta.find_undeclared_variables(
                    Environment(extensions=["jinja2.ext.loopcontrols"]).parse(bare)
                )
            except TemplateError:
                self._variables = set(re.findall(r"\w+", text))
        return self._variables

    def check_turns(self, chat: Messages, messages: Turns) -> None:
        """InputError if the template leaves out the content of a turn."""
        contexts = list(list_turn_contexts(messages))
        if self._shown_turns.issuperset(contexts):
            return
        text = self.render(
            [set_content(message, f"{MARK}{index}x") for index, message in enumerate(messages)], chat.options
        )
        if text is None:  # the encoding refuses the row itself
            return
        for index, (message, context) in enumerate(zip(messages, contexts, strict=True)):
            role, content = message["role"], message["content"]
            if content and f"{MARK}{index}x" not in text:
                if role != "assistant" or "tool_calls" not in message:
                    raise InputError(
                        f"{chat.where}: the chat template leaves out turn {index + 1} (role {role!r}); set "
                        "chat_template_path to one that writes it, or leave the row out"
                    )
                self.note("beside", chat.where, "the chat template leaves out the content of turns with tool_calls")
            if role not in TEMPLATE_ROLES:
                self.note(f"role {role}", chat.where, f"turns of the role {role!r} carry no loss")
            self._shown_turns.add(context)

    def note_keys(self, chat: Messages, messages: Turns) -> None:
        """Names keys of messages that change nothing in the text."""
        for role, key in sorted({(each["role"], key) for each in messages for key in each} - self._shown_keys):
            if key in ("role", "content", "tool_calls"):
                continue
            rest = [drop_key(message, key) if message["role"] == role else message for message in messages]
            if self.render(rest, chat.options) == self.render(messages, chat.options):
                of_turns = "earlier turns" if key in REASONING_KEYS else f"{role} turns"
                text = f"the chat template leaves out {key!r} of {of_turns}; it is not used"
                self.note(f"key {role} {key}", chat.where, text)
            else:
                self.notices.pop(f"key {role} {key}", None)
                self._shown_keys.add((role, key))


def list_templates(tokenizer: Any) -> list[str]:
    """The tokenizer's templates: one, or several by name."""
    template = tokenizer.chat_template
    return list(template.values()) if isinstance(template, dict) else [str(template)]


def make_calling_turn(arguments: object) -> dict[str, Any]:
    """A turn that calls a tool; the id has the length that Mistral's templates demand."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "call", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def copy_calls(messages: Turns) -> Iterator[dict[str, Any]]:
    """Replaces the calls in the messages by copies, and returns the copies."""
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [copy_call(call) for call in message["tool_calls"]]
            yield from (call.get("function", call) for call in message["tool_calls"])


def copy_call(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "function": dict(call["function"])} if "function" in call else dict(call)


def find_text_arguments(messages: Turns) -> Iterator[dict[str, Any]]:
    return (call for call in copy_calls(messages) if isinstance(call.get("arguments"), str))


def find_object_arguments(messages: Turns) -> Iterator[dict[str, Any]]:
    return (call for call in copy_calls(messages) if isinstance(call.get("arguments"), dict))


def read_object(text: str) -> dict[str, Any] | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def is_parts(content: object) -> bool:
    return (
        isinstance(content, list)
        and bool(content)
        and all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in content
        )
    )


def count_nulls(text: str) -> int:
    return len(re.findall(r"\b(?:None|null)\b", text))


def set_content(message: dict[str, Any], mark: str) -> dict[str, Any]:
    """The message with a mark in place of its content."""
    content = message["content"]
    if not content:
        return message
    if not isinstance(content, list):
        return {**message, "content": mark}
    others = [part for part in content if isinstance(part, dict) and part.get("type") == "image"]
    return {**message, "content": [*others, {"type": "text", "text": mark}] if others or is_parts(content) else mark}


def list_turn_contexts(messages: Turns) -> Iterator[object]:
    """The properties of each turn that may decide whether a template leaves it out, without its words."""
    roles = [None, *(message["role"] for message in messages), None]
    for index, message in enumerate(messages):
        yield (*roles[index : index + 3], tuple(sorted(message)), type(message["content"]), bool(message["content"]))


def drop_key(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != key}
