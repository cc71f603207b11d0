"""How much one pool holds, what a sequence counts for, and who waits before whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from services.messages import NewSequence
from services.requests import BATCH_CLASS

# What the server needs for a sequence besides its tokens, about: keys, hash fields, place in the queues.
OVERHEAD_BYTES = 1024
TOKEN_BYTES = 4
# One packed `Logprobs` with its list entry, and one (id, logprob) in it.
LOGPROBS_BYTES = 16
TOP_LOGPROB_BYTES = 15
# One packed id of `allowed_token_ids` or `bad_words`.
ID_BYTES = 5
# One prompt token's log probability and rank.
PROMPT_LOGPROB_BYTES = 14
# Seconds (about 95 years) that lines of batches are ranked behind all others. A rank in microseconds stays below 2**53,
# up to which the server's numbers are exact.
BEHIND = 3e9


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a pool: waiting sequences, bytes of all its groups, seconds an ended group stays readable,
    seconds (`grace`) a resumable group, or one whose gateway died, goes on without a follower.

    Groups that ended make place earlier when the bytes are needed.

    Tenants take turns by tokens served. `order` ranks what waits of one of them, once, at submit. `fcfs`: by arrival.
    `priority`: by a virtual due time, arrival + class x `ageing` seconds + TTFT target, which is `ttft_target` seconds
    where a request has none. So within a class the least slack goes first, and what has waited `ageing` longer goes
    before the next earlier class. Lines of batches (`BATCH_CLASS`) are ranked behind all others in either order, and
    among each other by arrival.
    """

    max_waiting: int = 10_000
    max_bytes: int = 1 << 30
    keep_ended: float = 600.0
    grace: float = 60.0
    order: Literal["fcfs", "priority"] = "fcfs"
    ageing: float = 60.0
    ttft_target: float = 10.0


def behind(priority: int) -> float:
    """Seconds that a request of this class is ranked behind its place."""
    return BEHIND if priority >= BATCH_CLASS else 0.0


def sequence_bytes(sequence: NewSequence) -> int:
    """What the sequence counts for from submit to expiry: its prompt and the place for all its output tokens, and the
    ids that its settings name, which may be many.

    Counted before anything is written, so that commits always fit.
    """
    new_tokens = sequence.sampling.max_new_tokens
    total = OVERHEAD_BYTES + TOKEN_BYTES * (len(sequence.prompt) + new_tokens)
    sampling = sequence.sampling
    total += ID_BYTES * (len(sampling.allowed_token_ids) + sum(map(len, sampling.bad_words)))
    if sampling.logprobs is not None:
        total += new_tokens * (LOGPROBS_BYTES + TOP_LOGPROB_BYTES * sampling.logprobs)
    if sampling.prompt_logprobs is not None:
        total += len(sequence.prompt) * (PROMPT_LOGPROB_BYTES + TOP_LOGPROB_BYTES * sampling.prompt_logprobs)
    return total
