"""The weights of a GGUF file under transformers' names, one tensor after another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from services.errors import ModelError
from services.models.blocks import NUMBERS, in_order
from services.models.contents import BLOCKS
from services.models.gguf_once import names_of
from services.models.safetensors_file import SafetensorsWriter

# transformers' types of models whose published checkpoints have a tensor for each expert, `experts.I.PART_proj.weight`
SINGLE_EXPERTS = frozenset({"qwen2_moe", "qwen3_moe"})
_EXPERTS = re.compile(r"(?P<stem>.+\.ffn_(?P<part>gate|up|down)_exps)\.weight")


@dataclass(frozen=True, slots=True)
class ConvertedTensor:
    """`kind`: ggml's type; empty for numbers, and if no blocks are kept. `rows`: numbers or, if `is_stored`, the
    blocks [outputs, bytes of a row] of exactly these numbers."""

    name: str
    kind: str
    rows: torch.Tensor
    is_stored: bool


class GgufWeights:
    """Reads one tensor of the file at a time. transformers knows the names, and what llama.cpp changes of a family's
    numbers. Blocks are kept if nothing is changed, or only the order of rows."""

    def __init__(
        self, tensors: Sequence[Any], architecture: str, model: Any, dtype: torch.dtype, keep: frozenset[str]
    ) -> None:
        """`tensors`: of GGUFReaders. `architecture`: the file's. `model`: an empty one. `dtype`: of numbers. `keep`:
        the types whose blocks are kept."""
        config = model.config
        heads = config.num_attention_heads
        self._tensors, self._dtype, self._keep = tensors, dtype, keep
        self._heads = (heads, getattr(config, "num_key_value_heads", None) or heads)
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
        experts = [name for tensor in self._tensors for name in self._expert_names(tensor)]
        return [*dict.fromkeys(self._names.values()), *experts]

    def read(self, progress: Callable[[int, int], None]) -> Iterator[ConvertedTensor]:
        """All tensors, once. `progress` gets how many of the file's were read, and how many there are.

        Raises ModelError for a tensor of another shape than the model's, and if the file lacks tensors of the model,
        which transformers would draw at random."""
        for done, tensor in enumerate(self._tensors):
            progress(done, len(self._tensors))
            if own := self._own_name(tensor):
                self._parts[own] -= 1
            yield from self._converted(tensor)
        progress(len(self._tensors), len(self._tensors))
        known = {name for name, parts in self._parts.items() if parts <= 0}
        if missing := self._parameters - known:
            raise ModelError(f"the file lacks {len(missing)} tensors of its model, such as {min(missing)}")

    def _own_name(self, tensor: Any) -> str | None:
        """The name of the tensor of the model that this one is, or is a part of."""
        return self._names.get(tensor.name) or self._names.get(tensor.name.removesuffix(".weight"))

    def _converted(self, tensor: Any) -> Iterator[ConvertedTensor]:
        kind = tensor.tensor_type.name
        said = kind if self._keep and kind not in NUMBERS else ""
        can_keep = kind in self._keep
        if names := self._expert_names(tensor):
            self._check_experts(tensor)
            for name, data in zip(names, tensor.data, strict=True):
                rows = _copy(data) if can_keep else _copy(gguf.dequantize(data, tensor.tensor_type)).to(self._dtype)
                yield ConvertedTensor(name, said, rows, can_keep)
        elif can_keep and self._is_unchanged(tensor):
            yield ConvertedTensor(self._names[tensor.name], said, _copy(tensor.data), True)
        else:
            numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
            read = torch.from_numpy(numbers) if can_keep else None
            numbers.flags.writeable = False  # `read` shares their memory
            for name, converted in self._processed(tensor, numbers):
                blocks = None if read is None else in_order(tensor.data, read, converted, self._heads)
                yield ConvertedTensor(name, said, converted if blocks is None else blocks, blocks is not None)

    def _expert_names(self, tensor: Any) -> list[str]:
        """The names of the experts in a tensor, if the converted folder has a tensor for each."""
        match = _EXPERTS.fullmatch(tensor.name)
        own = self._own_name(tensor)
        if match is None or own is None or not self._has_single_experts:
            return []
        experts = own.rpartition(".")[0]
        return [f"{experts}.{i}.{match['part']}_proj.weight" for i in range(len(tensor.data))]

    def _is_unchanged(self, tensor: Any) -> bool:
        """Whether transformers takes the numbers of a matrix as they are: then it returns the array that it gets."""
        shape = _shape(tensor)
        if len(shape) != 2 or shape != self._shapes.get(self._names.get(tensor.name, "")):
            return False
        array = np.broadcast_to(np.float32(0), shape)
        found = self._processor.process(array, tensor.name, tensor_key_mapping={}, parsed_parameters={"tensors": {}})
        return found.weights is array and found.name == tensor.name

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


def _copy(data: Any) -> torch.Tensor:
    """A tensor with a copy of `data`, which lies in memory that is mapped read-only."""
    return torch.from_numpy(np.copy(data))


def write_weights(weights: GgufWeights, target: Path, progress: Callable[[int, int], None]) -> int:
    """Write the weights into two files of the folder `target`: gguf.blocks has what is kept as blocks, and
    model.safetensors the numbers of all other tensors. Return how many are kept as blocks. For `progress` see
    GgufWeights.

    The metadata of the blocks names ggml's type of each quantised weight, also of those that are kept as numbers.
    Without quantised weights there is no such file."""
    kinds: dict[str, str] = {}
    count, names = 0, weights.names
    with (
        SafetensorsWriter(target / "model.safetensors", names) as numbers,
        SafetensorsWriter(target / BLOCKS, names) as blocks,
    ):
        for tensor in weights.read(progress):
            (blocks if tensor.is_stored else numbers).add(tensor.name, tensor.rows)
            count += tensor.is_stored
            if tensor.kind:
                kinds[tensor.name] = tensor.kind
        numbers.finish({"format": "pt"})
        blocks.finish(kinds)
    if not kinds:
        (target / BLOCKS).unlink()
    return count
