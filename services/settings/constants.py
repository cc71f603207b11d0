"""Numbers that hold for every server, and that a test's server may have otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """The numbers that no operator sets. Neither a flag nor a settings file names them. A test gives the ones that it
    needs to `Settings`, or as JSON in the variable `ORCA_CONSTANTS`; the others keep their defaults.
    """

    keep_ended: float = 600.0  # seconds for which an ended request can be read
    grace: float = 60.0  # seconds for which a resumable request, or one whose gateway died, runs without a client
    lease: float = 5.0  # seconds for which a seat is held without renewal
    max_waiting_tokens: int = 20_000_000  # prompt tokens of waiting sequences; 0: no bound
    max_streams: int = 20_000  # open requests that clients wait for; 0: no bound
    max_stored: int = 100_000  # ended requests that can be read; the oldest are deleted
    tenant_share: float = 0.5  # part of each bound that one of several tenants may use
    ageing: float = 60.0  # order=priority: seconds of waiting that count as much as one class
    ttft_target: float = 10.0  # order=priority: seconds to the first token, of a request that names no target
    upscale_delay: float = 10.0  # seconds for which more engines or gateways must be needed before they are added
    downscale_delay: float = 300.0  # seconds for which fewer must be: one that is removed too early costs a start
    max_body_bytes: int = 8 << 20  # of an HTTP body
    max_file_bytes: int = 200 << 20  # as at OpenAI for the input of a batch
    max_tenant_bytes: int = 10 << 30  # of all files of a tenant
    max_batch_lines: int = 50_000  # as at OpenAI
    lines_in_flight: int = 64  # lines of batches that a gateway has in the pool at once
    max_adapters: int = 256  # LoRA adapters that are loaded at a time
    max_adapter_bytes: int = 1 << 30  # of the files of one adapter
    null_iteration: float = 0.0  # seconds that an iteration of a null engine takes at least
