"""RandomTensors: the weights of a config, each drawn on the device when it is asked for. Nothing is on a disk."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from services.engine.parallel.shard import Rows
from services.errors import ModelError

DEVIATION = 0.02  # of weights; 0.02 is what families are initialised with


class RandomTensors:
    """`Tensors` of transformers' names and shapes; a name gives the same numbers always.

    Normal, since products of zeros are faster than those of numbers; the weights of norms are about 1.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, deviation: float = DEVIATION) -> None:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._dtype = dtype
        self._device = device
        self._deviation = deviation
        self.bytes_read = 0

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def read(self, name: str, rows: Rows | None = None, columns: Rows | None = None) -> torch.Tensor:
        """See Tensors; all of it is drawn, whatever is asked for."""
        shape = self._shape(name)
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        tensor = torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device).mul_(self._deviation)
        if len(shape) == 1 and name.endswith(".weight"):
            tensor += 1.0
        part = tensor[:, slice(*columns)] if columns else tensor[slice(*rows)] if rows else tensor
        self.bytes_read += part.nbytes
        return part

    def rows(self, name: str) -> int:
        """See Tensors."""
        return int(self._shape(name)[0])

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._shapes[name]
