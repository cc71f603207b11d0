"""CudaLayers: a decoder's layers over a flat batch, from embedding to logits."""

from __future__ import annotations

from collections.abc import Callable

import torch

from services.engine.backends.cuda.inputs import Inputs
from services.engine.backends.cuda.kernels.activation import activate
from services.engine.backends.cuda.kernels.attention import Partials, attend
from services.engine.backends.cuda.kernels.embedding import embed
from services.engine.backends.cuda.kernels.heads import Rotary, place
from services.engine.backends.cuda.kernels.norm import add_and_norm
from services.engine.backends.cuda.kernels.product import multiply
from services.engine.backends.cuda.products import Product, library_product
from services.engine.backends.cuda.setup import CudaSetup
from services.engine.backends.cuda.tiles import Tiles
from services.engine.batch.kv_cache import KVCache, LayerShape
from services.engine.families.rotary import rotary_table
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights, LayerWeights, Linear, Table
from services.engine.parallel.shard import Rows

PARTIAL_ROWS = 2048  # where the splits of attention meet: an increment of half a million positions in one batch


class CudaLayers:
    """`part`: what the weights have of each of `layers`. Where `is_first`, the embedding comes before them; where
    `is_last`, last norm and vocabulary after them.

    Weights on the device, and the order of the kernels. Nothing here waits for the device or asks it anything.
    """

    def __init__(
        self, setup: CudaSetup, part: DecoderSpec, layers: Rows, is_first: bool = True, is_last: bool = True
    ) -> None:
        weights = setup.weights
        self._part, self._dtype, self._device = part, setup.dtype, setup.device
        self._product: Product = multiply if setup.batch_invariant else library_product
        self._layers = [self._on_device(weights.layer(i)) for i in range(*layers)]
        self._embedding = self._table(weights.embedding()) if is_first else None
        self._positions = self._table(weights.positions()) if is_first and not part.rotary else None
        self._last_norm = self._norm(weights.last_norm()) if is_last else None
        self._vocabulary = self._linear(self._words(weights)) if is_last else None
        self._rotary = None
        if part.rotary:
            self._rotary = Rotary(*(t.to(setup.device) for t in rotary_table(part, setup.max_model_len)))
        self.programs = _programs(setup.device)

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        self._cache = cache
        self._partials = Partials.make(PARTIAL_ROWS, self._part.kv_heads, self._part.head_dim, self._device)

    @property
    def shapes(self) -> list[LayerShape]:
        """What each layer keeps of a token."""
        part = self._part
        return [LayerShape(part.kv_heads, part.head_dim, part.head_dim)] * part.layers

    def embed(self, inputs: Inputs) -> torch.Tensor:
        """x [tokens, hidden], float32."""
        assert self._embedding is not None, "the first layers embed"
        return embed(inputs.ids, inputs.positions, self._embedding, self._positions)

    def run(
        self, inputs: Inputs, tiles: Tiles, x: torch.Tensor, sum_up: Callable[[torch.Tensor], torch.Tensor] | None
    ) -> torch.Tensor:
        """Add to x what the layers do, but for what the last one's MLP does: that is returned, [tokens, hidden].

        `sum_up` makes of what the part has of a change that of all ranks; None where the part has all of it.
        """
        part, dtype, product = self._part, self._dtype, self._product
        sum_up = sum_up or _all_of_it
        change = None
        for layer, keys, values in zip(self._layers, self._cache.keys, self._cache.values, strict=True):
            normed = add_and_norm(x, change, layer.attention_norm, part.epsilon, part.layer_norm, dtype)
            qkv = product(normed, layer.qkv, dtype)
            place(
                qkv,
                inputs.positions,
                inputs.slots,
                keys,
                values,
                self._rotary,
                layer.query_norm,
                layer.key_norm,
                part.epsilon,
            )
            attended = attend(qkv, keys, values, inputs.work, self._partials, part.scaling, tiles, self.programs)
            change = sum_up(product(attended, layer.output, dtype))
            normed = add_and_norm(x, change, layer.mlp_norm, part.epsilon, part.layer_norm, dtype)
            change = sum_up(product(activate(product(normed, layer.up, dtype), part.gated), layer.down, dtype))
        assert change is not None, "a part has layers"
        return change

    def logits(
        self, tokens: torch.Tensor, x: torch.Tensor, change: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[tokens, vocabulary] after these tokens (int32, flat indices), float32, of x and what is still to be added to
        it, which both stay as they are; in `out` if it is given."""
        part, norm, vocabulary = self._part, self._last_norm, self._vocabulary
        assert norm is not None, "the last layers have the vocabulary"
        assert vocabulary is not None, "the last layers have the vocabulary"
        normed = add_and_norm(x, change, norm, part.epsilon, part.layer_norm, self._dtype, tokens)
        return self._product(normed, vocabulary, torch.float32, out)

    def _on_device(self, layer: LayerWeights) -> LayerWeights:
        return LayerWeights(
            attention_norm=self._norm(layer.attention_norm),
            qkv=self._linear(layer.qkv),
            query_norm=self._numbers(layer.query_norm),
            key_norm=self._numbers(layer.key_norm),
            output=self._linear(layer.output),
            mlp_norm=self._norm(layer.mlp_norm),
            up=self._linear(layer.up),
            down=self._linear(layer.down),
        )

    def _table(self, table: Table) -> Table:
        return Table(self._matrix(table.rows), table.first)

    def _words(self, weights: DecoderWeights) -> Linear:
        """Of the vocabulary. Where it is the embedding, one tensor is both."""
        if weights.tied and self._embedding is not None:
            return Linear(self._embedding.rows)
        return Linear(weights.vocabulary())

    def _linear(self, linear: Linear) -> Linear:
        return Linear(self._matrix(linear.weight), None if linear.bias is None else self._matrix(linear.bias))

    def _norm(self, norm: Linear) -> Linear:
        return Linear(norm.weight.to(self._device, torch.float32), self._numbers(norm.bias))

    def _matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._dtype).contiguous()

    def _numbers(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(self._device, torch.float32)


def _all_of_it(change: torch.Tensor) -> torch.Tensor:
    return change


def _programs(device: torch.device) -> int:
    """How many programs attention has: as many as run at once. In the interpreter one comes after the other."""
    if device.type == "cpu":
        return 3
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)
