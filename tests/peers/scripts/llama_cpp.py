"""llama.cpp's tests of its server, sent to the server that runs: they can use one that is there already."""

import os
from typing import Any
from urllib.parse import urlsplit

import pytest_steps
import requests

_post = requests.post


def _named(url: str, *, json: Any = None, **more: Any) -> requests.Response:
    """The suite's names of models, or none, stand for the model that is served."""
    if isinstance(json, dict) and "/v1/" in url:
        json = json | {"model": pytest_steps.MODEL}
    return _post(url, json=json, timeout=more.pop("timeout", None) or 120, **more)


if __name__ == "__main__":
    os.environ |= {"DEBUG_EXTERNAL": "1", "PORT": str(urlsplit(pytest_steps.URL).port)}
    requests.post = _named
    pytest_steps.run(pytest_steps.SUITE / "tools/server/tests", "unit")
