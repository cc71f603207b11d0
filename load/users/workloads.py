"""What users send, by name: each workload gives the content of a request by its number."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load.workloads import BEGINNINGS, QUESTIONS, WORDS, any_prompt, paper

SYSTEM_PROMPTS, SYSTEM_TOKENS = 4, 400
PER_TRACE = 64  # requests of one trace of the paper


@dataclass(frozen=True, slots=True)
class Content:
    """What is asked for, however it is sent: `chat` as the user's message and `text` or token ids as a completion.

    `max_tokens`: exactly as many where `exact`; None: as many as `--max-tokens` says. `continues`: the user's next
    requests belong to the same conversation, as many as `--turns` says. `fields`: of the body, from a file.
    """

    chat: str = ""
    prompt: str | list[int] = ""
    system: str = ""
    max_tokens: int | None = None
    exact: bool = False
    continues: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


Workload = Callable[[int], Content]


def questions(number: int) -> Content:
    """Short questions, and beginnings of texts as completions, in turn."""
    return Content(QUESTIONS[number % len(QUESTIONS)], BEGINNINGS[number % len(BEGINNINGS)])


def sized(prompt: list[int], output: int, number: int) -> Content:
    """Exactly these tokens as a completion; as a chat about as many words, and the template's tokens."""
    return Content(words(len(prompt), number), prompt, max_tokens=output, exact=True)


def paper_trace(number: int) -> Content:
    """The lengths of the paper (section 6.2): input ~ U(32, 512), output ~ U(1, 128)."""
    request = _paper(number // PER_TRACE)[number % PER_TRACE]
    return sized(request.prompt, request.max_new_tokens, number)


@functools.lru_cache(maxsize=4)
def _paper(seed: int) -> Any:
    return paper(PER_TRACE, seed)


def short_long_mix(number: int) -> Content:
    """Short (32 tokens in, 32 out) and long (512 in, 128 out) requests in turn."""
    size, output = ((32, 32), (512, 128))[number % 2]
    return sized(any_prompt(size, number), output, number)


def equal_size(number: int) -> Content:
    """All with 128 tokens in and 128 out."""
    return sized(any_prompt(128, number), 128, number)


def shared_system(number: int) -> Content:
    """Questions below one of four system prompts of about 400 tokens: what a prefix cache is for."""
    asked = questions(number)
    system = words(SYSTEM_TOKENS, -1 - number % SYSTEM_PROMPTS)
    return Content(asked.chat, f"{system}\n\n{asked.prompt}", system)


def multi_turn(number: int) -> Content:
    """Conversations: each question comes with all questions and answers before it."""
    asked = questions(number)
    return Content(asked.chat, f"{asked.chat}\n", continues=True)


def words(count: int, seed: int) -> str:
    """English words, in most vocabularies one token each, in an order of their own for each seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


BY_NAME: dict[str, Workload] = {
    "questions": questions,
    "paper": paper_trace,
    "short_long_mix": short_long_mix,
    "equal_size": equal_size,
    "shared_system": shared_system,
    "multi_turn": multi_turn,
}
CUSTOM = "custom"
NAMES = (*BY_NAME, CUSTOM)


def workload(name: str, path: str) -> Workload:
    """The workload of this name. Raises ValueError for a file that is none."""
    if name != CUSTOM:
        return BY_NAME[name]
    if not path:
        raise ValueError("the workload 'custom' needs --dataset-path FILE.jsonl")
    lines = read_jsonl(Path(path))
    return lambda number: lines[number % len(lines)]


def read_jsonl(path: Path) -> list[Content]:
    """A file of requests, one JSON object a line: `prompt` (a text, or token ids) or `messages`, with any other fields
    of a body; or a line of a batch file of OpenAI, whose `body` holds these. Raises ValueError with the line's number.
    """
    found = []
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"cannot read --dataset-path: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(_content(json.loads(line)))
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path} holds no request")
    return found


def _content(line: dict[str, Any]) -> Content:
    fields = dict(line.get("body", line))
    prompt = fields.pop("prompt", "")
    if not prompt and not fields.get("messages"):
        raise ValueError("a request has a 'prompt' or 'messages'")
    for ours in ("model", "stream", "stream_options"):
        fields.pop(ours, None)
    chat = prompt if isinstance(prompt, str) else words(len(prompt), len(prompt))
    return Content(chat, prompt, fields=fields)
