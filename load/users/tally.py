"""What a test counts, stage by stage, and the report at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from load.users.sample import Sample

LATE = 100.0  # ms after its intended time from which on a request counts as late
HELD = 0.02  # the share of requests that may be late or missing while a rate counts as held
ATTAINMENT = 0.9  # the share of the requests of a stage that must meet the targets, if the knee is not before it


class Distribution:
    """How often each duration was seen, to three digits: its size does not grow with the test."""

    def __init__(self) -> None:
        self._seen: Counter[float] = Counter()

    def add(self, milliseconds: float | None) -> None:
        if milliseconds is not None:
            self._seen[round(float(f"{milliseconds:.3g}"), 2)] += 1

    def percentile(self, share: float) -> float | None:
        """The smallest duration which at least this share of all do not exceed; None without any."""
        left = share * self._seen.total()
        for value in sorted(self._seen):
            left -= self._seen[value]
            if left <= 1e-9:
                return value
        return None


@dataclass(slots=True)
class StageTally:
    """What came of the requests of one stage. Durations in milliseconds."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    good: int = 0  # answered, and all targets met
    late: int = 0
    latest: float = 0.0
    output_tokens: int = 0
    ttft: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    worst_gap: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)

    @property
    def open(self) -> int:
        """Sent, and without an answer so far."""
        return self.sent - self.answered - self.failed

    @property
    def attained(self) -> float:
        """The share of the requests that met the targets; what has no answer did not."""
        return self.good / self.sent if self.sent else 1.0


class Tally:
    """All stages of a test. `targets`: what counts as goodput, in milliseconds by name."""

    def __init__(self, stages: int, targets: Mapping[str, float]) -> None:
        self.targets = dict(targets)
        self.stages = [StageTally() for _ in range(stages)]

    def send(self, stage: int, count: int = 1) -> None:
        self.stages[stage].sent += count

    def end(self, sample: Sample) -> None:
        """A request was answered, or failed."""
        stage = self.stages[sample.stage]
        if sample.late > LATE:
            stage.late += 1
        stage.latest = max(stage.latest, sample.late)
        if sample.error is not None:
            stage.failed += 1
            return
        stage.answered += 1
        stage.good += sample.meets(self.targets)
        stage.output_tokens += sample.output_tokens
        if sample.streamed:
            stage.ttft.add(sample.ttft)
            stage.tpot.add(sample.tpot)
            stage.worst_gap.add(sample.worst_gap)
        stage.e2e.add(sample.e2e)

    def total(self, name: str) -> int:
        """A count over all stages."""
        return sum(getattr(stage, name) for stage in self.stages)

    def knee(self, upto: int) -> int | None:
        """The last stage before the first one below `ATTAINMENT`, of the first `upto` stages; -1 if that is the first
        of all, None if all are above."""
        for index, stage in enumerate(self.stages[:upto]):
            if stage.attained < ATTAINMENT:
                return index - 1
        return None


def report(tally: Tally, seconds: float, asked: int | None, lost_of: int = 0) -> list[str]:
    """What came of a test of `seconds`. `asked`: how many requests an open loop was to send, None for a closed loop.
    `lost_of`: how many requests a test was to send that has lost workers, else 0."""
    sent, answered = tally.total("sent"), tally.total("answered")

    def rate(count: int) -> str:
        return f"{count} ({count / seconds:.2f}/s)" if seconds > 0 else str(count)

    lines = [f"requests in {seconds:.1f} s:" + (f" asked {rate(asked)}," if asked is not None else "")]
    lines[0] += f" sent {rate(sent)}, answered {rate(answered)}, failed {tally.total('failed')}"
    if seconds > 0:
        lines.append(f"output tokens: {tally.total('output_tokens') / seconds:.1f}/s")
    if tally.targets:
        met = " ".join(f"{name}:{limit:g}" for name, limit in tally.targets.items())
        lines.append(f"goodput: {rate(tally.total('good'))} of the {sent} requests met {met}")
    if (lost := lost_of - answered - tally.total("failed")) > 0:
        lines.append(f"{lost} of {lost_of} requests are in no figure, as the workers that were to send them are gone")
    return lines + _warnings(tally, asked, sent)


def _warnings(tally: Tally, asked: int | None, sent: int) -> list[str]:
    lines = []
    late = tally.total("late")
    if asked is not None and asked - sent + late > asked * HELD:
        worst = max(stage.latest for stage in tally.stages) / 1000
        lines.append(
            f"the rate was not held: {asked - sent} of {asked} requests were not sent, and {late} late by up to "
            f"{worst:.1f} s; latencies begin at the intended time. Either all users waited for answers (-u sets "
            "more), or Locust had too little processor time (--processes)"
        )
    if unanswered := tally.total("open"):
        lines.append(
            f"{unanswered} requests had no answer when the test ended, and are in no figure of latency; "
            "--stop-timeout waits for them, as does --requests in place of -t"
        )
    return lines


def table(tally: Tally, levels: Sequence[tuple[float, float, float]], unit: str) -> list[str]:
    """One line for each stage that sent anything. `levels`: of each stage its seconds and its first and last level, in
    `unit`."""
    head = [unit, "sent/s", "answered/s", "failed", "open"]
    head += ["ttft p50", "p99", "tpot p50", "p99", "gap p99", "e2e p50", "p99"]
    rows = [[*head, *(["good"] if tally.targets else [])]]
    for stage, (seconds, begin, end) in zip(tally.stages, levels, strict=True):
        if not stage.sent:
            continue
        level = f"{begin:.4g}" if begin == end else f"{begin:.4g}-{end:.4g}"
        row = [level, f"{stage.sent / seconds:.2f}", f"{stage.answered / seconds:.2f}", str(stage.failed)]
        measures = [(stage.ttft, 0.5), (stage.ttft, 0.99), (stage.tpot, 0.5), (stage.tpot, 0.99)]
        measures += [(stage.worst_gap, 0.99), (stage.e2e, 0.5), (stage.e2e, 0.99)]
        row += [str(stage.open), *(_ms(one.percentile(share)) for one, share in measures)]
        rows.append(row + ([f"{stage.attained:.0%}"] if tally.targets else []))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:g}"
