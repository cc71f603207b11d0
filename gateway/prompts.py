"""Texts and conversations become the token ids of prompts. What is long takes long: it is for the `Desk`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.errors import ApiError, Kind
from gateway.model import ServedModel
from gateway.schemas.chat import Message

PART = 1 << 18  # characters


def text_tokens(
    model: ServedModel, texts: Sequence[str], add_special_tokens: bool, param: str, whole: bool = False
) -> list[list[int]]:
    """The token ids of each text. Raises ApiError for one that is surely longer than any prompt of the model; where
    texts are to be prompts as a `whole`, the rest of a long list is not looked at once one has proved to be."""
    for text in texts:
        _check_length(model, text, param)
    ids: list[list[int]] = []
    for some in _in_parts(texts):
        if whole and (longest := max(map(len, ids), default=0)) > model.info.max_model_len:
            raise _too_long(model, param, str(longest))
        ids += model.tokenizer.encode_batch(some, add_special_tokens)
    return ids


def _in_parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Runs of `texts`, each of so many characters that a few cores have work."""
    begin = size = 0
    for end, text in enumerate(texts, start=1):
        size += len(text)
        if size >= PART or end == len(texts):
            yield texts[begin:end]
            begin, size = end, 0


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
        raise _too_long(model, param, f"at least {least}")


def _too_long(model: ServedModel, param: str, tokens: str) -> ApiError:
    words = f"This model's maximum context length is {model.info.max_model_len} tokens, but '{param}' has {tokens}."
    return ApiError(Kind.CONTEXT_LENGTH, words, param)
