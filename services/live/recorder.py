"""Recorder: notes what each iteration of one owner of an engine computes, as long as somebody watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import orjson

from services.live.frames import FrameBatch, IterationFrame, RequestFrame, Work
from services.loop.observers import Observer
from services.messages import Claim, Commit, Iteration, IterationResult
from services.scheduling import Scheduler
from services.scheduling.request_entry import RequestEntry

DESCRIBE_AGAIN = 5.0  # seconds after which all requests are described again, for watchers that came later
MOST_FRAMES = 1000  # frames that wait to be taken; older ones are dropped


class Recorder(Observer):
    """Notes nothing unless `watched` is true.

    It reads the scheduler when an iteration is selected, so it can begin at any time.
    """

    def __init__(self, engine: str, epoch: str, scheduler: Scheduler, wall: Callable[[], float] = time.time) -> None:
        """`engine` is the name of the seat. `wall` returns the time in seconds, of which frames have ms."""
        self.watched = False
        self._engine, self._epoch = engine, epoch
        self._scheduler = scheduler
        self._wall = wall
        self._last = 0  # the last number of a request
        self._forget()

    def watch(self, watched: bool) -> None:
        """Begin to record, or stop."""
        if self.watched and not watched:
            self._forget()
        self.watched = watched

    def _forget(self) -> None:
        self._requests: dict[str, RequestFrame] = {}  # those that have run and have not ended
        self._undescribed: list[RequestFrame] = []
        self._described_at = 0.0  # when all of them were described last
        self._started: dict[int, tuple[float, IterationFrame]] = {}  # by step, with the time of the selection
        self._until = 0.0  # when the last iteration that has finished ended
        self._frames: list[IterationFrame] = []
        self._ended: list[tuple[int, str]] = []  # not in a frame yet

    def claimed(self, claims: Sequence[Claim], foreign: Sequence[str]) -> None:
        for id in foreign:
            self._requests.pop(id, None)

    def started(self, iteration: Iteration) -> None:
        """Note an iteration that the scheduler has just selected."""
        if not self.watched:
            return
        find = self._scheduler.find
        requests = []
        for id, count in iteration.scheduled.items():
            request = find(id)
            assert request is not None, f"{id} was selected and is not in the scheduler"
            frame = self._requests.get(id) or self._describe(id, request)
            requests.append((frame.n, count, work_of(request, count).value))
        preempted = [self._requests[id].n for id in iteration.released if id in self._requests and find(id)]
        blocks = self._scheduler.blocks.held
        self._started[iteration.step] = (
            self._wall(),
            IterationFrame(iteration.step, 0, 0.0, requests, blocks, [], preempted),
        )

    def finished(self, iteration: Iteration, result: IterationResult, seconds: float) -> None:
        """Note the result of an iteration, `seconds` after its start: when it was selected, or when the one before it
        ended. This may be called later than the result came."""
        selected, frame = self._started.pop(iteration.step, (0.0, None))
        if frame is None:  # it was started before anybody watched
            return
        begin = max(selected, self._until)
        self._until = begin + seconds
        at = round(begin * 1000)
        ended, self._ended = [*self._ended, *frame.ended], []
        ms = round(seconds * 1000, 2)
        requests, drafts = frame.requests, []
        if iteration.drafts:
            requests = []
            for id, (n, count, work) in zip(iteration.scheduled, frame.requests, strict=True):
                right = len(result.more.get(id, ()))
                requests.append((n, count + right, work))
                if draft := iteration.drafts.get(id):
                    drafts.append((n, len(draft), right))
        self._frames.append(IterationFrame(frame.step, at, ms, requests, frame.blocks, ended, frame.preempted, drafts))
        del self._frames[:-MOST_FRAMES]

    def committed(self, commits: Sequence[Commit]) -> None:
        """Note the ends among the commits of an exchange."""
        if not self.watched:
            return
        for commit in commits:
            if commit.end and (request := self._requests.pop(commit.id, None)):
                self._last_list(request.n).append((request.n, commit.end.reason.value))

    def _last_list(self, n: int) -> list[tuple[int, str]]:
        """Return the list of ends in which that of a request belongs: of the iteration in flight that still computes
        it, if there is one, otherwise of the last iteration that has finished.
        """
        for _, frame in reversed(self._started.values()):
            if any(n == computed for computed, _, _ in frame.requests):
                return frame.ended
        return self._frames[-1].ended if self._frames else self._ended

    def take(self) -> FrameBatch | None:
        """Return the frames since the last call, and the requests that are to be described; None without frames."""
        if not self._frames:
            return None
        frames, self._frames = self._frames, []
        described, self._undescribed = self._undescribed, []
        now = self._wall()
        if not 0 <= now - self._described_at < DESCRIBE_AGAIN:
            self._described_at = now
            fresh = {request.n for request in described}
            described += [request for request in self._requests.values() if request.n not in fresh]
        return FrameBatch(self._engine, self._epoch, orjson.dumps(frames), described)

    def _describe(self, id: str, request: RequestEntry) -> RequestFrame:
        self._last += 1
        cached, resumed = request.num_cached_tokens or 0, request.num_claimed_tokens
        frame = RequestFrame(self._last, len(request.prompt), request.priority, cached, resumed, id, request.tenant)
        self._requests[id] = frame
        self._undescribed.append(frame)
        return frame


def work_of(request: RequestEntry, count: int) -> Work:
    """Return what an iteration does that computes the last `count` of the computed tokens of a request."""
    first, prompt = request.num_computed_tokens - count, len(request.prompt)
    if first < request.num_reached_tokens:
        return Work.RECOMPUTATION
    if first >= prompt:
        return Work.INCREMENT
    whole = request.num_computed_tokens >= prompt and first == (request.num_cached_tokens or 0)
    return Work.INITIATION if whole else Work.CHUNK
