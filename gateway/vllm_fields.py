"""Fields of vLLM that need the tokenizer or the prompt: `bad_words` and `truncate_prompt_tokens`."""

from __future__ import annotations

from gateway.errors import ApiError, Kind
from gateway.schemas.generation import GenerationFields
from services.text import Tokenizer

Words = tuple[tuple[int, ...], ...]


def bad_word_ids(tokenizer: Tokenizer, words: tuple[str, ...]) -> Words:
    """The token ids of each word at the beginning of a text, and of those behind a space that are as many and begin
    with another token. Spaces before a word do not count. Raises ApiError for a word without tokens."""
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


def truncated(prompt: list[int], fields: GenerationFields, longest: int) -> list[int]:
    """The last tokens of the prompt, as many as `fields` say, or the first with `truncation_side` right; -1 means
    `longest`, all that the output leaves room for."""
    keep = fields.truncate_prompt_tokens
    if keep is None or keep >= len(prompt):
        return prompt
    if keep < 0:
        keep = longest
    return prompt[:keep] if fields.truncation_side == "right" else prompt[max(0, len(prompt) - keep) :]
