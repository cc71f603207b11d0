"""Schemathesis against the server's own document, bounded in time.

It makes requests that the document allows and requests that it does not, and holds the answers against the document.
Requests are asked to be short: a real model answers each.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from steps import BIN, SCRATCH, URL, expect, run, step

SECONDS = 60
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
LENGTHS = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 16, "n": 2}


def shorten(part: Any) -> None:
    """Every object with a length is to have one, and a small one."""
    if isinstance(part, dict):
        properties = part.get("properties")
        if isinstance(properties, dict):
            for name in LENGTHS.keys() & properties.keys():
                properties[name] = {"type": "integer", "minimum": 1, "maximum": LENGTHS[name]}
            part["required"] = sorted({*part.get("required", ()), *(LENGTHS.keys() & properties.keys())})
        for value in part.values():
            shorten(value)
    elif isinstance(part, list):
        for value in part:
            shorten(value)


@step("the document is served")
def _() -> str:
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=30) as reply:
        document = json.load(reply)
    for path in document["paths"].values():
        shorten(path)
    shorten(document.get("components", {}))
    (SCRATCH / "openapi.json").write_text(json.dumps(document))
    return f"{len(document['paths'])} paths"


@step("every answer is one that the document allows")
def _() -> str:
    expect((SCRATCH / "openapi.json").exists(), "no document")
    said = run(
        *(BIN / "schemathesis", "run", SCRATCH / "openapi.json", "--url", URL, "--checks", CHECKS),
        *("--max-time", SECONDS, "--phases", "examples,coverage,fuzzing", "--continue-on-failure"),
        *("--request-timeout", 60, "--warnings", "off", "--no-color"),
    )
    return next(line for line in reversed(said.splitlines()) if "passed" in line or "generated" in line)
