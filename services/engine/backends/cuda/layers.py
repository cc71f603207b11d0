"""CudaLayers: a decoder's layers over a flat batch, from embedding to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from services.engine.backends.cuda.coded import CodedLinear, encode
from services.engine.backends.cuda.inputs import Inputs
from services.engine.backends.cuda.kernels.activation import activate
from services.engine.backends.cuda.kernels.attention import Partials, attend
from services.engine.backends.cuda.kernels.embedding import embed
from services.engine.backends.cuda.kernels.heads import Rotary, place
from services.engine.backends.cuda.kernels.norm import add_and_norm
from services.engine.backends.cuda.plan import Tiles
from services.engine.backends.cuda.products import SLABS, Products, Shape, shape_of
from services.engine.batch.kv_cache import KVCache
from services.engine.families.decoder_weights import DecoderWeights, LayerWeights, Linear, Table, rotary_table
from services.engine.parallel.layout import Layout
from services.engine.spec import DecoderSpec
from services.engine.weights.description import tensor_bytes
from services.engine.weights.quantized import QuantizedWeight

PARTIAL_SPLITS = 2048  # whose sums Partials keep, of a KV head's queries: half a million positions in one batch


@dataclass(frozen=True, slots=True)
class CudaSetup:
    """What a decoder is made from. Weights, keys, values and the inputs of products are `dtype`; norms, sums and the
    residual stream are float32.

    If `device` is the CPU, Triton's interpreter runs everything, without graphs.
    """

    spec: DecoderSpec  # of the whole model
    weights: DecoderWeights  # of the rank's partition
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    tiles: Tiles


class CudaLayers:
    """The weights of a rank's layers on the device, and the order of the kernels. In the first stage the embedding
    comes before the layers, in the last stage a norm and the vocabulary after them.

    Nothing here waits for the device.
    """

    def __init__(self, setup: CudaSetup, part: DecoderSpec, layout: Layout) -> None:
        weights, layers = setup.weights, range(*layout.layers(setup.spec.layers))
        self._part, self._dtype, self._device = part, setup.dtype, setup.device
        self._product = Products()
        self.as_stored: dict[str, bool] = {}  # by name: whether a weight is kept as it is stored
        self._layers = [self._on_device(weights.layer(i)) for i in layers]
        self._embedding = self._table(weights.embedding(), weights.embedding_name) if layout.is_first else None
        has_positions = layout.is_first and not part.rotary
        self._positions = self._table(weights.positions(), weights.positions_name) if has_positions else None
        self._last_norm = self._norm(weights.last_norm()) if layout.is_last else None
        self._vocabulary = self._linear(self._vocabulary_of(weights)) if layout.is_last else None
        table = None
        if part.rotary:
            table = Rotary(*(t.to(setup.device) for t in rotary_table(part, setup.max_model_len)))
        self._rotary = [table if setup.spec.rotates(i) else None for i in layers]
        self.programs, self.partial_rows = programs_of(setup.device), PARTIAL_SPLITS * part.queries_per_kv
        output = self._layers[0].output
        self.weight_bytes = (
            tensor_bytes(output.codes) / output.weight.numel()
            if isinstance(output, CodedLinear)
            else setup.dtype.itemsize
        )
        self.memory = tensor_bytes(
            self._layers, self._embedding, self._positions, self._last_norm, self._vocabulary, self._rotary
        )

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        self._cache = cache
        self._partials = Partials.make(self.partial_rows, self._part.kv_heads, self._part.head_dim, self._device)

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """x [tokens, hidden], float32."""
        assert self._embedding is not None, "the first layers embed"
        return embed(inputs.ids, inputs.positions, self._embedding, self._positions, self._part.embedding_scale)

    def run(
        self,
        inputs: Inputs,
        tiles: Tiles,
        x: torch.Tensor,
        all_reduce: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> torch.Tensor:
        """Add to x what the layers compute, except what the last one's MLP does: that is returned, [tokens, hidden].

        `all_reduce` sums what the ranks have of a change; None if this one has all of it.
        """
        part, dtype, product = self._part, self._dtype, self._product
        all_reduce = all_reduce or _unchanged
        change = None
        kept = self._cache
        following = [*(layer.qkv for layer in self._layers[1:]), self._vocabulary]
        layers = zip(self._layers, following, self._rotary, kept.keys, kept.values, strict=True)
        for layer, after, rotary, keys, values in layers:
            assert layer.attention_norm, "see DecoderSpec.runs_on_cuda"
            assert layer.mlp_norm, "see DecoderSpec.runs_on_cuda"
            normed = add_and_norm(x, change, layer.attention_norm, part.epsilon, part.layer_norm, dtype)
            qkv = product(normed, layer.qkv, dtype, after=layer.output)
            place(
                qkv,
                inputs.positions,
                inputs.slots,
                keys,
                values,
                rotary,
                layer.query_norm,
                layer.key_norm,
                part.epsilon,
            )
            attended = attend(qkv, keys, values, inputs.work, self._partials, part.scaling, tiles, self.programs)
            change = all_reduce(product(attended, layer.output, dtype, after=layer.up))
            assert layer.up, "the spec has no experts"
            assert layer.down, "the spec has no experts"
            normed = add_and_norm(x, change, layer.mlp_norm, part.epsilon, part.layer_norm, dtype)
            up = activate(product(normed, layer.up, dtype, after=layer.down), part.gated)
            change = all_reduce(product(up, layer.down, dtype, after=after))
        assert change is not None, "a part has layers"
        return change

    def logits(
        self, tokens: torch.Tensor, x: torch.Tensor, change: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, vocabulary], float32, after these tokens (int32, flat indices); in `out` if it is given. `change` is
        still to be added to x; neither is modified."""
        part, norm, vocabulary = self._part, self._last_norm, self._vocabulary
        assert norm is not None, "the last layers have the vocabulary"
        assert vocabulary is not None, "the last layers have the vocabulary"
        normed = add_and_norm(x, change, norm, part.epsilon, part.layer_norm, self._dtype, tokens)
        return self._product(normed, vocabulary, torch.float32, out)

    def settle(self) -> bytes:
        """Compare the bits of all ways to compute the products of these layers (see `Products`), and return a hash of
        them. The host waits."""
        shapes: dict[Shape, tuple[Linear, torch.dtype]] = {}
        for layer in self._layers:
            for linear in (layer.qkv, layer.output, layer.up, layer.down):
                if linear:
                    shapes.setdefault(shape_of(linear, self._dtype, self._dtype), (linear, self._dtype))
        products = list(shapes.values())
        if self._vocabulary:
            products.append((self._vocabulary, torch.float32))
        drawn = torch.Generator().manual_seed(0)
        widest = max(linear.weight.shape[1] for linear, _ in products)
        x = torch.randn(SLABS[0], widest, generator=drawn).to(self._device, self._dtype)
        settle = self._product.settle
        return b"".join(settle(one, x[:, : one.weight.shape[1]].contiguous(), dtype) for one, dtype in products)

    def _on_device(self, layer: LayerWeights) -> LayerWeights:
        return LayerWeights(
            attention_norm=layer.attention_norm and self._norm(layer.attention_norm),
            qkv=self._linear(layer.qkv),
            query_norm=self._numbers(layer.query_norm),
            key_norm=self._numbers(layer.key_norm),
            output=self._linear(layer.output),
            mlp_norm=layer.mlp_norm and self._norm(layer.mlp_norm),
            up=self._linear(layer.up) if layer.up else None,
            down=self._linear(layer.down) if layer.down else None,
        )

    def _table(self, table: Table, name: str) -> Table:
        self.as_stored.setdefault(name, False)
        return Table(self._matrix(Linear(table.rows).numbers), table.first)

    def _vocabulary_of(self, weights: DecoderWeights) -> Linear:
        """The product that gives logits. If it is the embedding, one tensor is both, unless codes are: of these few are
        looked up, but all are multiplied by."""
        if weights.head_is_embedding and self._embedding and weights.vocabulary_name not in weights.groups:
            return Linear(self._embedding.rows)
        return weights.vocabulary()

    def _linear(self, linear: Linear) -> Linear:
        """On the device: with the codes of a quantized weight, where kernels give its numbers, else with numbers."""
        found = encode(linear, self._device) if isinstance(linear.weight, QuantizedWeight) else None
        self.as_stored |= dict.fromkeys(linear.names, found is not None)
        if found:
            return found
        return Linear(self._matrix(linear.numbers), None if linear.bias is None else self._matrix(linear.bias))

    def _norm(self, norm: Linear) -> Linear:
        return Linear(norm.numbers.to(self._device, torch.float32), self._numbers(norm.bias))

    def _matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._dtype).contiguous()

    def _numbers(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(self._device, torch.float32)


def _unchanged(change: torch.Tensor) -> torch.Tensor:
    return change


def programs_of(device: torch.device) -> int:
    """How many programs attention has: as many as run at once. The interpreter runs one after another."""
    if device.type == "cpu":
        return 3
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)
