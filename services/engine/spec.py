"""DecoderSpec: what the layers of a model compute. The kernels know nothing else about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum


class Activation(IntEnum):
    """The function in the middle of an MLP. model.h has the same numbers."""

    SILU = 0
    GELU = 1  # in its tanh form
    RELU_SQUARED = 2
    GELU_ERF = 3  # by the normal distribution


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """What layers have instead of an MLP: `count` MLPs of the same form. A token goes to the `chosen` ones with the
    highest logits of a router, the first of equal ones. Their outputs are added, best first, with shares: the softmax
    of all logits, or `normalised`, of those that are chosen. `sigmoid`: shares are the sigmoids of logits, `normalised`
    to a sum of 1. If weights have a `correction`, experts are chosen by shares plus that."""

    count: int
    chosen: int
    intermediate: int  # of each
    normalised: bool
    layers: tuple[bool, ...] = ()  # which layers have experts; empty: all
    shared: int = 0  # the intermediate size of an MLP that all tokens go through as well; 0: there is none
    sigmoid: bool = False
    scale: float = 1.0  # a factor of shares
    shared_gate: bool = False  # its output has a share: the sigmoid of one more logit of the router


@dataclass(frozen=True, slots=True)
class HeadsSpec:
    """The heads of a layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def queries_per_kv(self) -> int:
        """Query heads of each KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True, slots=True)
class AttentionSpec(HeadsSpec):
    """What attention computes in layers that are alike in it. The fields have the names and meanings of DecoderSpec's;
    `window` is that of each of these layers."""

    scaling: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Decoder layers: x += attention(norm(x)), x += mlp(norm(x)), then a last norm and the vocabulary. LayerWeights
    says which norms there are before attention and MLP, and behind them. `parallel`: x += attention(norm(x)) +
    mlp(norm(x)), with the same norm.

    `layer_norm`: norms have mean and bias, as in GPT; else they divide by the root mean square. `gated`: the MLP is
    down(activation(gate x) * up x); else down(activation(up x)). `frequencies` are those of rotary embeddings, one
    for each pair of a head's columns: radians per position, exact in float32; with none, positions are learned.
    Column i of a head's first half and column i of its second are a pair; columns behind the last pair are not rotated.

    `windows` has a number for each layer: how many tokens a token attends to, itself and those before it; 0: to all.
    Empty: no layer has a window. A soft cap c makes c * tanh(x / c) of a number x; 0: none. `sinks`: each head has a
    score of its own that takes part in the softmax and has no value.

    `kv_layers` has a number for each layer: that of the layer whose keys and values it attends to, its own or an
    earlier one; a layer that attends to those of another computes none. `values_are_keys` says of each layer whether
    its values are what its keys are before norm and rotary embeddings. With `value_norms`, values are divided by their
    root mean square.

    With `layer_inputs` n, each layer gets n more numbers of a token, p: the token's row of a second embedding times
    `layer_inputs_scale`, plus the norm of a product of the first embedding, and all that times 2^-0.5. Behind its MLP
    it adds norm(down(activation(gate x) * p)).

    With a `swiglu_limit`, a gated MLP is that of GPT-OSS: down(g * sigmoid(swiglu_alpha * g) * (u + 1)), where g is
    gate x but at most the limit, and u is up x between the limit and its negative.
    """

    family: str  # transformers' `model_type`, a key of registry.FAMILIES or ENCODERS
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
    long_frequencies: tuple[float, ...] = ()  # instead, where requests may be longer than `short_length`
    short_length: int = 0  # tokens
    chosen: str = ""  # by `for_length`: "short" or "long" frequencies
    rotary_layers: tuple[bool, ...] = ()  # which layers have rotary embeddings; empty: all
    activation: Activation = Activation.SILU
    windows: tuple[int, ...] = ()
    local_frequencies: tuple[float, ...] = ()  # of layers with a window; empty: the same as of the others
    local_rotary_scale: float = 1.0  # with `local_frequencies`
    local_heads: HeadsSpec | None = None  # of layers with a window; None: the same as of the others
    kv_layers: tuple[int, ...] = ()  # empty: each layer's own
    values_are_keys: tuple[bool, ...] = ()  # empty: of no layer
    value_norms: bool = False
    intermediates: tuple[int, ...] = ()  # of each layer; empty: `intermediate`
    layer_inputs: int = 0  # 0: none
    layer_inputs_scale: float = 1.0
    soft_cap: float = 0.0  # of attention scores
    logits_soft_cap: float = 0.0
    parallel: bool = False
    norms_all_heads: bool = False  # norms of queries and keys run over all heads together, not over each
    norms_after_rotary: bool = False  # norms of queries and keys come after rotary embeddings, not before
    embedding_scale: float = 1.0  # a factor of the tokens' embeddings
    rounds_embedding_scale: bool = False  # to the dtype that is served, as transformers' Gemma does
    attention_scale: float = 0.0  # a factor of attention scores; 0: head_dim^-0.5
    logits_scale: float = 1.0
    experts: ExpertsSpec | None = None
    sinks: bool = False
    swiglu_alpha: float = 1.0
    swiglu_limit: float = 0.0  # 0: none
    both_ways: bool = False  # a token attends to all tokens of its text: an encoder
    norms_sums: bool = False  # x = norm(x) before attention and MLP: both are added to what they got, as in BERT

    @property
    def rotary(self) -> bool:
        return bool(self.frequencies)

    def for_length(self, length: int) -> DecoderSpec:
        """The spec for requests of up to `length` tokens. The keys of a request, which others may share, have one kind
        of frequencies, so the longest request that is served decides."""
        if not self.long_frequencies:
            return self
        if length <= self.short_length:
            return replace(self, long_frequencies=(), chosen="short")
        return replace(self, frequencies=self.long_frequencies, long_frequencies=(), chosen="long")

    def rotates(self, layer: int) -> bool:
        """Whether this layer of the model has rotary embeddings."""
        return self.rotary and (not self.rotary_layers or self.rotary_layers[layer])

    def has_experts(self, layer: int) -> bool:
        """Whether this layer of the model has experts."""
        return self.experts is not None and (not self.experts.layers or self.experts.layers[layer])

    def window(self, layer: int) -> int:
        """How many tokens a token attends to in this layer of the model; 0: to all."""
        return self.windows[layer] if self.windows else 0

    @property
    def kinds_of_heads(self) -> list[HeadsSpec]:
        """The heads of layers without a window, and those of layers with one if these are others."""
        heads = HeadsSpec(self.heads, self.kv_heads, self.head_dim)
        return [heads, self.local_heads] if self.local_heads else [heads]

    def kind_of_heads(self, layer: int) -> int:
        """Which of `kinds_of_heads` this layer of the model has."""
        return int(self.local_heads is not None and self.window(layer) > 0)

    def heads_of(self, layer: int) -> HeadsSpec:
        """The heads of this layer of the model."""
        return self.kinds_of_heads[self.kind_of_heads(layer)]

    def attention_of(self, layer: int) -> AttentionSpec:
        """What attention computes in this layer of the model."""
        own = self.heads_of(layer)
        scaling = self.scaling_of(own.head_dim)
        return AttentionSpec(
            own.heads, own.kv_heads, own.head_dim, scaling, self.window(layer), self.soft_cap, self.sinks
        )

    def kv_layer(self, layer: int) -> int:
        """The layer of the model whose keys and values this one attends to."""
        return self.kv_layers[layer] if self.kv_layers else layer

    def has_values(self, layer: int) -> bool:
        """Whether this layer of the model has a product for values."""
        return self.kv_layer(layer) == layer and not (self.values_are_keys and self.values_are_keys[layer])

    def intermediate_of(self, layer: int) -> int:
        """The intermediate size of this layer of the model."""
        return self.intermediates[layer] if self.intermediates else self.intermediate

    @property
    def lacks_on_cuda(self) -> str:
        """What of this the CUDA backend has no kernels for, in words; empty: nothing. The CPU backend has all."""
        lacking = {"attention to later tokens": self.both_ways, "norms of sums": self.norms_sums}
        return ", ".join(name for name, asked in lacking.items() if asked)

    @property
    def queries_per_kv(self) -> int:
        """Query heads of each KV head."""
        return self.heads // self.kv_heads

    def scaling_of(self, head_dim: int) -> float:
        """The factor of attention scores for heads of this size."""
        return self.attention_scale or float(head_dim**-0.5)
