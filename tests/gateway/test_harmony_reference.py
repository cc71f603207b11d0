"""Messages on channels as OpenAI's own package reads and writes them.

The package fetches its vocabulary unless TIKTOKEN_ENCODINGS_BASE names a folder with `o200k_base.tiktoken`; without
both, these tests are skipped.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from test_channels import CASES, NEXT, parser
from test_parsers import read

from gateway.answer.parts import CALL, REASONING, TEXT

harmony = pytest.importorskip("openai_harmony")
if "TIKTOKEN_ENCODINGS_BASE" not in os.environ:
    pytest.skip("TIKTOKEN_ENCODINGS_BASE names no folder with o200k_base.tiktoken", allow_module_level=True)

# what their parser refuses (or, without an end between, reads as one message), and ours reads as far as it goes
BROKEN = {"cut in a head", "text alone", "the rest of a final message", "no head", "no end between"}


@pytest.fixture(scope="module")
def encoding() -> Any:
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def theirs(messages: list[Any]) -> list[tuple[Any, str, str | None]]:
    """Their messages as parts: (kind, text, name of the tool)."""
    made: list[tuple[Any, str, str | None]] = []
    for message in messages:
        text = "".join(content.text for content in message.content)
        called = (message.recipient or "").startswith("functions.")
        thought = message.channel == "analysis" or bool(message.recipient)
        kind = CALL if called else REASONING if thought else TEXT
        if made and made[-1][0] == kind and kind is not CALL:
            made[-1] = (kind, f"{made[-1][1]}\n{text}", None)
        elif text:
            made.append((kind, text.strip() if called else text, message.recipient[10:] if called else None))
    return made


def ours(text: str) -> list[tuple[Any, str, str | None]]:
    return [(part.kind, part.text, part.name) for part in read(parser(), text)]


@pytest.mark.parametrize("case", sorted(set(CASES) - BROKEN))
def test_messages_are_read_alike(encoding: Any, case: str) -> None:
    text, _ = CASES[case]
    tokens = encoding.encode(text, allowed_special="all")
    assert ours(text) == theirs(encoding.parse_messages_from_completion_tokens(tokens, harmony.Role.ASSISTANT))


def test_what_the_package_writes_is_read(encoding: Any) -> None:
    of = harmony.Message.from_role_and_content
    messages = [
        of(harmony.Role.ASSISTANT, "Hm, né 🐳.").with_channel("analysis"),
        of(harmony.Role.ASSISTANT, "I look.").with_channel("commentary"),
        of(harmony.Role.ASSISTANT, '{"a": 1}')
        .with_channel("commentary")
        .with_recipient("functions.now")
        .with_content_type("<|constrain|>json"),
    ]
    written = "".join(encoding.decode(encoding.render(message)) for message in messages)
    assert ours(written.removeprefix(NEXT)) == theirs(messages)
