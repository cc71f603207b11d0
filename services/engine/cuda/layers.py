"""CudaLayers: a decoder's layers over a flat batch, from embedding to logits."""

from __future__ import annotations

import torch

from services.engine.cuda.inputs import Inputs
from services.engine.cuda.kernels.activation import activate
from services.engine.cuda.kernels.attention import Partials, attend
from services.engine.cuda.kernels.embedding import embed
from services.engine.cuda.kernels.heads import Rotary, place
from services.engine.cuda.kernels.norm import add_and_norm
from services.engine.cuda.kernels.product import multiply
from services.engine.cuda.products import Product, library_product
from services.engine.cuda.setup import CudaSetup
from services.engine.cuda.tiles import Tiles
from services.engine.kv_cache import KVCache
from services.engine.lean.rotary import rotary_table
from services.engine.lean.weights import LayerWeights, Linear

PARTIAL_ROWS = 2048  # where the splits of attention meet: an increment of half a million positions in one batch


class CudaLayers:
    """Weights on the device, and the order of the kernels. Nothing here waits for the device or asks it anything."""

    def __init__(self, setup: CudaSetup) -> None:
        spec, weights = setup.spec, setup.weights
        self._spec, self._dtype, self._device = spec, setup.dtype, setup.device
        self._product: Product = multiply if setup.batch_invariant else library_product
        self._layers = [self._on_device(weights.layer(i)) for i in range(spec.layers)]
        self._embedding = self._matrix(weights.embedding().rows)
        self._positions = None if spec.rotary else self._matrix(weights.positions().rows)
        self._last_norm = self._norm(weights.last_norm())
        vocabulary = self._embedding if weights.tied else self._matrix(weights.vocabulary())
        self._vocabulary = Linear(vocabulary)
        self._rotary = None
        if spec.rotary:
            self._rotary = Rotary(*(t.to(setup.device) for t in rotary_table(setup.config, setup.max_model_len)))
        self.programs = _programs(setup.device)

    def bind(self, cache: KVCache) -> None:
        """Keep keys and values in `cache` from now on."""
        self._cache = cache
        self._partials = Partials.make(PARTIAL_ROWS, self._spec.kv_heads, self._spec.head_dim, self._device)

    def run(self, inputs: Inputs, tiles: Tiles, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [sampling, vocab], float32, in `logits` if they are given."""
        spec, dtype, product = self._spec, self._dtype, self._product
        x = embed(inputs.ids, inputs.positions, self._embedding, self._positions)
        change = None
        for layer, keys, values in zip(self._layers, self._cache.keys, self._cache.values, strict=True):
            normed = add_and_norm(x, change, layer.attention_norm, spec.epsilon, spec.layer_norm, dtype)
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
                spec.epsilon,
            )
            attended = attend(qkv, keys, values, inputs.work, self._partials, spec.scaling, tiles, self.programs)
            change = product(attended, layer.output, dtype)
            normed = add_and_norm(x, change, layer.mlp_norm, spec.epsilon, spec.layer_norm, dtype)
            change = product(activate(product(normed, layer.up, dtype), spec.gated), layer.down, dtype)
        normed = add_and_norm(x, change, self._last_norm, spec.epsilon, spec.layer_norm, dtype, inputs.ends)
        return product(normed, self._vocabulary, torch.float32, logits)

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

    def _linear(self, linear: Linear) -> Linear:
        return Linear(self._matrix(linear.weight), None if linear.bias is None else self._matrix(linear.bias))

    def _norm(self, norm: Linear) -> Linear:
        return Linear(norm.weight.to(self._device, torch.float32), self._numbers(norm.bias))

    def _matrix(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, self._dtype).contiguous()

    def _numbers(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(self._device, torch.float32)


def _programs(device: torch.device) -> int:
    """How many programs attention has: as many as run at once. In the interpreter one comes after the other."""
    if device.type == "cpu":
        return 3
    return 2 * int(torch.cuda.get_device_properties(device).multi_processor_count)
