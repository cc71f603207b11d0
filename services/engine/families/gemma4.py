"""Gemma 4, except the variant with experts."""

from __future__ import annotations

from typing import Any

from services.engine.families.decoder_weights import InputsOfLayersWeights, LayerInputsWeights, LayerWeights, Linear
from services.engine.families.llama import Llama, rotary_frequencies, windows_of
from services.engine.parallel.layout import RowRange
from services.engine.spec import Activation, DecoderSpec, HeadsSpec

FULL, LOCAL = "full_attention", "sliding_attention"


class Gemma4(Llama):
    """Gemma 3's layers, with other heads in layers without a window, a factor of x behind each layer, and norms of
    values. Norms multiply by their weight. E2B and E4B have inputs of layers, and layers that attend to the keys of
    others. In others, layers without a window have keys as values."""

    @staticmethod
    def read_spec(config: Any) -> DecoderSpec | None:
        """None for experts, attention to later tokens, another activation than GELU in its tanh form, heads that differ
        between layers of a type, rotary embeddings that depend on the length, and windows that are longer than any
        request."""
        windows = windows_of(config)
        kinds = [FULL, LOCAL] if windows else [FULL]
        if _is_unknown(config, kinds):
            return None
        full, local = _heads(config, kinds[0]), _heads(config, kinds[-1])
        rotary, local_rotary = _rotary(config, kinds[0]), _rotary(config, kinds[-1])
        if not (full and local and rotary and local_rotary) or rotary[1] != local_rotary[1]:
            return None
        inputs = _layer_inputs(config)
        shared = _shared(config)
        sizes = tuple(config.intermediate_size * (2 if each else 1) for each in shared)
        return DecoderSpec(
            family=config.model_type,
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=full.heads,
            kv_heads=full.kv_heads,
            head_dim=full.head_dim,
            intermediate=config.intermediate_size,
            vocab=config.vocab_size,
            epsilon=config.rms_norm_eps,
            frequencies=rotary[0],
            rotary_scale=rotary[1],
            activation=Activation.GELU,
            windows=windows,
            local_frequencies=local_rotary[0] if local_rotary != rotary else (),
            local_heads=local if local != full else None,
            kv_layers=_kv_layers(config, shared) if any(shared) else (),
            values_are_keys=tuple(kind == FULL for kind in config.layer_types) if config.attention_k_eq_v else (),
            value_norms=True,
            intermediates=sizes if config.use_double_wide_mlp and any(shared) else (),
            layer_inputs=inputs,
            layer_inputs_scale=inputs**0.5,
            logits_soft_cap=config.final_logit_softcapping or 0.0,
            embedding_scale=config.hidden_size**0.5,
            rounds_embedding_scale=True,
            attention_scale=1.0,
        )

    def layer(self, index: int) -> LayerWeights:
        spec, layer = self._spec, f"model.layers.{index}"
        inner = self._partition.range_of(spec.intermediate_of(index))
        queries = self._head_rows(spec.heads_of(index).queries_per_kv, index)
        scale = self._optional(f"{layer}.layer_scalar")
        return LayerWeights(
            attention_norm=self._norm(f"{layer}.input_layernorm"),
            qkv=self._stacked(*self._products(index, f"{layer}.self_attn")),
            query_norm=self._head_norm(f"{layer}.self_attn.q_norm"),
            key_norm=self._head_norm(f"{layer}.self_attn.k_norm") if spec.kv_layer(index) == index else None,
            output=self._partial(f"{layer}.self_attn.o_proj", queries),
            attention_post_norm=self._norm(f"{layer}.post_attention_layernorm"),
            mlp_norm=self._norm(f"{layer}.pre_feedforward_layernorm"),
            up=self._stacked([f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"], [inner, inner]),
            down=self._partial(f"{layer}.mlp.down_proj", inner),
            mlp_post_norm=self._norm(f"{layer}.post_feedforward_layernorm"),
            inputs=self._layer_inputs(layer) if spec.layer_inputs else None,
            scale=1.0 if scale is None else float(scale),
        )

    def inputs_of_layers(self) -> InputsOfLayersWeights:
        table = "model.embed_tokens_per_layer.weight"
        projection = self._whole("model.per_layer_model_projection")
        norm = self._norm("model.per_layer_projection_norm")
        return InputsOfLayersWeights(self._table(table), table, projection, norm)

    def _products(self, index: int, attention: str) -> tuple[list[str], list[RowRange]]:
        """The names of the products of a layer's input, and this partition's rows of each."""
        spec = self._spec
        parts, keys = {"q": self._head_rows(spec.heads_of(index).queries_per_kv, index)}, self._head_rows(1, index)
        if spec.kv_layer(index) == index:
            parts["k"] = keys
        if spec.has_values(index):
            parts["v"] = keys
        return [f"{attention}.{name}_proj" for name in parts], list(parts.values())

    def _layer_inputs(self, layer: str) -> LayerInputsWeights:
        return LayerInputsWeights(
            self._whole(f"{layer}.per_layer_input_gate"),
            self._whole(f"{layer}.per_layer_projection"),
            self._norm(f"{layer}.post_per_layer_input_norm"),
        )

    def _whole(self, name: str) -> Linear:
        return Linear(self._tensors.weight(f"{name}.weight"), names=(f"{name}.weight",))


def _is_unknown(config: Any, kinds: list[str]) -> bool:
    """Whether the model has something that DecoderSpec does not describe; see `read_spec`."""
    return (
        getattr(config, "enable_moe_block", False)
        or config.use_bidirectional_attention == "all"
        or config.hidden_activation != "gelu_pytorch_tanh"
        or set(config.layer_types) != set(kinds)
        or (_layer_inputs(config) > 0 and config.vocab_size_per_layer_input < config.vocab_size)
    )


def _layer_inputs(config: Any) -> int:
    return getattr(config, "hidden_size_per_layer_input", None) or 0


def _heads(config: Any, kind: str) -> HeadsSpec | None:
    """The heads of this type of layer; None if they differ."""
    layers = (config.per_layer_config[i] for i, own in enumerate(config.layer_types) if own == kind)
    found = {HeadsSpec(config.num_attention_heads, one.num_key_value_heads, one.head_dim) for one in layers}
    return found.pop() if len(found) == 1 else None


def _rotary(config: Any, kind: str) -> tuple[tuple[float, ...], float] | None:
    """See `rotary_frequencies`. Proportional ones have zeros for the columns that are not rotated."""
    rope = config.rope_parameters[kind]
    partial = "partial_rotary_factor" in rope and rope["rope_type"] != "proportional"
    if partial or rope["rope_type"] in ("dynamic", "longrope"):
        return None
    # `default` takes the size of heads from the config it gets, and other types look up that of the layers' type
    own = config.per_layer_config[kind] if rope["rope_type"] == "default" else config
    return rotary_frequencies(own, kind)


def _shared(config: Any) -> list[bool]:
    """Which layers have no keys of their own: the last ones."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    return [i >= first for i in range(config.num_hidden_layers)]


def _kv_layers(config: Any, shared: list[bool]) -> tuple[int, ...]:
    """Layers without keys of their own attend to those of the last layer of the same type that has some."""
    last: dict[str, int] = {}
    found = []
    for i, kind in enumerate(config.layer_types):
        if not shared[i]:
            last[kind] = i
        found.append(last[kind])
    return tuple(found)
