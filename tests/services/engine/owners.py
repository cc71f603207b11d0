"""Schedulers that own an engine one after the other, as after deaths, and the requests that they continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from services.messages import Claim
from services.scheduling import Knobs, Scheduler

KNOBS = Knobs(max_batch_size=8, prefix_caching=True)


class Owners:
    """`engine` has the interface of Engine; `block_names` returns what all its ranks have. `recomputed` has the first
    iteration of each owner: the tokens of each request."""

    def __init__(self, engine: Any, block_names: Callable[[], dict[int, bytes]], claims: list[Claim]) -> None:
        self._engine = engine
        self._block_names = block_names
        self.claims = {claim.id: claim for claim in claims}
        self.outputs: dict[str, list[int]] = {claim.id: [] for claim in claims}
        self.open = set(self.outputs)
        self.recomputed: list[dict[str, int]] = []

    def own(self, epoch: str, iterations: int) -> None:
        """Attach, continue the requests for that many iterations at most, and die. The result of the last one is lost,
        since tokens are committed when the next iteration was sent."""
        self._engine.reset(epoch)
        figures, names = self._engine.figures, self._block_names()
        scheduler = Scheduler(epoch=epoch, figures=figures, knobs=KNOBS, cached_blocks=names)
        scheduler.add([replace(self.claims[id], output=list(self.outputs[id])) for id in sorted(self.open)])
        for number in range(iterations):
            if iteration := scheduler.select():
                result = self._engine.run(iteration)
            for commit in scheduler.take_commits():
                self.outputs[commit.id] += commit.tokens
                if commit.end:
                    self.open.remove(commit.id)
            if iteration is None:
                return
            if number == 0:
                self.recomputed.append(dict(iteration.scheduled))
            scheduler.update(result)
