"""The product behind the last norm of a decoder that makes vectors: its rows are the numbers of a vector."""

from __future__ import annotations

from pathlib import Path

import torch

from services.engine.weights.folder import open_folder
from services.engine.weights.tensors import Tensors
from services.errors import ModelError
from services.models.pooling import Pooling
from services.text.tokenizer_config import ids_of_token

SCORE = "score.weight"  # of transformers' sequence classifiers


def head_of(tensors: Tensors, vocabulary: str, pooling: Pooling, hidden: int, folder: Path) -> torch.Tensor:
    """The weight [numbers of the rows, hidden]. An embedding is made of the hidden states as they are. `vocabulary`:
    the name of the weight that gives logits. Raises ModelError."""
    if pooling.yes_no:
        no, yes = (_row(tensors, vocabulary, token, folder) for token in pooling.yes_no)
        return yes - no
    if pooling.kind == "classify":
        return open_folder(folder).read(SCORE)
    return torch.eye(hidden)


def _row(tensors: Tensors, vocabulary: str, token: str, folder: Path) -> torch.Tensor:
    ids = sorted(ids_of_token(folder, token))
    if not ids:
        raise ModelError(f"{folder}: classifier_from_token names {token!r}, which is no token of tokenizer.json")
    return tensors.read(vocabulary, rows=(ids[0], ids[0] + 1)).float()
