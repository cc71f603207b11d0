"""The state of the reference model: plain objects where the server has hashes, sets and streams."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import InitVar, dataclass, field, replace
from math import inf
from typing import Any, Protocol

from services.loop.clock import now, wait_any
from services.messages import Claim, End, EngineFigures, Logprobs, NewSequence, Room, TokenEvent
from services.pool.group_packing import PackedGroup, prompt_logprobs_bytes, token_bytes
from services.requests import Tenure

EVENTS_KEPT = 2048


class Clock(Protocol):
    """Real or virtual time."""

    def now(self) -> float: ...

    async def wait(self, future: asyncio.Future[Any], timeout: float) -> bool: ...


class LoopClock:
    """The time of the running event loop."""

    def now(self) -> float:
        return now()

    async def wait(self, future: asyncio.Future[Any], timeout: float) -> bool:
        """Return whether `future` is done within `timeout` seconds. It is not cancelled."""
        await wait_any([future], timeout)
        return future.done()


@dataclass(slots=True)
class Waiters:
    """Calls that wait for an event."""

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
    """A sequence: what the keys `seq:<id>`, `tok:<id>` and `lp:<id>` hold."""

    new: NewSequence
    group: Group
    rank: int
    seat: Seat | None = None  # the last seat that ran it, unless it waits again
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    end: End | None = None
    strikes: int = 0  # of both kinds
    soft: int = 0  # those of them for the death of a seat's owner
    struck_at: int = 0  # the number of its tokens at the last strike
    charged: bool = False  # whether its tenant was charged for the prompt
    late: bool = False  # whether it was put behind because it had waited too long
    claimed: float = 0.0  # when the seat claimed it
    left: Tenure | None = None  # the tenure that ended last; its times are of the clock

    @property
    def id(self) -> str:
        return self.new.id

    def blocks(self, room: Room) -> int:
        """KV blocks that it takes: for its maximum length if `room.whole`, else for the tokens that it has."""
        more = self.new.sampling.max_new_tokens if room.whole else len(self.tokens)
        return -(-(len(self.new.prompt) + more) // room.block_size)

    @property
    def max_tokens(self) -> int:
        """The most tokens that it may have, with its prompt."""
        return len(self.new.prompt) + self.new.sampling.max_new_tokens

    @property
    def recent_strikes(self) -> int:
        """Strikes since the last token."""
        return self.strikes if self.struck_at == len(self.tokens) else 0

    @property
    def unused_bytes(self) -> int:
        """Bytes that were counted for tokens that it did not generate."""
        sampling, generated = self.new.sampling, len(self.tokens)
        unused = max(0, sampling.max_new_tokens - generated) * token_bytes(sampling)
        return unused if generated else unused + prompt_logprobs_bytes(sampling, len(self.new.prompt))

    def claim(self, now: float) -> Claim:
        return Claim(
            id=self.id,
            rank=self.rank / 1e6,
            prompt=list(self.new.prompt),
            output=list(self.tokens),
            sampling=self.new.sampling,
            strikes=self.recent_strikes,
            priority=self.group.priority,
            ttft=self.group.ttft,
            waited=now - self.group.arrival,
            tenant=self.group.tenant,
            trace=self.group.trace,
            before=self._before(now) if self.group.trace else None,
            remember=self.group.remember,
        )

    def _before(self, now: float) -> Tenure | None:
        left = self.left
        return left and replace(left, claimed=now - left.claimed, left=now - left.left)


@dataclass(slots=True)
class Group:
    """A group: what the key `group:<request>` holds."""

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
    stream: bool  # whether a client waits for it
    bytes: int = 0
    inputs: int = 0  # bytes of its prompts and sampling parameters
    ids: list[str] = field(default_factory=list)
    open: int = 0
    ended_at: float = 0.0
    deadline: float = inf  # when it ends if no sequence of it was claimed
    deleted: bool = False
    trace: str = ""
    remember: bool = False

    def __post_init__(self, packed: PackedGroup) -> None:
        self.bytes, self.inputs = packed.size, packed.inputs


@dataclass(slots=True)
class LastReply:
    """The reply to a seat's last exchange, for a repeat."""

    claimed: list[str] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    lacking: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    forgotten: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Seat:
    """A seat: what the keys `seat:<seat>`, `running:<seat>` and `forgotten:<seat>` hold."""

    name: str
    epoch: str | None = None
    owner: str = ""
    lease: float = 0.0
    expires: float = 0.0
    call: int = 0
    reply: LastReply = field(default_factory=LastReply)
    running: dict[str, Sequence] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    vacant_since: float = 0.0
    idle: bool = False
    figures: EngineFigures | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    summary: str = ""
    longest: int = 0  # tokens of a request that its engine can serve; 0: not known
    features: tuple[str, ...] = ()
    released: str | None = None  # the last epoch that its owner gave back


@dataclass(slots=True)
class Bell:
    rung: bool = False
    waiters: Waiters = field(default_factory=Waiters)


@dataclass(slots=True)
class Gateway:
    """A gateway: what the keys `gateway:<name>`, `listening:<name>` and `events:<name>` hold."""

    registration: int
    expires: float
    fresh: bool = True  # no heartbeat has told it yet that it may have missed events
    call: int = 0
    known: bool = False  # the reply to `call`
    gauges: dict[str, float] = field(default_factory=dict)
    count: int = 0
    listening: set[str] = field(default_factory=set)
    entries: deque[tuple[int, list[TokenEvent]]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
