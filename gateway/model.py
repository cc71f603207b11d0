"""The served model, and the token ids that its tokenizer makes of requests.

Tokenizing a long text takes long: it is done by the executor, off the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.errors import ApiError, Kind
from gateway.schemas.answers import Model, ModelDetails
from gateway.schemas.chat import Message
from gateway.schemas.generation import NO_DEFAULTS, GenerationFields
from services.adapters.registry import Adapter
from services.models import ModelInfo
from services.models.generation import SamplingDefaults
from services.text import Tokenizer
from services.text.plain_contents import OwnMarks

PART = 1 << 18  # characters that are tokenized in one call
Words = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model's name in the API, its tokenizer and its figures. `created` is in Unix seconds, for clients only until
    the pool says when it had its first gateway. `defaults`: the sampling of requests that do not say it. `aliases`:
    further names by which requests may ask for it; answers have its `name`. `allow_control_tokens`: the setting.
    `folder`: with its files, for the check of adapters."""

    name: str
    tokenizer: Tokenizer
    info: ModelInfo
    created: int
    defaults: SamplingDefaults = NO_DEFAULTS
    aliases: tuple[str, ...] = ()
    allow_control_tokens: bool = False
    folder: Path | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *self.aliases

    def card(self, name: str, weights: str = "", adapter: Adapter | None = None) -> Model:
        """The model object under one of its names, or that of an adapter, with fields of OpenAI, Anthropic and vLLM
        (`max_model_len`), its defaults if any, and how engines keep its `weights` if that is known."""
        created = int(adapter.since) if adapter else self.created
        known: ModelDetails = {}
        if said := self.defaults.given():
            known["default_sampling_params"] = said
        if weights:
            known["weights"] = weights
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "orca",
            "root": adapter.path if adapter else self.info.name,
            "parent": self.name if adapter else None,
            "max_model_len": self.info.max_model_len,
            **known,
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
            "lifecycle": "active",
        }


def text_tokens(
    model: ServedModel, texts: Sequence[str], add_special_tokens: bool, param: str, whole: bool = False
) -> list[list[int]]:
    """The token ids of each text. Raises ApiError for a text that certainly exceeds the context length. `whole`: the
    texts will not be truncated, so the rest of a long list is not tokenized after one that exceeds it."""
    for text in texts:
        _check_length(model, text, param)
    ids: list[list[int]] = []
    for part in _in_parts(texts):
        if whole and (longest := max(map(len, ids), default=0)) > model.info.max_model_len:
            raise _too_long(model, param, str(longest))
        ids += model.tokenizer.encode_batch(part, add_special_tokens)
    return ids


def chat_tokens(
    model: ServedModel,
    messages: list[Message],
    own_marks: OwnMarks,
    add_generation_prompt: bool | None = None,
    param: str = "messages",
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    tools: Sequence[dict[str, Any]] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    allow_control_tokens: bool | None = None,
) -> list[int]:
    """The prompt of a conversation. `own_marks`: see `ModelReading`. `param`: the field with the messages. By default
    the prompt ends with the beginning of an answer unless the final message is continued. `tools`: as chat templates
    expect them. `kwargs`: further variables of the template. `allow_control_tokens`: texts that are spelled like
    control tokens become these; None: as the server's setting says.

    Raises ApiError if the chat template refuses the messages or the prompt exceeds the context length."""
    begin = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    conversation, mark = [message.for_template() for message in messages], ""
    if not (model.allow_control_tokens if allow_control_tokens is None else allow_control_tokens):
        conversation, tools, mark = model.tokenizer.protected(conversation, tools or (), own_marks)
    try:
        text = model.tokenizer.apply_chat_template(conversation, begin, continue_final_message, tools, kwargs)
        if not mark:
            return text_tokens(model, [text], add_special_tokens, param)[0]
        _check_length(model, text.replace(mark, ""), param)
        return model.tokenizer.encode_protected(text, mark, add_special_tokens)
    except ValueError as error:
        raise ApiError(Kind.INVALID, f"Invalid '{param}': {error}", param) from None


def conversation_size(messages: Sequence[Message]) -> int:
    """The approximate number of characters of a conversation."""
    return sum(32 + message.size for message in messages)


def bad_word_ids(tokenizer: Tokenizer, words: tuple[str, ...]) -> Words:
    """The token ids of `bad_words` as vLLM has them: each word at the beginning of a text and, if that gives as many
    tokens with another first one, after a space. Leading spaces of a word are ignored. Raises ApiError for a word
    without tokens."""
    if not words:
        return ()
    bare = [word.lstrip() for word in words]
    encoded = tokenizer.encode_batch([*bare, *(f" {word}" for word in bare)], add_special_tokens=False)
    found: list[tuple[int, ...]] = []
    for word, plain, spaced in zip(words, encoded[: len(bare)], encoded[len(bare) :], strict=True):
        if not plain:
            raise ApiError(Kind.INVALID, f"Invalid 'bad_words': {word!r} has no tokens.", "bad_words")
        found.append(tuple(plain))
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(tuple(spaced))
    return tuple(dict.fromkeys(found))


def truncated(prompt: list[int], fields: GenerationFields, max_prompt_tokens: int) -> list[int]:
    """The tokens that `truncate_prompt_tokens` keeps: the last ones, or with `truncation_side` right the first ones; -1
    keeps `max_prompt_tokens`."""
    keep = fields.truncate_prompt_tokens
    if keep is None or keep >= len(prompt):
        return prompt
    if keep < 0:
        keep = max_prompt_tokens
    return prompt[:keep] if fields.truncation_side == "right" else prompt[max(0, len(prompt) - keep) :]


def _check_length(model: ServedModel, text: str, param: str) -> None:
    """To be called before tokenizing, which takes seconds and hundreds of bytes per character for a very long text."""
    least, most = model.tokenizer.least_tokens(text), model.info.max_model_len
    if least > most:
        raise _too_long(model, param, f"at least {least}")


def _too_long(model: ServedModel, param: str, tokens: str) -> ApiError:
    words = f"This model's maximum context length is {model.info.max_model_len} tokens, but '{param}' has {tokens}."
    return ApiError(Kind.CONTEXT_LENGTH, words, param)


def _in_parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Consecutive parts of `texts`, each with enough characters to occupy a few cores."""
    begin = size = 0
    for end, text in enumerate(texts, start=1):
        size += len(text)
        if size >= PART or end == len(texts):
            yield texts[begin:end]
            begin, size = end, 0
