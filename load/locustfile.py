"""Locust users of any OpenAI server; see docs/load_testing.md.

    locust -f load/locustfile.py --host http://127.0.0.1:8000                                   # the web page
    locust -f load/locustfile.py --host http://127.0.0.1:8000 --headless -u 8 -t 60s [ChatUser ...]

Without names of users, ChatUser runs alone; `--list` lists them, and `--class-picker` offers users and
shapes on the page.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

# from any folder, also where only Locust and orjson are installed; an installed package comes first
sys.path.append(str(Path(__file__).resolve().parents[1]))

from locust import events
from locust.runners import WorkerRunner

from load.users.load_test import LoadTest
from load.users.openai_user import OpenAIUser, ResumingUser
from load.users.options import OPEN_LOOP_USERS, add_arguments, check, is_open, read_schema
from load.users.shapes import SHAPES, KneeShape, RampShape, SpikeShape, StepShape
from load.users.workloads import Content
from services.client.sse import StreamedAnswer, StreamError

__all__ = ["KneeShape", "RampShape", "SpikeShape", "StepShape"]  # Locust looks for shapes here


@events.init_command_line_parser.add_listener
def _arguments(parser: ArgumentParser) -> None:
    add_arguments(parser)


@events.init.add_listener
def _init(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    # Locust would use the first shape and all users that it finds in this file
    if options.shape != "constant" or isinstance(environment.shape_class, SHAPES):
        environment.shape_class = next((shape() for shape in SHAPES if shape.kind == options.shape), None)
    if environment.shape_class is not None:
        environment.shape_class.runner = environment.runner
    if not options.user_classes and not isinstance(environment.runner, WorkerRunner):
        derived = [user for user in environment.user_classes if user.__module__ != __name__]
        environment.user_classes[:] = derived or [ChatUser]
    if is_open(options):
        options.num_users = options.num_users or OPEN_LOOP_USERS
    if is_open(options) or options.shape != "constant":
        options.spawn_rate = options.spawn_rate or 100
    try:
        check(options.shape, options)
    except ValueError as error:
        sys.exit(f"locust: error: {error}")
    LoadTest(environment)


class ChatUser(OpenAIUser):
    """Streams chats."""

    path = "/v1/chat/completions"

    def asks(self, content: Content, conversation: list[dict[str, str]]) -> dict[str, Any]:
        system = [{"role": "system", "content": content.system}] if content.system else []
        fields: dict[str, Any] = {"messages": [*system, *conversation, {"role": "user", "content": content.chat}]}
        if self.test.options.schema:
            described = {"name": "document", "strict": True, "schema": read_schema(self.test.options.schema)}
            fields |= {"response_format": {"type": "json_schema", "json_schema": described}}
        return fields


class CompletionUser(OpenAIUser):
    """Streams completions."""

    path = "/v1/completions"

    def asks(self, content: Content, conversation: list[dict[str, str]]) -> dict[str, Any]:
        if "messages" in content.fields:
            raise ValueError("a line with 'messages' cannot be sent as a completion; use ChatUser")
        if conversation:
            so_far = "".join(f"{turn['content']}\n" for turn in conversation)
            return {"prompt": f"{so_far}{content.prompt}"}
        return {"prompt": content.prompt}


class UnstreamedChatUser(ChatUser):
    """Waits for whole answers of chats."""

    streams = False


class UnstreamedCompletionUser(CompletionUser):
    """Waits for whole answers of completions."""

    streams = False


class ResumingChatUser(ChatUser, ResumingUser):
    """Streams chats, and resumes a stream that breaks."""


class ResumingCompletionUser(CompletionUser, ResumingUser):
    """Streams completions, and resumes a stream that breaks."""


class ToolUser(ChatUser):
    """Streams chats that must call a tool; an answer without a call, or whose arguments are no JSON object, fails,
    unless `--max-tokens` cut it off."""

    tools = (
        {
            "type": "function",
            "function": {
                "name": "look_up",
                "description": "Look something up in an encyclopedia.",
                "parameters": {
                    "type": "object",
                    "properties": {"topic": {"type": "string", "maxLength": 40}},
                    "required": ["topic"],
                    "additionalProperties": False,
                },
            },
        },
    )

    def asks(self, content: Content, conversation: list[dict[str, str]]) -> dict[str, Any]:
        return super().asks(content, conversation) | {"tools": list(self.tools), "tool_choice": "required"}

    def check(self, answer: StreamedAnswer) -> None:
        super().check(answer)
        if answer.choices[0].finish_reason == "length":
            return  # --max-tokens cut the call off
        calls = answer.choices[0].calls
        if not calls:
            raise StreamError("the answer called no tool")
        for call in calls:
            try:
                arguments = json.loads(call.arguments)
            except ValueError:
                arguments = None
            if not isinstance(arguments, dict):
                raise StreamError(f"the arguments of a call are no JSON object: {call.arguments[:100]}")
