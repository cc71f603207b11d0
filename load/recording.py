"""Recordings: the iterations of a run as the lines of a file, which the live page replays.

A line is an event of the live feed (`services/live/frames.py`), `{"event": "iterations", "data": {...}}`. Times begin
with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import orjson

from load.trace import Request
from load.workloads import poisson, sized
from services.live.recorder import Recorder
from services.requests import DEFAULT_TENANT
from services.scheduling import RequestLevelScheduler, Scheduler

INTERVAL = 0.1  # seconds between two events of an engine
# by `--policy`, each with a file `POLICY_level.jsonl`
SCHEDULERS: dict[str, type[Scheduler]] = {"request": RequestLevelScheduler, "iteration": Scheduler}
BATCH = 8  # requests in a batch of `example`
OUTPUTS = (6, 14, 90, 9, 30, 4, 60, 20)  # tokens of its requests, in turn
PROMPTS = (40, 200, 64, 90, 400, 32, 120)


class Recording:
    """What the engines of a run compute. It is recorded within `async with`, at whose end the file is written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[bytes] = []
        self._recorders: list[Recorder] = []

    async def __aenter__(self) -> Recording:
        self._began = asyncio.get_running_loop().time()
        self._taking = asyncio.create_task(self._take_often())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._taking
        self._take()
        self._file.write_bytes(b"".join(self._lines))

    def recorder(self, engine: str, epoch: str, scheduler: Scheduler) -> Recorder:
        """The recorder for the `EngineLoop` of an engine."""
        loop = asyncio.get_running_loop()
        recorder = Recorder(engine, epoch, scheduler, wall=lambda: loop.time() - self._began)
        recorder.watch(True)
        self._recorders.append(recorder)
        return recorder

    async def _take_often(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            self._take()

    def _take(self) -> None:
        for recorder in self._recorders:
            if frames := recorder.take():
                event = {"event": "iterations", "data": orjson.Fragment(frames.json(DEFAULT_TENANT))}
                self._lines.append(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))


def example(rate: float) -> list[Request]:
    """A trace whose answers differ much in length, as Poisson arrivals at `rate` per second: the two policies differ
    visibly within some hundred iterations."""
    return poisson([sized(PROMPTS[i % len(PROMPTS)], OUTPUTS[i % len(OUTPUTS)]) for i in range(3 * BATCH)], rate)


def file_of(folder: Path, policy: str) -> Path:
    return folder / f"{policy}_level.jsonl"
