"""Requests as our own document and OpenAI's describe them, and some that neither allows.

No request gives a 500, hangs or stops the server. What our document describes is answered as it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai_document
import pytest
import schemathesis
from bodies import BODIES
from effort import effort
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from stack import Stack

pytestmark = pytest.mark.long

TIMEOUT = 20.0  # seconds, after which a request hangs
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


def operations(document: dict[str, Any]) -> Iterator[Any]:
    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        yield found.ok()


def cases(operation: Any) -> st.SearchStrategy[Case]:
    """What the document allows, what it does not, and a request that is answered with some fields of the former."""
    allowed = operation.as_strategy()
    kinds = [allowed, operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)]
    body = BODIES.get("/v1" + operation.path.removeprefix("/v1")) or BODIES.get(operation.path)
    if body is not None and operation.method == "post":
        kinds += [mixed(allowed, body)] * 2
    return st.one_of(kinds)


@st.composite
def mixed(draw: st.DrawFn, allowed: st.SearchStrategy[Case], body: dict[str, Any]) -> Case:
    case = draw(allowed)
    if isinstance(case.body, dict):
        fields = sorted(case.body.keys() - body.keys())
        kept = draw(st.lists(st.sampled_from(fields), max_size=2)) if fields else []
        case.body = body | {field: case.body[field] for field in kept}
    return case


def test_our_document(served: Stack, http: httpx.Client) -> None:
    for operation in operations(http.get("/openapi.json").json()):

        @effort(4)
        @given(cases(operation))
        def send(case: Case) -> None:
            answer = case.call(base_url=served.url, timeout=TIMEOUT)
            # schemathesis holds a schema of an event stream against whole events, the documents mean their data
            events = "text/event-stream" in answer.headers.get("content-type", [""])[0]
            case.validate_response(answer, checks=[*CHECKS, *([] if events else [response_schema_conformance])])

        send()


def test_openai_s_document(served: Stack, http: httpx.Client) -> None:
    ours = {re.sub("{.*?}", "{}", path.removeprefix("/v1")) for path in http.get("/openapi.json").json()["paths"]}
    theirs = openai_document.whole()
    paths = {path: methods for path, methods in theirs["paths"].items() if re.sub("{.*?}", "{}", path) in ours}
    assert len(paths) >= 10
    for operation in operations({**theirs, "paths": paths}):

        @effort(2)
        @given(cases(operation))
        def send(case: Case) -> None:
            case.call_and_validate(base_url=served.url + "/v1", checks=[not_a_server_error], timeout=TIMEOUT)

        send()
