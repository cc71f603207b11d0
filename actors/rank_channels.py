"""RankChannels: sends each iteration to all ranks of an engine and puts their answers together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from actors.channel import Answer, Door, EngineChannel, Order, framed
from services.errors import EngineLost, StaleEpoch
from services.messages import Iteration, IterationResult
from services.wire import pack, unpack

DEATH_NOTICE = 2.0  # seconds in which the death of a process that has closed its channel is seen by its lifeline


class RankChannels:
    """The scheduler's end of the channels to the processes of an engine, by rank. After the first failure nothing more
    is sent, and all iterations in flight end with it."""

    def __init__(self, ranks: int, sampler: int) -> None:
        """`sampler` is the rank whose results contain the tokens."""
        self.first_result = 0.0  # Unix time
        self._sampler = sampler
        self._channels = [EngineChannel(partial(self._on_answer, rank), self._on_close) for rank in range(ranks)]
        self._running: deque[asyncio.Future[IterationResult]] = deque()  # oldest first
        self._results: list[deque[bytes]] = [deque() for _ in range(ranks)]  # packed, of `_running`
        self._missed: list[bytes] = []  # results that the ranks which do not sample have not seen yet
        self._error: EngineLost | StaleEpoch | None = None
        self._closing: asyncio.TimerHandle | None = None

    async def connect(self, doors: Sequence[Door]) -> None:
        """Raises OSError if one of the processes does not listen."""
        for channel, door in zip(self._channels, doors, strict=True):
            await channel.connect(door)

    def start(self, iteration: Iteration) -> asyncio.Future[IterationResult]:
        """Send an iteration to all ranks. Returns a future of its result, EngineLost or StaleEpoch."""
        result: asyncio.Future[IterationResult] = asyncio.get_running_loop().create_future()
        if self._error:
            result.set_exception(self._error)
            return result
        order = framed(Order(pack(iteration), self._missed))
        self._missed = []
        self._running.append(result)
        for channel in self._channels:
            channel.send(order)
        return result

    def fail(self, error: EngineLost | StaleEpoch) -> None:
        """End all iterations with `error`, also those that are started later. Only the first error counts."""
        self._error = self._error or error
        while self._running:
            result = self._running.popleft()
            if not result.done():
                result.set_exception(self._error)

    def close(self) -> None:
        if self._closing:
            self._closing.cancel()
        self.fail(EngineLost("the link to the engine is closed"))
        for channel in self._channels:
            channel.close()

    def _on_answer(self, rank: int, answer: Answer) -> None:
        if self._error:
            return
        if answer.result is None:
            self.fail(StaleEpoch(answer.error) if answer.stale else EngineLost(f"the engine failed: {answer.error}"))
            return
        self._results[rank].append(answer.result)
        if all(self._results):
            self._finish([results.popleft() for results in self._results])

    def _finish(self, results: list[bytes]) -> None:
        """The oldest iteration has the results of all ranks."""
        packed = results[self._sampler]
        if len(results) > 1:
            self._missed.append(packed)
        self.first_result = self.first_result or time.time()
        result = self._running.popleft()
        if not result.done():
            result.set_result(unpack(IterationResult, packed))

    def _on_close(self) -> None:
        """A process has closed its channel. If it is dead, its lifeline shows that within milliseconds; only of a
        process that is known to live may one be killed by its id, so the lifeline goes first."""
        if not self._error and not self._closing:
            lost = EngineLost("an engine process has closed its channel")
            self._closing = asyncio.get_running_loop().call_later(DEATH_NOTICE, self.fail, lost)
