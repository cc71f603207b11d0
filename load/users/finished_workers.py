"""The end of a test of so many requests: all workers have had the answers to theirs, or are gone.

Each worker knows its requests from the beginning, so nobody else sends those of a worker that is gone.
"""

from __future__ import annotations

import logging
from typing import Any

import gevent
from locust.runners import STATE_STOPPED, STATE_STOPPING, MasterRunner

from load.users.last_reports import present

FINISHED = "requests_finished"  # the name of the message
POLL = 1.0  # seconds; Locust has no event for a worker that is missing
logger = logging.getLogger(__name__)


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
            gevent.sleep(POLL)
        if left and (not self._stopped or not present(self._runner)):
            self.lost = sorted(left)
            logger.error("%s: gone before all requests were sent; the test ends", ", ".join(self.lost))
            self._environment.process_exit_code = 1
            self._end()

    def _end(self) -> None:
        # not from here: it would kill this greenlet
        headless = self._environment.parsed_options.headless
        gevent.spawn(self._runner.quit if headless else self._runner.stop)
