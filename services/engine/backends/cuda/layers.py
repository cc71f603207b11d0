"""CudaLayers: a decoder's layers over a flat batch, from embedding to logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from services.engine.backends.cuda.adapters import DOWN, JOINED, OUTPUT, QKV, UP, CudaAdapters
from services.engine.backends.cuda.coded import CodedLinear, encode
from services.engine.backends.cuda.inputs import Inputs
from services.engine.backends.cuda.kernels.activation import activate, activate_times, soft_cap
from services.engine.backends.cuda.kernels.attention import Partials, attend
from services.engine.backends.cuda.kernels.embedding import embed
from services.engine.backends.cuda.kernels.experts import choose, combine, sort
from services.engine.backends.cuda.kernels.heads import Heads, Rotary, place
from services.engine.backends.cuda.kernels.low_rank import add_low_rank
from services.engine.backends.cuda.kernels.norm import Change, add_and_norm
from services.engine.backends.cuda.plan import Tiles
from services.engine.backends.cuda.products import SLABS, Products, Shape, shape_of
from services.engine.batch.buffers import Allocate, zeros
from services.engine.batch.kv_cache import KVCache
from services.engine.families.decoder_weights import (
    DecoderWeights,
    ExpertsWeights,
    InputsOfLayersWeights,
    LayerInputsWeights,
    LayerWeights,
    Linear,
    Table,
    rotary_table,
)
from services.engine.parallel.decoder import AllReduce
from services.engine.parallel.layout import Layout
from services.engine.spec import DecoderSpec
from services.engine.weights.description import tensor_bytes
from services.engine.weights.quantized import QuantizedWeight, stack

PARTIAL_SPLITS = 2048  # whose sums Partials keep, of a KV head's queries: half a million positions in one batch


@dataclass(frozen=True, slots=True)
class CudaSetup:
    """What a decoder is made from. Weights, keys, values and the inputs of products are `dtype`, unless fewer bits are
    kept; norms, sums and the residual stream are float32.

    If `device` is the CPU, Triton's interpreter runs everything, without graphs.
    """

    spec: DecoderSpec  # of the whole model
    weights: DecoderWeights  # of the rank's partition
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    tiles: Callable[[int], Tiles]  # of attention, by the size of heads
    cache_dtype: torch.dtype | None = None  # of keys and values, if it is another: int8
    allocate: Allocate = zeros  # memory for matrices
    most_rank: int = 0  # of adapters; 0: none are served


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of a layer's experts on the device: products [experts, outputs, inputs]. See ExpertsWeights."""

    router: Linear
    up: Linear
    down: Linear
    correction: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class CudaLayer:
    """A layer on the device."""

    weights: LayerWeights  # without experts
    experts: Experts | None
    how: Heads
    attention: int  # its place in `CudaLayers.attentions`
    kv: int  # the place of its keys and values in the cache
    number: int  # among the layers of this rank


class CudaLayers:
    """The weights of a rank's layers on the device, and the order of the kernels. In the first stage the embedding
    comes before the layers, in the last stage a norm and the vocabulary after them.

    Nothing here waits for the device.
    """

    def __init__(self, setup: CudaSetup, part: DecoderSpec, layout: Layout) -> None:
        weights, layers = setup.weights, range(*layout.layers(setup.spec.layers))
        self._part, self._dtype, self._device = part, setup.dtype, setup.device
        self.adapters = CudaAdapters(setup.most_rank, setup.device) if setup.most_rank else None
        self._product = Products(self.adapters is not None)
        self.as_stored: dict[str, bool] = {}  # by name: whether a weight is kept as it is stored
        self._allocate = setup.allocate
        self.attentions = list(dict.fromkeys(part.attention_of(i) for i in layers))
        self.multiprocessors = multiprocessors_of(setup.device)
        self._layers = self._on_device(setup, layers)
        self._embedding = self._table(weights.embedding(), weights.embedding_name) if layout.is_first else None
        has_positions = layout.is_first and not part.rotary
        self._positions = self._table(weights.positions(), weights.positions_name) if has_positions else None
        self._inputs = self._inputs_of_layers(weights.inputs_of_layers()) if part.layer_inputs else None
        self._last_norm = self._norm(weights.last_norm()) if layout.is_last else None
        self._vocabulary = self._vocabulary_of(weights) if layout.is_last else None
        self._allocate = zeros  # decoders are pickled, and the other one belongs to this process
        output = self._layers[0].weights.output
        self.weight_bytes = output.codes.weight_bytes if isinstance(output, CodedLinear) else setup.dtype.itemsize
        self.memory = tensor_bytes(
            self._layers, self._embedding, self._positions, self._inputs, self._last_norm, self._vocabulary
        )

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        self._cache = cache
        shapes = [(PARTIAL_SPLITS * of.queries_per_kv, of.kv_heads, of.head_dim) for of in self.attentions]
        made = {shape: Partials.make(*shape, self._device) for shape in shapes}
        self._partials = [made[shape] for shape in shapes]  # layers run one after another, so they share what is alike

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """x [tokens, hidden], float32."""
        assert self._embedding is not None, "the first layers embed"
        scale = self._served(self._part.embedding_scale)
        return embed(inputs.ids, inputs.positions, self._embedding, self._positions, scale)

    def run(
        self, inputs: Inputs, tiles: Sequence[Tiles], x: torch.Tensor, all_reduce: AllReduce | None
    ) -> torch.Tensor | None:
        """Add to x what the layers compute. If there is no norm behind the last one's MLP, what that computes is not
        added but returned, [tokens, hidden]. `tiles` are those of each of `attentions`.

        `all_reduce` sums what the ranks have of a change; None if this one has all of it.
        """
        parallel = self._part.parallel
        all_reduce = all_reduce or _unchanged
        of_layers = self._layer_inputs(inputs, x, all_reduce) if self._inputs else None
        change: Change | None = None
        for layer in self._layers:
            weights = layer.weights
            normed = self._add_and_norm(x, change, weights.attention_norm)
            added = self._adapted(layer, OUTPUT, self._attend(layer, inputs, tiles, normed), weights.output, inputs)
            if parallel:
                change = Change(all_reduce(added.add_(self._feed_forward(layer, inputs, normed))))
                continue
            change = Change(all_reduce(added), weights.attention_post_norm)
            normed = self._add_and_norm(x, change, weights.mlp_norm)
            change = Change(all_reduce(self._feed_forward(layer, inputs, normed)), weights.mlp_post_norm, weights.scale)
            if weights.inputs:
                assert of_layers is not None, "the spec has inputs of layers"
                change = self._add_inputs(x, change, weights.inputs, next(of_layers))
        assert change is not None, "a part has layers"
        if change.norm:
            self._add_and_norm(x, change, None)
            return None
        return change.numbers

    def logits(
        self, tokens: torch.Tensor, x: torch.Tensor, change: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, vocabulary], float32, after these tokens (int32, flat indices); in `out` if it is given. `change` is
        still to be added to x; neither is modified."""
        norm, vocabulary = self._last_norm, self._vocabulary
        assert norm is not None, "the last layers have the vocabulary"
        assert vocabulary is not None, "the last layers have the vocabulary"
        normed = self._add_and_norm(x, None if change is None else Change(change), norm, tokens)
        logits = self._product(normed, vocabulary, torch.float32, out)
        if self._part.logits_soft_cap:
            soft_cap(logits, self._part.logits_soft_cap)
        return logits

    def settle(self) -> bytes:
        """Compare the bits of all ways to compute the products of these layers (see `Products`), and return a hash of
        them. The host waits."""
        products = self._products()
        drawn = torch.Generator().manual_seed(0)
        widest = max(linear.weight.shape[-1] for linear, _ in products)
        x = torch.randn(SLABS[0], widest, generator=drawn).to(self._device, self._dtype)
        found = []
        for one, dtype in products:
            settle = self._product.settle if len(one.weight.shape) == 2 else self._product.settle_experts
            found.append(settle(one, x[:, : one.weight.shape[-1]].contiguous(), dtype))
        return b"".join(found)

    def load(self) -> None:
        """Load the kernels of all products, which another process has compiled, before an iteration needs them."""
        for linear, dtype in self._products():
            self._product.load(linear, self._dtype, dtype)

    def _products(self) -> list[tuple[Linear, torch.dtype]]:
        """One product of each shape, and the dtype of its results."""
        shapes: dict[Shape, tuple[Linear, torch.dtype]] = {}
        of_layers = [self._inputs.projection] if self._inputs else []
        for linear in (*of_layers, *(linear for layer in self._layers for linear in _products(layer))):
            shapes.setdefault(shape_of(linear, self._dtype, self._dtype), (linear, self._dtype))
        routers = {layer.experts.router.weight.shape: layer.experts.router for layer in self._layers if layer.experts}
        products = [*shapes.values(), *((router, torch.float32) for router in routers.values())]
        if self._vocabulary:
            products.append((self._vocabulary, torch.float32))
        return products

    def _add_and_norm(
        self, x: torch.Tensor, change: Change | None, norm: Linear | None, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        return add_and_norm(x, change, norm, self._part.epsilon, self._part.layer_norm, self._dtype, rows)

    def _attend(self, layer: CudaLayer, inputs: Inputs, tiles: Sequence[Tiles], normed: torch.Tensor) -> torch.Tensor:
        kind, keys, values = layer.attention, self._cache.keys[layer.kv], self._cache.values[layer.kv]
        qkv = self._adapted(layer, QKV, normed, layer.weights.qkv, inputs)
        place(qkv, inputs.positions, inputs.slots, keys, values, layer.how)
        work, partials, spec = inputs.work[kind], self._partials[kind], self.attentions[kind]
        return attend(qkv, keys, values, work, partials, spec, tiles[kind], self.multiprocessors, layer.weights.sinks)

    def _adapted(self, layer: CudaLayer, place: int, x: torch.Tensor, linear: Linear, inputs: Inputs) -> torch.Tensor:
        """The product of a layer at this place in the tables of adapters, with what they add."""
        added = None
        if inputs.adapted:
            assert self.adapters, "no adapters are served"
            product, outputs = len(JOINED) * layer.number + place, linear.weight.shape[0]
            width = self.adapters.widths[place]
            added = add_low_rank(x, inputs.adapted, product, width, outputs, self.multiprocessors)
        return self._product(x, linear, self._dtype, added=added)

    def _feed_forward(self, layer: CudaLayer, inputs: Inputs, normed: torch.Tensor) -> torch.Tensor:
        """What a layer's MLP computes, or its experts and the MLP beside them, if there is one."""
        product, dtype, up, down = self._product, self._dtype, layer.weights.up, layer.weights.down
        shared = None
        if up and down:
            inner = activate(self._adapted(layer, UP, normed, up, inputs), self._part)
            shared = self._adapted(layer, DOWN, inner, down, inputs)
        if layer.experts is None:
            assert shared is not None, "a layer has an MLP or experts"
            return shared
        experts, spec = layer.experts, self._part.experts
        assert spec is not None, "the spec has experts"
        logits = product(normed, experts.router, torch.float32)
        chosen, shares = choose(logits, experts.correction, spec)
        routes = sort(chosen, spec.count)
        inner = activate(product.of_experts(normed, experts.up, routes, dtype), self._part)
        outputs = product.of_experts(inner, experts.down, routes, dtype)
        return combine(outputs, shares, shared, logits[:, spec.count] if spec.shared_gate else None)

    def _layer_inputs(self, inputs: Inputs, x: torch.Tensor, all_reduce: AllReduce) -> Iterator[torch.Tensor]:
        """The numbers that each layer gets of each token, [tokens, numbers]."""
        part, of = self._part, self._inputs
        assert of is not None, "the spec has inputs of layers"
        share = 0.5**0.5  # of both parts; the norm's weight has it
        scale = self._served(part.layer_inputs_scale) * share
        found = all_reduce(embed(inputs.ids, inputs.positions, of.table, None, scale))
        projected = self._product(x.to(self._dtype), of.projection, self._dtype)
        # norms do not depend on the scale of x, hidden^-0.5, otherwise
        epsilon, numbers = part.epsilon * part.hidden, part.layer_inputs
        rows = found.view(-1, numbers)
        add_and_norm(rows, Change(projected.view(-1, numbers), of.norm), None, epsilon, False, self._dtype)
        return iter(found.split(numbers, dim=1))

    def _add_inputs(
        self, x: torch.Tensor, change: Change, weights: LayerInputsWeights, of_layer: torch.Tensor
    ) -> Change:
        """Add the change of an MLP to x, and return that of the layer's inputs."""
        product, dtype = self._product, self._dtype
        own = self._add_and_norm(x, change._replace(scale=1.0), None)
        gates = product(own, weights.gate, dtype)
        times = activate_times(gates, of_layer, self._part.activation)
        return Change(product(times, weights.down, dtype), weights.norm, change.scale)

    def _on_device(self, setup: CudaSetup, layers: range) -> list[CudaLayer]:
        """The layers. Those with the same rotary embeddings share a table."""
        spec, part, length = setup.spec, self._part, setup.max_model_len
        rotary = self._rotary(rotary_table(part, length)) if part.rotary else None
        local = self._rotary(rotary_table(part, length, True)) if part.local_frequencies else rotary
        owners = [layer for layer in layers if spec.kv_layer(layer) == layer]
        made: list[CudaLayer] = []
        for i in layers:
            stored = setup.weights.layer(i)
            weights, experts = self._layer(stored), self._experts(stored.experts) if stored.experts else None
            how = Heads(
                part.heads_of(i).heads,
                part.epsilon,
                None if not spec.rotates(i) else local if spec.window(i) else rotary,
                weights.query_norm,
                weights.key_norm,
                part.norms_all_heads,
                part.norms_after_rotary,
                part.value_norms,
                spec.kv_layer(i) == i,
                spec.has_values(i),
            )
            kind, kv = self.attentions.index(part.attention_of(i)), owners.index(spec.kv_layer(i))
            made.append(CudaLayer(weights, experts, how, kind, kv, len(made)))
        return made

    def _layer(self, layer: LayerWeights) -> LayerWeights:
        return LayerWeights(
            attention_norm=layer.attention_norm and self._norm(layer.attention_norm),
            qkv=self._linear(layer.qkv),
            query_norm=self._numbers(layer.query_norm),
            key_norm=self._numbers(layer.key_norm),
            output=self._linear(layer.output),
            mlp_norm=layer.mlp_norm and self._norm(layer.mlp_norm),
            up=self._linear(layer.up) if layer.up else None,
            down=self._linear(layer.down) if layer.down else None,
            attention_post_norm=layer.attention_post_norm and self._norm(layer.attention_post_norm),
            mlp_post_norm=layer.mlp_post_norm and self._norm(layer.mlp_post_norm),
            sinks=self._numbers(layer.sinks),
            inputs=self._inputs_of_layer(layer.inputs) if layer.inputs else None,
            scale=layer.scale,
        )

    def _experts(self, of: ExpertsWeights) -> Experts:
        up, down = (self._all_of_them(linears) for linears in zip(*of.each, strict=True))
        return Experts(self._linear(of.router), up, down, self._numbers(of.correction))

    def _all_of_them(self, linears: Sequence[Linear]) -> Linear:
        """One product of each expert: [experts, outputs, inputs]. As codes, their outputs lie one below the other."""
        shape, biases = (
            (len(linears), *linears[0].weight.shape),
            [each.bias for each in linears if each.bias is not None],
        )
        names = tuple(dict.fromkeys(name for each in linears for name in each.names))
        bias = self._matrix(torch.stack(biases)) if biases else None
        quantized = [each.weight for each in linears if isinstance(each.weight, QuantizedWeight)]
        if len(quantized) == len(linears):
            found = self._linear(Linear(stack(quantized), None, names))
            return replace(found, weight=found.numbers.view(shape), bias=bias)
        self.as_stored |= dict.fromkeys(names, False)
        weight = self._allocate(shape, self._dtype, self._device)
        for own, each in zip(weight, linears, strict=True):
            own.copy_(each.numbers)
        return Linear(weight, bias)

    def _inputs_of_layer(self, of: LayerInputsWeights) -> LayerInputsWeights:
        return LayerInputsWeights(self._linear(of.gate), self._linear(of.down), self._norm(of.norm))

    def _inputs_of_layers(self, of: InputsOfLayersWeights) -> InputsOfLayersWeights:
        """The norm's weight has the factor of the sum."""
        norm = self._norm(Linear(of.norm.numbers.to(torch.float32) * 0.5**0.5))
        table = self._table(of.table, of.table_name)
        return InputsOfLayersWeights(table, of.table_name, self._linear(of.projection), norm)

    def _rotary(self, tables: tuple[torch.Tensor, torch.Tensor]) -> Rotary:
        return Rotary(*(table.to(self._device) for table in tables))

    def _served(self, scale: float) -> float:
        """A factor of an embedding, as it is served."""
        exact = torch.tensor(scale)
        return float(exact.to(self._dtype) if self._part.rounds_embedding_scale else exact)

    def _table(self, table: Table, name: str) -> Table:
        self.as_stored.setdefault(name, False)
        return Table(self._matrix(Linear(table.rows).numbers), table.first)

    def _vocabulary_of(self, weights: DecoderWeights) -> Linear:
        """The product that gives logits. If it is the embedding, one tensor is both, unless codes are: of these few are
        looked up, but all are multiplied by."""
        if weights.head_is_embedding and self._embedding and weights.vocabulary_name not in weights.groups:
            return Linear(self._embedding.rows)
        return self._linear(weights.vocabulary())

    def _linear(self, linear: Linear) -> Linear:
        """On the device: with the codes of a quantized weight, where kernels give its numbers, else with numbers."""
        found = encode(linear, self._device, self._allocate) if isinstance(linear.weight, QuantizedWeight) else None
        self.as_stored |= dict.fromkeys(linear.names, found is not None)
        bias = None if linear.bias is None else self._matrix(linear.bias)
        return replace(found, bias=bias) if found else Linear(self._matrix(linear.numbers), bias)

    def _norm(self, norm: Linear) -> Linear:
        return Linear(norm.numbers.to(self._device, torch.float32), self._numbers(norm.bias))

    def _matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._allocate(tuple(tensor.shape), self._dtype, self._device).copy_(tensor)

    def _numbers(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(self._device, torch.float32)


def _products(layer: CudaLayer) -> list[Linear]:
    """The products of a layer whose results are rounded."""
    weights, experts = layer.weights, layer.experts
    found = [weights.qkv, weights.output, weights.up, weights.down]
    if weights.inputs:
        found += [weights.inputs.gate, weights.inputs.down]
    if experts:
        found += [experts.up, experts.down]
    return [linear for linear in found if linear]


def _unchanged(change: torch.Tensor) -> torch.Tensor:
    return change


def multiprocessors_of(device: torch.device) -> int:
    """On how many attention runs. The interpreter runs one program after another."""
    if device.type == "cpu":
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
