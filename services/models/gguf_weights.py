"""The weights of a GGUF file under transformers' names, one tensor after another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from services.errors import ModelError
from services.models.gguf_index import NUMBERS, GgufIndex, Place, Source
from services.models.gguf_mapped import DTYPES, MappedGguf
from services.models.gguf_once import names_of
from services.models.safetensors_file import SafetensorsWriter

# transformers' types of models whose published checkpoints have a tensor for each expert, `experts.I.PART_proj.weight`
SINGLE_EXPERTS = frozenset({"qwen2_moe", "qwen3_moe"})
KIND_OF = {dtype: kind for kind, dtype in DTYPES.items()}
MARKED = 3  # columns of a matrix of marked rows
NUMBERS_FILE, METADATA = "model.safetensors", {"format": "pt"}
BLOCKS_FILE = "gguf.blocks"  # of which only the hash is made
_EXPERTS = re.compile(r"(?P<stem>.+\.ffn_(?P<part>gate|up|down)_exps)\.weight")


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """`weights`: where they lie in the file, or numbers. `kind`: ggml's type; empty for numbers of a type that is not
    quantised, and if no blocks are kept."""

    name: str
    kind: str
    weights: Place | torch.Tensor


class GgufWeights:
    """Reads one tensor of the file at a time. transformers knows the names, and what llama.cpp changes of a family's
    numbers. A matrix stays where it is if nothing is changed, or only the order of rows."""

    def __init__(
        self, parts: Sequence[Sequence[Any]], architecture: str, model: Any, dtype: torch.dtype, keep: frozenset[str]
    ) -> None:
        """`parts`: the tensors of the GGUFReader of each file. `architecture`: the file's. `model`: an empty one.
        `dtype`: of numbers. `keep`: the types whose blocks are kept."""
        config = model.config
        self._tensors = [(number, tensor) for number, part in enumerate(parts) for tensor in part]
        self._dtype, self._keep = dtype, keep
        self._stays = keep | {KIND_OF[dtype]}
        self._has_single_experts = config.model_type in SINGLE_EXPERTS
        self._shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        self._parameters = {name for name, _ in model.named_parameters()}
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
        self._names = names_of(model, self._processor)
        self._parts = Counter(self._names.values())  # how many tensors of the file are not yet read, by their own name
        self._numbers: dict[str, torch.Tensor] = {}  # of tensors of the model that may lack parts

    @property
    def names(self) -> list[str]:
        """The names of all tensors that are read, and maybe of others."""
        experts = [name for _, tensor in self._tensors for name in self._expert_names(tensor)]
        return [*dict.fromkeys(self._names.values()), *experts]

    def read(self, progress: Callable[[int, int], None]) -> Iterator[ConvertedTensor]:
        """All tensors, once. `progress` gets how many of the file's were read, and how many there are.

        Raises ModelError for a tensor of another shape than the model's, and if the file lacks tensors of the model,
        which transformers would draw at random."""
        for done, (file, tensor) in enumerate(self._tensors):
            progress(done, len(self._tensors))
            if own := self._own_name(tensor):
                self._parts[own] -= 1
            yield from self._converted(file, tensor)
        progress(len(self._tensors), len(self._tensors))
        known = {name for name, parts in self._parts.items() if parts <= 0}
        if missing := self._parameters - known:
            raise ModelError(f"the file lacks {len(missing)} tensors of its model, such as {min(missing)}")

    def _own_name(self, tensor: Any) -> str | None:
        """The name of the tensor of the model that this one is, or is a part of."""
        return self._names.get(tensor.name) or self._names.get(tensor.name.removesuffix(".weight"))

    def _converted(self, file: int, tensor: Any) -> Iterator[ConvertedTensor]:
        kind = tensor.tensor_type.name
        said = kind if self._keep and kind not in NUMBERS else ""
        stays = kind in self._stays
        if names := self._expert_names(tensor):
            self._check_experts(tensor)
            rows, width = tensor.data[0].shape[0], tensor.data[0].nbytes // tensor.data[0].shape[0]
            for i, name in enumerate(names):
                place = Place(file, tensor.data_offset + i * rows * width, rows, width, kind)
                yield ConvertedTensor(name, said, place if stays else self._numbers_of(tensor.data[i], tensor))
        elif stays and (pairs := self._pairs(tensor)):
            rows, width = len(tensor.data), tensor.n_bytes // len(tensor.data)
            place = Place(file, tensor.data_offset, rows, width, kind, pairs)
            yield ConvertedTensor(self._names[tensor.name], said, place)
        else:
            for name, numbers in self._processed(tensor, gguf.dequantize(tensor.data, tensor.tensor_type)):
                yield ConvertedTensor(name, said, numbers)

    def _numbers_of(self, data: Any, tensor: Any) -> torch.Tensor:
        return torch.from_numpy(np.copy(gguf.dequantize(data, tensor.tensor_type))).to(self._dtype)

    def _expert_names(self, tensor: Any) -> list[str]:
        """The names of the experts in a tensor, if the converted folder has a tensor for each."""
        match = _EXPERTS.fullmatch(tensor.name)
        own = self._own_name(tensor)
        if match is None or own is None or not self._has_single_experts:
            return []
        experts = own.rpartition(".")[0]
        return [f"{experts}.{i}.{match['part']}_proj.weight" for i in range(len(tensor.data))]

    def _pairs(self, tensor: Any) -> int:
        """The `pairs` of the matrix's Place; 0 if transformers changes more of it than the order of rows."""
        shape = _shape(tensor)
        if len(shape) != 2 or shape != self._shapes.get(self._names.get(tensor.name, "")):
            return 0
        marked = np.arange(shape[0] * MARKED, dtype=np.float64).reshape(-1, MARKED)  # in place of numbers
        found = self._processor.process(marked, tensor.name, tensor_key_mapping={}, parsed_parameters={"tensors": {}})
        if found.name != tensor.name or found.weights.shape != marked.shape:
            return 0
        pairs = max(1, int(np.argmax(found.weights[:, 0] == MARKED)))  # where the second row is
        if pairs == 1:
            expected = marked
        elif shape[0] % (2 * pairs) == 0:
            expected = marked.reshape(-1, pairs, 2, MARKED).swapaxes(1, 2).reshape(marked.shape)
        else:
            return 0
        return pairs if np.array_equal(found.weights, expected) else 0

    def _processed(self, tensor: Any, numbers: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """The numbers of those tensors of the model of which this is the last part. `numbers`: what the file has."""
        parsed = {"tensors": self._numbers}
        found = self._processor.process(numbers, tensor.name, tensor_key_mapping=self._names, parsed_parameters=parsed)
        if found.name in self._names:
            self._numbers[self._names[found.name]] = torch.from_numpy(np.copy(found.weights))
        for name in [name for name in self._numbers if self._parts[name] <= 0]:
            whole = self._numbers.pop(name)
            self._check(tensor, tuple(whole.shape), self._shapes.get(name))
            yield name, whole.to(self._dtype)

    def _check_experts(self, tensor: Any) -> None:
        own = self._own_name(tensor)
        assert own is not None
        experts, outputs, inputs = self._shapes[own]
        of_part = outputs // 2 if own.endswith("gate_up_proj") else outputs  # gates, and what they multiply
        self._check(tensor, _shape(tensor), (experts, of_part, inputs))

    def _check(self, tensor: Any, found: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
        if found != expected:
            raise ModelError(f"tensor {tensor.name!r} has the shape {found}, its model's has {expected}")


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(reversed(tensor.shape.tolist()))


def write_weights(
    weights: GgufWeights, sources: Sequence[Source], target: Path, progress: Callable[[int, int], None]
) -> GgufIndex:
    """Write what cannot stay in the files into model.safetensors of the folder `target`. Return the index of the
    others, whose blocks are not hashed yet. For `progress` see GgufWeights."""
    places: dict[str, Place] = {}
    kinds: dict[str, str] = {}
    mapped, names = MappedGguf(sources), weights.names
    with SafetensorsWriter(target / NUMBERS_FILE, names) as copied, SafetensorsWriter(None, names) as numbers:
        for tensor in weights.read(progress):
            if tensor.kind:
                kinds[tensor.name] = tensor.kind
            found = tensor.weights
            if isinstance(found, Place):
                places[tensor.name] = found
                if found.kind in DTYPES:
                    numbers.add(tensor.name, mapped.rows(found))
            else:
                copied.add(tensor.name, found)
                numbers.add(tensor.name, found)
        copied.finish(METADATA)
        contents = [(NUMBERS_FILE, numbers.finish(METADATA))]
    return GgufIndex(list(sources), places, kinds, contents)


def hash_blocks(index: GgufIndex, names: Sequence[str], progress: Callable[[int, int], None]) -> GgufIndex:
    """The index with the hash of all blocks. `names`: of the GgufWeights. `progress` gets how many were read, and how
    many there are."""
    if not index.kinds:
        return index
    mapped = MappedGguf(index.sources)
    blocks = {name: place for name, place in index.places.items() if place.kind not in DTYPES}
    with SafetensorsWriter(None, names) as hashed:
        for done, (name, place) in enumerate(blocks.items()):
            progress(done, len(blocks))
            hashed.add(name, mapped.rows(place))
        progress(len(blocks), len(blocks))
        return replace(index, contents=[*index.contents, (BLOCKS_FILE, hashed.finish(index.kinds))])
