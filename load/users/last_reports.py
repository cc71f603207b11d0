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
        self._asked, self._reported = set[str](), set[str]()  # workers
        if isinstance(self._runner, WorkerRunner):
            self._runner.register_message(END, self._end)
            environment.events.quitting.add_listener(self._end)  # an interrupt reaches all processes of a terminal
        elif isinstance(self._runner, MasterRunner):
            self._runner.register_message(ENDED, self._ended)
            environment.events.test_start.add_listener(lambda **_: self._reported.clear())
            environment.events.test_stopping.add_listener(self._ask)
            environment.events.test_stop.add_listener(self._wait)

    def _end(self, **_: Any) -> None:
        self._runner.stop()
        report: dict[str, Any] = {}
        self._environment.events.report_to_master.fire(client_id=self._runner.client_id, data=report)
        self._runner.send_message("stats", report)
        self._runner.send_message(ENDED)

    def _ask(self, **_: Any) -> None:
        self._asked = present(self._runner)
        for worker in self._asked:
            self._runner.send_message(END, client_id=worker)

    def _ended(self, msg: Any, **_: Any) -> None:
        self._reported.add(msg.node_id)

    def _wait(self, **_: Any) -> None:
        with gevent.Timeout(self._environment.stop_timeout + PATIENCE, False):
            while (self._asked & present(self._runner)) - self._reported:
                gevent.sleep(POLL)
        for worker in self._asked - self._reported:
            logger.warning("No last report of %s: its last requests are not counted", worker)


def present(master: MasterRunner) -> set[str]:
    """The workers that are there, as far as their master knows: it misses one after a few seconds without a sign."""
    return {client.id for client in master.clients.all if client.state != STATE_MISSING}
