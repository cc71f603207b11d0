"""A GGUF file before it is converted: its parts, and a check that all of its tensors can be read."""

from __future__ import annotations

import math
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any

from services.errors import ModelError

PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<end>gguf|GGUF)")
# architectures that transformers reads, with the reason why they are not served
REFUSED = {
    **dict.fromkeys(("bloom", "falcon"), "its attention cannot be replaced"),
    **dict.fromkeys(("t5", "t5encoder"), "models with an encoder and a decoder are not served"),
    "mamba": "models without a longest request are not served",
}
_OF_SPLITS = ("split.no", "split.count", "split.tensors.count")
_OF_FILES = ("GGUF.", "general.alignment")  # what a writer writes itself


def parts_of(file: Path) -> list[Path]:
    """The files of a model that is split like `NAME-00001-of-00003.gguf`, by its first one; of another file, itself.

    Raises ModelError if parts are absent, or if `file` is not the first of them.
    """
    match = PART.fullmatch(file.name)
    if match is None:
        return [file]
    stem, count = match["stem"], int(match["count"])
    parts = [file.with_name(f"{stem}-{i:05}-of-{count:05}.{match['end']}") for i in range(1, count + 1)]
    if file != parts[0]:
        raise ModelError(f"{file} is part {int(match['number'])} of {count}; name the first: {parts[0]}")
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise ModelError(f"{file} is the first of {count} parts; absent in its folder: {', '.join(absent)}")
    return parts


def is_first(file: Path) -> bool:
    """Whether a model is named by this file: by the first of its parts."""
    match = PART.fullmatch(file.name)
    return match is None or int(match["number"]) == 1


def name_of(file: Path) -> str:
    """The name of the model in a GGUF file, without the number of a part."""
    match = PART.fullmatch(file.name)
    return match["stem"] if match else file.stem


def read_gguf(file: Path) -> Any:
    """A GGUFReader of the file. Raises ModelError for a file that is truncated or no GGUF file, and for a tensor whose
    type the package gguf does not read."""
    import gguf
    import numpy as np

    class Reader(gguf.GGUFReader):
        def _build_fields(self, offs: int, count: int) -> int:
            # a slice of a memmap takes four times as long as one of an array, and each token is a slice
            self.data = self.data.view(np.ndarray)  # type: ignore[assignment]  # declared as a memmap
            fields: int = super()._build_fields(offs, count)
            return fields

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            """The package parses each item of an array by itself, which takes 4 s for a large vocabulary."""
            kinds, array = gguf.GGUFValueType, self.data[orig_offs : orig_offs + 12]
            if raw_type != kinds.ARRAY or len(array) < 12:
                return super()._get_field_parts(orig_offs, raw_type)
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if not count or kind[0] == kinds.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            begin, items = orig_offs + 12, int(count[0])
            if kind[0] == kinds.STRING:
                size, strings = self._strings(begin, items)
            else:
                numbers = self._get(begin, self.gguf_scalar_to_np[kinds(kind[0])], items)
                size, strings = numbers.nbytes, list(numbers.reshape(items, 1))
            types = [kinds.ARRAY, kinds(kind[0])]
            return 12 + size, [kind, count, *strings], list(range(2, 2 + items)), types

        def _strings(self, begin: int, count: int) -> tuple[int, list[Any]]:
            """The bytes of the strings of an array, each behind its length, and how many bytes these are together."""
            data, lengths, at, found = self.data, self.data.data, begin, []
            big = (self.byte_order == "S") == (sys.byteorder == "little")
            length = struct.Struct(">Q" if big else "<Q")
            for _ in range(count):
                (size,) = length.unpack_from(lengths, at)
                found.append(data[at + 8 : at + 8 + size])
                at += 8 + size
                if at > len(data):
                    raise ValueError(f"an array of {count} strings does not end within the file")
            return at - begin, found

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            end = start_offs
            for field in fields:
                _, name, _, dims, raw, offset = field.parts
                kind = _checked_type(bytes(name).decode(), int(raw[0]))
                numbers, stored = gguf.GGML_QUANT_SIZES[kind]
                end = max(end, start_offs + int(offset[0]) + math.prod(dims.tolist()) // numbers * stored)
            if end > len(self.data):
                raise ModelError(f"{file.name} is truncated: it has {len(self.data):,} bytes, by its header {end:,}")
            super()._build_tensors(start_offs, fields)

    def _checked_type(name: str, number: int) -> Any:
        known = {int(kind): kind for kind in gguf.GGMLQuantizationType}
        kind = known.get(number)
        if kind is None:
            raise ModelError(f"{file.name}: tensor {name!r} has ggml's type {number}, which is not served")
        blank = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
        try:
            if kind not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
                gguf.dequantize(blank, kind)
        except NotImplementedError:
            raise ModelError(f"{file.name}: tensor {name!r} has the type {kind.name}, which is not served") from None
        return kind

    try:
        return Reader(file)
    except (
        ValueError,
        IndexError,
        KeyError,
        struct.error,
    ) as error:  # so the package finds that bytes are absent or wrong
        size = file.stat().st_size
        raise ModelError(f"the header of {file.name}, which has {size:,} bytes, cannot be read: {error}") from error


def check_architecture(reader: Any) -> str:
    """The architecture of a file. Raises ModelError for one that transformers reads, and that is not served."""
    field = reader.fields.get("general.architecture")
    if field is None:
        raise ModelError("it names no architecture (general.architecture)")
    architecture = str(field.contents())
    if why := REFUSED.get(architecture):
        raise ModelError(f"it is of the architecture {architecture!r}, which is not served: {why}")
    return architecture


def write_head(readers: list[Any], target: Path) -> None:
    """Write a file with the metadata of the first part and the descriptions of the tensors of all parts, from which
    transformers reads config and tokenizer. Where the tensors would be is a hole, which takes no space on disk.
    `readers`: of the parts."""
    import gguf

    fields = readers[0].fields
    writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
    for name, field in fields.items():
        if name not in ("general.architecture", *_OF_SPLITS) and not name.startswith(_OF_FILES):
            kind = field.types[0]
            item = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, item)
    size = 0
    for reader in readers:
        for tensor in reader.tensors:
            data = tensor.data
            writer.add_tensor_info(tensor.name, data.shape, data.dtype, data.nbytes, tensor.tensor_type)
            size += writer.ggml_pad(data.nbytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(target, writer.ggml_pad(target.stat().st_size, writer.data_alignment) + size)
