"""CudaSetup: what a decoder of the lean path on CUDA is made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from services.engine.backends.cuda.tiles import Tiles
from services.engine.families.spec import DecoderSpec
from services.engine.families.weights import DecoderWeights


@dataclass(frozen=True, slots=True)
class CudaSetup:
    """Weights, keys, values and what goes into products are `dtype`; norms, sums and the residual stream float32.

    Triton's interpreter runs all of it, without graphs, where `device` is the CPU.
    """

    spec: DecoderSpec
    weights: DecoderWeights
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    batch_invariant: bool  # bits depend on the request alone
    tiles: Tiles

    @property
    def path(self) -> str:
        """See Decoder."""
        return "triton invariant" if self.batch_invariant else "triton"
