"""Names that were settings until the last release. Each is accepted with a warning, so that an old file of settings
does not stop an upgrade."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from services.errors import UsageError
from services.settings.constants import Constants

NOW = Constants()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gone:
    """A name that is no setting any more. `instead` says what holds now and, where another setting does it, which.
    `kind` is the type of the values, for the command line. `moved` is the setting that takes the value; empty: the
    value is ignored."""

    instead: str
    kind: type = str
    moved: str = ""


GONE = {
    "keep_ended": Gone(f"an ended request can be read for {NOW.keep_ended:g} s, or until max_pool_bytes is needed"),
    "grace": Gone(f"a resumable request, or one whose gateway died, runs for {NOW.grace:g} s without a client"),
    "lease": Gone(f"a seat is held for {NOW.lease:g} s without renewal"),
    "max_waiting_tokens": Gone(f"the bound is {NOW.max_waiting_tokens:,}, or more with a max_waiting over its default"),
    "max_streams": Gone(f"the bound is {NOW.max_streams:,}, or more with a max_waiting over its default"),
    "max_stored": Gone(f"{NOW.max_stored:,} ended requests can be read, or fewer if max_pool_bytes is needed"),
    "tenant_share": Gone(f"each of several tenants may use {NOW.tenant_share:g} of a bound; see tenant_limits"),
    "ageing": Gone(f"with order=priority, {NOW.ageing:g} s of waiting count as much as one class"),
    "ttft_target": Gone(f"with order=priority, the target is {NOW.ttft_target:g} s, unless the request names one"),
    "earliest_class": Gone("it is 0 with order=priority and several tenants, else -8, unless tenant_limits sets it"),
    "placement_group_strategy": Gone("the ranks of an engine are on one node"),
    "target_ongoing_requests": Gone("one engine is enough for max_batch_size requests, running and waiting"),
    "streams_per_gateway": Gone("one gateway is enough for 256 open requests"),
    "upscale_delay": Gone(f"engines and gateways are added when more were needed for {NOW.upscale_delay:g} s"),
    "downscale_delay": Gone(f"engines and gateways are removed when fewer were needed for {NOW.downscale_delay:g} s"),
    "max_body_bytes": Gone(f"an HTTP body has at most {NOW.max_body_bytes >> 20} MiB"),
    "max_file_bytes": Gone(f"a file has at most {NOW.max_file_bytes >> 20} MiB"),
    "max_tenant_bytes": Gone(f"the files of a tenant have at most {NOW.max_tenant_bytes >> 30} GiB"),
    "max_batch_lines": Gone(f"a batch has at most {NOW.max_batch_lines:,} lines"),
    "lines_in_flight": Gone(f"a gateway has at most {NOW.lines_in_flight} lines of batches in the pool at once"),
    "completion_max_tokens": Gone("max_tokens of completions is 16 unless the request has its own"),
    "chat_max_tokens": Gone("max_new_tokens of override_generation_config is the default of chat"),
    "null_iteration": Gone("a null engine takes as long as it needs"),
    "allow_credentials": Gone("pages of allowed_origins send their key in a header, and no cookies", bool),
    "allowed_methods": Gone("pages of allowed_origins may use all methods", list),
    "allowed_headers": Gone("pages of allowed_origins may send all headers", list),
    "redis_url_file": Gone("redis_url is the URL, or the file that holds it", moved="redis_url"),
}


def without_gone(values: dict[str, Any]) -> dict[str, Any]:
    """Return the `values` of one source without the names in `GONE`, each of which is logged once in this process.

    Raises UsageError for a name whose value has moved to a setting that the source sets too.
    """
    kept = {name: value for name, value in values.items() if name not in GONE}
    for name in values:
        if name not in GONE:
            continue
        _warn(name)
        if (moved := GONE[name].moved) and values[name]:
            if kept.get(moved):
                raise UsageError(f"{moved}, {name}: name one of them")
            kept[moved] = values[name]
    return kept


@cache
def _warn(name: str) -> None:
    what = "has another name" if GONE[name].moved else "is ignored"
    log.warning("%s is not a setting any more and %s: %s", name, what, GONE[name].instead)
