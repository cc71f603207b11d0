"""The arguments that the locustfile adds to Locust's. vLLM's names where `vllm bench serve` has the same."""

from __future__ import annotations

import functools
import json
import math
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from load.users.profile import KINDS, Kind, Profile, profile_of
from load.users.sample import parse_targets
from load.users.workloads import NAMES, workload
from services.client.resuming import PATIENCE

STAGE_SECONDS = 30  # of a shape without --run-time
OPEN_LOOP_USERS = 100  # without --users


def add_arguments(parser: Any) -> None:
    """For the event `init_command_line_parser`, whose parser knows more than argparse.

    The arguments are in no group, as the web page shows only such. It changes a value to another of the same type.
    """
    parser.add_argument(
        "--workload", choices=NAMES, default="questions", help="what is sent, by name; see docs/load_testing.md"
    )
    parser.add_argument("--dataset-path", default="", help="the JSONL file of the workload 'custom'")
    parser.add_argument("--max-tokens", type=int, default=64, help="max_tokens where the workload has no lengths")
    parser.add_argument("--turns", type=int, default=4, help="questions in a conversation of the workload 'multi_turn'")
    parser.add_argument(
        "--model",
        default="",
        help="the models to ask for in turn, separated by spaces; without it, the first of /v1/models",
    )
    parser.add_argument(
        "--extra-body", type=_json_object, default="", help="fields of each body, as JSON; null removes one"
    )
    parser.add_argument("--schema", default="", help="a file with a JSON schema that the answers to chats must obey")
    parser.add_argument(
        "--api-key",
        default="",
        env_var="OPENAI_API_KEY",
        include_in_web_ui=False,  # the page would show it
        help="sent as a bearer token (env: OPENAI_API_KEY)",
    )
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, help="seconds for which a Resuming user tries again"
    )
    parser.add_argument(
        "--request-rate",
        type=_rate,
        default=0.0,
        help="requests per second of an open loop: they are sent when they are due, by as many users as there are, and "
        "latencies begin when they were due. 0: a closed loop, in which each user asks as soon as it has its answer",
    )
    parser.add_argument(
        "--burstiness", type=_positive, default=1.0, help="of an open loop: 1 is a Poisson process, below 1 in bursts"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals of an open loop")
    parser.add_argument("--requests", type=int, default=0, help="stop after as many requests in all (0: never)")
    parser.add_argument(
        "--shape",
        choices=KINDS,
        default="constant",
        help="of the load over --run-time, up to --users, or to --request-rate in an open loop",
        include_in_web_ui=False,  # --class-picker offers the shapes there
    )
    parser.add_argument("--stages", type=int, default=5, help="how many steps a shape takes")
    parser.add_argument(
        "--goodput",
        nargs="+",
        type=_target,
        metavar="NAME:MS",
        help="targets by which a request counts as goodput: ttft, tpot, e2el in ms, e.g. ttft:500 tpot:50",
    )
    parser.add_argument("--samples", default="", help="a JSONL file for each request's times; the master writes it")


def targets_of(options: Any) -> dict[str, float]:
    """The targets of --goodput, which the web page gives as one text. Raises ValueError."""
    return parse_targets(" ".join([options.goodput] if isinstance(options.goodput, str) else options.goodput or ()))


def is_open(options: Any) -> bool:
    return bool(options.request_rate > 0)


def check(kind: Kind, options: Any) -> Profile:
    """The load of a test with these options. Raises ValueError if they are not those of a test."""
    targets = targets_of(options)
    if options.stages < 1:
        raise ValueError(f"--stages must be at least 1, not {options.stages}")
    if kind == "knee" and not targets:
        raise ValueError("the shape 'knee' needs targets, as --goodput ttft:500 tpot:50")
    workload(options.workload, options.dataset_path)
    if options.schema:
        read_schema(options.schema)
    return profile(kind, options)


@functools.cache
def read_schema(path: str) -> Any:
    """The JSON schema in this file. Raises ValueError."""
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read --schema {path}: {error}") from None


def profile(kind: Kind, options: Any) -> Profile:
    """The load of a test with these options."""
    peak = options.request_rate if is_open(options) else float(options.num_users or 1)
    if kind == "constant":
        return profile_of(kind, peak, math.inf, 1)
    return profile_of(kind, peak, options.run_time or STAGE_SECONDS * options.stages, options.stages)


def _rate(text: str) -> float:
    rate = float(text)
    if not rate >= 0:
        raise ArgumentTypeError(f"a rate is a number of requests per second from 0 on, not {text}")
    return 0.0 if math.isinf(rate) else rate  # vLLM's default `inf` is a closed loop


def _positive(text: str) -> float:
    if not 0 < (number := float(text)) < math.inf:
        raise ArgumentTypeError(f"must be a number above 0, not {text}")
    return number


def _target(text: str) -> str:
    try:
        parse_targets(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None
    return text


def _json_object(text: str) -> str:
    if text and not isinstance(json.loads(text), dict):
        raise ArgumentTypeError(f"must be a JSON object, not {text}")
    return text
