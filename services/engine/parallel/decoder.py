"""RankDecoder: the decoder of the fast path, whole or one rank's part of it. `backends/cpu` and `backends/cuda` derive
from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch.nn.functional import pad

from services.engine.adapters import AdapterSlots
from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape, StateShape
from services.engine.parallel.layout import Layout, Partition
from services.engine.parallel.links import Links
from services.engine.spec import DecoderSpec

AllReduce = Callable[[torch.Tensor], torch.Tensor]  # Links.all_reduce


class ForwardPass(Protocol):
    """One batch on its way through a rank's layers. x is the residual stream [tokens, hidden], float32."""

    def embed(self) -> torch.Tensor:
        """This rank's part of x before the first layer: zeros for tokens and positions that another rank embeds."""
        ...

    def run(self, x: torch.Tensor, all_reduce: AllReduce | None) -> torch.Tensor | None:
        """Add to x what the rank's layers compute. Returns what is still to be added, if `logits` adds it faster.

        `all_reduce` sums what the ranks of a stage have of an attention or an MLP; None if one rank has all of it.
        """
        ...

    def logits(self, x: torch.Tensor, change: torch.Tensor | None, tokens: Numbers | None) -> torch.Tensor:
        """[tokens, this rank's part of the vocabulary], float32, after these tokens, which are flat indices among the
        batch's `wanted`; None: its `ends`. Valid until the next call. `change` is what `run` returned."""
        ...


class RankDecoder(ABC):
    """A decoder whose layers and products may be split over ranks (paper, figures 6 and 7). The plain case is one rank,
    one stage and no links.

    A token's logits depend on its request and the layout, bitwise, and on nothing else."""

    backend: str  # the path without the layout
    weight_dtype: torch.dtype
    weight_bytes: float
    cache_dtype: torch.dtype
    as_stored: Mapping[str, bool]
    memory: int
    reads_past_end = True
    states: Sequence[StateShape] = ()  # no family of the fast path has any
    adapters: AdapterSlots | None = None

    def __init__(self, spec: DecoderSpec, layout: Layout, device: torch.device) -> None:
        """`spec` is the whole model's."""
        self.links: Links | None = None  # to the other ranks, if there are any; see Engine.link
        self._spec, self._part, self._layout, self._device = spec, layout.part_of(spec), layout, device
        # x and what is to be added to it after the last batch, where there is the vocabulary and prompts are scored
        self._last: tuple[ForwardPass, torch.Tensor, torch.Tensor | None] | None = None

    @abstractmethod
    def bind(self, cache: KVCache) -> None:
        """See Decoder."""

    @abstractmethod
    def begin(self, batch: FlatBatch) -> ForwardPass: ...

    @property
    def path(self) -> str:
        parts = [self.backend]
        if self._spec.chosen:
            parts.append(f"longrope-{self._spec.chosen}")
        if self._layout.size > 1:
            parts.append(str(self._layout))
        return " ".join(parts)

    @property
    def depth(self) -> int:
        """How many layers this rank has."""
        first, end = self._layout.layers(self._spec.layers)
        return end - first

    @property
    def layers(self) -> list[LayerShape]:
        return shapes(self._part, *self._layout.layers(self._spec.layers))

    @property
    def layers_in_memory(self) -> list[LayerShape]:
        """See Decoder. All ranks of a CPU share its memory; a GPU has one rank."""
        return shapes(self._spec, 0, self._spec.layers) if self._device.type == "cpu" else self.layers

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """See Decoder; float32."""
        layout, links = self._layout, self.links
        assert layout.size == 1 or links, "not linked to the other ranks"
        self._last = None
        forward_pass = self.begin(batch)
        if layout.is_first:
            x = forward_pass.embed()
            if links:
                x = links.all_reduce(x)
        else:
            assert links
            x = torch.empty(len(batch.input_ids), self._spec.hidden, device=self._device)
            links.receive(x)
        change = forward_pass.run(x, links.all_reduce if links and layout.tp > 1 else None)
        if not layout.is_last:
            assert links
            links.send(x if change is None else x.add_(change))
            return None
        if batch.scored_requests:
            self._last = forward_pass, x, change
        return self._gather(forward_pass.logits(x, change, None))

    @property
    def is_rank(self) -> bool:
        """Whether other ranks have parts of the model."""
        return self._layout.size > 1

    def run_alone(self, batch: FlatBatch) -> None:
        """Compute this rank's part of a batch without the others. The results mean nothing."""
        forward_pass, layout = self.begin(batch), self._layout
        if layout.is_first:
            x = forward_pass.embed()
        else:
            x = torch.ones(len(batch.input_ids), self._spec.hidden, device=self._device)
        change = forward_pass.run(x, None)
        if layout.is_last:
            forward_pass.logits(x, change, None)

    def logits_after(self, tokens: Numbers) -> torch.Tensor | None:
        """See Decoder. Each rank of the last stage has a part of the logits, so all ranks must ask for the same
        tokens."""
        if not self._layout.is_last:
            return None
        assert self._last is not None, "the last batch scored nothing"
        forward_pass, x, change = self._last
        return self._gather(forward_pass.logits(x, change, tokens))

    def _gather(self, logits: torch.Tensor) -> torch.Tensor | None:
        """On the rank that samples, the ranks' parts [tokens, part of vocab] as one tensor; None on the others. Parts
        are padded to the same size, since some have one column less."""
        layout, vocab = self._layout, self._spec.vocab
        if layout.tp == 1:
            return logits
        assert self.links
        if len(logits):
            shares = [Partition(rank, layout.tp).share(vocab) for rank in range(layout.tp)]
            parts = self.links.all_gather(pad(logits, (0, max(shares) - logits.shape[1])))
            logits = torch.cat([part[:, :share] for part, share in zip(parts, shares, strict=True)], dim=1)
        else:
            logits = logits.new_empty(0, vocab)
        return logits if layout.samples else None


def shapes(part: DecoderSpec, first: int, end: int) -> list[LayerShape]:
    """What these layers of the model keep of a token: nothing, if they attend to the keys and values of others."""
    own = [part.heads_of(layer) for layer in range(first, end) if part.kv_layer(layer) == layer]
    if part.both_ways:  # no later iteration needs any of it, so all layers write to one place
        own = own[:1]
    return [LayerShape(heads.kv_heads, heads.head_dim, heads.head_dim) for heads in own]
