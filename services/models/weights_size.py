"""How many bytes the weights of a model take in memory, found out from the headers of its files, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from services.models.gguf_index import GgufIndex
from services.models.json_file import read_json
from services.models.safetensors_file import header
from services.models.weights_files import text_tensors, weights_files

NUMBERS = frozenset({"F64", "F32", "F16", "BF16"})  # of safetensors; all else are codes, which stay as they are


def weights_size(folder: Path, width: int) -> int:
    """Bytes of the weights of the model in `folder` if each number takes `width` bytes. Codes of quantized weights take
    what they take in the files, and so do files that are not safetensors. What a model reads pictures with is not
    loaded. Raises ModelError."""
    index = GgufIndex.read(folder)
    size = sum(source.size for source in index.sources) if index else 0
    tensors: dict[str, Any] = {}
    for file in weights_files(folder):
        if file.suffix == ".safetensors":
            tensors |= json.loads(header(file))
        else:
            size += file.stat().st_size
    tensors.pop("__metadata__", None)
    own = text_tensors(read_json(folder / "config.json") or {}, tensors)
    return size + sum(_size(tensors[name], width) for name in own)


def _size(tensor: dict[str, Any], width: int) -> int:
    begin, end = tensor["data_offsets"]
    return math.prod(tensor["shape"]) * width if tensor["dtype"] in NUMBERS else int(end - begin)
