"""LoRA adapters beside transformers' own linear layers."""

from __future__ import annotations

from typing import Any

import torch

from services.engine.adapters import Adapter
from services.engine.batch.flat_batch import AdaptedTokens, FlatBatch

Part = tuple[torch.Tensor, torch.Tensor]  # `a` [rank, inputs] with the scale, and `b` [outputs, rank]; float32


class StockAdapters:
    """See AdapterSlots. A hook of each linear layer that an adapter changes adds its part to the rows that have it, in
    float32."""

    def __init__(self, model: Any) -> None:
        self._modules: dict[str, torch.nn.Module] = dict(model.named_modules())
        self._device: torch.device = model.device
        self._parts: dict[str, dict[str, Part]] = {}  # by digest, by the linear layer's name
        self._hooked: set[str] = set()
        self._tokens, self._adapted = 0, tuple[AdaptedTokens, ...]()  # of the batch that runs

    def put(self, digest: str, adapter: Adapter) -> None:
        self._parts[digest] = {
            name: (self._kept(torch.from_numpy(part.a) * part.scale), self._kept(torch.from_numpy(part.b)))
            for name, part in adapter.parts.items()
        }

    def drop(self, digest: str) -> None:
        del self._parts[digest]

    def begin(self, batch: FlatBatch) -> None:
        """Add the parts of the adapters of this batch from now on."""
        self._tokens, self._adapted = len(batch.input_ids), batch.adapted
        for name in {name for tokens in self._adapted for name in self._parts[tokens.adapter]} - self._hooked:
            self._modules[name].register_forward_hook(self._hook(name))
            self._hooked.add(name)

    def _kept(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.to(self._device, torch.float32)

    def _hook(self, name: str) -> Any:
        def add(module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            rows = inputs[0].flatten(0, -2)
            for tokens in self._adapted:
                assert len(rows) == self._tokens, f"{name} gets {len(rows)} of {self._tokens} tokens"
                if part := self._parts[tokens.adapter].get(name):
                    a, b = part
                    added = rows[tokens.first : tokens.end].float() @ a.t() @ b.t()
                    output.flatten(0, -2)[tokens.first : tokens.end] += added.to(output.dtype)

        return add
