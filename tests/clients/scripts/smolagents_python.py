"""Hugging Face's smolagents: an agent whose every step is a forced call of a tool."""

from __future__ import annotations

from typing import Any

from examples import ASK
from smolagents import ChatMessage, OpenAIModel, Tool, ToolCallingAgent
from steps import API_KEY, BASE_URL, MODEL, expect, step

model = OpenAIModel(
    MODEL,
    api_base=BASE_URL,
    api_key=API_KEY,
    max_tokens=200,
    temperature=0,
    parallel_tool_calls=False,
    client_kwargs={"max_retries": 0},
)


class Look(Tool):
    name = "look"
    description = "Look at the sky."
    inputs = {"direction": {"type": "string", "enum": ["north", "south"], "description": "where to"}}  # noqa: RUF012 - smolagents reads it
    output_type = "string"
    called = 0

    def forward(self, direction: str) -> str:
        expect(direction in ("north", "south"), direction)
        Look.called += 1
        return "clouds"


MESSAGES: Any = [ChatMessage(role="user", content=[{"type": "text", "text": ASK}])]


@step("generate with tools")
def _() -> str:
    answer = model.generate(MESSAGES, tools_to_call_from=[Look()])
    (call,) = answer.tool_calls
    expect(call.function.name == "look", answer)
    return str(call.function.arguments)


@step("generate_stream with tools")
def _() -> None:
    parts = list(model.generate_stream(MESSAGES, tools_to_call_from=[Look()]))
    pieces = [piece for part in parts for piece in part.tool_calls or ()]
    expect("".join(piece.function.arguments or "" for piece in pieces).startswith('{"direction": "'), pieces)


@step("generate with a response_format")
def _() -> None:
    schema = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    answer = model.generate(MESSAGES, response_format=format)
    expect(answer.content in ('{"good": true}', '{"good": false}'), answer)


for streams in (False, True):

    @step(f"ToolCallingAgent{', streamed' if streams else ''}")
    def _(streams: bool = streams) -> None:
        Look.called = 0
        agent = ToolCallingAgent(tools=[Look()], model=model, max_steps=2, stream_outputs=streams)
        said = agent.run(ASK)
        expect(Look.called or said, said)
        for memory in agent.memory.steps:
            expect(not getattr(memory, "error", None), getattr(memory, "error", None))
