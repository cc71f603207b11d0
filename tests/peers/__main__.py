"""`make peers`: test suites of other projects against a real server.

Each runs in an environment of its own, as the clients of `make clients` do. What fails and is not in
`not_applicable.tsv` makes the exit status 1; an entry there that is no longer needed is named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from load.server import ROOT
from tests.clients import outcome
from tests.clients.__main__ import environment_of, start_server
from tests.clients.environments import Environments, NotInstalled
from tests.peers import judge
from tests.peers.catalogue import Suite, chosen
from tests.peers.sources import VARIABLE, checkout

SCRIPTS = Path(__file__).parent / "scripts"
GREEDY = '{"temperature": 0}'  # where a test does not say it, so that each run has the same answers


def main() -> int:
    options = _options()
    try:
        suites = chosen(options.names)
    except ValueError as error:
        sys.exit(str(error))
    entries = judge.read()
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(start_server(stack, "--override-generation-config", GREEDY)).url
        told = environment_of(url, "default")
        verdicts = [_run(suite, Environments(options.folder), told, options.folder, entries) for suite in suites]
    print("\n" + judge.table(verdicts))
    if options.markdown:
        options.markdown.write_text(judge.replaced(options.markdown.read_text(), verdicts))
    return int(any(verdict.failed or verdict.missing for verdict in verdicts))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.peers", description=__doc__, epilog=f"{VARIABLE}: a folder of git mirrors, as OWNER/NAME"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="suites whose name begins so; all without")
    parser.add_argument("--url", help="a server that runs already: of the default model, float32, greedy by default")
    parser.add_argument("--folder", type=Path, default=ROOT / ".clients", help="for environments, sources and logs")
    parser.add_argument("--markdown", type=Path, help="a document whose rows of these suites are replaced")
    return parser.parse_args()


def _run(
    suite: Suite, environments: Environments, told: dict[str, str], folder: Path, entries: Sequence[judge.Entry]
) -> judge.Verdict:
    print(f"{suite.name} {suite.version}", flush=True)
    left_out = [entry.expression for entry in entries if entry.suite == suite.name and entry.of_files]
    try:
        source = checkout(suite.source, folder) if suite.source else SCRIPTS
        command = environments.command(suite.client, SCRIPTS / suite.client.script)
    except NotInstalled as error:
        print(f"  cannot be run here: {error}", flush=True)
        return judge.verdict(suite, outcome.Outcome(suite.client, missing=str(error)), entries)
    with tempfile.TemporaryDirectory() as scratch:
        more = {"ORCA_SUITE": str(source), "ORCA_LEFT_OUT": json.dumps(left_out), "ORCA_SCRATCH": scratch}
        log = folder / f"{suite.name}.log"
        ran = outcome.run(
            suite.client, command, told | more, log, lambda step: print(judge.line(suite, step, entries), flush=True)
        )
    verdict = judge.verdict(suite, ran, entries)
    for entry in verdict.needless:
        print(f"  can go from {judge.LIST.name}, no test that fails fits it: {entry.pattern}", flush=True)
    print(f"  all that was said: {log}", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main())
