"""Tokenizer: from text to token ids and back, with the model's tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from services.text.chat_template import ChatTemplate
from services.text.length_bound import LengthBound
from services.text.plain_contents import OwnMarks, PlainContents
from services.text.plain_encoder import load_backend
from services.text.token_bytes import TextTables
from services.text.tokenizer_config import TokenizerConfig
from services.text.tokenizer_json import read_tokenizer_json
from services.text.tool_fallback import FORM, INSTRUCTIONS, RESPONSE

Text = str | tuple[str, str]  # or a pair of texts


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The token ids of a text or a pair. `second`: where the second text begins for a model that tells them apart."""

    ids: list[int]
    second: int = 0


def _encoded(encoding: tokenizers.Encoding) -> EncodedText:
    return EncodedText(encoding.ids, encoding.type_ids.index(1) if 1 in encoding.type_ids else 0)


class Tokenizer:
    """A model's tokenizer, chat template and text tables. Can be used by several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        tables: TextTables,
        template: ChatTemplate | None,
        config: TokenizerConfig,
        bound: LengthBound | None = None,
        plain: PlainContents | None = None,
    ) -> None:
        self._backend = backend
        self._template = template
        self.tables = tables
        self.config = config
        self._bound = bound
        self._plain = plain

    @classmethod
    def load(cls, folder: Path, exact: bool = True) -> Tokenizer:
        """Load the tokenizer of the model in `folder`; for `exact` see TextTables. Raises ModelError if it has none
        that can be served."""
        raw = read_tokenizer_json(folder)
        tables = TextTables.made_of(raw, folder, exact)
        assert tables.with_special is not None
        bound = LengthBound.of(raw, max(map(len, tables.with_special.token_bytes), default=0))
        config = TokenizerConfig.load(folder)
        written = f"{config.chat_template}{config.tool_template}{FORM}{RESPONSE}{INSTRUCTIONS}"
        plain = PlainContents(raw, written) if exact else None
        return cls(load_backend(folder), tables, ChatTemplate.load(folder), config, bound, plain)

    @property
    def vocab_size(self) -> int:
        """The number of ids of the tokenizer, including added tokens. A model may have more logits."""
        return len(self.tables.token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.tables.special_ids

    def least_tokens(self, text: str) -> int:
        """Return a lower bound of the number of tokens of `text`, computed from its length; 0 if there is none."""
        return self._bound.least_tokens(text) if self._bound else 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`. Special tokens that are spelled in it become their ids.

        `add_special_tokens` adds those that the model expects around a text, such as a BOS. It is False for the output
        of a chat template, which has them. Raises ValueError if `text` is not valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Return the token ids of each text, as `encode` gives them; texts are encoded on several cores."""
        for text in texts:
            text.encode()  # the library would raise a TypeError
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_texts(
        self, texts: Sequence[Text], add_special_tokens: bool = True, keep: int | None = None
    ) -> list[EncodedText]:
        """Return the token ids of texts and pairs of texts. `keep`: at most so many of each, special tokens included;
        the ends are cut off, of a pair that of the longer text."""
        for text in texts:
            "".join(text).encode()  # the library would raise a TypeError
        whole = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [
            _encoded(one if keep is None or len(one.ids) <= keep else self._cut(text, add_special_tokens, keep))
            for text, one in zip(texts, whole, strict=True)
        ]

    def _cut(self, text: Text, add_special_tokens: bool, keep: int) -> tokenizers.Encoding:
        parts = [text] if isinstance(text, str) else list(text)
        bare = self._backend.encode_batch(parts, add_special_tokens=False)
        special = self._backend.num_special_tokens_to_add(len(parts) > 1) if add_special_tokens else 0
        room = max(keep - special, len(parts))
        first, second = bare[0], bare[1] if len(bare) > 1 else None
        if second is None:
            first.truncate(room)
        else:
            first.truncate(max(room - len(second.ids), room - room // 2))
            second.truncate(room - len(first.ids))
        return self._backend.post_process(first, second, add_special_tokens)

    def protected(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], own_marks: OwnMarks
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
        """Return `messages` and `tools` with their texts marked where they are spelled like control tokens, and the
        mark, which `encode_protected` takes; "" if nothing is. See `PlainContents`."""
        if self._plain is None:
            return list(map(dict, messages)), list(map(dict, tools)), ""
        return self._plain.protected(messages, tools, own_marks)

    def encode_protected(self, text: str, mark: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a rendered `text` with marks. Raises ValueError as
        `PlainContents.encode` does, and if it is not valid Unicode."""
        assert self._plain is not None, "texts without marks need none of this"
        text.encode()
        return self._plain.encode(self._backend, text, mark, add_special_tokens)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of output tokens, as `Detokenizer` does."""
        return self.tables.of(skip_special_tokens).join(ids).decode(errors="replace")

    def literal_bytes(self, token: int) -> bytes:
        """Return the token's bytes for log probabilities. The bytes of a special token are its name."""
        if token in self.tables.special_ids:
            return (self._backend.id_to_token(token) or "").encode()
        return self.tables.bytes_of(token)

    def spelled(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens as the vocabulary spells them, like `convert_ids_to_tokens` of transformers."""
        return [self._backend.id_to_token(token) or "" for token in ids]

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def template_knows_tools(self) -> bool:
        """Whether the chat template has a place for tools, see `ChatTemplate.uses_tools`."""
        return self._template is not None and self._template.uses_tools

    @property
    def template_writes_calls(self) -> bool:
        """Whether the chat template writes calls of the history."""
        return self._template is not None and self._template.writes_calls

    def describe_calls(self, form: str) -> None:
        """Tools that the chat template has no place for are described with calls in this form, and the template writes
        the calls of the history."""
        assert self._template is not None
        self._template.call_form = form

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of the prompt for a chat, see `ChatTemplate.apply`. Raises ValueError if the template refuses
        the messages or if the model has no template.
        """
        if self._template is None:
            raise ValueError("this model has no chat template; use completions, which take plain text")
        return self._template.apply(messages, add_generation_prompt, continue_final_message, tools, kwargs)
