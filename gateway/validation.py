"""Validation: a request that can run becomes a `ValidatedRequest`, with the plan of its answer and the digests by which
requests are told apart. Any other becomes an error. Requests are checked only here."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, replace

from gateway.answer.plan import AnswerKind, Plan
from gateway.answer.reading import PLAIN, ModelReading, Reading
from gateway.errors import ApiError, Kind
from gateway.executor import INLINE, FairExecutor
from gateway.grammars.check import GrammarCheck
from gateway.http.headers import Caller
from gateway.model import ServedModel, Words, bad_word_ids, chat_tokens, text_tokens, truncated
from gateway.schemas.answers import ServiceTier
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.generation import GenerationFields
from gateway.schemas.vectors import VectorFields
from services.messages import EngineFigures, NewSequence, Submission
from services.requests import NO_TOKEN_LEFT, OF_ADAPTERS, SamplingParams, known_to_all, needs_of
from services.settings.settings import Settings
from services.text.tokenizer import EncodedText
from services.wire import pack

STREAM_FIELDS = {"stream", "stream_options"}  # not part of the digest: one request can be followed in both ways
MAX_LOGPROBS = 1 << 18  # per answer: 14 MB of JSON, and 90 MB in memory while it is made
MAX_SEQUENCES = 2048  # prompts x n of one HTTP request
COMPLETION_MAX_TOKENS = 16  # as at OpenAI
CHAT_MAX_TOKENS = 1024  # unless settings or model say otherwise
SEQUENCE_SIZE = 64  # the work that a choice adds to the bytes of the body


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """A request that can run, and whether its client wants a stream. `submission.body` is the packed plan. `slot`: that
    of its idempotency key; None: it can go to any shard."""

    submission: Submission
    plan: Plan
    stream: bool
    slot: int | None = None


class Validator:
    """Checks what a schema cannot: the model's name, its vocabulary and context length, an engine's KV slots.

    Validation of long requests takes long: `validate` runs it in the executor, off the event loop. `figures` returns
    those of the largest engine; it raises ApiError or PoolUnavailable.
    """

    def __init__(
        self,
        gateway: str,
        model: ServedModel,
        settings: Settings,
        executor: FairExecutor,
        figures: Callable[[], Awaitable[EngineFigures]],
    ) -> None:
        self._gateway = gateway
        self._model = model
        self._settings = settings
        self._executor = executor
        self._figures = figures
        self._grammars = GrammarCheck(model)
        self.reading = ModelReading(model.tokenizer, settings)

    async def completion(self, fields: CompletionRequest, caller: Caller) -> ValidatedRequest:
        """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
        size = caller.size + SEQUENCE_SIZE * fields.choices * len(fields.prompt)
        return await self.validate(caller, size, fields, lambda figures: self._completion(fields, figures, caller))

    async def chat(self, fields: ChatRequest, caller: Caller) -> ValidatedRequest:
        """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
        size = caller.size + SEQUENCE_SIZE * fields.choices
        return await self.validate(caller, size, fields, lambda figures: self._chat(fields, figures, caller))

    async def validate(
        self, caller: Caller, size: int, fields: GenerationFields, work: Callable[[EngineFigures], ValidatedRequest]
    ) -> ValidatedRequest:
        """The result of `work`, which handles about `size` bytes, from the executor. A small grammar can take seconds
        to compile, so a request with a grammar is never handled on the event loop."""
        if fields.constraint or fields.tool_use.required or fields.tool_use.constrains:
            size = max(size, INLINE + 1)
        return await self.run(caller, size, work)

    async def run(
        self, caller: Caller, size: int, work: Callable[[EngineFigures], ValidatedRequest]
    ) -> ValidatedRequest:
        """The result of `work`, which handles about `size` bytes, from the executor."""
        figures = await self._figures()
        return await self._executor.run(caller.work_queue, size, work, figures)

    def _completion(self, fields: CompletionRequest, figures: EngineFigures, caller: Caller) -> ValidatedRequest:
        self.check_generates()
        self._check_count(len(fields.prompt) * fields.choices, "prompt", "choices (prompts x n)")
        texts = [p for p in fields.prompt if isinstance(p, str)]
        special = fields.add_special_tokens is not False
        whole = fields.truncate_prompt_tokens is None
        encoded = iter(text_tokens(self._model, texts, special, "prompt", whole))
        prompts = [next(encoded) if isinstance(p, str) else p for p in fields.prompt]
        # a truncated prompt is echoed as its decoded tokens, not as the client's text
        given = [p if isinstance(p, str) and whole else "" for p in fields.prompt]
        return self.request(AnswerKind.COMPLETION, fields, prompts, "prompt", figures, caller, texts=given)

    def _chat(self, fields: ChatRequest, figures: EngineFigures, caller: Caller) -> ValidatedRequest:
        self.check_generates()
        prompt = chat_tokens(
            self._model,
            fields.messages,
            self.reading.own_marks,
            fields.add_generation_prompt,
            continue_final_message=bool(fields.continue_final_message),
            add_special_tokens=bool(fields.add_special_tokens),
            tools=fields.tool_use.for_template(),
            kwargs=fields.template_variables,
        )
        return self.request(AnswerKind.CHAT, fields, [prompt], "messages", figures, caller)

    def request(
        self,
        kind: AnswerKind,
        fields: GenerationFields,
        prompts: list[list[int]],
        param: str,
        figures: EngineFigures,
        caller: Caller,
        extra: bytes = b"",
        texts: Sequence[str] = (),
    ) -> ValidatedRequest:
        """The request that `fields` make with `prompts` (token ids). `param`: the field that
        errors about the prompts name. `extra`: data for the plan. `texts`: the prompts as written, for `echo`.

        Raises ApiError naming the field, its value and the limit."""
        for prompt in prompts:  # a tokenizer may have more ids than the model has logits
            self.check_ids(prompt, param)
        self.check_ids(list(fields.logit_bias), "logit_bias")
        self.check_ids(fields.stop_token_ids or [], "stop_token_ids")
        self.check_ids(fields.allowed_token_ids or [], "allowed_token_ids")
        bad_words = bad_word_ids(self._model.tokenizer, fields.bad_words)
        self.check_ids([id for word in bad_words for id in word], "bad_words")
        prompts = [self.truncated(kind, fields, prompt, figures) for prompt in prompts]
        digest = digest_of(fields)
        self._check_class(fields, caller.tenant)
        self._check_reasoning(kind, fields)
        reading = PLAIN if kind is AnswerKind.COMPLETION else self.reading.of(fields.tool_use, prompts[0])
        grammar = self._grammars.grammar_of(fields, reading)
        output = Output(bad_words, grammar, reading)
        samplings = self._samplings(kind, fields, prompts, param, figures, caller.seed(), output)
        if caller.adapter:
            samplings = [replace(sampling, adapter=caller.adapter.digest) for sampling in samplings]
        for sampling in samplings:
            check_needs(sampling, figures)
        inputs = "" if caller.named_by_fields else digest_of_inputs(prompts, samplings)
        request = kind.prefix + caller.request_name(digest, inputs)
        sequences = _sequences(request, prompts, samplings, fields.choices)
        check_choice(sequences[0].sampling, self._model.info.eos_token_ids, self._model.info.vocab_size)
        check_logprobs(kind, fields, prompts, sequences)
        tier = service_tier(kind, fields, self._settings.order)
        plan = plan_of(kind, fields, digest, prompts, sequences, tier, extra, texts, reading)
        if caller.adapter:
            plan = replace(plan, model=caller.adapter.name)
        submission = self._submission(
            request, sequences, plan, caller, fields.request_class, fields.ttft_target or 0.0, fields.store is not False
        )
        return ValidatedRequest(submission, plan, bool(fields.stream), caller.slot)

    def vectors(
        self,
        kind: AnswerKind,
        fields: VectorFields,
        texts: Sequence[EncodedText],
        param: str,
        figures: EngineFigures,
        caller: Caller,
        extra: bytes,
    ) -> ValidatedRequest:
        """The request that `fields` make for the vectors of `texts`. `param`: the field that errors about them name.
        `extra`: data for the plan. Raises ApiError naming the field, its value and the limit."""
        self._check_count(len(texts), param, "vectors")
        prompts = [text.ids for text in texts]
        for prompt in prompts:
            self.check_ids(prompt, param)
            self._check_slots(len(prompt), param, figures)
        self._check_class(fields, caller.tenant)
        assert self._model.info.pooling, f"{kind} of a model that makes no vectors"
        plain = SamplingParams(1, temperature=0.0, logprobs=0, ignore_eos=True, vector=self._model.info.pooling.size)
        samplings = [replace(plain, second_text=text.second) if text.second else plain for text in texts]
        for sampling in samplings:
            check_needs(sampling, figures)
        digest = digest_of(fields)
        inputs = "" if caller.named_by_fields else digest_of_inputs(prompts, samplings)
        request = kind.prefix + caller.request_name(digest, inputs)
        sequences = _sequences(request, prompts, samplings, 1)
        tokens = sum(map(len, prompts))
        plan = Plan(kind, int(time.time()), digest, len(texts), 1, tokens, max_new_tokens=1, extra=extra)
        return ValidatedRequest(
            self._submission(request, sequences, plan, caller, fields.request_class), plan, False, caller.slot
        )

    def _check_slots(self, count: int, param: str, figures: EngineFigures) -> None:
        if count >= figures.longest:
            text = f"An engine takes texts of {figures.longest - 1} tokens at most, but '{param}' has one of {count}."
            raise ApiError(Kind.CONTEXT_LENGTH, text, param)

    def _submission(
        self,
        request: str,
        sequences: list[NewSequence],
        plan: Plan,
        caller: Caller,
        priority: int,
        ttft: float = 0.0,
        remember: bool = False,
    ) -> Submission:
        return Submission(
            request=request,
            gateway=self._gateway,
            sequences=sequences,
            tenant=caller.tenant,
            idempotency_key=caller.idempotency_key,
            body=plan.pack(),
            resumable=caller.resumable,
            background=caller.background,
            priority=priority,
            ttft=ttft,
            queue_timeout=self._settings.queue_timeout if caller.queue_timeout is None else caller.queue_timeout,
            remember=remember,
        )

    def _check_reasoning(self, kind: AnswerKind, fields: GenerationFields) -> None:
        param = fields.reasoning_field
        if param is not None and not self.reading.reasoning_parser:
            text = f"Invalid '{param}': it asks for reasoning, but this model does not reason; leave it out."
            raise ApiError(Kind.INVALID, text, param)
        constraint = fields.constraint
        if kind is AnswerKind.COMPLETION and fields.thinking_budget is not None and constraint is not None:
            text = f"'thinking_token_budget' is not allowed with '{constraint.param}' in completions: all of the output"
            raise ApiError(Kind.INVALID, f"{text} is constrained, so it has no reasoning.", "thinking_token_budget")

    def truncated(
        self, kind: AnswerKind, fields: GenerationFields, prompt: list[int], figures: EngineFigures
    ) -> list[int]:
        """The tokens of `prompt` that `truncate_prompt_tokens` keeps."""
        return truncated(prompt, fields, self._max_prompt_tokens(kind, fields, figures))

    def check_model(self, name: str | None) -> None:
        """Raises ApiError if the model has not this name."""
        if name is not None and name not in self._model.names:
            served = " or ".join(f"'{own}'" for own in self._model.names)
            text = f"The model '{name[:100]}' does not exist; this server serves {served}."
            raise ApiError(Kind.MODEL_NOT_FOUND, text, "model")

    def check_generates(self) -> None:
        """Raises ApiError if the model makes vectors in place of text."""
        if pooling := self._model.info.pooling:
            text = f"The model '{self._model.name}' is {pooling.noun}, it generates no text; use {pooling.routes}."
            raise ApiError(Kind.INVALID, text, "model")

    def _check_class(self, fields: GenerationFields | VectorFields, tenant: str) -> None:
        earliest = self._settings.earliest_class_of(tenant)
        if fields.request_class < earliest:
            param = "service_tier" if fields.priority is None else "priority"
            text = f"Invalid '{param}': it asks for class {fields.request_class}, yours is {earliest} at the earliest."
            raise ApiError(Kind.INVALID, text, param)

    def _samplings(
        self,
        kind: AnswerKind,
        fields: GenerationFields,
        prompts: list[list[int]],
        param: str,
        figures: EngineFigures,
        seed: int,
        output: Output,
    ) -> list[SamplingParams]:
        """The sampling of each prompt, whose choices differ by their number only."""
        samplings: list[SamplingParams] = []
        for prompt in prompts:
            if not prompt:
                raise ApiError(Kind.INVALID, f"Invalid '{param}': it has no tokens.", param)
            limit = self._max_new_tokens(kind, fields, len(prompt), param, figures)
            sampling = output.sampling(fields.sampling(limit, seed, output.bad_words, self._model.defaults))
            if (tokens := fields.thinking_budget) is not None:
                budget = self.reading.budget_of(tokens, fields.tool_use, prompt, limit, fields.budget_field)
                self.check_ids([*budget.closing, *budget.again] if budget else [], fields.budget_field)
                sampling = replace(sampling, thinking_token_budget=budget)
            if sampling.min_tokens > sampling.max_new_tokens:
                text = f"'min_tokens' {sampling.min_tokens} is over the {sampling.max_new_tokens} tokens at most."
                raise ApiError(Kind.INVALID, text, "min_tokens")
            if fields.requested_max_tokens == 0:
                sampling = _discarded(sampling)
            samplings.append(sampling)
        return samplings

    def _max_prompt_tokens(self, kind: AnswerKind, fields: GenerationFields, figures: EngineFigures) -> int:
        """The length of a prompt that leaves room for the requested output."""
        output = fields.requested_max_tokens
        if output is None:
            output = COMPLETION_MAX_TOKENS if kind is AnswerKind.COMPLETION else 1
        return max(1, figures.longest - max(output, 1))

    def _max_new_tokens(
        self, kind: AnswerKind, fields: GenerationFields, length: int, param: str, figures: EngineFigures
    ) -> int:
        output = fields.requested_max_tokens
        total = length + (output or 1)
        wanted = f"{length} tokens in '{param}' and {output or 'at least 1'} to generate"
        if total > figures.max_model_len:
            text = (
                f"This model's maximum context length is {figures.max_model_len} tokens, but {wanted} were requested."
            )
            raise ApiError(Kind.CONTEXT_LENGTH, text, param)
        if total > figures.num_slots:
            text = f"An engine has KV slots for {figures.num_slots} tokens, but {wanted} were requested."
            raise ApiError(Kind.CONTEXT_LENGTH, text, param)
        if output is not None:
            return output
        return min(self._default_max_tokens(kind), figures.longest - length)

    def _default_max_tokens(self, kind: AnswerKind) -> int:
        if kind is AnswerKind.COMPLETION:
            return COMPLETION_MAX_TOKENS
        return self._model.defaults.max_new_tokens or CHAT_MAX_TOKENS

    def _check_count(self, count: int, param: str, what: str) -> None:
        limit = min(MAX_SEQUENCES, self._settings.max_waiting)
        if count > limit:
            text = f"{count} {what} were requested, at most {limit} are accepted in one request."
            raise ApiError(Kind.INVALID, text, param)

    def check_ids(self, ids: list[int], param: str) -> None:
        size = self._model.info.vocab_size
        wrong = next((i for i in ids if not 0 <= i < size), None)
        if wrong is not None:
            text = f"Invalid '{param}': token id {wrong} is not in the vocabulary of {size} tokens."
            raise ApiError(Kind.INVALID, text, param)


@dataclass(frozen=True, slots=True)
class Output:
    """What the model and its tokenizer make of the fields about the output. `bad_words`: token ids of each word."""

    bad_words: Words
    grammar: str
    reading: Reading

    def sampling(self, sampling: SamplingParams) -> SamplingParams:
        """The sampling of the request, with these."""
        skip = sampling.skip_special_tokens and not self.reading.spelled
        return replace(sampling, grammar=self.grammar, skip_special_tokens=skip)


def _sequences(
    request: str, prompts: Sequence[list[int]], samplings: Sequence[SamplingParams], n: int
) -> list[NewSequence]:
    """`n` sequences per prompt; the index of a choice is prompt index x n + j."""
    each = [pair for pair in zip(prompts, samplings, strict=True) for _ in range(n)]
    return [
        NewSequence(f"{request}/{choice}", prompt, replace(sampling, choice=choice))
        for choice, (prompt, sampling) in enumerate(each)
    ]


def _discarded(sampling: SamplingParams) -> SamplingParams:
    """The sampling of the one token that a request for no tokens generates: greedy, and it ends by length."""
    scored = sampling.prompt_logprobs
    return SamplingParams(
        1,
        temperature=0.0,
        logprobs=None if scored is None else 0,
        ignore_eos=True,
        prompt_logprobs=scored,
        cache_salt=sampling.cache_salt,
    )


def service_tier(kind: AnswerKind, fields: GenerationFields, order: str) -> ServiceTier | None:
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
    tier: ServiceTier | None,
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
        types=reading.types,
        custom=fields.tool_use.custom,
    )


def digest_of(fields: GenerationFields | VectorFields) -> str:
    """Equal for two HTTP requests that ask for the same tokens. The order in which a schema declares its fields is part
    of it: a field that changes its place would rename the requests that use it."""
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


def check_choice(sampling: SamplingParams, eos: Set[int], vocab_size: int) -> None:
    """Raises ApiError if no token can be the first of the output."""
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned.update(sampling.stop_token_ids, () if sampling.ignore_eos else eos)
    left = set(sampling.allowed_token_ids) - banned if sampling.allowed_token_ids else len(banned) < vocab_size
    if not left:
        param = "allowed_token_ids" if sampling.allowed_token_ids else "bad_words"
        raise ApiError(Kind.INVALID, f"Invalid '{param}': {NO_TOKEN_LEFT}.", param)


def check_needs(sampling: SamplingParams, figures: EngineFigures) -> None:
    """Raises ApiError if the request needs a feature that the engine does not have."""
    for name in needs_of(sampling):
        if name in OF_ADAPTERS and name not in figures.features:
            text = "The model is an adapter, and the engines that run now serve none; start them with enable_lora."
            raise ApiError(Kind.INVALID, text, "model")
        if name not in figures.features:
            text = f"Invalid '{name}': the engines that run now are of a build that does not know it; leave it out."
            raise ApiError(Kind.INVALID, text, name)


def check_logprobs(
    kind: AnswerKind, fields: GenerationFields, prompts: Sequence[Sequence[int]], sequences: Sequence[NewSequence]
) -> None:
    """Raises ApiError if the answer would have too many log probabilities. Those of output tokens do not count in
    streams of completions and chat completions, which are not held as a whole."""
    # a chat completion has those of its prompt once, a completion in each choice
    prompt_tokens = sum(map(len, prompts)) * (1 if kind is AnswerKind.CHAT else fields.choices)
    count = prompt_tokens * _each(fields.requested_prompt_logprobs)
    if fields.requested_logprobs is not None:
        echoed = prompt_tokens if fields.echoes else 0
        held = not fields.stream or kind is AnswerKind.RESPONSE
        made = sum(sequence.sampling.max_new_tokens for sequence in sequences) if held else 0
        count += (echoed + made) * _each(fields.requested_logprobs)
    if count > MAX_LOGPROBS:
        text = f"{count} log probabilities (choices x tokens x those of each) were requested, at most {MAX_LOGPROBS}"
        param = "prompt_logprobs" if fields.requested_logprobs is None else "logprobs"
        raise ApiError(Kind.INVALID, f"{text} are accepted in one answer. Ask for fewer, or split the request.", param)


def _each(likeliest: int | None) -> int:
    """The number of log probabilities per token: its own and those of the likeliest tokens."""
    return 0 if likeliest is None else 1 + likeliest
