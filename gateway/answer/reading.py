"""Reading: which parsers read the answers of a model, and those of one request."""

from __future__ import annotations

from dataclasses import dataclass

from services.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of an answer is read: fields of its `Plan`. `spelled`: a mark of a parser is a special token, so the
    text needs the names of special tokens."""

    tool_parser: str = ""
    reasoning_parser: str = ""
    reasoning_open: bool = False
    parallel_tool_calls: bool = True
    spelled: bool = False


PLAIN = Reading()


def tool_family(tokenizer: Tokenizer) -> str:
    """The parser of the calls that the chat template writes in the history; empty if it is of no known family. A
    template that does not know tools gets text in the syntax of `smollm2`."""
    if not tokenizer.template_knows_tools:
        return "smollm2"
    text = tokenizer.config.tool_template or tokenizer.config.chat_template or ""
    if "[TOOL_CALLS]" in text:
        return "mistral"
    if "<function=" in text:  # Qwen3-Coder
        return ""
    if "<tool_call>" in text:
        return "hermes"
    return "llama3_json" if '"parameters": ' in text else ""
