"""LayerMask: which keys a token of a layer attends to. Read from the masks that a model asks transformers for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from transformers import AttentionMaskInterface

from services.engine.backends.stock.attention import PROBE

CPU = torch.device("cpu")
Position = TypeVar("Position", int, torch.Tensor)
MaskFunction = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]  # of batch, head, query and key indices


@dataclass(frozen=True, slots=True)
class LayerMask:
    """A token attends to the tokens of its own request from `first` of its position to itself.

    `window`: to so many tokens at most, itself included. `chunk`: to those of its own chunk of so many positions. 0: no
    such limit. At most one of them is set.
    """

    window: int = 0
    chunk: int = 0

    @property
    def limited(self) -> bool:
        """Whether a token of a long request does not attend to the first one."""
        return self != LayerMask()

    def first(self, position: Position) -> Position:
        """The first position that a token at `position` attends to; with a window it may be negative."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return position - (self.window - 1) if self.window else position - position

    def shows(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether tokens at these positions attend to keys at those: booleans [..., queries, keys] of positions
        [..., queries] and [..., keys]."""
        rows, columns = queries[..., :, None], keys[..., None, :]
        return (columns <= rows) & (columns >= self.first(rows))


EVERYTHING = LayerMask()


@dataclass(frozen=True, slots=True)
class MaskRequest:
    """What a model asked transformers for, in place of a mask: a layer gets it as its `attention_mask`."""

    function: MaskFunction
    local_size: int | None  # the window or chunk, if transformers made the mask for one
    device: torch.device = CPU  # of the tensors that `function` reads

    def read(self) -> LayerMask | None:
        """The LayerMask that shows the same keys; None if there is none."""
        sizes = (self.local_size,) if self.local_size else ()
        wanted = [EVERYTHING, *(LayerMask(window=size) for size in sizes), *(LayerMask(chunk=size) for size in sizes)]
        positions = _telling_positions(self.local_size or 1).to(self.device)
        try:
            shown = self.function(0, 0, positions[:, None], positions[None, :])
        except (IndexError, TypeError, ValueError, RuntimeError):  # it needs more than positions
            return None
        return next((mask for mask in wanted if torch.equal(mask.shows(positions, positions), shown)), None)


def _telling_positions(size: int) -> torch.Tensor:
    """Positions on both sides of the limits of a window or chunk of this size, and far ones."""
    near = {base * size + shift for base in range(4) for shift in (-2, -1, 0, 1, 2)}
    return torch.tensor(sorted({position for position in near | {1000, 100_000} if position >= 0}))


def _request(
    *, mask_function: MaskFunction, device: torch.device = CPU, local_size: int | None = None, **_: Any
) -> MaskRequest:
    """The function that transformers calls for a mask. Padding is left out, because the tokens of a check have none."""
    return MaskRequest(mask_function, local_size, device)


AttentionMaskInterface.register(PROBE, _request)
