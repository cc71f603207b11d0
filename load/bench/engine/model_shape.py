"""ModelShape: the products of a model and what it keeps of a token, read from its config; no weights are made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True, slots=True)
class Matrix:
    """`count` weight matrices of this size, over all layers."""

    inputs: int
    outputs: int
    count: int

    @property
    def elements(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`head_dim` is that of queries, keys and values alike."""

    layers: int
    projections: tuple[Matrix, ...]
    output: Matrix  # from the last hidden state to the vocabulary
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: int  # of a number of the weights
    kv_bytes: int  # of a number of keys and values

    @classmethod
    def of(cls, config: Any, weights: torch.dtype, kept: torch.dtype) -> ModelShape:
        """Of a text model's config; weights and KV in these dtypes.

        Raises ValueError naming weights that are neither an embedding nor a projection of every token.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        output = model.get_output_embeddings()
        sizes: Counter[tuple[int, int]] = Counter()
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding) or module is output:
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.ndim < 2:
                    continue
                if not isinstance(module, torch.nn.Linear | Conv1D):
                    raise ValueError(f"{config.model_type}: the operations of {name} are not known")
                sizes[_size(module)] += 1
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            projections=tuple(Matrix(*size, count) for size, count in sizes.items()),
            output=Matrix(*_size(output), 1),
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            weight_bytes=int(weights.itemsize),
            kv_bytes=int(kept.itemsize),
        )

    @property
    def widest(self) -> tuple[int, int]:
        """(inputs, outputs) of the projections of a layer that weigh most, those of one size side by side."""
        matrix = max(self.projections, key=lambda matrix: matrix.elements)
        return matrix.inputs, matrix.outputs * max(1, matrix.count // self.layers)


def _size(module: Any) -> tuple[int, int]:
    """(inputs, outputs); a Conv1D of GPT-2 keeps its weight the other way around."""
    rows, columns = module.weight.shape
    return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)
