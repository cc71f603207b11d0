"""`python -m load.schemas.answers SUITE ...`: answers to random schemas of suites, checked by jsonschema.

SUITE is a folder as for `load.schemas.compare`. The requests are chats at temperature 1 whose `response_format` is the
schema. Ends with status 1 if an answer that ended by itself is not valid, if a request failed, or if fewer than
`--ended` answers ended by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from load.report import machine, table
from load.schemas.suites import Case, read, sample
from load.schemas.verdicts import NotJudged, error_of, reasons_in
from load.server import OrcaServer
from services.progress import Bar

QUOTED = 600  # characters of the schema that the prompt quotes
TIMEOUT = 600.0  # seconds for one answer
ENDED, INVALID, UNJUDGED = "ended, valid", "ended, invalid", "ended, jsonschema cannot tell"
CUT, REFUSED, FAILED = "cut at max_tokens", "refused", "failed"


@dataclass(frozen=True, slots=True)
class Reply:
    """The `outcome` of a case, one of the names above. `what`: the reason, or the text of an invalid answer."""

    case: Case
    outcome: str
    what: str = ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m load.schemas.answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+", type=Path, metavar="SUITE")
    parser.add_argument("--count", type=int, default=500, help="schemas of all suites together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of schemas, and of the answers")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--together", type=int, default=16, help="requests at once")
    parser.add_argument("--ended", type=int, default=300, help="answers that must end by themselves")
    parser.add_argument("--url", help="a running server (default: start one)")
    given = parser.parse_args(arguments)
    cases = sample([case for folder in given.suites for case in read(folder)], given.count, given.seed)
    print(f"Measured on {machine()}.\n", flush=True)
    with _server(given.url) as url:
        replies = asyncio.run(ask_all(url, cases, given.max_tokens, given.seed, given.together))
    print(report(replies))
    for reply in replies:
        if reply.outcome in (INVALID, UNJUDGED, FAILED):
            print(f"{reply.outcome}: {reply.case.name}: {reply.what[:500]}")
    counts = Counter(reply.outcome for reply in replies)
    sys.exit(int(counts[INVALID] + counts[FAILED] > 0 or counts[ENDED] < given.ended))


@contextlib.contextmanager
def _server(url: str | None) -> Iterator[str]:
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder, OrcaServer(Path(folder)) as server:
        yield server.url


async def ask_all(url: str, cases: Sequence[Case], max_tokens: int, seed: int, together: int) -> list[Reply]:
    """The replies in the order of `cases`, `together` at once."""
    turn = asyncio.Semaphore(together)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as client:

        async def ask(place: int, case: Case) -> Reply:
            async with turn:
                try:
                    response = await client.post("/v1/chat/completions", json=body(case, max_tokens, seed + place))
                except httpx.HTTPError as error:
                    return Reply(case, FAILED, repr(error))
                finally:
                    bar.update()
            return reply_of(case, response.status_code, response.json())

        with Bar(desc="answers", total=len(cases), unit="schemas") as bar:
            return await asyncio.gather(*(ask(place, case) for place, case in enumerate(cases)))


def body(case: Case, max_tokens: int, seed: int) -> dict[str, Any]:
    """The request for a document that is valid by the case's schema."""
    asked = f"Give a short example of JSON that is valid by this schema: {json.dumps(case.schema)[:QUOTED]}"
    schema = {"name": "document", "strict": True, "schema": case.schema}
    return {
        "messages": [{"role": "user", "content": asked}],
        "response_format": {"type": "json_schema", "json_schema": schema},
        "temperature": 1,
        "seed": seed,
        "max_tokens": max_tokens,
    }


def reply_of(case: Case, status: int, answer: dict[str, Any]) -> Reply:
    """Judge an answer of the server."""
    if status == 400:
        return Reply(case, REFUSED, answer["error"]["message"])
    if status != 200:
        return Reply(case, FAILED, f"status {status}: {answer}")
    choice = answer["choices"][0]
    if choice["finish_reason"] == "length":
        return Reply(case, CUT)
    text = choice["message"]["content"]
    if choice["finish_reason"] != "stop":
        return Reply(case, FAILED, f"finish_reason {choice['finish_reason']!r} after {text!r}")
    try:
        wrong = error_of(text, case.schema)
    except NotJudged as error:
        return Reply(case, UNJUDGED, str(error))
    if wrong:
        return Reply(case, INVALID, f"{wrong}: {text}")
    return Reply(case, ENDED)


def group_of(case: Case) -> str:
    """The group in which the case is counted."""
    if case.remote:
        return "refers to another document"
    return "boolean or empty" if case.trivial else "others"


def report(replies: Sequence[Reply]) -> str:
    """The table of outcomes by group of schemas, and that of the reasons of refusals."""
    outcomes = (ENDED, INVALID, UNJUDGED, CUT, REFUSED, FAILED)
    groups = Counter(group_of(reply.case) for reply in replies)
    counts = Counter((group_of(reply.case), reply.outcome) for reply in replies)
    rows: list[list[object]] = [
        [group, number, *(counts[group, outcome] for outcome in outcomes)] for group, number in groups.most_common()
    ]
    total = Counter(reply.outcome for reply in replies)
    rows.append(["all", len(replies), *(total[outcome] for outcome in outcomes)])
    reasons = Counter(kind for reply in replies if reply.outcome == REFUSED for kind in reasons_in(reply.what))
    return (
        table(["schemas", "count", *outcomes], rows)
        + "\n\n"
        + table(["refused because of", "schemas"], reasons.most_common())
    )


if __name__ == "__main__":
    main()
