"""StockDecoder: any decoder of transformers with its own layers and our attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from services.engine.backends.stock.adapters import StockAdapters
from services.engine.backends.stock.attention import attending
from services.engine.backends.stock.check import AttentionLayer, base_of, logits_after
from services.engine.backends.stock.sdpa import SdpaAttention
from services.engine.backends.stock.state_blocks import Scratch, StateBlocks
from services.engine.backends.stock.states import StateLayer, advancing
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.weights.description import tensor_bytes


class StockDecoder:
    """Runs `model` flat as [1, total_tokens]."""

    reads_past_end = True

    def __init__(
        self, model: Any, layers: list[AttentionLayer], states: Sequence[StateLayer] = (), path: str = "sdpa"
    ) -> None:
        """`layers` that attend, and those with `states`."""
        self.path = path
        self.layers = [layer.shape for layer in layers]
        self.masks = [layer.mask for layer in layers]
        self.states = [shape for layer in states for shape in layer.shapes.values()]
        self._attending = {layer.index: number for number, layer in enumerate(layers)}
        self._advancing, self._scratch = states, Scratch()
        self._model = model
        self._base = base_of(model)
        self.adapters = StockAdapters(model)
        self._hidden: Any = None  # the base's output for the last batch, if prompts are scored
        self._device: torch.device = model.device
        self.weight_dtype: torch.dtype = model.dtype
        self.weight_bytes = self.weight_dtype.itemsize
        self.as_stored: Mapping[str, bool] = {}
        self.memory = tensor_bytes(list(model.parameters()))
        # torch's attention on a CPU converts bfloat16 at each read, which took five times as long
        self.cache_dtype: torch.dtype = torch.float32 if self._device.type == "cpu" else model.dtype

    @property
    def layers_in_memory(self) -> list[LayerShape]:
        return self.layers

    def bind(self, cache: KVCache) -> None:
        self._cache = cache

    def forward(self, batch: FlatBatch) -> torch.Tensor:
        self._hidden = None
        hook = self._base.register_forward_hook(self._keep) if batch.scored_requests else None
        try:
            attention = SdpaAttention(batch, self._cache, self._device, self.masks, self._attending)
            states = StateBlocks(batch, self._cache, self._advancing, self._device, self._scratch)
            ids = self._on_device(batch.input_ids)
            if batch.drawn:
                batch.drawn.put(ids)
            self.adapters.begin(batch)
            with attending(attention), advancing(states):
                output = self._model(
                    input_ids=ids[None],
                    position_ids=self._on_device(batch.positions())[None],
                    use_cache=False,
                    logits_to_keep=self._on_device(batch.ends),
                )
        finally:
            if hook:
                hook.remove()
        logits: torch.Tensor = output.logits[0]
        return logits

    def logits_after(self, tokens: Numbers) -> torch.Tensor:
        """See Decoder. Runs the model again with the hidden states that it had, so that the family's own head makes the
        logits."""
        assert self._hidden is not None, "the last batch scored nothing"
        return logits_after(self._model, self._hidden, self._on_device(tokens))

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output

    def _on_device(self, numbers: Numbers) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._device, torch.long)
