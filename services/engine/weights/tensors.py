"""Tensors: where weights come from. Checkpoint: the safetensors of a folder, and what its index names in GGUF files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from services.engine.parallel.layout import RowRange
from services.engine.weights.description import Quantization
from services.engine.weights.gguf import FORMATS, read_blocks
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Weight
from services.errors import ModelError
from services.models.gguf_index import KINDS, GgufIndex
from services.models.gguf_mapped import MappedGguf
from services.models.weights_files import weights_files


class Tensors(Protocol):
    """Tensors by name."""

    @property
    def groups(self) -> dict[str, GroupFormat]:
        """The form of each weight that is read as it is stored, by name."""
        ...

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        """A tensor, or these rows or columns of it, without reading the rest. Raises ModelError if it is absent."""
        ...

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        """A product's weight as the source stores it, or these rows or columns. Raises ModelError if it is absent."""
        ...

    def rows(self, name: str) -> int:
        """How many rows a tensor has. Raises ModelError if it is absent."""
        ...


class Checkpoint:
    """The tensors of a transformers folder with safetensors, and of a converted GGUF file: those in blocks are read as
    the numbers that they stand for, rounded to bfloat16."""

    def __init__(self, folder: Path, as_stored: bool = False) -> None:
        """`as_stored`: weights are QuantizedWeights where the folder has their blocks. Raises ModelError for a folder
        without safetensors, and if a GGUF file is absent or has changed."""
        files = weights_files(folder)
        if not files or files[0].suffix != ".safetensors":
            raise ModelError(f"{folder} holds no causal language model with safetensors")
        names: dict[str, Path] = {}
        for file in files:
            names |= dict.fromkeys(_open(file).keys(), file)
        self.quantization = Quantization()  # of the blocks
        self._as_stored = as_stored
        self._files = names
        self._opened: dict[Path, Any] = {}
        index = GgufIndex.read(folder) or GgufIndex([], {}, {}, [])
        self._places, self._mapped = index.places, MappedGguf(index.sources)
        self._kinds = {name: place.kind for name, place in self._places.items() if place.kind in KINDS}
        if index.kinds:
            self.quantization = _gguf(index.kinds, self._kinds)

    @property
    def groups(self) -> dict[str, GroupFormat]:
        return {name: FORMATS[kind].groups for name, kind in self._kinds.items()} if self._as_stored else {}

    @property
    def names(self) -> list[str]:
        """All names."""
        return [*self._files, *self._places]

    def __contains__(self, name: str) -> bool:
        return name in self._files or name in self._places

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        if name in self._kinds:
            return self._blocks(name, rows, columns).dequantize()
        if name in self._places:
            return self._mapped.rows(self._places[name], rows)[:, slice(*columns or (None,))]
        part = self._slice(name)
        tensor: torch.Tensor = part[:, slice(*columns)] if columns else part[slice(*rows)] if rows else part[...]
        return tensor

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        is_stored = self._as_stored and name in self._kinds
        return self._blocks(name, rows, columns) if is_stored else self.read(name, rows, columns)

    def rows(self, name: str) -> int:
        return self._places[name].rows if name in self._places else int(self._slice(name).get_shape()[0])

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, or of the numbers that its blocks stand for. Raises ModelError if it is absent."""
        if name not in self._places:
            return tuple(self._slice(name).get_shape())
        columns = self._blocks(name, (0, 1), None) if name in self._kinds else self.read(name, (0, 1))
        return self._places[name].rows, columns.shape[1]

    def _blocks(self, name: str, rows: RowRange | None, columns: RowRange | None) -> QuantizedWeight:
        """These outputs, or these inputs, of a weight in blocks. For inputs, whole rows of blocks are read."""
        stored = self._mapped.rows(self._places[name], rows)
        return read_blocks(self._kinds[name], stored).part(columns=columns)

    def _slice(self, name: str) -> Any:
        if name not in self._files:
            raise ModelError(f"the weights have no tensor {name!r}")
        file = self._files[name]
        if file not in self._opened:
            self._opened[file] = _open(file)
        return self._opened[file].get_slice(name)


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the weights' file {file} cannot be read: {error}") from error


def _gguf(kinds: Mapping[str, str], kept: Collection[str]) -> Quantization:
    """What a GGUF file says of its blocks: `kinds` by name, and the names of the blocks that were kept."""
    types = [kind for kind, _ in Counter(kinds.values()).most_common()]
    refused = {
        name: "the conversion changes its numbers" if kind in FORMATS else f"{kind} is not executed"
        for name, kind in kinds.items()
        if name not in kept
    }
    return Quantization(f"gguf {', '.join(types)}", frozenset(kinds), refused)
