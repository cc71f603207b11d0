"""The door: a request that can run becomes a `Ticket`, any other an error. Past it nothing is checked again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.caller import Caller
from gateway.errors import ApiError, Kind
from gateway.feasible import check_choice, check_logprobs
from gateway.model import ServedModel
from gateway.plan import AnswerKind, Plan
from gateway.prompts import chat_tokens, text_tokens
from gateway.schemas.chat import ChatRequest
from gateway.schemas.common import GenerationFields
from gateway.schemas.completions import CompletionRequest
from gateway.vllm_fields import Words, bad_word_ids, truncated
from services.config import Settings
from services.messages import EngineFigures, NewSequence, Submission
from services.requests import SamplingParams

MAX_SEQUENCES = 2048  # prompts x n of one HTTP request
STREAM_FIELDS = {"stream", "stream_options"}  # the same request may be followed in either way


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that can run, and how its client wants the answer. `submission.body` is the plan."""

    submission: Submission
    plan: Plan
    stream: bool


class Door:
    """Checks what a schema cannot: the model's name, vocabulary and length, an engine's KV slots.

    Its methods take long for what is long: they are for the `Desk`."""

    def __init__(self, gateway: str, model: ServedModel, settings: Settings) -> None:
        self._gateway = gateway
        self._model = model
        self._settings = settings

    def completion(self, fields: CompletionRequest, figures: EngineFigures, caller: Caller) -> Ticket:
        """Raises ApiError naming the field, its value and the limit."""
        self.check_model(fields.model)
        self._check_count(len(fields.prompt) * fields.choices)
        texts = [p for p in fields.prompt if isinstance(p, str)]
        special = fields.add_special_tokens is not False
        whole = fields.truncate_prompt_tokens is None
        encoded = iter(text_tokens(self._model, texts, special, "prompt", whole))
        prompts = [next(encoded) if isinstance(p, str) else p for p in fields.prompt]
        for prompt in prompts:
            self.check_ids(prompt, "prompt")
        # What is cut is not what the client wrote: it is echoed as its tokens say.
        given = [p if isinstance(p, str) and whole else "" for p in fields.prompt]
        return self.ticket(AnswerKind.COMPLETION, fields, prompts, "prompt", figures, caller, texts=given)

    def chat(self, fields: ChatRequest, figures: EngineFigures, caller: Caller) -> Ticket:
        """Raises ApiError naming the field, its value and the limit."""
        self.check_model(fields.model)
        prompt = chat_tokens(
            self._model,
            fields.messages,
            fields.add_generation_prompt,
            continue_final_message=bool(fields.continue_final_message),
            add_special_tokens=bool(fields.add_special_tokens),
        )
        return self.ticket(AnswerKind.CHAT, fields, [prompt], "messages", figures, caller)

    def ticket(
        self,
        kind: AnswerKind,
        fields: GenerationFields,
        prompts: list[list[int]],
        param: str,
        figures: EngineFigures,
        caller: Caller,
        extra: bytes = b"",
        texts: Sequence[str] = (),
    ) -> Ticket:
        """What `fields` ask of `prompts` (token ids, checked). `param` is the field that errors about them name;
        `extra` goes into the plan, and `texts`, the prompts as they were written, where they are echoed.

        Raises ApiError naming the field, its value and the limit."""
        self.check_ids(list(fields.logit_bias), "logit_bias")
        self.check_ids(fields.stop_token_ids or [], "stop_token_ids")
        self.check_ids(fields.allowed_token_ids or [], "allowed_token_ids")
        bad_words = bad_word_ids(self._model.tokenizer, fields.bad_words)
        self.check_ids([id for word in bad_words for id in word], "bad_words")
        prompts = [self.kept(kind, fields, prompt, figures) for prompt in prompts]
        digest = digest_of(fields)
        self._check_class(fields, caller.tenant)
        request = kind.prefix + caller.name(digest)
        sequences = self._sequences(kind, fields, request, prompts, param, figures, caller.seed(), bad_words)
        check_choice(sequences[0].sampling, self._model.info.eos_token_ids, self._model.info.vocab_size)
        check_logprobs(kind, fields, prompts, sequences)
        tier = _service_tier(kind, fields, self._settings.order)
        plan = _plan(kind, fields, digest, prompts, sequences, tier, extra, texts)
        submission = Submission(
            request=request,
            gateway=self._gateway,
            sequences=sequences,
            tenant=caller.tenant,
            idempotency_key=caller.idempotency_key,
            body=plan.pack(),
            resumable=caller.resumable,
            background=caller.background,
            priority=fields.request_class,
            ttft=fields.ttft_target or 0.0,
            queue_timeout=self._settings.queue_timeout if caller.queue_timeout is None else caller.queue_timeout,
        )
        return Ticket(submission, plan, bool(fields.stream))

    def kept(self, kind: AnswerKind, fields: GenerationFields, prompt: list[int], figures: EngineFigures) -> list[int]:
        """The tokens of `prompt` that `truncate_prompt_tokens` keeps."""
        return truncated(prompt, fields, self._longest(kind, fields, figures))

    def check_model(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            text = f"The model '{name[:100]}' does not exist; this server serves '{self._model.name}'."
            raise ApiError(Kind.MODEL_NOT_FOUND, text, "model")

    def _check_class(self, fields: GenerationFields, tenant: str) -> None:
        earliest = self._settings.earliest_class_of(tenant)
        if fields.request_class < earliest:
            param = "service_tier" if fields.priority is None else "priority"
            text = f"Invalid '{param}': it asks for class {fields.request_class}, yours is {earliest} at the earliest."
            raise ApiError(Kind.INVALID, text, param)

    def _sequences(
        self,
        kind: AnswerKind,
        fields: GenerationFields,
        request: str,
        prompts: list[list[int]],
        param: str,
        figures: EngineFigures,
        seed: int,
        bad_words: Words,
    ) -> list[NewSequence]:
        """`n` choices of each prompt; choice index = prompt index x n + j."""
        sequences: list[NewSequence] = []
        for prompt in prompts:
            if not prompt:
                raise ApiError(Kind.INVALID, f"Invalid '{param}': it has no tokens.", param)
            most = self._max_new_tokens(kind, fields, len(prompt), param, figures)
            sampling = fields.sampling(most, seed, bad_words)
            if sampling.min_tokens > sampling.max_new_tokens:
                text = f"'min_tokens' {sampling.min_tokens} is over the {sampling.max_new_tokens} tokens at most."
                raise ApiError(Kind.INVALID, text, "min_tokens")
            if fields.asked_max_tokens == 0:
                sampling = _unseen(sampling)
            for _ in range(fields.choices):
                choice = len(sequences)
                sequences.append(NewSequence(f"{request}/{choice}", prompt, replace(sampling, choice=choice)))
        return sequences

    def _longest(self, kind: AnswerKind, fields: GenerationFields, figures: EngineFigures) -> int:
        """How many tokens of a prompt leave room for the output that is asked for."""
        asked = fields.asked_max_tokens
        if asked is None:
            asked = self._settings.completion_max_tokens if kind is AnswerKind.COMPLETION else 1
        return max(1, min(figures.max_model_len, figures.num_slots) - max(asked, 1))

    def _max_new_tokens(
        self, kind: AnswerKind, fields: GenerationFields, length: int, param: str, figures: EngineFigures
    ) -> int:
        asked = fields.asked_max_tokens
        total = length + (asked or 1)
        asking = f"{length} tokens in '{param}' and {asked or 'at least 1'} to generate"
        if total > figures.max_model_len:
            text = f"This model's maximum context length is {figures.max_model_len} tokens, but {asking} were asked."
            raise ApiError(Kind.CONTEXT_LENGTH, text, param)
        if total > figures.num_slots:
            text = f"An engine has KV slots for {figures.num_slots} tokens, but {asking} were asked."
            raise ApiError(Kind.CONTEXT_LENGTH, text, param)
        if asked is not None:
            return asked
        plain = kind is AnswerKind.COMPLETION
        default = self._settings.completion_max_tokens if plain else self._settings.chat_max_tokens
        return min(default, min(figures.max_model_len, figures.num_slots) - length)

    def _check_count(self, count: int) -> None:
        limit = min(MAX_SEQUENCES, self._settings.max_waiting)
        if count > limit:
            text = f"{count} choices (prompts x n) were asked, at most {limit} are taken in one request."
            raise ApiError(Kind.INVALID, text, "prompt")

    def check_ids(self, ids: list[int], param: str) -> None:
        size = self._model.info.vocab_size
        wrong = next((i for i in ids if not 0 <= i < size), None)
        if wrong is not None:
            text = f"Invalid '{param}': token id {wrong} is not in the vocabulary of {size} tokens."
            raise ApiError(Kind.INVALID, text, param)


def _service_tier(kind: AnswerKind, fields: GenerationFields, order: str) -> str | None:
    """The tier that the answer names, as OpenAI's document has it: of responses always, of chat where the request names
    one, of completions never. It says how the request was served: by arrival there is one tier."""
    if kind is AnswerKind.COMPLETION or (kind is AnswerKind.CHAT and fields.service_tier is None):
        return None
    if order == "fcfs" or fields.request_class == 0:
        return "default"
    return "priority" if fields.request_class < 0 else "flex"


def _plan(
    kind: AnswerKind,
    fields: GenerationFields,
    digest: str,
    prompts: list[list[int]],
    sequences: list[NewSequence],
    tier: str | None,
    extra: bytes,
    texts: Sequence[str],
) -> Plan:
    scored = fields.asked_prompt_logprobs
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
        with_logprobs=fields.asked_logprobs is not None,
        stop=fields.stop,
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        ignore_eos=bool(fields.ignore_eos),
        service_tier=tier,
        prompts=prompts if fields.return_token_ids or fields.echoes or scored is not None else [],
        extra=extra,
        include_stop=bool(fields.include_stop_str_in_output),
        skip_special_tokens=fields.skip_special_tokens is not False,
        continuous_usage=fields.continuous_usage,
        echo=fields.echoes,
        texts=list(texts) if fields.echoes else [],
        logprobs=fields.asked_logprobs or 0,
        prompt_logprobs=scored,
        silent=fields.asked_max_tokens == 0,
    )


def _unseen(sampling: SamplingParams) -> SamplingParams:
    """The one token of a request for none: it is no part of the answer, so it is the likeliest, and always ends by
    length."""
    asked = sampling.prompt_logprobs
    return SamplingParams(
        1, temperature=0.0, logprobs=None if asked is None else 0, ignore_eos=True, prompt_logprobs=asked
    )


def digest_of(fields: GenerationFields) -> str:
    """What tells whether two HTTP requests ask for the same."""
    asked = fields.model_dump_json(exclude=STREAM_FIELDS, exclude_unset=True)
    return hashlib.sha256(asked.encode()).hexdigest()
