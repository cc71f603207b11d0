"""A submission as the pool stores it, and the bytes of the server's memory that it counts for.

Prompts and sampling parameters that the sequences of a group share are stored once. Bytes are counted before anything
is written, so that commits always fit: what is stored at submit by its real length, plus room for all tokens that the
group may generate. At its end, a sequence frees the room of the tokens that it did not generate, and a group frees its
prompts and sampling parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from services import wire
from services.messages import Submission
from services.pool.packing import check_logprobs, pack, pack_tokens
from services.requests import SamplingParams, needs_of

# The overhead of the server, measured with MEMORY USAGE: keys, hash fields, members of queues and sets.
GROUP_BYTES = 1024
SEQUENCE_BYTES = 1024
# An output token takes 4 bytes; the server allocates up to twice the length of a string that grows.
TOKEN_BYTES = 8
# One packed `Logprobs` with its list entry, and one (id, logprob) pair in it.
LOGPROBS_BYTES = 20
TOP_LOGPROB_BYTES = 15
VECTOR_NUMBER_BYTES = 4
# The log probability and rank of one prompt token.
PROMPT_LOGPROB_BYTES = 14


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """A group as arguments of `lua/submit.lua`.

    `size`: the bytes that the group counts for. `inputs`: those of its prompts and sampling parameters, a part of
    `size`. `arguments`: those of the script that describe the group.
    """

    size: int
    inputs: int
    arguments: dict[str, Any]


def pack_group(submission: Submission) -> PackedGroup:
    """Pack a submission, with equal prompts and equal sampling parameters stored once.

    `choice` and `max_new_tokens` are stored with each sequence, not with its sampling parameters: the sequences of a
    request rarely differ in anything else.
    """
    prompts: dict[bytes, int] = {}
    samplings: dict[bytes, int] = {}
    known: dict[int, int] = {}
    sequences: list[list[Any]] = []
    shared: tuple[SamplingParams, int] | None = None
    for s in submission.sequences:
        check_logprobs(s.id, s.output, s.logprobs)
        prompt = _number_of(prompts, known, s.prompt)
        plain = replace(s.sampling, choice=0, max_new_tokens=0)
        if shared is None or shared[0] != plain:
            packed = wire.pack(plain)
            shared = plain, samplings.setdefault(packed, len(samplings) + 1)
        per_token, needs = token_bytes(s.sampling), list(needs_of(s.sampling))
        asked = [
            prompt,
            shared[1],
            s.sampling.choice,
            0 if needs else per_token,  # see FAR in lua/fragments/needs.lua
            prompt_logprobs_bytes(s.sampling, len(s.prompt)),
            per_token,
        ]
        max_tokens = len(s.prompt) + s.sampling.max_new_tokens
        logprobs = [wire.pack(one) for one in s.logprobs or ()]
        sequences.append([s.id, prompt, max_tokens, pack(asked), pack_tokens(s.output), logprobs, needs])
    inputs = sum(map(len, prompts)) + sum(map(len, samplings))
    size = _group_bytes(submission, inputs)
    stored = pack([inputs, len(prompts), len(samplings)])
    arguments = {
        "bytes": size,
        "inputs": stored,
        "prompts": list(prompts),
        "samplings": list(samplings),
        "sequences": sequences,
    }
    return PackedGroup(size, inputs, arguments)


def _number_of(prompts: dict[bytes, int], known: dict[int, int], prompt: list[int]) -> int:
    """The number of a prompt within its group, from 1. `known` maps `id(prompt)` to it: choices share one list."""
    number = known.get(id(prompt))
    if number is None:
        number = known[id(prompt)] = prompts.setdefault(pack_tokens(prompt), len(prompts) + 1)
    return number


def token_bytes(sampling: SamplingParams) -> int:
    """Bytes of one output token with its log probabilities, or with its vector."""
    logprobs = 0 if sampling.logprobs is None else LOGPROBS_BYTES + TOP_LOGPROB_BYTES * sampling.logprobs
    return TOKEN_BYTES + logprobs + VECTOR_NUMBER_BYTES * sampling.vector


def prompt_logprobs_bytes(sampling: SamplingParams, prompt_len: int) -> int:
    """Bytes of the log probabilities of a prompt of `prompt_len` tokens, which come with the first output token."""
    if sampling.prompt_logprobs is None:
        return 0
    return prompt_len * (PROMPT_LOGPROB_BYTES + TOP_LOGPROB_BYTES * sampling.prompt_logprobs)


def _group_bytes(submission: Submission, inputs: int) -> int:
    """Bytes of a whole group, whose packed prompts and sampling parameters take `inputs` bytes."""
    total = GROUP_BYTES + len(submission.body) + inputs
    if submission.idempotency_key is not None:
        total += 2 * len(submission.idempotency_key.encode())
    for s in submission.sequences:
        total += SEQUENCE_BYTES + s.sampling.max_new_tokens * token_bytes(s.sampling)
        total += prompt_logprobs_bytes(s.sampling, len(s.prompt))
    return total
