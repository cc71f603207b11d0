"""NativeSetup: what a decoder of the lean path on a CPU is made from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class NativeSetup:
    """Activations are float32; weights are kept in `weight_dtype` as Packer does, keys and values in `cache_dtype`."""

    library: ctypes.CDLL  # the compiled kernels
    spec: DecoderSpec  # of the whole model
    weights: DecoderWeights
    weight_dtype: torch.dtype
    cache_dtype: torch.dtype
    threads: int
    max_model_len: int
