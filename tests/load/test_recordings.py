"""A recording has each token of each request once, and shows what tells the two policies apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from load.recording import BATCH, POLICIES, example, file_of
from load.simulation import __main__ as simulate


def iterations(file: Path) -> list[dict[str, Any]]:
    events = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert {event["event"] for event in events} == {"iterations"}
    return [iteration for event in events for iteration in event["data"]["iterations"]]


def batches(recorded: list[dict[str, Any]]) -> list[set[int]]:
    return [{n for n, *_ in iteration["requests"]} for iteration in recorded]


def joins(recorded: list[dict[str, Any]]) -> int:
    """In how many iterations a request runs for the first time beside one that ran before."""
    seen: set[int] = set()
    found = 0
    for batch in batches(recorded):
        found += bool(batch - seen and batch & seen)
        seen |= batch
    return found


def check(folder: Path) -> None:
    """Both recordings have the example's tokens. Under request-level scheduling no request joins a batch."""
    for policy in POLICIES:
        recorded = iterations(file_of(folder, policy))
        sizes: dict[int, list[int]] = {}
        for iteration in recorded:
            for n, tokens, kind in iteration["requests"]:
                sizes.setdefault(n, [0, 0])[0 if kind == "i" else 1] += tokens
        expected = [[len(request.prompt), request.max_new_tokens - 1] for request in example(1)]
        assert sorted(sizes.values()) == sorted(expected)
        ends = [n for iteration in recorded for n, _ in iteration["ended"]]
        assert sorted(ends) == sorted(sizes)
        assert max(map(len, batches(recorded))) == BATCH
        assert bool(joins(recorded)) == (policy == "iteration")
        times = [iteration["at"] for iteration in recorded]
        assert times == sorted(times)
        assert times[0] >= 0


def test_the_simulator_records_both_policies(tmp_path: Path) -> None:
    simulate.main(["--record", str(tmp_path)])
    check(tmp_path)
    assert all(file_of(tmp_path, policy).stat().st_size < 50_000 for policy in POLICIES)
    slow, fast = (iterations(file_of(tmp_path, policy))[-1]["at"] for policy in POLICIES)
    assert slow > fast, "virtual times"
