"""What a group of sequences takes in the pool's server, in bytes of its memory.

Counted before anything is written, so that commits always fit: what is stored at submit by its real length, and place
for all tokens that may come. A sequence gives back at its end the place of tokens that were not made; a group its
prompts and samplings.
"""

from __future__ import annotations

from services.messages import Submission
from services.requests import SamplingParams

# What the server takes besides, measured with MEMORY USAGE: keys, hash fields, places in queues and sets.
GROUP_BYTES = 1024
SEQUENCE_BYTES = 1024
PROMPT_TOKEN_BYTES = 4
# An output token has 4 bytes; a string that grows has place for up to twice its length.
TOKEN_BYTES = 8
# One packed `Logprobs` with its list entry, and one (id, logprob) in it.
LOGPROBS_BYTES = 20
TOP_LOGPROB_BYTES = 15
# One prompt token's log probability and rank.
PROMPT_LOGPROB_BYTES = 14


def token_bytes(sampling: SamplingParams) -> int:
    """The place of one output token, with its log probabilities."""
    asked = 0 if sampling.logprobs is None else LOGPROBS_BYTES + TOP_LOGPROB_BYTES * sampling.logprobs
    return TOKEN_BYTES + asked


def score_bytes(sampling: SamplingParams, prompt: int) -> int:
    """The place of the log probabilities of a prompt of so many tokens; they come with the first output token."""
    if sampling.prompt_logprobs is None:
        return 0
    return prompt * (PROMPT_LOGPROB_BYTES + TOP_LOGPROB_BYTES * sampling.prompt_logprobs)


def group_bytes(submission: Submission, inputs: int) -> int:
    """All of a group, whose packed prompts and samplings have `inputs` bytes."""
    total = GROUP_BYTES + len(submission.body) + inputs
    if submission.idempotency_key is not None:
        total += 2 * len(submission.idempotency_key.encode())
    for s in submission.sequences:
        total += SEQUENCE_BYTES + s.sampling.max_new_tokens * token_bytes(s.sampling)
        total += score_bytes(s.sampling, len(s.prompt))
    return total
