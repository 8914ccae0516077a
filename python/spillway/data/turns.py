"""Messages of TRL's, OpenAI's and ShareGPT's forms, read into the one form that chat templates take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spillway.base.documents import parse_json
from spillway.data.files import Record, all_objects, parsed
from spillway.errors import InputError

SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "bing", "chatgpt", "bard", "model"), "assistant"),
    **dict.fromkeys(("observation", "tool", "tool_response", "function_response"), "tool"),
}
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
TOOL_COLUMNS = ("tools", "functions")
OPTION_COLUMNS = (*TOOL_COLUMNS, "documents", "chat_template_kwargs", "system")
CALL_OPTIONS = (  # arguments of apply_chat_template that the encoding sets
    *("conversation", "messages", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    "tokenizer_kwargs",
)


@dataclass(frozen=True)
class Messages:
    where: str
    messages: list[dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)  # options of the chat template
    prompt_turns: int = 0  # messages of a prompt; the others are its completion
    silent: frozenset[int] = frozenset()  # assistant turns without loss (weight 0)
    call_texts: dict[int, str] = field(default_factory=dict)  # ShareGPT's calls as the row writes them, by turn
    images: tuple[Any, ...] = ()  # a path or the bytes of a file for each part of type image, in order


def list_columns(record: Record) -> str:
    return ", ".join(repr(name) for name in record.row) or "none"


def read_column(record: Record, name: str) -> Any:
    if name not in record.row:
        raise InputError(f"{record.where}: the column {name!r} is missing; found {list_columns(record)}")
    return record.row[name]


def read_column_text(record: Record, name: str) -> str:
    value = read_column(record, name)
    if not isinstance(value, str):
        raise InputError(f"{record.where}: the column {name!r} is {type(value).__name__}; expects text")
    return value


def check_encodable(where: str, name: str, value: Any) -> None:
    """InputError for a lone surrogate, half of a character that JSON's escapes can write and UTF-8 cannot."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = f"\\u{ord(value[error.start]):04x}"
            raise InputError(
                f"{where}: the column {name!r} has a lone surrogate ({code} at character {error.start}), which is no "
                "text; remove it from the row"
            ) from None
    elif isinstance(value, dict):
        for key, each in value.items():
            check_encodable(where, name, key)
            check_encodable(where, name, each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            check_encodable(where, name, each)


def read_conversation(record: Record, name: str) -> Messages:
    """The messages of one column, with the columns that belong to them."""
    value = read_column(record, name)
    texts = {index: text for index, each in enumerate(read_list(record, name)) if (text := write_call(each))}
    is_sharegpt = any(isinstance(each, dict) and "from" in each for each in value)
    messages = read_turns(record, name)
    begin = read_system_turns(record, messages)
    shifted = {index + len(begin): text for index, text in texts.items()}
    return assemble(record.where, begin + messages, read_template_options(record, is_sharegpt), 0, shifted)


def read_answered(record: Record, prompt: str, completion: str) -> Messages:
    """A prompt and its completion, each a list of messages."""
    if isinstance(record.row.get(prompt), str) or isinstance(record.row.get(completion), str):
        kinds = " and ".join(f"{name!r} is {type(record.row.get(name)).__name__}" for name in (prompt, completion))
        raise InputError(f"{record.where}: the column {kinds}; expects two texts, or two lists of messages")
    prompt_turns, answer_turns = read_turns(record, prompt), read_turns(record, completion)
    prompt_turns = read_system_turns(record, prompt_turns) + prompt_turns
    return assemble(record.where, prompt_turns + answer_turns, read_template_options(record), len(prompt_turns))


def assemble(
    where: str,
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    prompt_turns: int,
    call_texts: dict[int, str] | None = None,
) -> Messages:
    silent = frozenset(index for index, message in enumerate(messages) if message.get("weight") == 0)
    silent = frozenset(index for index in silent if messages[index]["role"] == "assistant")
    bare = [{key: value for key, value in message.items() if key != "weight"} for message in messages]
    return Messages(where, bare, options, prompt_turns, silent, call_texts or {})


def read_system_turns(record: Record, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The column system as a first turn; empty if the column is empty or the messages have the turn."""
    text = record.row.get("system")
    if text is None or text == "":
        return []
    if not isinstance(text, str):
        raise InputError(f"{record.where}: the column 'system' is {type(text).__name__}; expects text")
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}]
    if messages[0]["content"] != text:
        raise InputError(
            f"{record.where}: the column 'system' and the first turn, a {messages[0]['role']} turn, say different "
            "things; leave one"
        )
    return []


def read_list(record: Record, name: str) -> list[Any]:
    value = read_column(record, name)
    if not isinstance(value, list) or not value:
        kind = "null" if value is None else "empty" if value == [] else f"a {type(value).__name__}"
        kind = "of the wrong items" if isinstance(value, list) and value else kind
        raise InputError(f"{record.where}: the column {name!r} is not a list of messages ({kind})")
    return value


def read_turns(record: Record, name: str) -> list[dict[str, Any]]:
    return [
        read_turn(f"{record.where}: message {number} in {name!r}", message)
        for number, message in enumerate(read_list(record, name), start=1)
    ]


def read_turn(where: str, message: Any) -> dict[str, Any]:
    """A message with a role and a content, in the form of transformers' chat templates."""
    if isinstance(message, dict) and "from" in message and "value" in message:
        message = from_sharegpt(where, message)
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputError(f"{where} has no role and content")
    turn = {key: value for key, value in message.items() if value is not None or key == "content"}
    if turn["role"] == "function":
        turn["role"] = "tool"
    if turn["role"] == "assistant":
        turn = read_answer(where, turn)
    check_weight(where, turn)
    content = turn.get("content")
    if content is None and not can_lack_content(turn):
        kind = "its content is null" if "content" in message else "it has none"
        raise InputError(f"{where} has no role and content: {kind}")
    turn.setdefault("content", None)
    check_content(where, turn)
    return turn


def can_lack_content(turn: dict[str, Any]) -> bool:
    return turn["role"] == "assistant" and ("tool_calls" in turn or any(key in turn for key in REASONING_KEYS))


def check_content(where: str, turn: dict[str, Any]) -> None:
    content = turn["content"]
    if isinstance(content, list) and turn["role"] != "tool":
        turn["content"] = [read_part(where, part) for part in content]
    elif content is not None and not isinstance(content, (str, list)):
        raise InputError(f"{where}: its content is {type(content).__name__}; expects text, or a list of parts")


def read_part(where: str, part: Any) -> Any:
    """A part of a content; a refusal is a text."""
    if isinstance(part, dict) and part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
        return {"type": "text", "text": part["refusal"]}
    if isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text"):
        if isinstance(part.get("text"), str):
            return {**part, "type": "text"}
    if isinstance(part, dict) and part.get("type") == "image":  # where rows may have images (`media`)
        return part
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise InputError(f"{where} has a part of type {kind!r}; parts of type text and refusal are read")


def check_weight(where: str, turn: dict[str, Any]) -> None:
    weight = turn.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1):
        raise InputError(f"{where}: its weight is {weight!r}; expects 0 (no loss) or 1")
    if turn["role"] != "assistant" and turn.get("weight") == 1:
        raise InputError(f"{where}: weight 1 is for assistant turns, and its role is {turn['role']!r}; leave it out")


def read_answer(where: str, turn: dict[str, Any]) -> dict[str, Any]:
    """An assistant's turn: function_call becomes a tool call, a refusal becomes its content."""
    if turn.get("tool_calls") == []:
        del turn["tool_calls"]
    if "function_call" in turn:
        call = turn.pop("function_call")
        if "tool_calls" in turn:
            raise InputError(f"{where} has function_call and tool_calls; leave one")
        if not is_call(call):
            raise InputError(f"{where}: its function_call has no name and arguments")
        turn["tool_calls"] = [{"type": "function", "function": call}]
    if turn.get("refusal"):
        if turn.get("content"):
            raise InputError(f"{where} has content and a refusal; leave one")
        turn["content"] = turn["refusal"]
    turn.pop("refusal", None)
    if "audio" in turn:
        raise InputError(f"{where} has audio, and training takes text alone; leave the turn out")
    calls = turn.get("tool_calls", [])
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and is_call(call.get("function", call)) for call in calls
    ):
        raise InputError(f"{where}: its tool_calls are no list of calls with a name and arguments")
    return turn


def is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("arguments", {}), (dict, str))
    )


def from_sharegpt(where: str, message: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    speaker, value = message["from"], message["value"]
    if speaker != "function_call":
        role = SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
        return {"role": role, "content": value, **rest}
    if not isinstance(value, str):
        raise InputError(f"{where}: the value of its function_call is {type(value).__name__}; expects JSON as text")
    calls = parse_calls(value)
    if not calls:
        return {"role": "assistant", "content": value, **rest}
    listed_calls = [{"type": "function", "function": call} for call in calls]
    return {"role": "assistant", "content": None, "tool_calls": listed_calls, **rest}


def parse_calls(text: str) -> list[dict[str, Any]]:
    """The calls of ShareGPT's function_call: one JSON object, or a list of them. Empty: the text is no call."""
    try:
        value = parse_json(text)
    except ValueError:
        return []
    calls = value if isinstance(value, list) else [value]
    return calls if all(is_call(call) for call in calls) else []


def write_call(message: Any) -> str:
    is_call_turn = isinstance(message, dict) and message.get("from") == "function_call"
    return str(message.get("value") or "") if is_call_turn else ""


def read_template_options(record: Record, wrap_tools: bool = False) -> dict[str, Any]:
    """Options of the chat template: the columns tools or functions, documents, and chat_template_kwargs."""
    named = [name for name in TOOL_COLUMNS if record.row.get(name) not in (None, "", [], "[]")]
    if len(named) > 1:
        raise InputError(f"{record.where}: it has the columns 'tools' and 'functions'; leave one")
    options: dict[str, Any] = {}
    for name in named:
        if tools := read_objects(record, name):
            wrap = name == "functions" or wrap_tools
            options["tools"] = [
                {"type": "function", "function": tool} if wrap and "function" not in tool else tool for tool in tools
            ]
    if documents := read_objects(record, "documents"):
        options["documents"] = documents
    more = record.row.get("chat_template_kwargs") or {}
    if isinstance(more, str):
        more = parsed(more, f"{record.where}: the column 'chat_template_kwargs'")
    if not isinstance(more, dict):
        raise InputError(f"{record.where}: the column 'chat_template_kwargs' is no mapping")
    for name in CALL_OPTIONS:
        if name in more:
            advice = "set chat_template_path" if name == "chat_template" else "leave it out"
            raise InputError(f"{record.where}: chat_template_kwargs has {name!r}, which the encoding sets; {advice}")
    return {**options, **more}


def read_objects(record: Record, name: str) -> list[dict[str, Any]]:
    """The objects of a column, a list or JSON text of a list; empty if the column is missing or empty."""
    value = record.row.get(name)
    if value is None or value == "":
        return []
    if isinstance(value, str):
        value = parsed(value, f"{record.where}: the column {name!r}")
    if value in (None, []):
        return []
    if not isinstance(value, list) or not all_objects(value):
        kind = type(value).__name__
        raise InputError(f"{record.where}: the column {name!r} is {kind}; expects a list of objects, or that as JSON")
    return value
