"""The thinking budget: where it ends the reasoning, as a function of the output alone."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from letters import letters
from mixed_requests import EOS

from services.engine.batch.request_state import RequestState
from services.engine.batch.thinking import ThinkingLimit
from services.engine.sampling.sampler import Sampler
from services.errors import ModelError
from services.requests import SamplingParams, ThinkingBudget
from services.text import TextTables

PIECES = [" ", "\n", "<th", "ink>", "<think>", "</th", "</think>", "a", "b", "\n\n", "> <think>"]
SPELLED = [piece.encode() for piece in PIECES]
CLOSING = (1, 6, 9)
OPENED = ThinkingBudget(3, "<think>", "</think>", CLOSING, opened=True)
CLOSED = replace(OPENED, opened=False)
PARTS = replace(CLOSED, again=(6, 8))


def limit_of(budget: ThinkingBudget) -> ThinkingLimit:
    tables: Future[TextTables] = Future()
    tables.set_result(TextTables([b""] * len(SPELLED), frozenset(), TextTables(SPELLED, frozenset())))
    return ThinkingLimit(budget, tables, num_prompt_tokens=2)


def written(budget: ThinkingBudget, wanted: list[str]) -> str:
    """The text of an output that follows `wanted` where it may."""
    limit, tokens = limit_of(budget), [0, 0]
    for piece in wanted:
        forced = limit.forced(tokens)
        tokens.append(PIECES.index(piece) if forced is None else forced)
    return "|".join(PIECES[token] for token in tokens[2:])


@pytest.mark.parametrize(
    ("budget", "wanted", "text"),
    [
        (OPENED, ["a"] * 8, "a|a|a|\n|</think>|\n\n|a|a"),
        (replace(OPENED, tokens=0), ["a"] * 5, "\n|</think>|\n\n|a|a"),
        (OPENED, ["a", "</think>", *["b"] * 4], "a|</think>|b|b|b|b"),
        (OPENED, ["a", "</th", "ink>", *["b"] * 4], "a|</th|ink>|b|b|b|b"),  # the mark in other tokens
        (OPENED, ["a", "a", "</th", *["b"] * 5], "a|a|</th|\n|</think>|\n\n|b|b"),  # a part of it is no mark
        (CLOSED, ["a"] * 8, "a|a|a|a|a|a|a|a"),  # no reasoning
        (CLOSED, ["a", "<think>", *["b"] * 5], "a|<think>|b|b|b|b|b"),  # not at the beginning
        (CLOSED, [" ", "<th", "ink>", *["b"] * 7], " |<th|ink>|b|b|b|\n|</think>|\n\n|b"),
        (replace(CLOSED, tokens=0), ["<think>", *["b"] * 4], "<think>|\n|</think>|\n\n|b"),
        (CLOSED, ["<think>", "</think>", "<think>", *["b"] * 4], "<think>|</think>|<think>|b|b|b|b"),
        (
            PARTS,
            ["a", "<think>", "b", "</think>", "a", "> <think>", *["a"] * 6, "<think>", *["a"] * 3, "<think>", "a", "a"],
            "a|<think>|b|</think>|a|> <think>|a|\n|</think>|\n\n|a|a|<think>|</think>|b|a|<think>|</think>|b",
        ),
    ],
)
def test_the_budget_ends_the_reasoning(budget: ThinkingBudget, wanted: list[str], text: str) -> None:
    assert written(budget, wanted) == text


@given(st.builds(replace, st.sampled_from([OPENED, CLOSED, PARTS]), tokens=st.integers(0, 4)), st.data())
def test_it_is_a_function_of_the_output(budget: ThinkingBudget, data: st.DataObject) -> None:
    """A limit that is made again from any part of an output goes on as the first one, also where a grammar refuses what
    the budget asks for."""
    limit, tokens = limit_of(budget), [0, 0]
    for _ in range(data.draw(st.integers(0, 24))):
        forced = limit.forced(tokens)
        assert forced == limit_of(budget).forced(tokens)
        refused = forced is None or data.draw(st.integers(0, 4)) == 0
        tokens.append(data.draw(st.integers(0, len(PIECES) - 1)) if refused else forced)


def test_a_request_fails_alone_if_the_texts_of_tokens_cannot_be_read() -> None:
    failed: Future[TextTables] = Future()
    failed.set_exception(ModelError("no tokenizer.json"))
    limit = ThinkingLimit(OPENED, failed, 0)
    assert limit.forced([1]) is None
    assert limit.error == "the thinking budget cannot be applied: no tokenizer.json"


def test_no_setting_but_the_grammar_forbids_what_the_budget_forces() -> None:
    budget = ThinkingBudget(1, "<", "zq", (25, 16), opened=True)
    settings = SamplingParams(
        9,
        allowed_token_ids=(1, 2),
        bad_words=((25,),),
        min_tokens=9,
        stop_token_ids=(16,),
        thinking_token_budget=budget,
    )
    sampler = Sampler(EOS, 60, None, letters(60))
    state = RequestState("0", [3, 1], 1, settings)
    for token in (25, 16):
        sampler.prepare(state)
        assert state.allowed
        assert state.allowed.ids.tolist() == [token]
        assert state.adjustments is None
        state.append(token)
    sampler.prepare(state)
    assert state.allowed
    assert state.allowed.ids.tolist() == [1, 2]
    assert state.adjustments

    inside = RequestState("1", [3, 1], 1, SamplingParams(9, grammar="start: /bbzq/", thinking_token_budget=budget))
    sampler.prepare(inside)
    assert inside.allowed is None  # the grammar has a second b first
    inside.append(1)
    sampler.prepare(inside)
    assert inside.allowed
    assert inside.allowed.ids.tolist() == [25]
