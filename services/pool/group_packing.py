"""A submission as the pool keeps it: prompts and samplings that its sequences share are there once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from services import wire
from services.messages import Submission
from services.pool.packing import check_logprobs, pack, pack_tokens
from services.pool.sizes import group_bytes, score_bytes, token_bytes
from services.requests import SamplingParams


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """`size` is what the group counts for in bytes, `inputs` what of that are its prompts and samplings, `message` the
    argument of the script (see `lua/submit.lua`)."""

    size: int
    inputs: int
    message: bytes


def pack_group(submission: Submission) -> PackedGroup:
    """`choice` and `max_new_tokens` are each sequence's own and left out of its sampling: choices of a prompt differ in
    nothing else, prompts of a request in these and their tokens."""
    prompts: dict[bytes, int] = {}
    samplings: dict[bytes, int] = {}
    known: dict[int, int] = {}
    sequences: list[list[Any]] = []
    shared: tuple[SamplingParams, int] | None = None
    for s in submission.sequences:
        check_logprobs(s.id, s.output, s.logprobs)
        prompt = _number(prompts, known, s.prompt)
        plain = replace(s.sampling, choice=0, max_new_tokens=0)
        if shared is None or shared[0] != plain:
            packed = wire.pack(plain)
            shared = plain, samplings.setdefault(packed, len(samplings) + 1)
        asked = [
            prompt,
            shared[1],
            s.sampling.choice,
            token_bytes(s.sampling),
            score_bytes(s.sampling, len(s.prompt)),
        ]
        longest = str(len(s.prompt) + s.sampling.max_new_tokens)
        logprobs = [wire.pack(one) for one in s.logprobs or ()]
        sequences.append([s.id, prompt, longest, pack(asked), pack_tokens(s.output), logprobs])
    inputs = sum(map(len, prompts)) + sum(map(len, samplings))
    size = group_bytes(submission, inputs)
    stored = pack([inputs, len(prompts), len(samplings)])
    return PackedGroup(size, inputs, pack([size, stored, list(prompts), list(samplings), sequences]))


def _number(prompts: dict[bytes, int], known: dict[int, int], prompt: list[int]) -> int:
    """The number of a prompt among those of the group, from 1 on. `known` has those of the same object."""
    number = known.get(id(prompt))
    if number is None:
        number = known[id(prompt)] = prompts.setdefault(pack_tokens(prompt), len(prompts) + 1)
    return number
