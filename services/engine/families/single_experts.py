"""Experts whose weights a checkpoint stores one by one; transformers has one tensor for all experts of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.engine.families.values import GroupFormat

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
