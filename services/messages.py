"""The messages between processes: frozen dataclasses of ints, strings and lists, sent as msgpack (see `wire`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.requests import FinishReason, Refusal, SamplingParams, Tenure

# --- scheduler <-> engine ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the engine does not know. `token_ids` is the prompt and the output so far. The keys and values of
    the first `num_computed_tokens` tokens, which are whole blocks, are already in its first blocks.
    """

    id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    num_computed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of the model.

    `scheduled` maps request ids to the number of tokens to compute. Its insertion order is the batch order. One token
    is sampled for each request that has no token left to compute after this iteration. `new_blocks` are KV block ids to
    append to a request's block table. `released` requests are removed before the iteration runs, because their blocks
    may already belong to others. `full_blocks` are names (see `BlockHashes`) of blocks that earlier iterations filled.

    `drafts` are guesses at the next output tokens of some of these requests. They are computed behind the request's own
    tokens, and as many of them are kept as are the tokens that would have been sampled. A draft changes no token.
    `wants_forced` asks for `IterationResult.forced`.

    With `sleep`, no request is left after `released`, and the engine gives back the memory of its KV cache and forgets
    the names of its blocks. The next iteration takes memory again.

    `adapters` are digests of adapters that requests wait for. The engine reads them meanwhile, and keeps them.
    """

    epoch: str
    step: int
    scheduled: dict[str, int]
    new: list[NewRequest] = field(default_factory=list)
    new_blocks: dict[str, list[int]] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    full_blocks: dict[int, bytes] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)
    wants_forced: bool = False
    sleep: bool = False
    adapters: list[str] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the engine computes, drafts included."""
        return sum(self.scheduled.values()) + sum(map(len, self.drafts.values()))


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of a prompt's tokens except the first, in flat lists: a prompt has thousands of tokens."""

    tokens: list[float]  # [prompt tokens - 1]
    ranks: list[int]  # [prompt tokens - 1], 1 + the number of likelier tokens
    top_ids: list[int]  # [(prompt tokens - 1) * asked], the likeliest of each first
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log probabilities at one position: that of the sampled token, and those of the likeliest ones as (id, logprob).

    Log probabilities of the prompt are part of the first output token, and are committed, kept and resent with it. So
    is the `vector` of a request for one, float32 in little-endian order, whose token has no log probability.
    """

    token: float
    top: list[tuple[int, float]]
    prompt: PromptLogprobs | None = None
    vector: bytes = b""


@dataclass(frozen=True, slots=True)
class IterationResult:
    """The result of an iteration. A request in `failed` has no token, and the engine has removed it.

    `more` are the tokens after the first one of requests whose drafts were right, with `more_logprobs`: one token for
    each right one. `forced` are tokens that will follow because a request's grammar leaves one text only. They are
    guesses, as the text may be written in other tokens. If the iteration names adapters to read, `adapters` are the
    digests of those that are in memory, and of those that cannot be read: their requests fail when they enter.
    """

    epoch: str
    step: int
    tokens: dict[str, int]
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    elapsed: float = 0.0  # seconds inside the engine
    more: dict[str, list[int]] = field(default_factory=dict)
    more_logprobs: dict[str, list[Logprobs]] = field(default_factory=dict)
    forced: dict[str, list[int]] = field(default_factory=dict)
    adapters: list[str] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """The number of sampled tokens."""
        return len(self.tokens) + sum(map(len, self.more.values()))

    def tokens_of(self, id: str) -> list[int]:
        """Return the sampled tokens of a request that has any."""
        return [self.tokens[id], *self.more.get(id, ())]

    def logprobs_of(self, id: str) -> list[Logprobs]:
        """Return the log probabilities of each of `tokens_of`, of a request that asks for them."""
        return [self.logprobs[id], *self.more_logprobs.get(id, ())]


@dataclass(frozen=True, slots=True)
class LargestIteration:
    """The largest iteration that an engine has memory for."""

    requests: int
    tokens: int
    rows: int  # tokens after which one is sampled: of requests, and of their drafts


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The properties of an engine, which it reports when a scheduler attaches. The pool passes them to the gateways.

    `numerics` names everything besides the request that tokens depend on: revision, dtype, device, backend, first bits.
    """

    model: str
    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int
    numerics: str
    weights: str = ""  # how they are kept, for people
    weight_bytes: int = 0  # in the memory of the process that samples
    features: tuple[str, ...] = ()  # those of `FEATURES` in services/requests.py that it has
    verifies_drafts: bool = False  # whether logits of tokens computed together have the bits of those computed singly
    whole_prompts: bool = False  # the model needs all tokens of a prompt at once, so it is computed in one iteration
    vector: int = 0  # numbers of the vector that the model makes of a prompt; 0: it generates text
    largest: LargestIteration | None = None  # None: any

    @property
    def num_slots(self) -> int:
        """The number of tokens whose keys and values fit (the paper's `n_slots`)."""
        return self.num_blocks * self.block_size

    @property
    def longest(self) -> int:
        """The most tokens, prompt and output together, of a request that this engine can serve."""
        return min(self.max_model_len, self.num_slots)


# --- scheduler <-> pool --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """The end of a request."""

    reason: FinishReason
    stop: str | int | None = None  # the stop string or stop token id that matched
    cut: int = 0  # trailing bytes of the text to remove
    error: str | None = None
    cached: int = 0  # prompt tokens that were found in the prefix cache
    timed_out: bool = False  # an error: the request had not started by its deadline
    at: float = field(default=0.0, compare=False)  # when, in Unix seconds; 0: a script of the pool ended it


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens `index`, `index + 1`, ... of a request, with their `logprobs`, and its end if it has ended."""

    id: str
    index: int
    tokens: list[int]
    logprobs: list[Logprobs] | None = None
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """What a scheduler can claim: a number of requests, and of KV blocks of `block_size` tokens. A request takes blocks
    for prompt + `max_new_tokens` if `whole`, otherwise for its current tokens.

    `yields` are tuples (class, requests, blocks): what requests of this class would give up to one of an earlier class.
    `longest` is the most tokens of a request that the engine can serve, as its length and all its blocks allow; 0 if it
    is unknown. `guests` is the number of further requests that it takes from tenants with few requests here, one from
    each; `tenants` are the others that have requests here. `features` are those that a request may need of the engine.
    """

    requests: int
    blocks: int
    block_size: int
    whole: bool = True
    yields: list[tuple[int, int, int]] = field(default_factory=list)
    longest: int = 0
    guests: int = 0
    tenants: list[str] = field(default_factory=list)
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that a scheduler has claimed. `output` is what earlier owners have committed."""

    id: str
    rank: float  # the smallest is served first; a time in seconds, see `Limits`
    prompt: list[int]
    output: list[int]
    sampling: SamplingParams
    strikes: int = 0  # deaths of engines and owners since its last committed token; with two it runs alone
    priority: int = 0  # its class, the smallest first
    ttft: float = 0.0  # target for the seconds from arrival to the first token; 0: none
    waited: float = 0.0  # seconds since its arrival
    tenant: str = "default"
    unreadable: str | None = None  # why its settings cannot be read, which ends it; `sampling` is a placeholder then
    trace: str = ""  # its trace context (see `services/tracing`); empty: it is not traced
    before: Tenure | None = None  # the tenure that ended last, of a traced request
    remember: bool = False  # drafts of its tenant's later requests may repeat its text


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call of `pool.exchange`: it commits, renews the lease, and offers room for claims.

    A repeated call has the same `call` number and changes nothing. `counters` are increments, `gauges` the latest
    values of the seat, `summary` is a line about the last iteration, or why there can be none. `idle` asks for the
    bell. `holds` lists all requests of the caller. It is sent with the first exchange of an epoch, after an outage of
    the pool, and after a reply that shows a loss. Other requests that the pool believes to run in this seat wait again,
    because it may have lost their end.
    """

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
    """If `owned` is false, the epoch is over, nothing was written, and the caller drops all its requests.

    `foreign` are ids in `commits` or `holds` that do not belong to the seat (any more). The caller drops them before it
    takes the claims, which may contain them again. `have` are sequences that have fewer tokens than the index of a
    commit, because the pool has lost its last changes: the caller resends the tokens from there on. `cancelled` ids are
    listed until their end is committed. `lost`: the pool has lost exchanges of this seat that it had answered, and
    gives out no claims; the next exchange must contain `holds`. `surplus`: the cluster is to have fewer
    engines, and this seat gets no claims any more. `forgotten` are requests that the pool has dropped since the
    exchange before: drafts must not repeat their texts.
    """

    owned: bool
    claims: list[Claim] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    have: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    surplus: bool = False
    forgotten: list[str] = field(default_factory=list)


# --- pool <-> gateway ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewSequence:
    """One sequence of a submission. Its id is `<request>/<choice>`.

    `output` and `logprobs` are what a gateway has of a request that the pool has lost. The request continues there.
    """

    id: str
    prompt: list[int]
    sampling: SamplingParams
    output: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """A group of sequences, which is submitted, bounded and cancelled as a whole.

    `gateway` listens to all of them from token 0 on. `body`, which the pool does not read, is what another gateway
    needs to continue this request. `resumable`: after its last follower has closed, it is cancelled after the grace
    period, not at once. `background`: it runs to its end even if no gateway follows it.
    """

    request: str
    gateway: str
    sequences: list[NewSequence]
    tenant: str = "default"
    idempotency_key: str | None = None
    body: bytes = b""
    resumable: bool = False
    background: bool = False
    priority: int = 0  # the class, the smallest first
    ttft: float = 0.0  # target for the seconds to the first token; 0: none
    waited: float = 0.0  # seconds since its arrival, of a request that the pool has lost
    queue_timeout: float = 0.0  # seconds from its arrival, after which it ends if it has not started; 0: none
    trace: str = ""  # its trace context, for schedulers and for gateways that resume it; empty: it is not traced
    remember: bool = False  # drafts of its tenant's later requests may repeat its text


@dataclass(frozen=True, slots=True)
class SubmitReply:
    """`request` is the id of the group, or of an earlier one with its idempotency key. If `refused`, none was made."""

    request: str
    existed: bool = False
    refused: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A submitted group, for a gateway that continues it. `sequences` are in the order of their choices."""

    request: str
    tenant: str
    sequences: list[str]
    body: bytes
    ended: bool
    resumable: bool
    background: bool
    trace: str = ""


@dataclass(slots=True)  # not changed; a frozen one takes longer to make, and each token of a stream needs one
class TokenEvent:
    """The committed token `index` of a sequence or, if `token` is None, its end at that index."""

    id: str
    index: int
    token: int | None
    logprobs: Logprobs | None = None
    end: End | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the pool has of a sequence from an index on. `known` is false if there is none or it has expired."""

    id: str
    known: bool
    num_prompt_tokens: int = 0
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] | None = None
    end: End | None = None
