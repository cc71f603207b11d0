"""A random weight as a method stores it, and who writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

Writer = Callable[[np.random.Generator, int, int], "Written"]
GROUP = 32


@dataclass(frozen=True, slots=True)
class Written:
    """A weight: its tensors by the ends of their names, and its numbers [outputs, inputs] in float64."""

    tensors: dict[str, torch.Tensor]
    numbers: np.ndarray


def of_arrays(tensors: dict[str, np.ndarray], numbers: np.ndarray) -> Written:
    return Written({name: torch.from_numpy(np.array(each, order="C")) for name, each in tensors.items()}, numbers)
