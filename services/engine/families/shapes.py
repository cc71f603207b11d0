"""Whether the weights of a checkpoint have the shapes that its config asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights, LayerWeights, Linear
from services.errors import ModelError

PROBLEM = "the weights do not fit config.json"

Shape = tuple[int, ...]
Found = tuple[str, Shape, Shape]  # the name of a tensor, its shape, and that which it should have


def check_shapes(weights: DecoderWeights, spec: DecoderSpec) -> None:
    """Raise ModelError if a tensor of the whole model has another shape than `spec` says. Of the layers only the first
    of each kind is read, with its first expert: the config has the same numbers for all."""
    _compare(_of_model(weights, spec))
    kinds = [_kind(spec, index) for index in range(spec.layers)]
    for index in sorted({kinds.index(kind) for kind in set(kinds)}):
        try:
            _compare(_of_layer(f"layer {index}", weights, weights.layer(index), spec, index))
        except RuntimeError as error:  # a tensor cannot be divided into the parts that it should have
            raise ModelError(f"{PROBLEM}: layer {index}: {error}") from error


def _kind(spec: DecoderSpec, index: int) -> tuple[object, ...]:
    """What the shapes of a layer's tensors depend on."""
    products = spec.kv_layer(index) == index, spec.has_values(index)
    return spec.has_experts(index), spec.kind_of_heads(index), spec.intermediate_of(index), *products


def _compare(found: Iterator[Found]) -> None:
    for name, shape, expected in found:
        if shape != expected:
            raise ModelError(f"{PROBLEM}: {name} has shape {list(shape)}, config.json asks for {list(expected)}")


def _stored_rows(weights: DecoderWeights, linear: Linear | None) -> Iterator[Found]:
    """The rows of what is read in parts: a tensor may have more than were read."""
    if linear and linear.names:
        names = dict.fromkeys(linear.names)
        rows = sum(weights.stored_rows(name) for name in names)
        yield " and ".join(names), (rows, linear.weight.shape[1]), tuple(linear.weight.shape)


def _of_model(weights: DecoderWeights, spec: DecoderSpec) -> Iterator[Found]:
    table, hidden = weights.embedding().rows, spec.hidden
    yield weights.embedding_name, tuple(table.shape), (spec.vocab, hidden)
    if not weights.tied:
        yield weights.vocabulary_name, tuple(weights.vocabulary().weight.shape), (spec.vocab, hidden)
    if not spec.rotary:
        yield weights.positions_name, (weights.positions().rows.shape[1],), (hidden,)
    yield from _product(weights.last_norm_name, weights.last_norm(), (hidden,))
    if spec.layer_inputs:
        inputs, numbers = weights.inputs_of_layers(), spec.layers * spec.layer_inputs
        yield inputs.table_name, tuple(inputs.table.rows.shape[1:]), (numbers,)
        yield from _product("projection of layer inputs", inputs.projection, (numbers, hidden))
        yield from _product("norm of layer inputs", inputs.norm, (spec.layer_inputs,))


def _of_layer(own: str, weights: DecoderWeights, layer: LayerWeights, spec: DecoderSpec, index: int) -> Iterator[Found]:
    heads, hidden, inner = spec.heads_of(index), spec.hidden, spec.intermediate_of(index)
    dim = heads.head_dim
    queries, keys = heads.heads * dim, heads.kv_heads * dim
    if layer.experts and spec.experts:
        inner = spec.experts.shared
    gates, kept = 2 if spec.gated else 1, (spec.kv_layer(index) == index) + spec.has_values(index)
    yield from _product(f"{own}: query, key and value", layer.qkv, (queries + kept * keys, hidden))
    yield from _product(f"{own}: output of attention", layer.output, (hidden, queries))
    yield from _product(f"{own}: up", layer.up, (gates * inner, hidden))
    for linear in (layer.qkv, layer.up):
        yield from _stored_rows(weights, linear)
    yield from _product(f"{own}: down", layer.down, (hidden, inner))
    for name in ("attention_norm", "mlp_norm", "attention_post_norm", "mlp_post_norm"):
        yield from _product(f"{own}: {name}", getattr(layer, name), (hidden,))
    norms = (queries, keys) if spec.norms_all_heads else (dim, dim)
    yield from _vector(f"{own}: norm of queries", layer.query_norm, norms[0])
    yield from _vector(f"{own}: norm of keys", layer.key_norm, norms[1])
    if layer.inputs:
        yield from _product(f"{own}: gate of inputs", layer.inputs.gate, (spec.layer_inputs, hidden))
        yield from _product(f"{own}: down of inputs", layer.inputs.down, (hidden, spec.layer_inputs))
        yield from _product(f"{own}: norm of inputs", layer.inputs.norm, (hidden,))
    yield from _vector(f"{own}: sinks", layer.sinks, spec.heads)
    if layer.experts and spec.experts:
        logits = spec.experts.count + spec.experts.shared_gate
        yield from _product(f"{own}: router", layer.experts.router, (logits, hidden))
        yield from _vector(f"{own}: correction of experts", layer.experts.correction, spec.experts.count)
        up, down = next(layer.experts.each)
        yield from _product(f"{own}: up of expert 0", up, (gates * spec.experts.intermediate, hidden))
        if len(up.names) > 1:  # else all experts are one tensor
            yield from _stored_rows(weights, up)
        yield from _product(f"{own}: down of expert 0", down, (hidden, spec.experts.intermediate))


def _product(name: str, linear: Linear | None, expected: Shape) -> Iterator[Found]:
    if linear:
        yield " and ".join(dict.fromkeys(linear.names)) or name, tuple(linear.weight.shape), expected
        yield from _vector(f"{name}: bias", linear.bias, expected[0])


def _vector(name: str, vector: Any, expected: int) -> Iterator[Found]:
    if vector is not None:
        yield name, tuple(vector.shape), (expected,)
