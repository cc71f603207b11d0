"""Layout: how a model is split over the ranks of an engine. No torch: whoever places the ranks reads it too."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.engine.families.spec import DecoderSpec
from services.engine.parallel.shard import Rows, Shard
from services.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Layout:
    """`pp` pipeline stages (the paper's inter-layer partitions) of `tp` ranks each (intra-layer), and one of the ranks.

    Ranks are counted stage by stage.
    """

    tp: int = 1
    pp: int = 1
    rank: int = 0

    @property
    def size(self) -> int:
        return self.tp * self.pp

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def shard(self) -> Shard:
        return Shard(self.rank % self.tp, self.tp)

    @property
    def is_first(self) -> bool:
        """Of the stage that embeds."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Of the stage that has the vocabulary."""
        return self.stage == self.pp - 1

    @property
    def sampler(self) -> int:
        """The rank that draws tokens."""
        return (self.pp - 1) * self.tp

    def layers(self, count: int) -> Rows:
        """This stage's range of `count` layers; stages differ by one at most."""
        return Shard(self.stage, self.pp).of(count)

    def part_of(self, spec: DecoderSpec) -> DecoderSpec:
        """What this rank has of each layer, and how many layers. Raises SettingsError for what cannot be split so."""
        if self.tp > spec.kv_heads:
            raise SettingsError(f"tp={self.tp} is over the model's {spec.kv_heads} KV heads")
        if self.pp > spec.layers:
            raise SettingsError(f"pp={self.pp} is over the model's {spec.layers} layers")
        first, end = self.layers(spec.layers)
        kv_heads = self.shard.share(spec.kv_heads)
        return replace(
            spec,
            layers=end - first,
            heads=kv_heads * spec.group,
            kv_heads=kv_heads,
            intermediate=self.shard.share(spec.intermediate),
        )

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp}"
