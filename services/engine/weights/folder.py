"""Opens a transformers folder, quantized or not: its weights have the names that an unquantized one would have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

import torch

from services.engine.parallel.layout import RowRange
from services.engine.weights.bitsandbytes import bitsandbytes
from services.engine.weights.compressed import compressed_tensors
from services.engine.weights.description import Quantization
from services.engine.weights.floats import fp8, mxfp4
from services.engine.weights.format import Config, Format, Groups, Parts
from services.engine.weights.modelopt import modelopt
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Weight
from services.engine.weights.tensors import Checkpoint
from services.engine.weights.words import awq, gptq
from services.errors import ModelError
from services.models.quantization import config_of, method_of

SAYS_SHAPE = ("weight_shape", "quant_state.bitsandbytes__nf4")  # parts with the shape of the numbers in their content
MARKS = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv")  # of the methods; numbers have none
# by `quant_method`
METHODS: dict[str, Callable[[Config], Format]] = {
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "mxfp4": mxfp4,
    "modelopt": modelopt,
    "bitsandbytes": bitsandbytes,
}


def format_of(folder: Path) -> Format | None:
    """How the model in `folder` stores weights that are no numbers; None if it has none. Raises ModelError for a method
    that is not served."""
    config = config_of(folder)
    if config is None:
        return None
    method = method_of(config)
    if method not in METHODS:
        served = ", ".join(METHODS)
        raise ModelError(f"{folder.name} is quantized with {method}, which is not served; these are: {served}")
    try:
        return METHODS[method]({**config, "quant_method": method})
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder.name}: its quantization_config cannot be read: {error!r}") from error


def open_folder(folder: Path, as_stored: bool = False) -> Checkpoint | QuantizedCheckpoint:
    """The tensors of a transformers folder, quantized or not. `as_stored`: weights are QuantizedWeights where the
    folder has integers in groups. Raises ModelError, also for quantized weights of which the config says nothing."""
    format_ = format_of(folder)
    if format_:
        return QuantizedCheckpoint(folder, format_, as_stored)
    numbers = Checkpoint(folder, as_stored)
    marked = next((name for name in numbers.names if name.endswith(MARKS)), None)
    if marked:
        raise ModelError(
            f"{folder.name} has quantized weights ({marked}), but its config.json has no quantization_config"
        )
    return numbers


class QuantizedCheckpoint:
    """See Tensors. `read` returns a quantized weight as numbers, rounded to bfloat16. Parts of a quantized weight are
    cut from the whole.

    Of a weight of all experts, `experts.NAME`, each expert is also a weight [outputs, inputs] of its own:
    `experts.0.NAME.weight` and so on. These are not among `names`."""

    def __init__(self, folder: Path, format_: Format, as_stored: bool = False) -> None:
        """Opens `folder`, which stores weights by `format_`. Raises ModelError for a folder without safetensors."""
        self._stored = Checkpoint(folder)
        self._format = format_
        self._modules: dict[str, Parts] = {}
        self._experts: dict[str, list[str]] = {}  # the names of each expert's, by that of all
        for name in self._stored.names:
            for mark, own in format_.marks.items():
                if name.endswith(mark):
                    self._add(name, name.removesuffix(mark), mark, own)
        self._as_stored = as_stored
        self._ends = sorted({*format_.parts, *format_.marks, ".weight"})
        self._shapes: dict[tuple[object, ...], tuple[int, ...]] = {}  # by those of the parts

    def _add(self, name: str, stem: str, mark: str, own: str) -> None:
        """Add the weight, or those of experts, of which one of the tensors is `name`."""
        if not self._format.of_experts:
            self._modules[stem + own] = Parts(self._stored, stem + mark[0])
            return
        experts, _, part = stem.rpartition(".")
        singles = [f"{experts}.{i}.{part}.weight" for i in range(self._stored.rows(name))]
        self._modules |= {single: Parts(self._stored, stem + mark[0], i) for i, single in enumerate(singles)}
        self._experts[stem + own] = singles

    @property
    def groups(self) -> dict[str, GroupFormat]:
        found = self._found if self._as_stored else {}
        return {name: groups for name, groups in found.items() if not isinstance(groups, str)}

    @property
    def quantization(self) -> Quantization:
        refused = {name: why for name, why in self._found.items() if isinstance(why, str)}
        return Quantization(self._format.method, frozenset(self._weights), refused)

    @property
    def _weights(self) -> Collection[str]:
        """The names of quantized weights as transformers has them."""
        return self._experts if self._format.of_experts else self._modules

    @cached_property
    def _found(self) -> dict[str, Groups]:
        return {name: self._format.groups(module) for name, module in self._modules.items()}

    @property
    def names(self) -> list[str]:
        """All names that a model has."""
        plain = [name for name in self._stored.names if not name.endswith(self._format.parts) and name in self]
        return sorted({*plain, *self._weights})

    def __contains__(self, name: str) -> bool:
        known = name in self._modules or name in self._experts
        return known or (name in self._stored and not self._is_filler(name))

    def read(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> torch.Tensor:
        if name in self._experts:
            own = self._experts[name][slice(*rows or (None,))]
            each = torch.stack([self.read(single).t() for single in own])
            return each[:, slice(*columns)] if columns else each
        if name not in self._modules:
            tensor = self._stored.read(name, rows, columns)
            if tensor.itemsize == 1 and tensor.dtype != torch.bool:
                raise ModelError(f"the tensor {name!r} has {tensor.dtype} without its scale")
            return tensor
        whole = self._whole(name)
        numbers = whole if isinstance(whole, torch.Tensor) else whole.dequantize(torch.bfloat16)
        return numbers[:, slice(*columns)] if columns else numbers[slice(*rows)] if rows else numbers

    def weight(self, name: str, rows: RowRange | None = None, columns: RowRange | None = None) -> Weight:
        if self._as_stored and name in self._modules and isinstance(whole := self._whole(name), QuantizedWeight):
            return whole.part(rows, columns)
        return self.read(name, rows, columns)

    def rows(self, name: str) -> int:
        if name in self._experts:
            return len(self._experts[name])
        return len(self.read(name)) if name in self._modules else self._stored.rows(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, or of the numbers that a quantized weight stands for. Of weights whose parts have the
        same shapes, and say the same of theirs, one is read."""
        if name in self._experts:
            singles = self._experts[name]
            return len(singles), *reversed(self.shape(singles[0]))
        if name not in self._modules:
            return self._stored.shape(name)
        module = self._modules[name]
        parts = [part[1:] for part in self._ends if part[1:] in module]
        said = [bytes(module.tensor(part).view(torch.uint8).tolist()) for part in parts if part.endswith(SAYS_SHAPE)]
        kind = *((part, module.shape(part)) for part in parts), *said
        if kind not in self._shapes:
            self._shapes[kind] = tuple(self._whole(name).shape)
        return self._shapes[kind]

    def _whole(self, name: str) -> Weight:
        return self._format.read(self._modules[name])

    def _is_filler(self, name: str) -> bool:
        """Whether this is a bias of zeros. AutoGPTQ writes one for every module that it quantizes, also where the model
        has none."""
        if not name.endswith(".bias") or name.removesuffix("bias") + "weight" not in self._modules:
            return False
        return not self._stored.read(name).any()
