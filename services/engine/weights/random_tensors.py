"""RandomTensors: random weights of the shapes of a config, quantized as those of a checkpoint may be.

A checkpoint may store the weights of experts one by one, where transformers has one tensor for all experts of a
layer."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.parallel.layout import RowRange
from services.engine.weights.quantized import GroupFormat, QuantizedWeight, Values, Weight, halves, quantize
from services.errors import ModelError

DEVIATION = 0.02  # families are initialised with it
OWN_BLOCK = "mlp"  # of a layer, in transformers
BLOCKS = (OWN_BLOCK, "block_sparse_moe")  # in checkpoints
GATE_UP, DOWN = "gate_up_proj", "down_proj"  # transformers' tensors
# of GPT-OSS: weights are the transposed ones of transformers
SAME: dict[str, tuple[str, ...]] = {GATE_UP: (GATE_UP,), DOWN: (DOWN,)}
# the names of an expert's weights in checkpoints, by the tensor that has them
NAMINGS: tuple[dict[str, tuple[str, ...]], ...] = (
    {GATE_UP: ("gate_proj", "up_proj"), DOWN: (DOWN,)},
    {GATE_UP: ("w1", "w3"), DOWN: ("w2",)},
    SAME,
)


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
        encoder: bool = False,
    ) -> None:
        """`groups`: of weights that are quantised, see Tensors. Experts that are quantised are weights one by one, as
        in the checkpoint, and transformers' tensors have the same numbers. `query_norms`: about what norms of queries
        multiply by."""
        from transformers import AutoModel, AutoModelForCausalLM  # seconds, and a checkpoint does not need it

        with torch.device("meta"):
            model = (AutoModel if encoder else AutoModelForCausalLM).from_config(config)
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
        shape = self._shape(name)
        if name in self.groups:
            return self._draw_groups(name, shape, self.groups[name]).part(rows, columns)
        if len(shape) == 3:  # matrices of experts, which are read one at a time
            return torch.stack([self._expert(name, i) for i in range(*rows or (0, shape[0]))])
        drawn = self._draw(name, shape) + self._norms.get(name, 0.0)
        return drawn[:, slice(*columns)] if columns else drawn[slice(*rows)] if rows else drawn

    def _expert(self, name: str, index: int) -> torch.Tensor:
        """One matrix of a tensor of experts."""
        if name not in self._experts:
            return self._draw(f"{name}.{index}", self._shapes[name][1:])
        experts = self._experts[name]
        matrix = torch.cat([self.read(single) for single in experts.names[index]])
        return matrix.t() if experts.transposed else matrix

    def _draw_groups(self, name: str, shape: tuple[int, ...], form: GroupFormat) -> QuantizedWeight:
        """Integers are drawn themselves: quantizing normal numbers takes several times as long."""
        if form.values != Values.INTEGERS:
            return quantize(self._draw(name, shape), form)
        (outputs, inputs), most = shape, (1 << form.bits) - 1
        generator = self._generator(name)
        words = torch.empty(-(-outputs * inputs // 8), dtype=torch.int64, device=self._device)
        words.random_(-(1 << 63), None, generator=generator)  # eight codes at once
        codes = words.view(torch.uint8)[: outputs * inputs].view(shape) & most
        groups = torch.rand(outputs, inputs // form.size, generator=generator, device=self._device)
        spread = self._deviation * (12 / (most * (most + 2))) ** 0.5  # such integers have a deviation of 1 / this
        scales = halves(spread * (0.5 + groups))
        return QuantizedWeight(codes, scales, halves(scales * (-0.5 * most)), form.bits, form.size)

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(zlib.crc32(name.encode()))

    def _draw(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        generator = self._generator(name)
        return torch.randn(shape, generator=generator, dtype=self._dtype, device=self._device).mul_(self._deviation)

    def rows(self, name: str) -> int:
        return int(self._shape(name)[0])

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._shapes:
            raise ModelError(f"the weights have no tensor {name!r}")
        return self._shapes[name]


def _neutral_weight(norm: Any) -> float:
    """The weight with which a norm of this class multiplies by 1: 0 if it adds 1. transformers starts with it."""
    return float(norm(1).weight.detach())


@dataclass(frozen=True, slots=True)
class SingleExperts:
    """The weights of which a tensor of all experts consists. Those of an expert lie one below the other."""

    names: tuple[tuple[str, ...], ...]  # of each expert
    shape: tuple[int, int]  # of each weight: outputs and inputs
    transposed: bool  # the tensor has the inputs first
    groups: Mapping[str, GroupFormat]  # by name, of those that are quantised


def single_experts(
    shapes: Mapping[str, tuple[int, ...]], groups: Mapping[str, GroupFormat]
) -> Iterator[tuple[str, SingleExperts]]:
    """Which of transformers' tensors consist of single weights: their names, and of what. `shapes`: of transformers'
    tensors; `groups`: of the quantised weights of a checkpoint, which may name a layer's experts otherwise."""
    for whole, shape in shapes.items():
        experts, _, part = whole.rpartition(".")
        if len(shape) == 3 and part in (GATE_UP, DOWN):
            layer = experts.removesuffix(f"{OWN_BLOCK}.experts")
            for stem in (f"{layer}{block}.experts" for block in BLOCKS):
                if naming := _naming(stem, groups):
                    yield whole, _singles(experts, stem, naming[part], shape, naming is SAME, groups)
                    break


def _naming(stem: str, groups: Mapping[str, GroupFormat]) -> dict[str, tuple[str, ...]] | None:
    """How a checkpoint names the weights of the experts under `stem`, if some are quantised. Two namings have the same
    last product, which therefore decides only where the first one is not quantised."""
    for part in (GATE_UP, DOWN):
        for naming in NAMINGS:
            if any(f"{stem}.0.{name}.weight" in groups for name in naming[part]):
                return naming
    return None


def _singles(
    experts: str,
    stem: str,
    parts: tuple[str, ...],
    shape: tuple[int, ...],
    transposed: bool,
    groups: Mapping[str, GroupFormat],
) -> SingleExperts:
    """`stem`: under which the checkpoint has the weights that are named under `experts` here."""
    count, outputs, inputs = (shape[0], shape[2], shape[1]) if transposed else shape
    ends = [[f".{i}.{part}.weight" for part in parts] for i in range(count)]
    found = {end: groups.get(stem + end) for of_expert in ends for end in of_expert}
    return SingleExperts(
        names=tuple(tuple(experts + end for end in of_expert) for of_expert in ends),
        shape=(outputs // len(parts), inputs),
        transposed=transposed,
        groups={experts + end: form for end, form in found.items() if form},
    )
