"""A trial: one library compiles one schema and follows its instances. It runs in a process of its own, which is ended
when it takes too long."""

from __future__ import annotations

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from load.schemas.libraries import LIBRARIES, Library, Position, Refused
from load.schemas.suites import Case, Instance, in_order
from load.schemas.vocabularies import Encoder, Vocabulary

MEMORY = 8 << 30  # bytes that a trial may allocate
CONTEXT = multiprocessing.get_context("spawn")  # processes without the threads of this one


@dataclass(slots=True)
class Trial:
    """The result of a case. `compile_s` and `masks_s` are seconds."""

    refused: str = ""  # why
    compile_s: float = 0.0
    masks_s: list[float] = field(default_factory=list)
    valid: int = 0
    wrongly_refused: int = 0
    invalid: int = 0
    wrongly_accepted: list[str] = field(default_factory=list)
    failed: str = ""  # "crashed" or "too long": then nothing else is known


def try_case(library: Library, encoder: Encoder, case: Case) -> Trial:
    trial = Trial()
    began = time.perf_counter()
    try:
        begin = library.compile(case.schema)
        trial.compile_s = time.perf_counter() - began
        for instance in case.instances:
            accepted = any(_follow(begin(), encoder.encode(text), trial.masks_s) for text in _texts(case, instance))
            trial.valid += instance.valid
            trial.invalid += not instance.valid
            trial.wrongly_refused += instance.valid and not accepted
            if accepted and not instance.valid:
                trial.wrongly_accepted.append(instance.text())
    except Refused as refused:
        trial.refused = str(refused) or "no reason"
    return trial


def _texts(case: Case, instance: Instance) -> list[str]:
    """The texts of an instance, one for each order of its keys: as it is, and as the schema has them."""
    ordered = Instance(in_order(case.schema, instance.data), instance.valid)
    return list(dict.fromkeys((instance.text(), ordered.text())))


def _follow(position: Position, tokens: Sequence[int], masks_s: list[float]) -> bool:
    for token in tokens:
        _time(position.mask, masks_s)
        if not position.accept(token):
            return False
    return position.complete()


def _time(work: Callable[[], object], seconds: list[float]) -> None:
    began = time.perf_counter()
    work()
    seconds.append(time.perf_counter() - began)


def run(library: str, vocabulary: Vocabulary, cases: Sequence[Case], limit: float) -> Iterator[Trial]:
    """The trials of all cases, in order. One that takes more than `limit` seconds, or ends its process, has failed."""
    process, pipe = None, None
    for case in cases:
        if process is None or pipe is None:
            pipe, other = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(library, vocabulary, other), daemon=True)
            process.start()
            other.close()
            pipe.recv()  # it is ready
        pipe.send(case)
        try:
            if pipe.poll(limit):
                yield pipe.recv()
                continue
            failed = Trial(failed="too long")
        except (EOFError, ConnectionError):
            failed = Trial(failed="crashed")
        process.kill()
        process.join()
        process = pipe = None
        yield failed
    if process is not None and pipe is not None:
        pipe.send(None)
        process.join()


def _serve(library: str, vocabulary: Vocabulary, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    made, encoder = LIBRARIES[library](vocabulary), Encoder(vocabulary.ordinary())
    pipe.send("ready")
    while (case := pipe.recv()) is not None:
        pipe.send(try_case(made, encoder, case))
