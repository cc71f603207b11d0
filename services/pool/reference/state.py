"""What the reference model of the pool remembers: plain objects."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import Any, Protocol

from services.messages import Claim, End, EngineFigures, Logprobs, NewSequence, Room, TokenEvent
from services.pool.group_packing import PackedGroup, prompt_logprobs_bytes, token_bytes

EVENTS_KEPT = 2048


class Clock(Protocol):
    """Real or virtual time."""

    def now(self) -> float: ...

    async def wait(self, awaitable: Any, timeout: float) -> bool: ...


@dataclass(slots=True)
class Waiters:
    """Calls that wait for something to happen."""

    futures: list[asyncio.Future[None]] = field(default_factory=list)

    async def wait(self, clock: Clock, timeout: float) -> bool:
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        try:
            return await clock.wait(future, timeout)
        finally:
            self.futures.remove(future)

    def wake(self) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(None)


@dataclass(slots=True)
class Sequence:
    new: NewSequence
    group: Group
    rank: int
    seat: Seat | None = None  # that runs it
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    end: End | None = None
    strikes: int = 0  # of both kinds
    soft: int = 0  # of them, for the death of a seat's owner
    struck_at: int = 0  # its tokens at the last strike
    charged: bool = False  # its tenant was, for its prompt

    @property
    def id(self) -> str:
        return self.new.id

    def blocks(self, room: Room) -> int:
        more = self.new.sampling.max_new_tokens if room.whole else len(self.tokens)
        return -(-(len(self.new.prompt) + more) // room.block_size)

    @property
    def longest(self) -> int:
        """Tokens it may have in the end."""
        return len(self.new.prompt) + self.new.sampling.max_new_tokens

    @property
    def living_strikes(self) -> int:
        """Strikes since the last token."""
        return self.strikes if self.struck_at == len(self.tokens) else 0

    @property
    def unmade_bytes(self) -> int:
        """The place of tokens that it did not make."""
        sampling, made = self.new.sampling, len(self.tokens)
        scores = 0 if made else prompt_logprobs_bytes(sampling, len(self.new.prompt))
        return max(0, sampling.max_new_tokens - made) * token_bytes(sampling) + scores

    def claim(self, now: float) -> Claim:
        return Claim(
            id=self.id,
            rank=self.rank / 1e6,
            prompt=list(self.new.prompt),
            output=list(self.tokens),
            sampling=self.new.sampling,
            strikes=self.living_strikes,
            priority=self.group.priority,
            ttft=self.group.ttft,
            waited=now - self.group.arrival,
            tenant=self.group.tenant,
        )


@dataclass(slots=True)
class Group:
    request: str
    tenant: str
    body: bytes
    key: tuple[str, str] | None
    packed: InitVar[PackedGroup]
    resumable: bool
    background: bool
    priority: int
    ttft: float
    arrival: float
    stream: bool  # a client waits for it
    bytes: int = 0
    inputs: int = 0  # those of prompts and samplings
    ids: list[str] = field(default_factory=list)
    open: int = 0
    ended_at: float = 0.0
    deadline: float = inf  # when it ends, if nothing of it has begun
    deleted: bool = False

    def __post_init__(self, packed: PackedGroup) -> None:
        self.bytes, self.inputs = packed.size, packed.inputs


@dataclass(slots=True)
class Said:
    """What the reply to a seat's last call said, for its repeat."""

    claimed: list[str] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    have: dict[str, int] = field(default_factory=dict)
    lost: bool = False


@dataclass(slots=True)
class Seat:
    name: str
    epoch: str | None = None
    owner: str = ""
    lease: float = 0.0
    expires: float = 0.0
    call: int = 0
    said: Said = field(default_factory=Said)
    running: dict[str, Sequence] = field(default_factory=dict)
    vacant_since: float = 0.0
    idle: bool = False
    figures: EngineFigures | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    summary: str = ""
    slots: int = 0  # tokens that fit into its engine; 0: not known


@dataclass(slots=True)
class Bell:
    rung: bool = False
    waiters: Waiters = field(default_factory=Waiters)


@dataclass(slots=True)
class Gateway:
    registration: int
    expires: float
    fresh: bool = True  # no heartbeat has said yet that events may have been missed
    call: int = 0
    known: bool = False  # the reply to `call`
    count: int = 0
    listening: set[str] = field(default_factory=set)
    entries: deque[tuple[int, list[TokenEvent]]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
