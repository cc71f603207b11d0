"""RankDecoder: one rank's part of a decoder of the lean path."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from services.engine.batch.flat_batch import FlatBatch, Numbers
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.families.spec import DecoderSpec
from services.engine.parallel.layout import Layout
from services.engine.parallel.links import Links
from services.engine.parallel.part import Part, Pass
from services.engine.parallel.shard import Shard


class RankDecoder:
    """A part of the model (paper, figures 6 and 7) and its links to the others, which are made later.

    On a CPU, and with `batch_invariant` on a GPU, a token's logits depend on its request and the layout, bitwise, and
    on nothing else.
    """

    def __init__(self, part: Part, spec: DecoderSpec, layout: Layout) -> None:
        """`spec` is the whole model's."""
        self.path = f"{part.path} {layout}"
        self.weight_dtype, self.cache_dtype = part.weight_dtype, part.cache_dtype
        self.bytes_read = part.bytes_read  # of the checkpoint
        self.links: Links | None = None
        self._part, self._spec, self._layout = part, spec, layout
        self._last: tuple[Pass, torch.Tensor] | None = None  # where there is the vocabulary, if prompts are scored

    @property
    def layers(self) -> list[LayerShape]:
        return self._part.layers

    @property
    def sharing(self) -> list[LayerShape]:
        """What those ranks keep of a token that share one memory: all of them on a CPU, on a GPU this one alone."""
        if self._part.device.type != "cpu":
            return self.layers
        spec = self._spec
        return [LayerShape(spec.kv_heads, spec.head_dim, spec.head_dim)] * spec.layers

    def bind(self, cache: KVCache) -> None:
        """See Decoder."""
        self._part.bind(cache)

    def forward(self, batch: FlatBatch) -> torch.Tensor | None:
        """Logits [sampling, vocab], float32, on the rank that samples; None on the others."""
        links, layout = self.links, self._layout
        assert links is not None, "not linked to the other ranks"
        passing = self._part.begin(batch)
        if layout.is_first:
            x = links.sum_up(passing.embed())
        else:
            x = torch.empty(len(batch.input_ids), self._spec.hidden, device=self._part.device)
            links.receive(x)
        passing.run(x, links.sum_up if layout.tp > 1 else None)
        if not layout.is_last:
            links.send(x)
            return None
        self._last = (passing, x) if batch.scoring else None
        return self._logits(passing, x, batch.ends)

    def logits_after(self, tokens: Numbers) -> torch.Tensor | None:
        """See Decoder. Each rank of the last stage has its part of them, so all ranks must be asked for the same."""
        if not self._layout.is_last:
            return None
        assert self._last is not None, "the last batch scored nothing"
        return self._logits(*self._last, tokens)

    def _logits(self, passing: Pass, x: torch.Tensor, tokens: Numbers) -> torch.Tensor | None:
        """On the rank that samples the shards [tokens, part of vocab] as one; all are sent with as many columns, some
        have one fewer."""
        links, layout = self.links, self._layout
        assert links is not None, "not linked to the other ranks"
        logits = self._gather(passing.logits(x, tokens), links)
        return logits if layout.rank == layout.sampler else None

    def _gather(self, logits: torch.Tensor, links: Links) -> torch.Tensor:
        if not len(logits):
            return logits.new_empty(0, self._spec.vocab)
        shares = [Shard(rank, self._layout.tp).share(self._spec.vocab) for rank in range(self._layout.tp)]
        parts = links.collect(pad(logits, (0, max(shares) - logits.shape[1])))
        return torch.cat([part[:, :share] for part, share in zip(parts, shares, strict=True)], dim=1)
