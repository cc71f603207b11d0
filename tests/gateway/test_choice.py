"""A choice that takes events at once is that which takes them one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from lives import Life, events_of, grouped, lives

from gateway.answer.choice import Choice
from gateway.answer.parsers.registry import make_parser
from services.messages import PromptLogprobs
from services.text import Tokenizer

STATE = ("added", "sent", "completion_tokens", "reasoning_tokens", "called", "calls_tools", "ended", "cached_tokens")


@given(life=lives(), with_stop=st.booleans(), parsed=st.booleans(), data=st.data())
def test_events_at_once_give_what_they_give_one_by_one(
    tokenizer: Tokenizer, life: Life, with_stop: bool, parsed: bool, data: st.DataObject
) -> None:
    text, sampling, outside, after = life
    events = events_of(tokenizer, (text, replace(sampling, include_stop=with_stop), outside, after))
    first = events[0]
    if first.logprobs is not None:
        events[0] = replace(first, logprobs=replace(first.logprobs, prompt=PromptLogprobs([], [], [], [])))
    sent = data.draw(st.integers(0, len(events)))  # a client that comes back has these
    stop_ids = frozenset(data.draw(st.sets(st.sampled_from([event.token for event in events if event.token] or [1]))))

    def choice() -> Choice:
        parser = make_parser("hermes", "qwen3", False, True) if parsed else None
        return Choice(0, tokenizer.tables, sampling.stop, stop_ids, sent, with_stop, parser=parser)

    one_by_one, at_once = choice(), choice()
    for some in data.draw(st.composite(lambda draw: list(grouped(draw, events)))()):
        for event in some:
            one_by_one.add(event)
        at_once.add_all(some)
        for name in STATE:
            assert getattr(at_once, name) == getattr(one_by_one, name), name
        assert str(at_once.error) == str(one_by_one.error)
        assert at_once.prompt_logprobs is one_by_one.prompt_logprobs
        allow_empty = data.draw(st.booleans())
        assert at_once.take(allow_empty) == one_by_one.take(allow_empty)
