"""`cache_salt` reaches the engine with each sequence, and is refused while no engine knows it; a text that is not
stored is not for drafts of other requests."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from openai import OpenAI
from pydantic import ValidationError
from stack import NAME, Stack
from test_reading import FIGURES, asked

from gateway.errors import ApiError
from gateway.executor import FairExecutor
from gateway.http.headers import Caller
from gateway.model import ServedModel
from gateway.schemas.chat import ChatRequest
from gateway.schemas.completions import CompletionRequest
from gateway.schemas.responses import ResponseRequest
from gateway.validation import Validator, digest_of_inputs
from services.messages import EngineFigures
from services.requests import FEATURES, SamplingParams
from services.settings.settings import Settings
from services.wire import pack

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES = {
    ChatRequest: {"messages": MESSAGES},
    CompletionRequest: {"prompt": "hello"},
    ResponseRequest: {"input": "hello"},
}


def knowing(model: ServedModel, figures: EngineFigures) -> Validator:
    async def known() -> EngineFigures:
        return figures

    return Validator("gateway", model, Settings(), FairExecutor(), known)


async def test_each_sequence_has_the_salt(model: ServedModel) -> None:
    checker = knowing(model, replace(FIGURES, features=FEATURES))
    for limit in (5, 0):  # a request for no tokens computes its prompt, too
        body = {"prompt": "hello", "n": 2, "max_tokens": limit, "cache_salt": "s"}
        validated = await checker.completion(CompletionRequest.model_validate(body), Caller("tenant"))
        assert [each.sampling.cache_salt for each in validated.submission.sequences] == ["s", "s"]


@pytest.mark.parametrize(("store", "remembered"), [(None, True), (True, True), (False, False)])
async def test_a_text_that_is_not_stored_is_not_for_drafts(
    model: ServedModel, store: bool | None, remembered: bool
) -> None:
    checker = knowing(model, replace(FIGURES, features=FEATURES))
    assert (await asked(checker, store=store)).submission.remember is remembered
    completion = CompletionRequest.model_validate({"prompt": "hello", "store": store})
    assert (await checker.completion(completion, Caller("tenant"))).submission.remember is remembered


async def test_it_is_refused_by_name_while_no_engine_knows_it(model: ServedModel) -> None:
    checker = knowing(model, replace(FIGURES, features=()))
    await asked(checker)
    with pytest.raises(ApiError, match=r"'cache_salt'.*engines that run now") as refused:
        await asked(checker, cache_salt="s")
    assert refused.value.param == "cache_salt"


@pytest.mark.parametrize("model", BODIES)
@pytest.mark.parametrize("salt", ["", 5, ["s"], "s" * 2000])
def test_a_salt_is_a_text_that_is_not_empty(model: type[ChatRequest], salt: object) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate({**BODIES[model], "cache_salt": salt})
    assert {each["loc"][0] for each in refused.value.errors()} == {"cache_salt"}


def test_all_routes_take_it(stack: Stack) -> None:
    client, more = OpenAI(base_url=f"{stack.url}/v1", api_key="none"), {"cache_salt": "s"}
    for salt in (more, {"cache_salt": None}):
        assert client.chat.completions.create(model=NAME, messages=MESSAGES, extra_body=salt).choices
        assert client.completions.create(model=NAME, prompt="hello", extra_body=salt).choices
        assert client.responses.create(model=NAME, input="hello", extra_body=salt).output_text


def test_a_field_that_came_later_does_not_rename_requests_that_do_not_use_it() -> None:
    plain = SamplingParams(5)
    known = [getattr(plain, name) for name in SamplingParams.__dataclass_fields__ if name not in FEATURES]
    assert digest_of_inputs([[1]], [plain]) == hashlib.sha256(pack([[1], known])).hexdigest()
    assert len({digest_of_inputs([[1]], [replace(plain, cache_salt=salt)]) for salt in ("", "a", "b")}) == 3
