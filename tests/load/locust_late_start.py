"""A locustfile to name before the others: a test begins a while after its shape, as on a machine that is busy."""

from __future__ import annotations

import time
from typing import Any

from locust import events


@events.test_start.add_listener
def _late(**_: Any) -> None:
    time.sleep(1.5)
