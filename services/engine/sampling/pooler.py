"""Pooler: a vector for each request that is complete, where a model makes no logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.functional import linear

from services.engine.batch.request_state import RequestState
from services.engine.sampling.output import Draw, SamplerOutput
from services.errors import ModelError
from services.messages import Logprobs
from services.models.json_file import read_json
from services.models.pooling import Pooling
from services.started import finished

NO_TOKEN = 0  # the id of the output token that stands for a vector
LEAST_LENGTH = 1e-12  # that sentence-transformers divides a vector by
ACTIVATIONS = {
    "Identity": torch.nn.Identity(),
    "Tanh": torch.nn.Tanh(),
    "GELU": torch.nn.GELU(),
    "ReLU": torch.nn.ReLU(),
}


class Pooler:
    """A request's vector depends on its own rows, and never on the batch: each sum has one order."""

    def __init__(self, pooling: Pooling, folder: Path) -> None:
        """Reads the layers behind pooling from `folder`. Raises ModelError."""
        self._pooling = pooling
        self._dense = [Dense.load(folder / name) for name in pooling.dense]

    def draw(self, rows: torch.Tensor, states: list[RequestState], drafts: Sequence[list[int]] = ()) -> Draw:
        """The vectors of `states`, whose rows [rows, numbers] the decoder made; see FlatBatch.ends. They have no
        drafts."""
        assert not any(drafts), f"{drafts = }"
        output, at = SamplerOutput(), 0
        numbers = rows.float().cpu()
        for state in states:
            count = state.num_prompt_tokens if self._pooling.method == "mean" else 1
            vector = self._vector(numbers[at : at + count])
            at += count
            assert len(vector) == state.sampling.vector, (
                f"{state.id}: {len(vector)} numbers, {state.sampling.vector = }"
            )
            if np.isfinite(vector).all():
                output.tokens[state.id] = NO_TOKEN
                output.logprobs[state.id] = Logprobs(0.0, [], vector=vector.astype("<f4").tobytes())
            else:
                output.failed[state.id] = "the model's vector is not finite"
        return Draw(finished(output))

    def _vector(self, rows: torch.Tensor) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        vector = rows[0]
        if len(rows) > 1:
            vector = torch.from_numpy(np.add.reduce(rows.numpy(), axis=0, dtype=np.float64) / len(rows)).float()
        for dense in self._dense:
            vector = dense(vector)
        found = vector.numpy().astype(np.float64)
        if self._pooling.normalize:
            found = found / max(float(np.sqrt(np.add.reduce(found * found))), LEAST_LENGTH)
        return found.astype(np.float32)


class Dense:
    """A layer of sentence-transformers behind pooling."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, activation: torch.nn.Module) -> None:
        self._weight, self._bias, self._activation = weight, bias, activation

    @classmethod
    def load(cls, folder: Path) -> Dense:
        """Raises ModelError."""
        config = read_json(folder / "config.json") or {}
        name = str(config.get("activation_function") or "torch.nn.modules.activation.Tanh").rpartition(".")[2]
        if name not in ACTIVATIONS:
            raise ModelError(f"{folder}: activation_function {name} is not served; {', '.join(ACTIVATIONS)} are")
        try:
            tensors = load_file(folder / "model.safetensors")
            bias = tensors["linear.bias"].float() if config.get("bias", True) else None
            return cls(tensors["linear.weight"].float(), bias, ACTIVATIONS[name])
        except (OSError, KeyError, SafetensorError) as error:
            raise ModelError(f"{folder} holds no layer in model.safetensors: {error}") from None

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self._activation(linear(vector, self._weight, self._bias))
        return made
