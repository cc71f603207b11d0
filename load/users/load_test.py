"""One load test, as each Locust process sees it: which request is due, and what came of those that were sent.

The only process, and each worker, sends requests; the only process, and the master, collects what came of them.
Locust's own messages carry it: the plan goes to workers with the options, samples come back with the statistics, and
`LastReports` waits for the last ones.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import orjson
from gevent.lock import BoundedSemaphore
from locust.exception import StopTest
from locust.runners import WORKER_REPORT_INTERVAL, MasterRunner, WorkerRunner

from load.users import options as asked_for
from load.users.profile import Kind, Profile, arrivals, share
from load.users.sample import Sample
from load.users.tally import LATE, Tally, report, table
from load.users.workers import FINISHED, FinishedWorkers, LastReports, present
from load.users.workloads import workload

logger = logging.getLogger("locust.stats_logger")  # prints lines as they are, as Locust's tables


@dataclass(frozen=True, slots=True)
class Turn:
    """A request that a user is to send: its number in the test, and in an open loop when, in seconds since the test
    began."""

    number: int
    due: float | None


class LoadTest:
    """The state of the current test, which begins anew with Locust's `test_start`; users find it as
    `environment.load_test`."""

    def __init__(self, environment: Any) -> None:
        self.environment, self.runner = environment, environment.runner
        self._model, self._model_lock = "", BoundedSemaphore()
        self.tally: Tally | None = None
        self._reported = True
        self._file: TextIO | None = None
        environment.load_test = self
        LastReports(environment)
        events = environment.events
        events.test_start.add_listener(self._begin)
        events.test_stopping.add_listener(self._stopping)
        if isinstance(self.runner, WorkerRunner):
            events.report_to_master.add_listener(self._ship)
            return
        events.worker_report.add_listener(self._receive)
        events.test_stop.add_listener(self._stopped)
        events.quit.add_listener(lambda **_: self.print_report())
        self._workers = FinishedWorkers(environment)

    @property
    def options(self) -> Any:
        return self.environment.parsed_options

    def _begin(self, **_: Any) -> None:
        try:
            if not isinstance(self.runner, WorkerRunner):
                self._plan()
            self._prepare()
            if not isinstance(self.runner, WorkerRunner):
                self._workers.begin()
        except ValueError as error:
            if self.options.headless:
                self.environment.process_exit_code = 2
            raise StopTest(str(error)) from None

    def _plan(self) -> None:
        """Put into the options what workers do not know otherwise: they get all that are not Locust's own."""
        workers = ["local"]
        if isinstance(self.runner, MasterRunner):
            workers = sorted(present(self.runner))
        users = self.options.num_users or 1
        if users < len(workers):
            raise ValueError(f"{len(workers)} workers need at least as many users, not {users}")
        kind: Kind = getattr(self.environment.shape_class, "kind", "constant")
        self.options.load_plan = {
            "id": time.time(),
            "kind": kind,
            "workers": workers,
            "num_users": users,
            "run_time": self.options.run_time,
        }

    def _prepare(self) -> None:
        plan, options = self.options.load_plan, self.options
        options.num_users, options.run_time = plan["num_users"], plan["run_time"]
        self.profile: Profile = asked_for.check(plan["kind"], options)
        self.workload = workload(options.workload, options.dataset_path)
        self._turns, self._back, self._in_hand, self._exhausted = self._my_turns(), list[Turn](), 0, False
        self._sent_unreported, self._samples = [0] * len(self.profile.stages), list[Sample]()
        self._reported, self._told = False, False
        self._dues, self._due = (turn.due for turn in self._my_turns()), 0
        self._next_due = next(self._dues, None)
        self._asked: dict[str, int] = {}
        self.began, self.stopped = time.perf_counter(), 0.0
        self.began_at = time.time()
        self.tally = Tally(len(self.profile.stages), asked_for.targets_of(options))
        if options.samples and not isinstance(self.runner, WorkerRunner):
            try:
                self._file = Path(options.samples).open("w")  # noqa: SIM115 (closed by print_report)
            except OSError as error:
                raise ValueError(f"cannot write --samples: {error}") from None

    def _my_turns(self) -> Iterator[Turn]:
        workers = self.options.load_plan["workers"]
        name = getattr(self.runner, "client_id", "") if isinstance(self.runner, WorkerRunner) else workers[0]
        if name not in workers:
            logging.warning("This worker came after the test began and sends no requests")
            return
        for number, due in share(self._schedule(), workers.index(name), len(workers)):
            yield Turn(number, due)

    def _schedule(self) -> Iterator[float | None]:
        """When each request of all workers together is due."""
        options = self.options
        due: Iterator[float | None] = itertools.repeat(None)
        if asked_for.is_open(options):
            due = arrivals(self.profile, options.burstiness, options.seed)
        return itertools.islice(due, options.requests or None)

    def now(self) -> float:
        """Seconds since the test began."""
        return time.perf_counter() - self.began

    def models(self, fetch: Any) -> list[str]:
        """The models to ask for in turn; `fetch` asks the server for one, once for all users of this process."""
        with self._model_lock:
            self._model = self.options.model or self._model or fetch()
        return self._model.split() if self.options.model else [self._model]

    def take(self) -> Turn | None:
        """The next turn for a user; None when all are taken. It must be given back, or ended."""
        turn = self._back.pop() if self._back else next(self._turns, None)
        if turn is None:
            self._exhausted = True
            self._check_finished()
        else:
            self._in_hand += 1
        return turn

    def give_back(self, turn: Turn) -> None:
        """The user ends before it sent the request."""
        self._in_hand -= 1
        self._back.append(turn)

    def send(self, turn: Turn) -> tuple[int, float]:
        """The request is sent: its stage, and since when its latency counts, as by `now`."""
        since = self.now() if turn.due is None else turn.due
        stage, _ = self.profile.locate(since)
        assert self.tally
        self.tally.send(stage)
        self._sent_unreported[stage] += 1
        return stage, since

    def end(self, sample: Sample | None) -> None:
        """The request was answered or failed; None if its user was killed."""
        self._in_hand -= 1
        if sample is not None:
            if isinstance(self.runner, WorkerRunner):
                self._samples.append(sample)
            else:
                self._collect(sample)
        self._check_finished()

    def _check_finished(self) -> None:
        if self._exhausted and not self._in_hand and not self._back and not self._told:
            self._told = True
            self.runner.send_message(FINISHED, {"test": self.options.load_plan["id"]})

    def _collect(self, sample: Sample) -> None:
        assert self.tally
        self.tally.end(sample)
        if self._file:
            self._file.write(orjson.dumps(sample.record()).decode() + "\n")

    def _ship(self, data: dict[str, Any], **_: Any) -> None:
        if self.tally is not None:
            samples = [sample.record() for sample in self._samples]
            data["load"] = {"test": self.options.load_plan["id"], "due": self._count_due(), "samples": samples}
            data["load"]["sent"] = self._sent_unreported
            self._sent_unreported, self._samples = [0] * len(self.profile.stages), []

    def _count_due(self) -> int:
        """How many requests of an open loop this process was to send so far; those of the last moment are left out."""
        until = (self.stopped or self.now()) - LATE / 1000
        while self._next_due is not None and self._next_due < until:
            self._due += 1
            self._next_due = next(self._dues, None)
        return self._due

    def _receive(self, client_id: str, data: dict[str, Any], **_: Any) -> None:
        shipped = data.get("load")
        if shipped and self.tally is not None and shipped["test"] == self.options.load_plan["id"]:
            self._asked[client_id] = shipped["due"]
            for stage, count in enumerate(shipped["sent"]):
                self.tally.send(stage, count)
            for record in shipped["samples"]:
                self._collect(Sample.of(record))

    def _stopping(self, **_: Any) -> None:
        if self.tally is not None:
            self.stopped = self.now()

    def _stopped(self, **_: Any) -> None:
        """With the web page there is no `quit` after a test."""
        if not self.options.headless:
            self.print_report()

    def print_report(self) -> None:
        """Print what came of the test, once."""
        if self._reported:
            return
        self._reported = True
        if self._file:
            self._file.close()
            self._file = None
        for line in ["", *self.report(), ""]:
            logger.info(line)

    def report(self) -> list[str]:
        assert self.tally
        seconds, asked = self.stopped or self.now(), None
        if is_open := asked_for.is_open(self.options):
            due = sum(self._asked.values()) if isinstance(self.runner, MasterRunner) else self._count_due()
            asked = max(due, self.tally.total("sent"))
        unit = "requests/s" if is_open else "users"
        return [
            *report(self.tally, seconds, asked, self.options.requests if self._workers.lost else 0),
            "",
            *table(self.tally, self._levels(seconds), unit),
            *self._knee(unit),
        ]

    def _levels(self, seconds: float) -> list[tuple[float, float, float]]:
        """The seconds that each stage ran, with its first and last level."""
        levels, left = [], seconds
        for stage in self.profile.stages:
            levels.append((max(0.0, min(left, stage.seconds)), stage.begin, stage.end))
            left -= stage.seconds
        return levels

    def judged(self) -> int:
        """How many stages are over, with all of their requests answered; or the next one is over too, or the test."""
        assert self.tally
        if self.stopped:
            ends = itertools.accumulate(stage.seconds for stage in self.profile.stages)
            return sum(end < self.stopped + 1 for end in ends)
        report_lag = WORKER_REPORT_INTERVAL + 0.5 if isinstance(self.runner, MasterRunner) else 0
        current, into = self.profile.locate(self.now())
        if current and into > report_lag and not self.tally.stages[current - 1].open:
            return current
        return max(0, current - 1)

    def _knee(self, unit: str) -> list[str]:
        if self.options.load_plan["kind"] != "knee":
            return []
        assert self.tally
        level = [f"{stage.end:.4g} {unit}" for stage in self.profile.stages]
        share = [f"{stage.attained:.0%}" for stage in self.tally.stages]
        last = self.tally.knee(self.judged())
        if last is None:
            return [f"no knee up to {level[max(0, self.judged() - 1)]}"]
        above = f"{share[last + 1]} of the requests at {level[last + 1]} met the targets"
        return [f"the knee is at {level[last]} ({share[last]}): {above}" if last >= 0 else f"no knee: {above}"]
