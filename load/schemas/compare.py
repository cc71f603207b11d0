"""`python -m load.schemas.compare SUITE ...`: libraries of grammars compared on suites of schemas.

SUITE is a folder of schemas with valid and invalid instances: `tests/draft2020-12` of JSON-Schema-Test-Suite, or
`maskbench/data` of JSONSchemaBench. xgrammar is not a dependency of this project. To compare with it:

    pip install --no-deps --target FOLDER xgrammar apache-tvm-ffi
    PYTHONPATH=FOLDER python -m load.schemas.compare --libraries llguidance,xgrammar SUITE ...
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from load.options import Options, add_model, model_folder
from load.report import machine, quantile, table
from load.schemas import vocabularies
from load.schemas.libraries import LIBRARIES
from load.schemas.suites import Case, read, sample
from load.schemas.trial import Trial, run
from load.schemas.verdicts import reasons_in
from load.schemas.vocabularies import Vocabulary
from services.progress import Bar

REASONS = 8  # rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m load.schemas.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suites", nargs="+", type=Path, metavar="SUITE")
    parser.add_argument("--libraries", default="llguidance", help=f"some of {','.join(LIBRARIES)}")
    parser.add_argument("--ranks", type=Path, action="append", default=[], help="a vocabulary in tiktoken's format")
    parser.add_argument("--count", type=int, default=300, help="schemas of each suite, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for one schema with its instances")
    add_model(parser)
    given = parser.parse_args(arguments)
    suites = {folder: sample(read(folder), given.count, given.seed) for folder in given.suites}
    options = Options(given.model, cache_dir=given.cache_dir)
    measured = [
        vocabularies.of_model(model_folder(options)),
        *map(vocabularies.of_ranks, given.ranks),
    ]
    names = given.libraries.split(",")
    print(f"Measured on {machine()}; {', '.join(f'{name} {version(name)}' for name in names)}.\n", flush=True)
    for folder, cases in suites.items():
        print(
            f"## {'/'.join(folder.resolve().parts[-2:])}\n\n{compare(cases, measured, names, given.limit)}\n",
            flush=True,
        )


def compare(cases: Sequence[Case], measured: Sequence[Vocabulary], names: Sequence[str], limit: float) -> str:
    """The tables of one suite."""
    times, counts, refused = [], [], []
    for vocabulary in measured:
        for name in names:
            shown = Bar(run(name, vocabulary, cases, limit), desc=name, total=len(cases), unit="schemas")
            trials = list(shown)
            times.append([f"{name}, {vocabulary.size:,} ids", *times_of(trials)])
            counts.append([f"{name}, {vocabulary.size:,} ids", *counts_of(cases, trials)])
            if vocabulary is measured[0]:  # what is refused does not depend on the vocabulary
                refused += [[name, *row] for row in reasons_of(trials)]
    return table(TIMES, times) + "\n\n" + table(COUNTS, counts) + "\n\n" + table(REFUSED, refused)


TIMES = ["", "schemas", "compile, ms: p50", "p99", "masks", "a mask, µs: mean", "p50", "p99", "max"]
COUNTS = [
    "", "schemas", "taken", "refused", "crashed", "too long",
    "valid instances", "wrongly refused", "invalid instances", "wrongly accepted", "of schemas",
]  # fmt: skip
REFUSED = ["", "refused because of", "schemas"]


def times_of(trials: Sequence[Trial]) -> list[str]:
    """The cells of TIMES; a dash where nothing was measured."""
    taken = [trial for trial in trials if not trial.refused and not trial.failed]
    compile_ms = [trial.compile_s * 1e3 for trial in taken]
    masks_us = [seconds * 1e6 for trial in taken for seconds in trial.masks_s]
    if not compile_ms or not masks_us:
        return [str(len(taken)), *["-"] * 7]
    return [
        str(len(taken)),
        *(f"{quantile(compile_ms, q):,.1f}" for q in (0.5, 0.99)),
        f"{len(masks_us):,}",
        f"{statistics.mean(masks_us):,.0f}",
        *(f"{quantile(masks_us, q):,.0f}" for q in (0.5, 0.99, 1.0)),
    ]


def counts_of(cases: Sequence[Case], trials: Sequence[Trial]) -> list[int]:
    """The cells of COUNTS."""
    failed = Counter(trial.failed for trial in trials)
    refused = sum(bool(trial.refused) for trial in trials)
    taken = [trial for trial in trials if not trial.refused and not trial.failed]
    return [
        len(cases), len(taken), refused, failed["crashed"], failed["too long"],
        sum(trial.valid for trial in taken), sum(trial.wrongly_refused for trial in taken),
        sum(trial.invalid for trial in taken), sum(len(trial.wrongly_accepted) for trial in taken),
        sum(bool(trial.wrongly_accepted) for trial in taken),
    ]  # fmt: skip


def reasons_of(trials: Sequence[Trial]) -> list[tuple[str, int]]:
    """The most frequent reasons, with the number of schemas."""
    return Counter(kind for trial in trials for kind in reasons_in(trial.refused) if trial.refused).most_common(REASONS)


if __name__ == "__main__":
    main()
