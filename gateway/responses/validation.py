"""Validation of a response: the prompt is its conversation, including earlier turns.

A response has an item for each message, function call and so on; a chat template expects one message per turn. So a
function call is merged into the assistant's message before it, and reasoning into the one after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.answer.plan import AnswerKind
from gateway.errors import ApiError, Kind
from gateway.gateway import Gateway
from gateway.http.headers import Caller
from gateway.model import chat_tokens, conversation_size
from gateway.responses.input_items import item_ids
from gateway.responses.stored import Extra, find_response
from gateway.schemas.chat import Message
from gateway.schemas.responses import ResponseRequest
from gateway.validation import ValidatedRequest
from services.messages import EngineFigures
from services.requests import FinishReason

PREVIOUS = "previous_response_id"


async def validate_response(gateway: Gateway, fields: ResponseRequest, caller: Caller) -> ValidatedRequest:
    """Raises ApiError naming the field, its value and the limit; PoolUnavailable."""
    conversation, ids = await _conversation(gateway, fields, caller)

    def work(figures: EngineFigures) -> ValidatedRequest:
        prompt = _prompt(gateway, fields, conversation)
        extra = Extra(fields.echo(gateway.model.defaults), conversation, ids).pack()
        return gateway.validator.request(AnswerKind.RESPONSE, fields, [prompt], "input", figures, caller, extra)

    return await gateway.validator.validate(caller, caller.size + conversation_size(conversation), fields, work)


async def input_token_count(gateway: Gateway, fields: ResponseRequest, caller: Caller) -> int:
    """The number of prompt tokens of such a response. Raises ApiError as `validate_response` does."""
    conversation, _ = await _conversation(gateway, fields, caller)
    size = caller.size + conversation_size(conversation)
    prompt = await gateway.executor.run(caller.work_queue, size, _prompt, gateway, fields, conversation)
    if fields.truncate_prompt_tokens is not None:
        figures = await gateway.figures()
        prompt = gateway.validator.truncated(AnswerKind.RESPONSE, fields, prompt, figures)
    return len(prompt)


def turns(items: Sequence[Message]) -> list[Message]:
    """`items`, each as a message, with those of one turn of the assistant merged."""
    made: list[Message] = []
    reasoning = ""
    for item in items:
        if item.reasoning_content is not None:
            reasoning += item.reasoning_content
            continue
        before = made[-1] if made else None
        if reasoning and item.role != "assistant":
            made.append(Message(role="assistant", reasoning_content=reasoning))
        if before and not reasoning and _continues(item, before):
            calls = [*(before.tool_calls or []), *(item.tool_calls or [])]
            made[-1] = before.model_copy(update={"content": before.text + item.text, "tool_calls": calls})
        else:
            keeps = reasoning and item.role == "assistant"
            made.append(item.model_copy(update={"reasoning_content": reasoning}) if keeps else item)
        reasoning = ""
    if reasoning or not made:
        made.append(Message(role="assistant", reasoning_content=reasoning))
    return made


def _continues(item: Message, before: Message) -> bool:
    """Whether `item` belongs to the message of the assistant before it: a call, or text after a call."""
    if item.role != "assistant" or before.role != "assistant":
        return False
    return bool(before.tool_calls) or bool(item.tool_calls and not item.text)


async def _conversation(
    gateway: Gateway, fields: ResponseRequest, caller: Caller
) -> tuple[list[Message], list[str | None]]:
    """The items of the conversation, including those of earlier responses, and their ids."""
    gateway.validator.check_generates()
    conversation, ids = fields.messages, fields.item_ids
    if fields.previous_response_id:
        earlier, earlier_ids = await _earlier(gateway, fields.previous_response_id, caller.tenant)
        conversation, ids = [*earlier, *conversation], [*earlier_ids, *ids]
    return conversation, ids


def _prompt(gateway: Gateway, fields: ResponseRequest, conversation: list[Message]) -> list[int]:
    instructions = [] if fields.instructions is None else [Message(role="system", content=fields.instructions)]
    return chat_tokens(
        gateway.model,
        [*instructions, *turns(conversation)],
        gateway.validator.reading.own_marks,
        param="input",
        tools=fields.tool_use.for_template(),
        kwargs=fields.template_variables,
    )


async def _earlier(gateway: Gateway, id: str, tenant: str) -> tuple[list[Message], list[str]]:
    """The items up to the end of the response `id`, and their ids. As in OpenAI's API, its instructions are not part of
    them."""
    with await find_response(gateway.process, id, tenant, param=PREVIOUS) as stored:
        await stored.read(asyncio.get_running_loop().time())
        end, output = stored.transcript.end, stored.output
    if end is None:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' has not ended yet.", PREVIOUS)
    if end.reason is FinishReason.ERROR:
        raise ApiError(Kind.INVALID, f"Invalid '{PREVIOUS}': response '{id}' failed.", PREVIOUS)
    return [*stored.extra.conversation, *output.values()], [*item_ids(stored.head, stored.extra.ids), *output]
