"""How many bytes the weights of a model take in memory, found out from the headers of its files, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

from services.models.gguf_index import GgufIndex
from services.models.safetensors_file import header
from services.models.weights_files import weights_files

NUMBERS = frozenset({"F64", "F32", "F16", "BF16"})  # of safetensors; all else are codes, which stay as they are


def weights_size(folder: Path, width: int) -> int:
    """Bytes of the weights of the model in `folder` if each number takes `width` bytes. Codes of quantized weights take
    what they take in the files, and so do files that are not safetensors. Raises ModelError."""
    index = GgufIndex.read(folder)
    size = sum(source.size for source in index.sources) if index else 0
    for file in weights_files(folder):
        size += _size(file, width) if file.suffix == ".safetensors" else file.stat().st_size
    return size


def _size(file: Path, width: int) -> int:
    tensors = json.loads(header(file))
    tensors.pop("__metadata__", None)
    begins_and_ends = ((each, each["data_offsets"]) for each in tensors.values())
    return sum(
        math.prod(each["shape"]) * width if each["dtype"] in NUMBERS else end - begin
        for each, (begin, end) in begins_and_ends
    )
