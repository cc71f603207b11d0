"""Schemathesis against the server's own document, bounded in time.

It makes requests that the document allows and requests that it does not, and holds the answers against the document.
Fields that only change what a request costs are small: the server answers each with a real model.
"""

from __future__ import annotations

import json
import sys
import urllib.request

from steps import BIN, SCRATCH, URL, expect, say, step

SECONDS = 120
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@step("the document is served")
def _() -> str:
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=30) as reply:
        document = json.load(reply)
    (SCRATCH / "openapi.json").write_text(json.dumps(document))
    return f"{len(document['paths'])} paths"
