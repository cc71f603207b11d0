"""The recorded sample, which tests of the page replay: events as `services.live` describes them."""

from __future__ import annotations

import json
from pathlib import Path

from services.live.frames import Work

SAMPLE = Path(__file__).parent / "data" / "live_sample.jsonl"


def test_the_sample_has_all_that_a_page_shows() -> None:
    events = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    described: dict[str, dict[str, object]] = {}
    steps, works, ended, preempted = [], set[str](), dict[str, str](), set[int]()
    for event in events:
        if event["event"] == "state":
            assert [engine["name"] for engine in event["data"]["engines"]] == ["c/0"]
            continue
        assert event["event"] == "iterations"
        described |= event["data"]["requests"]
        for frame in event["data"]["iterations"]:
            steps.append(frame["step"])
            assert {str(n) for n, _, _ in frame["requests"]} <= set(described) - set(ended)
            works |= {work for _, _, work in frame["requests"]}
            ended |= {str(n): reason for n, reason in frame["ended"]}
            preempted |= set(frame["preempted"])
    assert steps == list(range(1, len(steps) + 1))
    assert works == set(Work)
    assert ended.keys() == described.keys()
    assert set(ended.values()) == {"length", "cancelled"}
    assert preempted
    assert len({"id" in request for request in described.values()}) == 2
