"""Which experts a token is routed to, by the routers of two models with nearly the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM


@dataclass(frozen=True, slots=True)
class Flip:
    """A token for which two routers choose other experts. `margin`: how far the least chosen logit is above the
    largest that is not, in both. `noise`: the largest difference of the token's logits."""

    layer: int
    position: int
    margins: tuple[float, float]
    noise: float


@dataclass(frozen=True, slots=True)
class Routed:
    """A layer's routing: logits [tokens, experts] and how many experts a token has."""

    logits: torch.Tensor
    count: int


@dataclass(frozen=True, slots=True)
class Turned:
    """The experts [tokens, count] that another router of the layer chose, and where they are not the same."""

    chosen: torch.Tensor
    flips: tuple[Flip, ...]


def forward(
    folder: Path, prompt: Sequence[int], experts: Sequence[torch.Tensor] = ()
) -> tuple[torch.Tensor, list[Routed]]:
    """transformers' logits [tokens, vocabulary] in float32, and the routing of each layer of experts. `experts`: what
    each of these layers has to choose instead."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found: list[Routed] = []

    def hook(_module: Any, _inputs: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        logits, scores, chosen = output
        found.append(Routed(logits, chosen.shape[1]))
        if not experts:
            return None
        other = experts[len(found) - 1]
        shares = torch.softmax(logits, -1).gather(1, other)
        normalised = torch.allclose(scores.sum(-1), torch.ones(len(scores)))
        return logits, shares / shares.sum(-1, keepdim=True) if normalised else shares, other

    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(hook)
    with torch.no_grad():
        return model(torch.tensor([list(prompt)])).logits[0], found


def flips(own: Sequence[Routed], others: Sequence[torch.Tensor]) -> list[Turned]:
    """By layer."""
    return [_turned(layer, *pair) for layer, pair in enumerate(zip(own, others, strict=True))]


def _turned(layer: int, own: Routed, other: torch.Tensor) -> Turned:
    chosen, mine = (logits.topk(own.count).indices for logits in (other, own.logits))
    found = []
    for position in range(len(other)):
        if set(chosen[position].tolist()) == set(mine[position].tolist()):
            continue
        noise = float((own.logits[position] - other[position]).abs().max())
        one, two = (_margin(logits[position], own.count) for logits in (own.logits, other))
        found.append(Flip(layer, position, (one, two), noise))
    return Turned(chosen, tuple(found))


def _margin(logits: torch.Tensor, count: int) -> float:
    highest = logits.sort(descending=True).values
    return float(highest[count - 1] - highest[count])
