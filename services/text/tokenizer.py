"""Tokenizer: text to token ids and back, by the model's tokenizer.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from services.errors import ModelError
from services.text.chat_template import ChatTemplate
from services.text.length_bound import LengthBound
from services.text.token_bytes import TextTables, read_tokenizer_json
from services.text.tokenizer_config import TokenizerConfig


class Tokenizer:
    """A model's tokenizer, its chat template and its tables. Safe to use from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        tables: TextTables,
        template: ChatTemplate | None,
        config: TokenizerConfig,
        bound: LengthBound | None = None,
    ) -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._template = template
        self.tables = tables
        self.config = config
        self._bound = bound

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of the model in `folder`; ModelError where there is none that can be served."""
        raw = read_tokenizer_json(folder)
        tables = TextTables.made_of(raw, folder)
        assert tables.with_special is not None
        bound = LengthBound.of(raw, max(map(len, tables.with_special.token_bytes), default=0))
        path = folder / "tokenizer.json"
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} cannot be read: {error}") from None
        return cls(backend, tables, ChatTemplate.load(folder), TokenizerConfig.load(folder), bound)

    @property
    def vocab_size(self) -> int:
        """How many ids the tokenizer knows, added tokens included; a model may have more logits."""
        return len(self.tables.token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.tables.special_ids

    @property
    def token_bytes(self) -> list[bytes]:
        return self.tables.token_bytes

    def least_tokens(self, text: str) -> int:
        """How many tokens `text` has at least, by its length; 0 where that says nothing."""
        return self._bound.least_tokens(text) if self._bound else 0

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written in it become their ids.

        `add_special_tokens` puts those around it that the model expects (a BOS, say); False for text that a chat
        template made, which has them. Raises ValueError where `text` is no valid Unicode (a lone surrogate).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """`encode` of each text, on several cores."""
        for text in texts:
            text.encode()  # the library would raise a TypeError
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids` as output: what `Detokenizer` gives, or with the special tokens spelled out."""
        return self.tables.of(skip_special_tokens).join(ids).decode(errors="replace")

    def literal_bytes(self, token: int) -> bytes:
        """The token's bytes, those of a special token being its name: what logprobs show."""
        if token in self.tables.special_ids:
            return (self._backend.id_to_token(token) or "").encode()
        return self.tables.bytes_of(token)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The prompt text for a chat, see `ChatTemplate.apply`; ValueError where the template refuses it or the model
        has none."""
        if self._template is None:
            raise ValueError("this model has no chat template; use completions, which take plain text")
        return self._template.apply(messages, add_generation_prompt, continue_final_message)
