"""Answers and their frames without a pool: the events that a scheduler commits and the frames that a client reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.answer.plan import AnswerKind, Plan
from gateway.model import ServedModel
from gateway.openai.answer import Answer
from services.messages import Logprobs, PromptLogprobs, TokenEvent
from services.requests import SamplingParams
from services.scheduling.stopping import StopChecker, StopRules

REQUEST = "cmpl-" + 32 * "0"
STOPS = ("ab", "bcd", "🐳")
PROMPT = PromptLogprobs([-2.0], [3], [5], [-1.5])  # of the prompt in LENGTHS; its first token has none
LENGTHS: dict[str, Any] = {"prompt_tokens": 2, "max_new_tokens": 99, "stop": STOPS, "prompts": [[1, 2]]}
PIECES = ["a", "b", "c", "d", " the", "né", "🐳", "漢", "hello world"]


def answer(model: ServedModel, choices: int = 1, said: Sequence[int] = (), **fields: Any) -> Answer:
    asked = {"kind": AnswerKind.CHAT, "created": 1, "digest": "", "choices": choices, "n": choices}
    return Answer(Plan(**asked | LENGTHS | fields), model, REQUEST, said)


def events_of(
    model: ServedModel, choice: int, tokens: list[int], logprobs: bool = False, **sampling: Any
) -> list[TokenEvent]:
    """The events that a scheduler commits, up to the end of the sequence."""
    rules = StopRules(1000, model.info.eos_token_ids, model.tokenizer.tables)
    checker = StopChecker(rules, SamplingParams(len(tokens), stop=STOPS, **sampling), 2)
    events = []
    for index, token in enumerate(tokens):
        found = Logprobs(-1.0, [(token, -1.0)], None if index else PROMPT) if logprobs else None
        events.append(TokenEvent(f"{REQUEST}/{choice}", index, token, found))
        if end := checker.check_stop(token, index + 1):
            return [*events, TokenEvent(f"{REQUEST}/{choice}", index + 1, None, end=end)]
    raise AssertionError(f"no end after {len(tokens)} tokens")


def read(frames: bytes) -> tuple[list[str], list[Any]]:
    """The ids and data of a stream that ends with [DONE]."""
    assert frames.endswith(b"\n\ndata: [DONE]\n\n")
    split = [event.split("\ndata: ") for event in frames.decode().split("\n\n")[:-2]]
    return [id.removeprefix("id: ") for id, _ in split], [json.loads(data) for _, data in split]


def said(chunks: list[Any], choice: int = 0) -> str:
    deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(delta["content"] for delta in deltas)


def told(chunks: list[Any], choice: int) -> dict[str, Any]:
    """The contents of all chunks of a choice."""
    all_of: dict[str, Any] = {"text": "", "tokens": [], "logprobs": [], "openings": 0, "reasons": []}
    for chunk in chunks:
        for said in chunk["choices"]:
            if said["index"] == choice:
                all_of["text"] += said["delta"]["content"] if "delta" in said else said["text"]
                all_of["tokens"] += said.get("token_ids") or ()
                all_of["logprobs"] += list(entries(said["logprobs"]))
                all_of["openings"] += "role" in said.get("delta", ()) or said.get("prompt_token_ids") is not None
                all_of["reasons"] += [said["finish_reason"]] if said["finish_reason"] else []
    return all_of


def entries(logprobs: Any) -> Any:
    if logprobs is None:
        return ()
    return logprobs["content"] if "content" in logprobs else zip(*logprobs.values(), strict=True)
