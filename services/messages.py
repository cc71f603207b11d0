"""What crosses between processes: slotted frozen dataclasses of ints, strings and lists, msgpack at the edges.

No tensors, no request objects, no token histories. A prompt crosses once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from services.refusals import Refusal
from services.requests import FinishReason, SamplingParams

# --- scheduler <-> engine ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request the engine does not have. `token_ids` is prompt + tokens so far, of which the first
    `num_computed_tokens`, whole blocks of them, have their keys and values in its first blocks already."""

    id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of the model, as the scheduler decided it.

    `scheduled` maps request id to the number of tokens to compute; its insertion order is the batch order.
    A request whose tokens are all computed by this iteration gets one token sampled.
    `new_blocks` are KV block ids to append to a request's block table. `released` requests are to be forgotten
    before the iteration runs; the blocks of a released request may already belong to another one."""

    epoch: str
    step: int
    scheduled: dict[str, int]
    new: list[NewRequest] = field(default_factory=list)
    new_blocks: dict[str, list[int]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of a prompt's tokens but the first, which follows nothing.

    These are flat lists of numbers because a prompt has thousands of tokens. `top_ids` and `top_logprobs` have as many
    entries for each token as were asked for, the likeliest first.
    """

    tokens: list[float]  # [prompt tokens - 1]
    ranks: list[int]  # [prompt tokens - 1], 1 + how many tokens are likelier
    top_ids: list[int]  # [(prompt tokens - 1) * asked]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities at one position: the sampled token's, and the likeliest ones as (id, logprob).

    Those of the prompt, where they are asked for, come with the first output token: so they are committed, kept and
    sent again as it is.
    """

    token: float
    top: list[tuple[int, float]]
    prompt: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class IterationResult:
    """What one iteration gave. A request in `failed` has no token and is forgotten by the engine."""

    epoch: str
    step: int
    tokens: dict[str, int]
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    elapsed: float = 0.0  # seconds inside the engine


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine says of itself when it is attached; published into the pool for the gateways.

    `numerics` names what a token depends on besides the request: revision, dtype, device, backend, first bits.
    """

    model: str
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    numerics: str

    @property
    def num_slots(self) -> int:
        """The paper's `n_slots`: tokens whose keys and values fit."""
        return self.num_blocks * self.block_size


# --- scheduler <-> pool --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The terminal event of a request: why, which stop matched, how many trailing bytes of text to cut."""

    reason: FinishReason
    stop: str | int | None = None  # the stop string or stop token id that matched
    cut: int = 0  # bytes
    error: str | None = None
    cached: int = 0  # prompt tokens whose keys and values the engine had from other requests
    timed_out: bool = False  # an error: nothing had begun by the deadline


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens `index`, `index + 1`, ... of a request, and its end if it ended. `logprobs` is parallel to `tokens`."""

    id: str
    index: int
    tokens: list[int]
    logprobs: list[Logprobs] | None = None
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a scheduler can take: so many more requests, so many more KV blocks (of `block_size` tokens). A request
    takes blocks for prompt + `max_new_tokens`, or, unless `whole`, for the tokens it has. `yields` are
    (class, requests, blocks): what requests of this class hold and would give to one of an earlier class.
    `slots`: the tokens that fit into all blocks of the engine, held or not; 0 where it is not known. `guests`: so many
    requests more, one each of tenants other than `tenants`, of which it holds any."""

    requests: int
    blocks: int
    block_size: int
    whole: bool = True
    yields: list[tuple[int, int, int]] = field(default_factory=list)
    slots: int = 0
    guests: int = 0
    tenants: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that an exchange gave to a scheduler; `output` is what earlier owners committed."""

    id: str
    rank: float  # who is served first: the least; seconds, see `Limits`
    prompt: list[int]
    output: list[int]
    sampling: SamplingParams
    strikes: int = 0  # deaths of engines and of owners since its last committed token; from two on it runs alone
    priority: int = 0  # its class, the least first
    ttft: float = 0.0  # seconds from arrival to the first token that it should not exceed; 0: nothing was said
    waited: float = 0.0  # seconds since its arrival
    tenant: str = "default"
    unreadable: str | None = None  # why its settings cannot be read, which ends it; `sampling` is not its own then


@dataclass(frozen=True, slots=True)
class SeatGrant:
    """What `acquire` says: the caller's new epoch, or who holds the seat under which epoch while that lease lives."""

    granted: bool
    epoch: str
    owner: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of `pool.exchange`: commits, renews the lease, offers room.

    A repeat carries the same `call` number and changes nothing. `counters` are increments, `gauges` are the
    seat's latest values, `summary` is a line about the last iteration. `idle` asks for the doorbell. `holds`, sent
    first of all, after an outage of the pool and after a reply that shows one, is all the caller has: what else the
    pool thinks this seat runs waits again, because the pool may have lost how it ended."""

    seat: str
    epoch: str
    call: int
    commits: list[Commit]
    room: Room
    idle: bool = False
    figures: EngineFigures | None = None  # sent with the first exchange of an epoch, and with `holds`
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    summary: str = ""
    holds: list[str] | None = None


@dataclass(frozen=True, slots=True)
class ExchangeReply:
    """`owned` false: the epoch is over, nothing was written, the caller drops all it holds.

    `foreign` ids were in `commits` or `holds` but are not the seat's (any more): the caller drops them before it
    takes the claims, among which they may come again. `have` names sequences that hold fewer tokens than a commit's
    index, since the pool lost its tail: the caller sends theirs again from that index. `cancelled` ids stay listed
    until their terminal event is committed. `lost`: the pool lost exchanges of this seat that it had answered, and
    claimed nothing; the next exchange carries `holds`."""

    owned: bool
    claims: list[Claim] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    have: dict[str, int] = field(default_factory=dict)
    lost: bool = False


# --- pool <-> gateway ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSequence:
    """One sequence of a submission; its id is `<request>/<choice>`.

    `output` and `logprobs` are what a gateway has of a request that the pool lost: it goes on from there."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A group of sequences, submitted, bounded and cancelled as one.

    `gateway` is attached to all of them from token 0 on. `body` is opaque to the pool: what another gateway needs
    to go on with this request. `resumable`: when its last follower closes it is cancelled after the pool's grace, not
    at once. `background`: it runs to its end whether anybody follows it or not."""

    request: str
    gateway: str
    sequences: list[NewSequence]
    tenant: str = "default"
    idempotency_key: str | None = None
    body: bytes = b""
    resumable: bool = False
    background: bool = False
    priority: int = 0  # class: the least first
    ttft: float = 0.0  # seconds to the first token that it should not exceed; 0: nothing is said
    waited: float = 0.0  # seconds since its arrival, of a request that the pool lost
    queue_timeout: float = 0.0  # seconds from its arrival, after which it ends if nothing has begun; 0: none


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """`request` is the id under which the group lives: an earlier one where the idempotency key was known.
    `refused` says which bound the group would pass; nothing of it was written then."""

    request: str
    existed: bool = False
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A submitted group, for whoever goes on with it. Sequences in order of their choices."""

    request: str
    tenant: str
    sequences: list[str]
    body: bytes
    ended: bool
    resumable: bool
    background: bool


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Token `index` of a sequence, as committed; or, with `token` None, its end at that index."""

    id: str
    index: int
    token: int | None
    logprobs: Logprobs | None = None
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the pool holds of a sequence from an index on; `known` false if it never was or has expired."""

    id: str
    known: bool
    num_prompt_tokens: int = 0
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    end: End | None = None
