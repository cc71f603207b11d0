"""The structures of kernels/*.h, field for field: Groups in groups.h, Matrix in products.h, Experts in routing.h, Batch
and Heads in batch.h, the others in model.h."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int32, c_void_p


class Groups(Structure):
    _fields_ = (
        ("bits", c_int32),
        ("size", c_int32),
        ("coding", c_int32),
        ("factors", c_int32),
        ("book", c_float * 16),
    )


class Matrix(Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int32),
        ("outputs", c_int32),
        ("kind", c_int32),
        ("groups", Groups),
    )


class Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class Experts(Structure):
    _fields_ = (
        ("router", Matrix),
        ("up", POINTER(Matrix)),
        ("down", POINTER(Matrix)),
        ("correction", c_void_p),
        ("count", c_int32),
        ("chosen", c_int32),
        ("normalised", c_int32),
        ("sigmoid", c_int32),
        ("scale", c_float),
    )


class LayerInputs(Structure):
    _fields_ = (("gate", Matrix), ("down", Matrix), ("norm", Norm))


class InputsOfLayers(Structure):
    _fields_ = (
        ("numbers", c_int32),
        ("rows_factor", c_float),
        ("projection", Matrix),
        ("norm", Norm),
        ("epsilon", c_float),
    )


class Layer(Structure):
    _fields_ = (
        ("attention_norm", Norm),
        ("qkv", Matrix),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("output", Matrix),
        ("mlp_norm", Norm),
        ("attention_post_norm", Norm),
        ("mlp_post_norm", Norm),
        ("up", Matrix),
        ("down", Matrix),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("sinks", c_void_p),
        ("window", c_int32),
        ("heads", c_int32),
        ("has_keys", c_int32),
        ("has_values", c_int32),
        ("scale", c_float),
        ("inputs", LayerInputs),
        ("experts", Experts),
    )


class Heads(Structure):
    _fields_ = (
        ("queries", c_int32),
        ("keys", c_int32),
        ("dim", c_int32),
        ("block_size", c_int32),
        ("scaling", c_float),
        ("soft_cap", c_float),
        ("both_ways", c_int32),
    )


class Model(Structure):
    _fields_ = (
        ("layer_count", c_int32),
        ("hidden", c_int32),
        ("layer_norm", c_int32),
        ("norms_all_heads", c_int32),
        ("norms_after_rotary", c_int32),
        ("value_norms", c_int32),
        ("parallel", c_int32),
        ("gated", c_int32),
        ("norms_sums", c_int32),
        ("widest", c_int32),
        ("qkv_width", c_int32),
        ("writing_layers", c_int32),
        ("heads_count", c_int32),
        ("cache_kind", c_int32),
        ("threads", c_int32),
        ("activation", c_int32),
        ("epsilon", c_float),
        ("logits_soft_cap", c_float),
        ("swiglu_alpha", c_float),
        ("swiglu_limit", c_float),
        ("heads", POINTER(Heads)),
        ("layers", POINTER(Layer)),
        ("last_norm", Norm),
        ("vocabulary", Matrix),
        ("inputs", InputsOfLayers),
        ("buffers", c_void_p),
    )


class LowRank(Structure):
    _fields_ = (
        ("a", c_void_p),
        ("scales", c_void_p),
        ("b", c_void_p),
        ("halves", c_void_p),
        ("strips", c_int32),
    )


class AdaptedRows(Structure):
    _fields_ = (
        ("first", c_int32),
        ("count", c_int32),
        ("products", POINTER(LowRank)),
    )


class Batch(Structure):
    _fields_ = (
        ("tokens", c_int32),
        ("requests", c_int32),
        ("wanted", c_int32),
        ("starts", c_void_p),
        ("contexts", c_void_p),
        ("table_starts", c_void_p),
        ("tables", c_void_p),
        ("logits_after", c_void_p),
        ("layer_inputs", c_void_p),
        ("adapted", POINTER(AdaptedRows)),
        ("adapted_count", c_int32),
        ("strips", c_int32),
    )
