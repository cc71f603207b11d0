"""DecoderSpec: what the layers of a model compute. The kernels of both backends know nothing else about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Pre-norm decoder layers: x += attention(norm(x)), x += mlp(norm(x)), then a last norm and the vocabulary.

    `layer_norm`: norms have mean and bias, as in GPT; else they divide by the root mean square. `gated`: the MLP is
    down(silu(gate x) * up x); else down(gelu(up x)) with gelu's tanh form. `frequencies` are those of rotary embeddings
    over the whole head, one for each pair of its columns: radians per position, exact in float32; with none, positions
    are learned.
    """

    family: str  # a key of registry.FAMILIES
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    epsilon: float
    layer_norm: bool = False
    gated: bool = True
    frequencies: tuple[float, ...] = ()
    rotary_scale: float = 1.0  # a factor of cosines and sines

    @property
    def rotary(self) -> bool:
        return bool(self.frequencies)

    @property
    def group(self) -> int:
        """Query heads of each KV head."""
        return self.heads // self.kv_heads

    @property
    def scaling(self) -> float:
        """The factor of attention scores."""
        return float(self.head_dim**-0.5)
