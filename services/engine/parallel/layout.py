"""Layout: how a model is split over the ranks of an engine. Imports no torch, because the actor that places ranks uses
it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.engine.spec import DecoderSpec, ExpertsSpec, HeadsSpec
from services.errors import SettingsError

RowRange = tuple[int, int]  # first, end


@dataclass(frozen=True, slots=True)
class Partition:
    """One of `size` parts of what is split evenly: of every layer its KV heads with their query heads and its
    intermediate numbers; of a model its layers."""

    rank: int = 0
    size: int = 1

    def range_of(self, count: int) -> RowRange:
        """The partition's range of `count` things. Partitions differ by one at most; the later ones have more, because
        the first one also draws tokens."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def share(self, count: int) -> int:
        """How many of `count` things the partition has."""
        begin, end = self.range_of(count)
        return end - begin


@dataclass(frozen=True, slots=True)
class Layout:
    """`pp` pipeline stages (the paper's inter-layer partitions) of `tp` ranks each (intra-layer), and one of the ranks.

    Ranks are numbered stage by stage. The default is a whole model in one process.
    """

    tp: int = 1
    pp: int = 1
    rank: int = 0

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def samples(self) -> bool:
        """Whether this rank draws tokens."""
        return self.rank == self.sampler

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def partition(self) -> Partition:
        return Partition(self.rank % self.tp, self.tp)

    @property
    def is_first(self) -> bool:
        """Whether the rank is of the stage that embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the rank is of the stage that has the vocabulary."""
        return self.stage == self.pp - 1

    @property
    def sampler(self) -> int:
        """The rank that draws tokens."""
        return (self.pp - 1) * self.tp

    def layers(self, count: int) -> RowRange:
        """This stage's range of `count` layers; stages differ by one at most."""
        return Partition(self.stage, self.pp).range_of(count)

    def part_of(self, spec: DecoderSpec) -> DecoderSpec:
        """The spec of this rank's part: its layers, and its share of each. Raises SettingsError if the model cannot be
        split this way."""
        kv_heads = min(heads.kv_heads for heads in spec.kinds_of_heads)
        if self.tp > kv_heads:
            raise SettingsError(f"tp={self.tp} is over the model's {kv_heads} KV heads")
        if self.pp > spec.layers:
            raise SettingsError(f"pp={self.pp} is over the model's {spec.layers} layers")
        if self.tp > 1 and spec.norms_all_heads:
            raise SettingsError(f"tp={self.tp}: the model's norms of queries and keys run over all heads")
        if self.pp > 1 and spec.layer_inputs:
            raise SettingsError(f"pp={self.pp}: all layers of the model get numbers of each token that the first makes")
        for stage in range(self.pp):
            self._check_stage(spec, *Partition(stage, self.pp).range_of(spec.layers))
        first, end = self.layers(spec.layers)
        heads = [self._part_of_heads(each) for each in spec.kinds_of_heads]
        return replace(
            spec,
            layers=end - first,
            heads=heads[0].heads,
            kv_heads=heads[0].kv_heads,
            local_heads=heads[1] if len(heads) > 1 else None,
            intermediate=self.partition.share(spec.intermediate),
            intermediates=tuple(self.partition.share(size) for size in spec.intermediates),
            experts=spec.experts and self._part_of_experts(spec.experts),
        )

    def _part_of_experts(self, experts: ExpertsSpec) -> ExpertsSpec:
        share = self.partition.share
        return replace(experts, intermediate=share(experts.intermediate), shared=share(experts.shared))

    def _check_stage(self, spec: DecoderSpec, first: int, end: int) -> None:
        for layer in range(first, end):
            if (read := spec.kv_layer(layer)) < first:
                raise SettingsError(
                    f"pp={self.pp}: layer {layer} of the model attends to the keys of layer {read}, in another stage"
                )

    def _part_of_heads(self, heads: HeadsSpec) -> HeadsSpec:
        kv_heads = self.partition.share(heads.kv_heads)
        return replace(heads, heads=kv_heads * heads.queries_per_kv, kv_heads=kv_heads)

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp}"
