"""A real scheduler that a recorder watches, and the frames that it made."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from services import wire
from services.live.frames import FrameBatch, RequestFrame
from services.live.recorder import Recorder
from tests.services.scheduling.scripted import Script, scripted


@dataclass
class Watched:
    """A scheduler with its recorder, and the frames by id."""

    script: Script
    time: float = 0.0
    described: dict[int, RequestFrame] = field(default_factory=dict)
    frames: list[dict[str, object]] = field(default_factory=list)
    computed: list[tuple[int, list[tuple[str, int, str]]]] = field(default_factory=list)  # step, (id, tokens, work)
    gone: set[int] = field(default_factory=set)
    preempted: list[str] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = Recorder("c/0", "e1", self.script.scheduler, lambda: self.time)

    def take(self) -> FrameBatch | None:
        batch = self.recorder.take()
        if batch:
            batch = wire.unpack(FrameBatch, wire.pack(batch))
            self.described |= {request.n: request for request in batch.requests}
            for frame in orjson.loads(batch.iterations):
                self.frames.append(frame)
                assert not {n for n, _, _ in frame["requests"]} & self.gone, "a request runs after its end"
                self.gone |= {n for n, _ in frame["ended"]}
                works = [(self.described[n].id, tokens, work) for n, tokens, work in frame["requests"]]
                self.computed.append((frame["step"], works))
                self.preempted += [self.described[n].id for n in frame["preempted"]]
                self.ended += [(self.described[n].id, reason) for n, reason in frame["ended"]]
        return batch

    def run(self, seconds: float = 0.02) -> None:
        """One iteration from its selection to its commits."""
        iteration = self.script.select()
        assert iteration is not None
        self.recorder.started(iteration)
        self.time += seconds
        result = self.script.result_of(iteration)
        self.script.scheduler.update(result)
        self.recorder.finished(iteration, result, seconds)
        self.recorder.committed(self.script.scheduler.take_commits())


def watched(**options: object) -> Watched:
    made = Watched(scripted(**options))  # type: ignore[arg-type]
    made.recorder.watch(True)
    return made
