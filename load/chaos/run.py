"""A chaos run, from the start of what serves to the verdict and its tables."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise

import redis

from load.chaos import history
from load.chaos.checker import Circumstances, Verdict, check
from load.chaos.faults import Fault, plan
from load.chaos.grounds import ChaosOptions, Ground, History, Injection, by_model
from load.chaos.planted import PLANTS, missed_plants
from load.chaos.site import SCHEDULER, NoTarget, Site, keep_history
from load.chaos.streams import Outcome, Streams, recovery
from load.chaos.workload import is_constrained
from load.report import table
from load.server import until
from load.trace import HttpRequest
from services.client.streaming import open_session
from services.progress import Bar

PATIENCE = 180.0  # seconds without a sign of life after which a client gives up
IDLE = 120.0  # seconds within which the pool must be empty after all clients have ended
SHOWN = 20  # violations that are printed
ATTEMPTS = 3  # to inject a fault that had no target, or no open stream


async def run(ground: Ground) -> bool:
    """Run and print the tables; returns whether all rules held and the checker found all planted violations."""
    options = ground.options
    draw, clients, seen = random.Random(options.seed), options.folder / "clients.jsonl", dict[int, float]()
    async with ground, open_session(ground.site.server.url) as session:
        with history.Recorder(clients, time.time) as recorder:
            streams = Streams(session, recorder, PATIENCE, ground.keys)
            kinds = [model.requests(options) for model in ground.models]
            for each in kinds:
                draw.shuffle(each)

            async def send_poison() -> None:
                await streams.run(draw.choice(ground.models).poison())

            ground.site.poison = send_poison
            await streams.learn([one for each in kinds for one in each])
            watching = [asyncio.create_task(each) for each in (watch_schedulers(ground, seen), keep_histories(ground))]
            injections = await under_load(ground, streams, kinds, draw)
        # requests without clients; what is left then is a violation
        await asyncio.to_thread(ground.site.server.until_idle, IDLE)
        counted = await asyncio.to_thread(ground.site.server.metrics)
        for task in watching:
            task.cancel()
    records = list(history.read(clients))
    histories = ground.histories(records, [injection for injection in injections if not injection.skipped])
    histories = [own for history in histories for own in by_model(history)]
    guesses, right = (counted.get(f"vllm:spec_decode_num_{name}_tokens_total", 0.0) for name in ("draft", "accepted"))
    print(f"Drafts had {guesses:.0f} tokens, of which {right:.0f} were right.\n")
    held = [judge(options, one, injections, streams.outcomes, seen, draw) for one in histories]  # prints each
    return all(held)


def judge(
    options: ChaosOptions,
    one: History,
    injections: Sequence[Injection],
    outcomes: Sequence[Outcome],
    seen: dict[int, float],
    draw: random.Random,
) -> bool:
    """Check a history and print the tables; returns whether all rules held and all planted violations were found."""
    made = sum(not injection.skipped for injection in injections)
    verdict = check(one.records, one.transactions, options.least, Circumstances(one.losses, seen, made))
    verdict.violations.extend(one.violations)
    own = [outcome for outcome in outcomes if one.of is None or outcome.number in one.of]
    print(one.note)
    held = print_results(options, injections, own, verdict)
    missed = missed_plants(verdict, one.records, one.transactions, draw)
    print(f"Planted violations: {len(PLANTS) - len(missed)} of {len(PLANTS)} found.", *missed, sep="\n", flush=True)
    return held and not missed


async def under_load(
    ground: Ground, streams: Streams, kinds: list[list[HttpRequest]], draw: random.Random
) -> list[Injection]:
    """Keep streams of each model open for the time of the run and inject faults meanwhile; `kinds` are the requests of
    each. Returns when all streams have ended."""
    options, over = ground.options, asyncio.Event()
    count = sum(model.streams for model in ground.models)
    kinds_of_faults = [ground.faults[name] for name in options.faults or ground.faults]
    faults = plan(kinds_of_faults, int(options.seconds / options.every), draw)
    each = zip(ground.models, kinds, strict=True)
    load = asyncio.gather(*(streams.keep(own, model.streams, over, model.pause) for model, own in each))
    try:
        began = time.monotonic()
        passing = asyncio.create_task(show_time(options.seconds))
        injections = await inject_faults(ground.site, faults, options.every, options.seconds, streams, count)
        await asyncio.sleep(max(0.0, began + options.seconds - time.monotonic()))
    finally:
        passing.cancel()
        over.set()
    await load
    return injections


async def show_time(seconds: float) -> None:
    """Draw a bar of the time that has passed, until cancelled."""
    began = time.monotonic()
    with Bar(desc="faults under load", total=round(seconds), unit="s") as bar:
        while True:
            bar.reach(min(round(time.monotonic() - began), round(seconds)))
            await asyncio.sleep(1.0)


async def watch_schedulers(ground: Ground, seen: dict[int, float]) -> None:
    """Record in `seen` when each scheduler process was last seen alive, until cancelled."""
    while True:
        now = time.time()
        seen |= dict.fromkeys(await asyncio.to_thread(ground.site.server.pids, SCHEDULER), now)
        await asyncio.sleep(0.25)


async def keep_histories(ground: Ground) -> None:
    """Tell the pool's servers again and again to keep their files, until cancelled: one that was killed starts with
    other settings, and would rewrite a file that has doubled since then."""
    while True:
        for folder in ground.kept:
            with contextlib.suppress(redis.RedisError):
                await asyncio.to_thread(keep_history, folder)
        await asyncio.sleep(1.0)


async def inject_faults(
    site: Site, faults: list[Fault], every: float, seconds: float, streams: Streams, count: int
) -> list[Injection]:
    """Inject one fault after the other for `seconds` seconds, `every` seconds apart or when the last one is over. Each
    fault waits until half of `count` streams are open. A fault that had no target, or no open stream, is repeated
    later."""
    injections, end = [], time.monotonic() + seconds
    waiting = deque((fault, ATTEMPTS) for fault in faults)
    while waiting:
        fault, attempts = waiting.popleft()
        began = time.monotonic()
        await asyncio.sleep(every / 2)
        with contextlib.suppress(TimeoutError):
            await until(lambda: streams.open >= (count + 1) // 2, end - time.monotonic(), every=0.01)
        if time.monotonic() > end:
            break
        injections.append(await inject(site, fault, streams))
        if injections[-1].skipped and attempts > 1:
            waiting.append((fault, attempts - 1))
        await asyncio.sleep(max(0.0, began + every - time.monotonic()))
    return injections


async def inject(site: Site, fault: Fault, streams: Streams) -> Injection:
    at, hit = time.monotonic(), streams.open
    skipped = "" if hit else "no open stream"
    try:
        await fault.inject(site)
    except NoTarget as error:
        skipped = f"no {error}"
    outcome = skipped or f"{time.monotonic() - at:.1f} s, {hit} streams"
    Bar.write(f"{fault.name}: {outcome}", file=sys.stderr)
    return Injection(fault.name, at, skipped, hit)


# --- tables ---


def print_results(
    options: ChaosOptions, injections: Sequence[Injection], outcomes: Sequence[Outcome], verdict: Verdict
) -> bool:
    """Print the tables and everything that is wrong; returns whether nothing is."""
    least, streams = options.least, " + ".join(map(str, options.streams))
    refused = [o for o in outcomes if o.status in options.refusals]
    unexpected = [o for o in outcomes if o not in refused and is_unexpected(o)]
    skipped = Counter(f"{i.fault} ({i.skipped})" for i in injections if i.skipped)
    print(
        f"{options.seconds:.0f} s, a fault every {options.every:.0f} s, {streams} streams at any time, "
        f"seed {options.seed}. A verdict needs {least.requests} answers, {least.tokens} tokens and {least.faults} "
        "faults under open streams.\n"
    )
    print(faults_table(injections, outcomes) + "\n")
    if skipped:
        print("Not possible just then: " + ", ".join(f"{name} {times}x" for name, times in skipped.items()) + "\n")
    print(requests_table(outcomes, verdict, unexpected, refused) + "\n")
    found = [f"failed: {o.number} {o.request.name}: {o.error}" for o in unexpected]
    found += [f"not as undisturbed: {o.number} {o.request.name}: {o.wrong}" for o in outcomes if o.wrong]
    found += [f"not valid: {o.number} {o.request.name}: {o.invalid}" for o in outcomes if o.invalid]
    found += [str(violation) for violation in verdict.violations]
    for line in found[:SHOWN]:
        print(line[:500])
    if len(found) > SHOWN:
        print(f"... and {len(found) - SHOWN} more")
    broken = len(verdict.violations)
    print("History checker: " + (f"{broken} violations" if broken else "all rules held."))
    return not found


def is_unexpected(outcome: Outcome) -> bool:
    """Whether a request should not have ended like this: only poison fails, and its error tells why."""
    if outcome.request.name == "poison":
        return "died" not in outcome.error
    return bool(outcome.error)


def faults_table(injections: Sequence[Injection], outcomes: Sequence[Outcome]) -> str:
    """The table of faults, with a row for each kind."""
    rows = []
    for kind in dict.fromkeys(injection.fault for injection in injections):
        done = [i for i in injections if i.fault == kind and not i.skipped]
        found = [r for r in (recovery(i.time, outcomes) for i in done) if r]
        hit = min((i.streams for i in done), default="")
        rows.append([kind, len(done), hit, *_spread([r.first for r in found]), *_spread([r.last for r in found])])
    times = ["first token, s (median)", "(max)", "all streams, s (median)", "(max)"]
    return table(["fault", "times", "streams open, at least", *times], rows)


def _spread(values: list[float]) -> tuple[str, str]:
    return (f"{statistics.median(values):.1f}", f"{max(values):.1f}") if values else ("", "")


def requests_table(
    outcomes: Sequence[Outcome], verdict: Verdict, unexpected: Sequence[Outcome], refused: Sequence[Outcome]
) -> str:
    """The table of what became of the requests; "answers that are not valid" to "other violations" must be 0."""
    gaps = [end - begin for o in outcomes for begin, end in pairwise(o.arrivals)]
    wrong = sum(bool(o.wrong) for o in outcomes) + verdict.count("wrong", "changed", "published", "tokens")
    others = ("state", "claim", "fence", "place", "numerics", "takeover", "snapshot", "too little")
    rows: list[Sequence[object]] = [
        ["requests", len(outcomes)],
        ["tokens delivered", sum(len(c.token_ids) for o in outcomes for c in o.answer.choices.values())],
        ["requests with a constraint or tools", sum(is_constrained(o.request) for o in outcomes)],
        ["came back after a broken connection or a refusal", sum(o.reconnects > 0 for o in outcomes)],
        ["poisoned, failed alone as they must", sum(o.request.name == "poison" for o in outcomes)],
        ["refused or given up for want of time, as they may be", len(refused)],
        ["answers that are not valid", sum(bool(o.invalid) for o in outcomes)],
        ["lost", verdict.count("lost", "unfinished", "forgotten early") + len(unexpected)],
        ["duplicated", verdict.count("duplicated", "after the end", "ended twice")],
        ["wrong", wrong],
        ["other violations", verdict.count(*others)],
        ["longest gap in a stream, s", f"{max(gaps, default=0.0):.1f}"],
        ["sequences in the pool's file", len(verdict.pool.sequences)],
        ["tokens in the pool's file", sum(len(s.tokens) for s in verdict.pool.sequences.values())],
    ]
    return table(["", "count"], rows)
