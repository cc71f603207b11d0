"""A locustfile to name before the others: workers take a while to end a test, as on a machine that is busy."""

from __future__ import annotations

import time
from typing import Any

from locust import events
from locust.runners import WorkerRunner


@events.test_stopping.add_listener
def _late(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        time.sleep(1.5)
