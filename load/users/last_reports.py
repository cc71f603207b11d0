"""The end of a test on several processes: the master has each worker end it, and waits for its last report.

Locust's own master waits for half a second. A worker on a busy machine, or one that waits for answers (--stop-timeout),
reports later than that, and its last requests would not be counted.
"""

from __future__ import annotations

import logging
from typing import Any

import gevent
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

END, ENDED = "end_of_test", "test_ended"  # the names of the messages
PATIENCE = 60.0  # seconds beside --stop-timeout, as Locust waits for users to stop
POLL = 0.05  # seconds; Locust has no event for a worker that is missing
logger = logging.getLogger(__name__)


class LastReports:
    """Messages of a worker arrive in the order in which it sends them: its last report is there before ENDED is."""

    def __init__(self, environment: Any) -> None:
        self._environment, self._runner = environment, environment.runner
        self._test = 0  # the number of the test that the master ends
        self._awaited = set[str]()  # workers that have not ended it
        if isinstance(self._runner, WorkerRunner):
            self._runner.register_message(END, self._end)
        elif isinstance(self._runner, MasterRunner):
            self._runner.register_message(ENDED, self._ended)
            environment.events.test_stopping.add_listener(self._ask)
            environment.events.test_stop.add_listener(self._wait)

    def _end(self, msg: Any, **_: Any) -> None:
        self._runner.stop()
        report: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=report)
        self._runner.send_message("stats", report)
        self._runner.send_message(ENDED, msg.data)

    def _ask(self, **_: Any) -> None:
        self._test += 1
        self._awaited = self._present()
        for worker in self._awaited:
            self._runner.send_message(END, {"test": self._test}, client_id=worker)

    def _ended(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._test:
            self._awaited.discard(msg.node_id)

    def _wait(self, **_: Any) -> None:
        with gevent.Timeout(self._environment.stop_timeout + PATIENCE, False):
            while self._awaited & self._present():
                gevent.sleep(POLL)
        if self._awaited:
            logger.warning("No last report of %s: its last requests are not counted", ", ".join(sorted(self._awaited)))

    def _present(self) -> set[str]:
        return {client.id for client in self._runner.clients.all if client.state != STATE_MISSING}
