"""Texts and conversations become the token ids of prompts. What is long takes long: it is for the `Desk`."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from gateway.schemas.chat import Message


def text_tokens(model: ServedModel, texts: Sequence[str], add_special_tokens: bool, param: str) -> list[list[int]]:
    """The token ids of each text. Raises ApiError for one that is longer than any prompt of the model."""
    for text in texts:
        _check_length(model, text, param)
    return model.tokenizer.encode_batch(texts, add_special_tokens)


def chat_tokens(
    model: ServedModel,
    messages: list[Message],
    add_generation_prompt: bool | None = None,
    param: str = "messages",
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
) -> list[int]:
    """The prompt that `messages` make, which came in the field `param`; unless said, it ends with the beginning of an
    answer if it does not end with an open message. Raises ApiError where the model's template refuses them, and for a
    prompt that is longer than any of the model."""
    begin = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    said = [message.for_template() for message in messages]
    try:
        text = model.tokenizer.apply_chat_template(said, begin, continue_final_message)
        return text_tokens(model, [text], add_special_tokens, param)[0]
    except ValueError as error:
        raise ApiError(Kind.INVALID, f"Invalid '{param}': {error}", param) from None


def size_of(messages: Sequence[Message]) -> int:
    """Characters of a conversation, about, for the desk."""
    return sum(32 + message.size for message in messages)


def _check_length(model: ServedModel, text: str, param: str) -> None:
    """Before it is tokenized, which takes seconds and hundreds of bytes for each character of a very long text."""
    least, most = model.tokenizer.least_tokens(text), model.info.max_model_len
    if least > most:
        words = f"This model's maximum context length is {most} tokens, but '{param}' has at least {least}."
        raise ApiError(Kind.CONTEXT_LENGTH, words, param)
