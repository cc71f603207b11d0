"""Where weights come from: the safetensors of a folder, or random numbers."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from services.engine.families.gguf import FORMATS, read_blocks
from services.engine.families.kept import Quantization
from services.engine.families.quantized import QuantizedWeight, Weight, quantize
from services.engine.families.single_experts import SingleExperts, single_experts
from services.engine.families.values import GroupFormat
from services.engine.parallel.layout import RowRange
from services.errors import ModelError
from services.models.contents import BLOCKS
from services.models.safetensors_file import LENGTH
from services.models.weights_files import weights_files

_TEXT_PART = re.compile(r"^(model\.)?(language_model|text_model)\.(model\.)?(?P<head>lm_head\.)?")
DEVIATION = 0.02  # of random weights; families are initialised with it


class Tensors(Protocol):
    """Tensors by name. `bytes_read` counts what was asked for so far."""

    @property
    def bytes_read(self) -> int: ...

    @property
    def groups(self) -> dict[str, GroupFormat]:
        """Of each weight that is read as it is stored."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """A tensor, or these rows or columns of it, without reading the rest. Raises ModelError if it is absent."""
        ...

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        """The same for a product's weight, as the source stores it."""
        ...

    def rows(self, name: str) -> int:
        """How many rows a tensor has. Raises ModelError if it is absent."""
        ...


class Checkpoint:
    """The tensors of a transformers folder with safetensors, and of a converted GGUF file: those in blocks are read as
    the numbers that they stand for, rounded to bfloat16."""

    def __init__(self, folder: Path, as_stored: bool = False) -> None:
        """`as_stored`: weights are QuantizedWeights where the folder has their blocks. Raises ModelError for a folder
        without safetensors."""
        files = weights_files(folder)
        if not files or files[0].suffix != ".safetensors":
            raise ModelError(f"{folder} holds no causal language model with safetensors")
        names: dict[str, Path] = {}
        for file in files:
            names |= dict.fromkeys(_open(file).keys(), file)
        self.bytes_read = 0
        self.quantization = Quantization()  # of the blocks
        self._as_stored = as_stored
        self._files = names
        self._opened: dict[Path, Any] = {}
        self._kinds: dict[str, str] = {}  # ggml's types of the blocks
        if (folder / BLOCKS).exists():
            with safe_open(folder / BLOCKS, framework="pt") as blocks:
                kept, kinds = set(blocks.keys()), blocks.metadata()
            self._files |= dict.fromkeys(kept, folder / BLOCKS)
            self._kinds = {name: kind for name, kind in kinds.items() if name in kept}
            self.quantization = _gguf(kinds, kept)

    @property
    def groups(self) -> dict[str, GroupFormat]:
        """See Tensors."""
        return {name: FORMATS[kind].groups for name, kind in self._kinds.items()} if self._as_stored else {}

    @property
    def has_blocks(self) -> bool:
        return bool(self._kinds)

    @property
    def names(self) -> list[str]:
        """All names."""
        return list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """See Tensors."""
        if name in self._kinds:
            return self._blocks(name, rows, columns).dequantize()
        part = self._slice(name)
        tensor: torch.Tensor = part[:, slice(*columns)] if columns else part[slice(*rows)] if rows else part[...]
        self.bytes_read += tensor.nbytes
        return tensor

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        """See Tensors."""
        is_stored = self._as_stored and name in self._kinds
        return self._blocks(name, rows, columns) if is_stored else self.read(name, rows, columns)

    def rows(self, name: str) -> int:
        """See Tensors."""
        return int(self._slice(name).get_shape()[0])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, or of the numbers that its blocks stand for. Raises ModelError if it is absent."""
        shape = tuple(self._slice(name).get_shape())
        if name not in self._kinds:
            return shape
        return shape[0], self._blocks(name, (0, 1), None).shape[1]

    def _blocks(self, name: str, rows: RowRange | None, columns: RowRange | None) -> QuantizedWeight:
        """Of a weight in blocks these outputs, or these inputs, for which whole rows of blocks are read."""
        part = self._slice(name)
        stored: torch.Tensor = part[slice(*rows)] if rows else part[:]
        self.bytes_read += stored.nbytes
        return read_blocks(self._kinds[name], stored).part(columns=columns)

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"the weights have no tensor {name!r}")
        file = self._files[name]
        if file not in self._opened:
            self._opened[file] = _open(file)
        return self._opened[file].get_slice(name)


def text_name(name: str) -> str:
    """The name of a checkpoint's tensor in the text model alone, which may be a part of another."""
    return _TEXT_PART.sub(lambda found: found["head"] or "model.", name)


def header(file: Path) -> bytes:
    """What a file of safetensors says of its tensors: names, types, shapes and places. Raises ModelError."""
    try:
        with file.open("rb") as opened:
            return opened.read(int.from_bytes(opened.read(LENGTH), "little"))
    except OSError as error:
        raise ModelError(f"the weights' file {file} cannot be read: {error}") from error


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the weights' file {file} cannot be read: {error}") from error


def _gguf(kinds: Mapping[str, str], kept: Collection[str]) -> Quantization:
    """Of the blocks of a GGUF file: `kinds` by name, and the names of those that were kept."""
    types = [kind for kind, _ in Counter(kinds.values()).most_common()]
    refused = {
        name: "the conversion changes its numbers" if kind in FORMATS else f"{kind} is not executed"
        for name, kind in kinds.items()
        if name not in kept
    }
    return Quantization(f"gguf {', '.join(types)}", frozenset(kinds), refused)


class RandomTensors:
    """The tensors of a config, with transformers' names and shapes. Each is drawn on the device when it is read; the
    same name always has the same numbers.

    Weights are normal, since products of zeros are faster than those of numbers. Norms multiply by about 1.
    """

    def __init__(
        self,
        config: Any,
        dtype: torch.dtype,
        device: torch.device,
        deviation: float = DEVIATION,
        groups: Mapping[str, GroupFormat] | None = None,
        query_norms: float = 1.0,
    ) -> None:
        """`groups`: of weights that are quantised, see Tensors. Experts that are quantised are weights one by one, as
        in the checkpoint, and transformers' tensors have the same numbers. `query_norms`: about what norms of queries
        multiply by."""
        from transformers import AutoModelForCausalLM  # seconds, and a checkpoint does not need it

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self._norms = {
            f"{name}.weight": _neutral_weight(type(module))
            for name, module in model.named_modules()
            if len(self._shapes.get(f"{name}.weight", ())) == 1
        }
        for name in self._norms:
            if name.endswith("q_norm.weight"):
                self._norms[name] += query_norms - 1.0
        self._dtype = dtype
        self._device = device
        self._deviation = deviation
        self.groups = dict(groups or {})
        self._experts: dict[str, SingleExperts] = dict(single_experts(self._shapes, self.groups))
        for experts in self._experts.values():
            self._shapes |= {name: experts.shape for names in experts.names for name in names}
            self.groups |= experts.groups
        self.bytes_read = 0

    @property
    def names(self) -> list[str]:
        """All names that a model has."""
        single = {name for experts in self._experts.values() for names in experts.names for name in names}
        return [name for name in self._shapes if name not in single]

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """See Tensors. The whole tensor is drawn, even if a part is asked for."""
        weight = self.weight(name, rows, columns)
        return weight if isinstance(weight, torch.Tensor) else weight.dequantize().to(self._dtype)

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        """See Tensors."""
        shape = self._shape(name)
        if name in self.groups:
            return quantize(self._draw(name, shape), self.groups[name]).part(rows, columns)
        if len(shape) == 3:  # matrices of experts, which are read one at a time
            part = torch.stack([self._expert(name, i) for i in range(*rows or (0, shape[0]))])
        else:
            drawn = self._draw(name, shape) + self._norms.get(name, 0.0)
            part = drawn[:, slice(*columns)] if columns else drawn[slice(*rows)] if rows else drawn
        self.bytes_read += part.nbytes
        return part

    def _expert(self, name: str, index: int) -> torch.Tensor:
        """One matrix of a tensor of experts."""
        if name not in self._experts:
            return self._draw(f"{name}.{index}", self._shapes[name][1:])
        experts = self._experts[name]
        matrix = torch.cat([self.read(single) for single in experts.names[index]])
        return matrix.t() if experts.transposed else matrix

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        generator = torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device).mul_(self._deviation)

    def rows(self, name: str) -> int:
        """See Tensors."""
        return int(self._shape(name)[0])

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._shapes[name]


def _neutral_weight(norm: Any) -> float:
    """The weight with which a norm of this class multiplies by 1: 0 if it adds 1. transformers starts with it."""
    return float(norm(1).weight.detach())
