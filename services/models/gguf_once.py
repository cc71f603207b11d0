"""What transformers (5.23) does more than once with a GGUF file, done once.

It reads the header, with the vocabulary and all merges, anew for the config and for the tokenizer, and builds gguf's
table of tensors' names anew for each module of a model. That would be half of the time of a small conversion."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gguf
from transformers.modeling_gguf_pytorch_utils import TensorProcessor, get_gguf_hf_weights_map

_TOKENS = "tokenizer.ggml.tokens"
_PIECES = (_TOKENS, "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges")


@contextlib.contextmanager
def already_read(fields: Mapping[str, Any], tensors: Sequence[Any]) -> Iterator[None]:
    """Meanwhile, transformers gets these `fields` and `tensors` of GGUFReaders in place of reading a file."""
    with _replaced("GGUFReader", lambda _: SimpleNamespace(fields=fields, tensors=tensors)):
        yield


def without_pieces(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What of the `fields` of a GGUFReader a config is made of: of the vocabulary, only how large it is. transformers
    would parse each piece, score and merge, which takes seconds."""
    kept = {name: field for name, field in fields.items() if not name.startswith(_PIECES)}
    kinds, pieces = gguf.GGUFValueType, [0] * len(fields[_TOKENS].data)
    kept[_TOKENS] = SimpleNamespace(parts=[(0,)], data=pieces, types=[kinds.ARRAY, kinds.UINT8])
    return kept


def names_of(model: Any, processor: TensorProcessor) -> dict[str, str]:
    """transformers' names of the model's tensors, by their names in a file."""
    with _replaced("get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)):
        names: dict[str, str] = get_gguf_hf_weights_map(model, processor)
    return names


@contextlib.contextmanager
def _replaced(name: str, value: object) -> Iterator[None]:
    """Replace what transformers takes from the package when it needs it."""
    before = getattr(gguf, name)
    setattr(gguf, name, value)
    try:
        yield
    finally:
        setattr(gguf, name, before)
