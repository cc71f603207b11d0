"""A second locustfile, which writes all counts as JSON at the end of the run (Locust's CSV files lag behind)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from locust import events
from locust.runners import WorkerRunner


@events.quitting.add_listener
def _record(environment: Any, **_: Any) -> None:
    stats, runner = environment.runner.stats, environment.runner
    if isinstance(runner, WorkerRunner):
        return  # the master counts
    record = {
        "aggregated": stats.total.num_requests,
        "stats": {
            f"{entry.method} {entry.name}": {
                "requests": entry.num_requests,
                "failures": entry.num_failures,
                "average": entry.avg_response_time,
                "length": entry.total_content_length,
            }
            for entry in stats.entries.values()
        },
        "failures": [(str(e.error), e.occurrences) for e in stats.errors.values()],
        "exceptions": [e["msg"] for e in runner.exceptions.values()],
    }
    Path(os.environ["LOCUST_RECORD"]).write_text(json.dumps(record))
