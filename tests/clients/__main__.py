"""`make clients`: each client that people use against a real server, and a table of what passed.

Each client is installed in an environment of its own and runs one script of `scripts/`. The exit status is 1 when a
step failed. A client that cannot be installed is said so in the table.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx

from load.server import ROOT, OrcaServer
from services.files import user_cache
from services.models import resolve
from tests.clients import outcome, report
from tests.clients.catalogue import Client, chosen
from tests.clients.environments import Environments, NotInstalled
from tests.clients.served import DEFAULT, Served

SCRIPTS = Path(__file__).parent / "scripts"


def main() -> int:
    options = _options()
    try:
        clients = chosen(options.names)
    except ValueError as error:
        sys.exit(str(error))
    environments, done = Environments(options.folder), dict[tuple[Client, Served], outcome.Outcome]()
    outcomes: list[outcome.Outcome] = []
    for served in dict.fromkeys(one for client in clients for one in client.served):
        if options.url and served != DEFAULT:
            continue
        with contextlib.ExitStack() as stack:
            url = options.url or stack.enter_context(start_server(stack, *served.flags(options.folder))).url
            environment = environment_of(url, options.model) | {"ORCA_REASONS": served.reasons}
            for client in clients:
                if served in client.served:
                    done[client, served] = _run(client, environments, environment, options.folder)
        outcomes = finished(clients, done)
        if options.markdown:  # a long run that is interrupted leaves what it has found
            options.markdown.write_text(replaced(options.markdown, outcomes))
    print("\n" + report.markdown(outcomes))
    return int(any(done.failures for done in outcomes))


def finished(clients: list[Client], done: Mapping[tuple[Client, Served], outcome.Outcome]) -> list[outcome.Outcome]:
    """What the clients did that have run against all their servers."""
    whole = [client for client in clients if all((client, served) in done for served in client.served)]
    return [outcome.together(client, done) for client in whole]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="clients whose name begins so; all without")
    parser.add_argument(
        "--url",
        help="a server that runs already, in float32, for the clients of the default model (default: start one)",
    )
    parser.add_argument("--model", default="default", help="the model that it serves (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / ".clients", help="for the clients' environments and logs")
    parser.add_argument("--markdown", type=Path, help="a document whose rows of these clients are replaced")
    return parser.parse_args()


def start_server(stack: contextlib.ExitStack, *flags: str) -> OrcaServer:
    """The default model, unless flags name another, in float32; ended with the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    print("starting the server", *flags, flush=True)
    return OrcaServer(folder, "--dtype", "float32", "--gateways", "1", *flags)


def environment_of(url: str, model: str) -> dict[str, str]:
    """What scripts are told."""
    return {
        "ORCA_URL": url,
        "ORCA_MODEL": httpx.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"],
        "ORCA_MODEL_FOLDER": str(resolve(model, user_cache())),
        "ORCA_PYTHON": sys.executable,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def _run(client: Client, environments: Environments, environment: dict[str, str], folder: Path) -> outcome.Outcome:
    print(f"{client.name} {client.version}", flush=True)
    try:
        command = environments.command(client, SCRIPTS / client.script)
    except NotInstalled as error:
        print(f"  cannot be installed here: {error}", flush=True)
        return outcome.Outcome(client, missing=str(error))
    with tempfile.TemporaryDirectory() as scratch:
        log = folder / f"{client.script}.log"
        told = environment | {"ORCA_SCRATCH": scratch}
        return outcome.run(client, command, told, log, lambda step: print(report.line(step), flush=True))


def replaced(document: Path, outcomes: list[outcome.Outcome]) -> str:
    """The document with the rows of these clients replaced; those of others stay, in the catalogue's order."""
    before, head, table = (document.read_text() if document.exists() else "").partition(report.HEAD)
    return before + report.markdown(outcomes, head + table)


if __name__ == "__main__":
    sys.exit(main())
