"""The blocks of a GGUF file's quantised weights, kept beside the numbers that they were converted to.

A backend that executes weights as they are stored reads a third to a half as many bytes as with bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.models.contents import BLOCKS

if TYPE_CHECKING:
    import torch

# the types that engine/families/gguf.py reads
KINDS = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"})
NUMBERS = frozenset({"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8"})  # types that are not quantised


def keep_blocks(reader: Any, model: Any, target: Path) -> int:
    """Write the blocks of a GGUFReader's file for those weights of the converted bfloat16 `model` that are exactly the
    numbers in the blocks, under the model's names and in its order of outputs; experts one by one. Return how many
    there are.

    The metadata names ggml's type of each quantised weight, also of those whose blocks are not kept."""
    from safetensors.torch import save_file

    config = model.config
    blocks: dict[str, torch.Tensor] = {}
    kinds: dict[str, str] = {}
    stored = {tensor.name: tensor for tensor in reader.tensors if tensor.tensor_type.name not in NUMBERS}
    named = _names(reader, config.num_hidden_layers)
    heads = (config.num_attention_heads, getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    for product, weight in _products(model):
        tensor = stored.get(f"{named(product)}.weight")
        if tensor is None:
            continue
        kind = tensor.tensor_type.name
        names = _weights(product, len(weight) if weight.ndim > 2 else None)
        kinds |= dict.fromkeys(names, kind)
        if kind in KINDS and (rows := _in_order(tensor, weight, heads)) is not None:
            blocks |= zip(names, rows.unbind() if rows.ndim > 2 else [rows], strict=True)
    if kinds:
        save_file(blocks, target / BLOCKS, kinds)
    return len(blocks)


def _products(model: Any) -> Iterator[tuple[str, Any]]:
    """The names of products, and their weights: [outputs, inputs], or of experts, [experts, outputs, inputs].
    transformers keeps the gates of experts and what they multiply in one tensor, GGUF files in two."""
    for name, weight in model.state_dict().items():
        if name.endswith(".experts.gate_up_proj"):
            gates, ups = weight.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj"), gates
            yield name.replace("gate_up_proj", "up_proj"), ups
        elif weight.ndim == 2 or name.endswith(".experts.down_proj"):
            yield name.removesuffix(".weight"), weight


def _weights(product: str, experts: int | None) -> list[str]:
    """The name of a product's weight; those of all experts, as in published checkpoints: a tensor for each."""
    if experts is None:
        return [f"{product}.weight"]
    own, _, part = product.rpartition(".")
    return [f"{own}.{i}.{part}.weight" for i in range(experts)]


def _names(reader: Any, layers: int) -> Any:
    """A function from a name in transformers to that in the file; None where there is none."""
    import gguf

    architecture = reader.fields["general.architecture"].contents()
    found = next((arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    return (lambda _: None) if found is None else gguf.get_tensor_name_map(found, layers).get_name


def _in_order(tensor: Any, weight: Any, heads: tuple[int, int]) -> Any:
    """The blocks with their rows in the order of `weight`; None if they are other numbers. llama.cpp interleaves the
    rows of the two halves of a head that are rotated together, in some families."""
    import gguf
    import torch

    rows = torch.from_numpy(tensor.data.copy())
    numbers = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type)).to(weight.dtype)
    if numbers.shape != weight.shape:
        return None
    if torch.equal(numbers, weight):
        return rows
    if rows.ndim > 2:
        return None
    for count in heads:
        if len(rows) % (2 * count) == 0:
            order = torch.arange(len(rows)).view(count, -1, 2).transpose(1, 2).reshape(-1)
            if torch.equal(numbers[order], weight):
                return rows[order]
    return None
