"""The knobs of a scheduler for the settings of a server and its engine's device."""

from __future__ import annotations

import logging

from services.messages import EngineFigures
from services.scheduling import Knobs
from services.settings.settings import Settings

log = logging.getLogger(__name__)

# tbt_target=auto: seconds between the tokens of a stream while prompts are computed
CPU_TARGET = 0.18
CUDA_TARGET = 0.05
CPU_BATCH = 32  # max_batch_size=auto
LEAST_SLOTS = 512  # KV slots of each request of a GPU's batch: more requests would wait for blocks


def knobs_of(settings: Settings, figures: EngineFigures) -> Knobs:
    """Return the knobs of a scheduler with these settings whose engine reports `figures`."""
    on_cuda = "cuda" in figures.numerics.split()
    lookahead, drafted = settings.lookahead, settings.num_speculative_tokens
    stages = settings.pp
    if figures.vector and lookahead:  # no text follows a token, so what is ahead are other texts
        stages, lookahead = stages + 1, 0
    elif lookahead == "auto":
        lookahead = int(on_cuda and settings.tp * settings.pp == 1 and settings.speculative_config in ("auto", "off"))
    if lookahead:
        drafted = 0  # they follow tokens that are known
    if drafted and not figures.verifies_drafts:
        log.info("no drafts: this engine's layers round tokens that are computed together otherwise than single ones")
        drafted = 0
    batch, largest = _batch_size(settings, figures), figures.largest
    budget = settings.token_budget or None
    if largest:
        budget = min(budget or largest.tokens, largest.tokens)
        drafted = min(drafted, largest.rows // batch - 1)
    target = settings.tbt_target
    if automatic := target == "auto":
        target = CUDA_TARGET if on_cuda else CPU_TARGET
    return Knobs(
        max_batch_size=batch,
        token_budget=budget,
        tbt_target=target or None,
        stretch_target=automatic,
        admission=settings.admission,
        order=settings.order,
        batches_in_flight=stages,
        lookahead=lookahead,
        num_speculative_tokens=drafted,
        prefix_caching=settings.prefix_caching and not figures.whole_prompts,
        share_prefixes=settings.share_prefixes,
        whole_prompts=figures.whole_prompts,
    )


def _batch_size(settings: Settings, figures: EngineFigures) -> int:
    """The most requests of an iteration."""
    asked, largest = settings.max_batch_size, figures.largest
    if asked == "auto":
        batch = CPU_BATCH
        if largest:
            batch = min(largest.requests, max(CPU_BATCH, figures.num_slots // LEAST_SLOTS))
        return min(batch, settings.token_budget or batch)
    if largest and asked > largest.requests:
        log.warning("max_batch_size=%d is over the %d requests that this GPU has memory for", asked, largest.requests)
        return largest.requests
    return asked
