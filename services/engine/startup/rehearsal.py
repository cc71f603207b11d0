"""The largest iteration that a GPU gets, run once before its KV cache is made, to see what memory it needs."""

from __future__ import annotations

from array import array
from dataclasses import replace

import numpy as np
import torch

from services.engine.adapters import NO_CHANGE, Adapter
from services.engine.batch.adjustments import COUNT, Adjustments, AllowedTokens
from services.engine.batch.flat_batch import FlatBatch, pack_batch
from services.engine.batch.grammars import DraftMask
from services.engine.batch.request_state import PromptScores, RequestState
from services.engine.decoder import Decoder
from services.engine.parallel.decoder import RankDecoder
from services.engine.sampling import batched_sampler
from services.engine.sampling.prompt_logprobs import PromptScorer
from services.engine.settings import MOST_REQUESTS, MOST_ROWS, MOST_TOKENS
from services.engine.startup.devices import free_unused
from services.messages import LargestIteration
from services.models.pooling import Pooling
from services.requests import SamplingParams

LOGPROBS = 20  # the most that the API takes
ADAPTER = "rehearsal"  # takes the digest's place
CHANGED = 1 << 14  # tokens of each request whose logits penalties change
# slow paths of all kinds: what they need of memory does not depend on the numbers
SAMPLING = SamplingParams(1, temperature=1.0, top_p=0.9, top_k=50, logprobs=LOGPROBS, prompt_logprobs=LOGPROBS)


def rehearse(
    decoder: Decoder, block_size: int, length: int, vocab: int, pooling: Pooling | None, device: torch.device
) -> int:
    """The bytes that the largest iteration takes from the allocator of a GPU and gives back; on a CPU it runs, too.

    It has `MOST_REQUESTS` requests of `length` tokens, of which it computes `MOST_TOKENS`: prompts that are scored,
    increments behind the longest contexts, and drafts; each with all that changes logits, and with an adapter if they
    are served. `decoder` is bound to a cache, in whose first block all keys and values are written. Ranks compute their
    own part without the others.
    """
    adapter = ADAPTER if decoder.adapters else ""
    if decoder.adapters:
        layers = decoder.depth if isinstance(decoder, RankDecoder) else 0
        decoder.adapters.put(adapter, Adapter({}, [NO_CHANGE] * layers))
    batch = largest_batch(length, vocab, block_size, pooling, adapter)
    on_gpu, before = device.type == "cuda", 0
    if on_gpu:
        free_unused()  # else what the allocator has left would be taken first, and not counted
        before = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
    with torch.inference_mode():
        if isinstance(decoder, RankDecoder) and decoder.is_rank:
            decoder.run_alone(batch)
            _sample(torch.zeros(len(batch.ends), vocab, device=device), batch)
        else:
            logits = decoder.forward(batch)
            if pooling is None:
                assert logits is not None
                _sample(logits, batch)
                PromptScorer(decoder, vocab, None).score(batch)
    if decoder.adapters:
        decoder.adapters.drop(adapter)
    return int(torch.cuda.max_memory_reserved(device)) - before if on_gpu else 0


def _sample(logits: torch.Tensor, batch: FlatBatch) -> None:
    each = zip(batch.sampled, batch.drafts, strict=True)
    batched_sampler.sample(logits, [state for state, draft in each for _ in range(1 + len(draft))])


def largest_of(whole_prompt: int) -> LargestIteration:
    """What `rehearse` runs, for a model that needs prompts of so many tokens in one iteration; 0: any part of them."""
    return LargestIteration(MOST_REQUESTS, max(MOST_TOKENS, whole_prompt), MOST_ROWS)


def largest_batch(length: int, vocab: int, block_size: int, pooling: Pooling | None, adapter: str = "") -> FlatBatch:
    """See `rehearse`. Texts that become vectors have no scores and no increments."""
    if pooling:
        return _texts(length, block_size, pooling)
    sampling, drafted = replace(SAMPLING, adapter=adapter), MOST_ROWS - MOST_REQUESTS
    length -= 1  # the draft is a token, too
    ids, blocks = [1] * length, _blocks(length + 1, block_size)
    changes = Adjustments(SAMPLING, frozenset(), vocab)
    for id in range(min(CHANGED, vocab)):
        changes._add(id, COUNT, 1.0)
    mask = np.full(-(-vocab // 32), -1, np.int32)
    scheduled: list[tuple[RequestState, int]] = []
    left = MOST_TOKENS - drafted
    for others in reversed(range(MOST_REQUESTS)):
        count = min(length, left - others)
        state = RequestState(str(others), ids, length, sampling, length - count, blocks)
        state.adjustments, state.grammar = changes, DraftMask(mask)
        state.allowed = AllowedTokens(range(min(vocab, LOGPROBS)), vocab)
        state.prompt_scores = PromptScores() if count > 1 else None
        scheduled.append((state, count))
        left -= count
    drafts = {state.id: [1] for state, _ in scheduled[len(scheduled) - drafted :]}
    return pack_batch(scheduled, block_size, drafts)


def _texts(length: int, block_size: int, pooling: Pooling) -> FlatBatch:
    scheduled: list[tuple[RequestState, int]] = []
    left = largest_of(length if pooling.whole else 0).tokens
    while left and len(scheduled) < MOST_REQUESTS:
        count = min(length, left)
        state = RequestState(str(left), [1] * count, count, SAMPLING, 0, _blocks(count, block_size))
        scheduled.append((state, count))
        left -= count
    return pack_batch(scheduled, block_size, method=pooling.method)


def _blocks(tokens: int, block_size: int) -> array[int]:
    """The first block for all tokens."""
    return array("i", [0] * -(-tokens // block_size))
