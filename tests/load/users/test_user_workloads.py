"""What the Locust users send, by the names of workloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.users.workloads import BY_NAME, CUSTOM, workload
from load.workloads import paper


@pytest.mark.parametrize("name", ["paper", "short_long_mix", "equal_size"])
def test_sized_prompts_share_no_beginning(name: str) -> None:
    """Else a prefix cache would answer a part of them."""
    contents = [BY_NAME[name](number) for number in range(130)]
    assert all(content.exact and isinstance(content.prompt, list) for content in contents)
    assert len({tuple(content.prompt[:16]) for content in contents}) == 130
    assert len({tuple(content.chat.split()[:16]) for content in contents}) == 130
    assert all(len(content.chat.split()) == len(content.prompt) for content in contents)


def test_paper_is_the_trace_of_the_benchmarks() -> None:
    contents = [BY_NAME["paper"](number) for number in range(64)]
    assert [(content.prompt, content.max_tokens) for content in contents] == [
        (request.prompt, request.max_new_tokens) for request in paper()
    ]


def test_a_file_has_prompts_messages_or_lines_of_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"prompt": "once", "max_tokens": 5}\n\n{"messages": [{"role": "user", "content": "hi"}], "stream": false}\n'
        '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": [5, 6]}}\n'
    )
    lines = workload(CUSTOM, str(path))
    assert (lines(0).prompt, lines(0).chat, lines(0).fields) == ("once", "once", {"max_tokens": 5})
    assert lines(1).fields == {"messages": [{"role": "user", "content": "hi"}]}
    assert (lines(2).prompt, lines(2).fields) == ([5, 6], {})
    assert lines(3) == lines(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"max_tokens": 5}', "line 2: a request has"),
        ("[]", "line 1"),
        ("{", "line 1"),
        ("\n", "no request"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        workload(CUSTOM, str(path))
