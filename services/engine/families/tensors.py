"""Where weights come from: the safetensors of a folder, or random numbers."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open

from services.engine.parallel.layout import RowRange
from services.errors import ModelError

DEVIATION = 0.02  # of random weights; families are initialised with it


class Tensors(Protocol):
    """Tensors by name. `bytes_read` counts what was asked for so far."""

    @property
    def bytes_read(self) -> int: ...

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """A tensor, or these rows or columns of it, without reading the rest. Raises ModelError if it is absent."""
        ...

    def rows(self, name: str) -> int:
        """How many rows a tensor has. Raises ModelError if it is absent."""
        ...


class Checkpoint:
    """The tensors of a transformers folder with safetensors."""

    def __init__(self, folder: Path) -> None:
        """Raises ModelError for a folder without safetensors."""
        index = folder / "model.safetensors.index.json"
        if index.exists():
            files: dict[str, str] = json.loads(index.read_text())["weight_map"]
            names = {name: folder / file for name, file in files.items()}
        else:
            file = folder / "model.safetensors"
            if not file.exists():
                raise ModelError(f"{folder} holds no causal language model with safetensors")
            with safe_open(file, framework="pt") as opened:
                names = dict.fromkeys(opened.keys(), file)
        self.bytes_read = 0
        self._files = names
        self._opened: dict[Path, Any] = {}

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """See Tensors."""
        part = self._slice(name)
        tensor: torch.Tensor = part[:, slice(*columns)] if columns else part[slice(*rows)] if rows else part[:]
        self.bytes_read += tensor.nbytes
        return tensor

    def rows(self, name: str) -> int:
        """See Tensors."""
        return int(self._slice(name).get_shape()[0])

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"the weights have no tensor {name!r}")
        file = self._files[name]
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        return self._opened[file].get_slice(name)


class RandomTensors:
    """The tensors of a config, with transformers' names and shapes. Each is drawn on the device when it is read; the
    same name always has the same numbers.

    Weights are normal, since products of zeros are faster than those of numbers; the weights of norms are about 1.
    """

    def __init__(self, config: Any, dtype: torch.dtype, device: torch.device, deviation: float = DEVIATION) -> None:
        from transformers import AutoModelForCausalLM  # seconds, and a checkpoint does not need it

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._dtype = dtype
        self._device = device
        self._deviation = deviation
        self.bytes_read = 0

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """See Tensors. The whole tensor is drawn, even if a part is asked for."""
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
