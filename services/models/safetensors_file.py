"""SafetensorsWriter: a safetensors file, written one tensor after another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from services.errors import ModelError
from services.models.contents import ContentsHash

if TYPE_CHECKING:
    import torch

LENGTH = 8  # bytes of the header's length, before the header
ENTRY = 256  # bytes of a tensor in the header, without its name: dtype, sizes, offsets, and a word in the metadata
DTYPES = {"uint8": "U8", "bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class SafetensorsWriter:
    """The library writes only tensors that are in memory all together. The format has its header first, so room for it
    is left, and what is not needed is filled with spaces, which the format allows."""

    def __init__(self, file: Path | None, names: Iterable[str]) -> None:
        """`file`: None writes nothing, for the hash of what would be written. `names`: at least those of all tensors
        that will be added. Each may be a key of the metadata, too."""
        room = ENTRY + sum(2 * len(json.dumps(name)) + ENTRY for name in names)
        self._begin = LENGTH + -(-room // LENGTH) * LENGTH
        self._entries: dict[str, object] = {}
        self._at = 0
        self._hash = ContentsHash(self._begin)
        self._file = file.open("wb") if file else None
        if self._file:
            self._file.seek(self._begin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        assert name not in self._entries, name
        end = self._at + tensor.nbytes
        kind = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        self._entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [self._at, end]}
        data = tensor.contiguous().view(-1).view(torch.uint8).numpy().data
        self._hash.update(data)
        if self._file:
            self._file.write(data)
        self._at = end

    def finish(self, metadata: Mapping[str, str]) -> str:
        """Write the header, without which the file cannot be read. Return the hash that `contents` has of the file."""
        header = json.dumps({"__metadata__": dict(metadata)} | self._entries, separators=(",", ":")).encode()
        room = self._begin - LENGTH
        assert len(header) <= room, (len(header), room)
        begin = room.to_bytes(LENGTH, "little") + header.ljust(room)
        if self._file:
            self._file.seek(0)
            self._file.write(begin)
        return self._hash.digest(begin)


def header(file: Path) -> bytes:
    """What a file of safetensors says of its tensors: names, types, shapes and places. Raises ModelError."""
    try:
        with file.open("rb") as opened:
            return opened.read(int.from_bytes(opened.read(LENGTH), "little"))
    except OSError as error:
        raise ModelError(f"the weights' file {file} cannot be read: {error}") from error
