"""The workers of a test on several processes: when all have finished, and the last report of each.

A test of so many requests ends when all workers have had the answers to theirs, or are gone. Each worker knows its
requests from the beginning, so nobody else sends those of a worker that is gone.

At the end, the master has each worker end the test, and waits for its last report. Locust's own master waits for half
a second. A worker on a busy machine, or one that waits for answers (--stop-timeout), reports later than that, and its
last requests would not be counted.
"""

from __future__ import annotations

import logging
from typing import Any

import gevent
from locust.runners import STATE_MISSING, STATE_STOPPED, STATE_STOPPING, MasterRunner, WorkerRunner

FINISHED, END, ENDED = "requests_finished", "end_of_test", "test_ended"  # the names of the messages
PATIENCE = 60.0  # seconds beside --stop-timeout, as Locust waits for users to stop
FINISHED_POLL, REPORT_POLL = 1.0, 0.05  # seconds; Locust has no event for a worker that is missing
logger = logging.getLogger(__name__)


def present(master: MasterRunner) -> set[str]:
    """The workers that are there, as far as their master knows: it misses one after a few seconds without a sign."""
    return {client.id for client in master.clients.all if client.state != STATE_MISSING}


class FinishedWorkers:
    """Ends the test of the only process, or of the master. `lost` are the workers that went away before they had
    finished."""

    def __init__(self, environment: Any) -> None:
        self._environment, self._runner = environment, environment.runner
        self._finished, self.lost = set[str](), list[str]()
        self._watching: gevent.Greenlet | None = None
        self._runner.register_message(FINISHED, self._on_finished)

    def begin(self) -> None:
        """A test begins, and the options have its plan."""
        self._finished, self.lost = set[str](), list[str]()
        if self._watching:
            self._watching.kill()
        if isinstance(self._runner, MasterRunner):
            self._watching = gevent.spawn(self._watch)

    @property
    def _left(self) -> set[str]:
        """The workers that have not finished."""
        return set(self._plan["workers"]) - self._finished

    @property
    def _plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = self._environment.parsed_options.load_plan
        return plan

    @property
    def _stopped(self) -> bool:
        return self._runner.state in (STATE_STOPPING, STATE_STOPPED)

    def _on_finished(self, msg: Any, **_: Any) -> None:
        if msg.data["test"] == self._plan["id"] and not self._stopped:
            self._finished.add(msg.node_id)
            if not self._left:
                self._end()

    def _watch(self) -> None:
        """Wait until all workers that have not finished are gone. Locust stops a test without any worker by itself, but
        goes on running without the web page."""
        while (left := self._left) and left & present(self._runner):
            gevent.sleep(FINISHED_POLL)
        if left and (not self._stopped or not present(self._runner)):
            self.lost = sorted(left)
            logger.error("%s: gone before all requests were sent; the test ends", ", ".join(self.lost))
            self._environment.process_exit_code = 1
            self._end()

    def _end(self) -> None:
        # not from here: it would kill this greenlet
        headless = self._environment.parsed_options.headless
        gevent.spawn(self._runner.quit if headless else self._runner.stop)


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
                gevent.sleep(REPORT_POLL)
        for worker in self._asked - self._reported:
            logger.warning("No last report of %s: its last requests are not counted", worker)
