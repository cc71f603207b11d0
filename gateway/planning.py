"""Planning: the plan of the answer to a validated request, and the digests by which requests are told apart."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from gateway.answer.plan import AnswerKind, Plan
from gateway.answer.reading import Reading
from gateway.schemas.generation import GenerationFields
from services.messages import NewSequence
from services.requests import SamplingParams, known_to_all, needs_of
from services.wire import pack

STREAM_FIELDS = {"stream", "stream_options"}  # not part of the digest: one request can be followed in both ways


def service_tier(kind: AnswerKind, fields: GenerationFields, order: str) -> str | None:
    """The tier that the answer names, as in OpenAI's document: always for responses, for chat if the request names one,
    never for completions. It says how the request is served: in order of arrival there is only one tier."""
    if kind is AnswerKind.COMPLETION or (kind is AnswerKind.CHAT and fields.service_tier is None):
        return None
    if order == "fcfs" or fields.request_class == 0:
        return "default"
    return "priority" if fields.request_class < 0 else "flex"


def plan_of(
    kind: AnswerKind,
    fields: GenerationFields,
    digest: str,
    prompts: list[list[int]],
    sequences: list[NewSequence],
    tier: str | None,
    extra: bytes,
    texts: Sequence[str],
    reading: Reading,
) -> Plan:
    """The plan of a request with these `sequences`, see `Plan`."""
    scored = fields.requested_prompt_logprobs
    return Plan(
        kind=kind,
        created=int(time.time()),
        digest=digest,
        choices=len(sequences),
        n=fields.choices,
        prompt_tokens=sum(map(len, prompts)),
        max_new_tokens=max(s.sampling.max_new_tokens for s in sequences),
        include_usage=fields.include_usage,
        return_token_ids=bool(fields.return_token_ids),
        with_logprobs=fields.requested_logprobs is not None,
        stop=fields.stop,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        service_tier=tier,
        prompts=prompts if fields.return_token_ids or fields.echoes or scored is not None else [],
        extra=extra,
        include_stop=bool(fields.include_stop_str_in_output),
        skip_special_tokens=sequences[0].sampling.skip_special_tokens,
        continuous_usage=fields.continuous_usage,
        echo=fields.echoes,
        texts=list(texts) if fields.echoes else [],
        logprobs=fields.requested_logprobs or 0,
        prompt_logprobs=scored,
        silent=fields.requested_max_tokens == 0,
        tool_parser=reading.tool_parser,
        reasoning_parser=reading.reasoning_parser,
        reasoning_open=reading.reasoning_open,
        parallel_tool_calls=reading.parallel_tool_calls,
        include_reasoning=fields.shows_reasoning,
    )


def digest_of(fields: GenerationFields) -> str:
    """Equal for two HTTP requests that ask for the same tokens."""
    given = fields.model_dump_json(exclude=STREAM_FIELDS, exclude_unset=True)
    return hashlib.sha256(given.encode()).hexdigest()


def digest_of_inputs(prompts: Sequence[list[int]], samplings: Sequence[SamplingParams]) -> str:
    """Equal for two requests only if their tokens are equal: they depend on nothing else."""
    digest = hashlib.sha256()
    for prompt, sampling in zip(prompts, samplings, strict=True):
        # a field that came later must not rename the requests that do not use it
        digest.update(pack([prompt, known_to_all(sampling)]))
        if needs := needs_of(sampling):
            digest.update(pack(needs))
    return digest.hexdigest()
