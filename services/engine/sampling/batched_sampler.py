"""The batched sampler, for accelerators, and for a CPU without compiled functions: whole vocabularies and all requests
at once. The host waits for nothing but the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch import adjustments
from services.engine.batch.buffers import fetch, send
from services.engine.batch.request_state import RequestState
from services.engine.sampling import whole_rows
from services.engine.sampling.noise import gumbel, keys
from services.engine.sampling.output import SampledTokens
from services.engine.sampling.truncation import DeviceTruncation, Truncation, truncate
from services.messages import Logprobs
from services.started import Started

AT_ONCE = 1 << 24  # scores that are drawn from at once: noise takes 16 bytes of each


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What the device needs of the requests. `special` are numbers of requests: first those that draw, in the order of
    their draws, then the others."""

    special: torch.Tensor  # [special]: requests that are not plain greedy
    index: torch.Tensor
    columns: torch.Tensor
    settings: torch.Tensor  # these three are the `Changes` of the special requests
    keys: torch.Tensor  # [draws], of their noise
    asking: torch.Tensor  # [asking]: requests that ask for log probabilities
    limited: torch.Tensor  # [limited]: which of the special requests have allowed tokens
    limits: DeviceTruncation  # [draws]
    forbidden: torch.Tensor  # [limited, vocab], bool
    masked: torch.Tensor  # [masked]: which of the special requests have the mask of a grammar
    masks: torch.Tensor  # [masked, ceil(vocab / 32)], int32: a bit for each token that the grammar allows


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of an iteration as whole-batch operations need them."""

    states: Sequence[RequestState]
    special: list[int]
    draws: list[tuple[int, bool]]  # of each: top_k, whether it has top_p; those that one pass truncates are neighbours
    asking: list[int]
    most_logprobs: int  # the largest number of log probabilities that a request asks for

    @classmethod
    def from_states(cls, states: Sequence[RequestState], vocab_size: int) -> Batch:
        def kind(i: int) -> tuple[bool, bool, bool]:
            s = states[i].sampling
            return s.temperature <= 0.0, s.top_p < 1.0, 0 < s.top_k < vocab_size

        special = sorted((i for i, state in enumerate(states) if not state.is_plain_greedy), key=kind)
        asking = [i for i, state in enumerate(states) if state.sampling.logprobs is not None]
        most = max((min(states[i].sampling.logprobs or 0, vocab_size) for i in asking), default=0)
        drawing = [states[i].sampling for i in special if states[i].sampling.temperature > 0.0]
        draws = [(s.top_k if s.top_k < vocab_size else 0, s.top_p < 1.0) for s in drawing]
        return cls(states, special, draws, asking, most)

    def send(self, vocab_size: int, device: torch.device) -> OnDevice:
        special = [self.states[i] for i in self.special]
        drawing = special[: len(self.draws)]
        settings = [state.sampling for state in drawing]
        changes = adjustments.gather([state.adjustments for state in special], vocab_size)
        limited = [(i, state.allowed) for i, state in enumerate(special) if state.allowed]
        forbidden = [allowed.forbidden(device) for _, allowed in limited]
        masks = [(i, mask) for i, state in enumerate(special) if (mask := state.mask) is not None]
        positions = (state.num_tokens for state in drawing)
        first, index, columns, values, noise_keys, asking, places, masked, words, *limits = send(
            [
                np.array(self.special, np.int64),
                changes.index,
                changes.columns,
                changes.settings,
                keys((s.seed for s in settings), (s.choice for s in settings), positions),
                np.array(self.asking, np.int64),
                np.array([i for i, _ in limited], np.int64),
                np.array([i for i, _ in masks], np.int64),
                np.array([mask for _, mask in masks], np.int32).reshape(len(masks), -(-vocab_size // 32)),
                *Truncation.from_params(settings, vocab_size).arrays(),
            ],
            device,
        )
        return OnDevice(
            special=first,
            index=index,
            columns=columns,
            settings=values,
            keys=noise_keys,
            asking=asking,
            limited=places,
            limits=DeviceTruncation(*limits),
            forbidden=torch.stack(forbidden)
            if forbidden
            else torch.empty(0, vocab_size, dtype=torch.bool, device=device),
            masked=masked,
            masks=words,
        )

    def parts(self, vocab_size: int) -> Iterator[slice]:
        """The draws in parts that fit at once and that the same settings truncate."""
        begin = 0
        for end in range(1, len(self.draws) + 1):
            full = (end - begin + 1) * vocab_size > AT_ONCE
            if full or end == len(self.draws) or _kind(self.draws[end]) != _kind(self.draws[begin]):
                yield slice(begin, end)
                begin = end


def _kind(draw: tuple[int, bool]) -> tuple[bool, bool]:
    """Whether a draw has top_k, and top_p."""
    return draw[0] > 0, draw[1]


def sample(logits: torch.Tensor, states: Sequence[RequestState]) -> SampledTokens:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    return start(logits, states)[1].result()


def start(logits: torch.Tensor, states: Sequence[RequestState]) -> tuple[torch.Tensor, Started[SampledTokens]]:
    """The tokens [requests] on the device of the logits, and all that the host needs, on its way there."""
    batch = Batch.from_states(states, logits.shape[1])
    results = launch(logits, batch, batch.send(logits.shape[1], logits.device))
    return results[: len(states)], fetch(results).then(lambda arrived: unpack(arrived, batch))


def launch(logits: torch.Tensor, batch: Batch, there: OnDevice) -> torch.Tensor:
    """Launch all work without waiting. Returns all results in one int64 tensor, see `unpack`."""
    raw, n = logits.float(), len(batch.states)
    results = [torch.empty(n + -(-n // 2), dtype=torch.int64, device=logits.device)]
    tokens, best = results[0][:n], results[0][n:].view(torch.float32)[:n]
    torch.max(raw, dim=-1, out=(best, tokens))  # a batch of plain greedy requests costs no more than this
    if batch.special:
        scores = raw.index_select(0, there.special)
        if len(there.index):
            values = adjustments.adjusted(scores, there.index, there.columns, there.settings)
            scores.view(-1).index_copy_(0, there.index, values)
        if len(there.limited):
            left = scores.index_select(0, there.limited).masked_fill_(there.forbidden, -torch.inf)
            scores.index_copy_(0, there.limited, left)
        if len(there.masked):
            left = scores.index_select(0, there.masked).masked_fill_(_forbidden(there.masks, raw.shape[1]), -torch.inf)
            scores.index_copy_(0, there.masked, left)
        tops, chosen = scores.max(dim=-1)
        results.append(tops.double().view(torch.int64))
        if count := len(batch.draws):
            chosen[:count] = _draw(scores[:count], tops[:count], batch, there)
        tokens.index_copy_(0, there.special, chosen)
    if batch.asking:
        asking = raw if len(batch.asking) == n else raw.index_select(0, there.asking)
        logs, ids = whole_rows.score(asking, tokens.index_select(0, there.asking), batch.most_logprobs)
        results += [logs.view(torch.int64).view(-1), ids.view(-1)]
    return torch.cat(results) if len(results) > 1 else results[0]


def _forbidden(masks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[masked, vocab], bool, from a bit for each token that is allowed."""
    bits = masks[:, :, None] >> torch.arange(32, dtype=torch.int32, device=masks.device) & 1
    return bits.flatten(1)[:, :vocab_size] == 0


def _draw(scores: torch.Tensor, tops: torch.Tensor, batch: Batch, there: OnDevice) -> torch.Tensor:
    """The tokens [draws] that are drawn."""
    if scores.is_cuda and (kernel := _kernel()):
        return kernel(scores, tops, there.limits, there.keys)
    parts = batch.parts(scores.shape[1])
    return torch.cat([_draw_part(scores[part] - tops[part, None], batch.draws[part], there, part) for part in parts])


@cache
def _kernel() -> Callable[..., torch.Tensor] | None:
    """One launch for all draws, where there is Triton."""
    try:
        from services.engine.sampling.triton_draw import draw
    except ImportError:
        return None
    return draw


def _draw_part(scores: torch.Tensor, draws: list[tuple[int, bool]], there: OnDevice, part: slice) -> torch.Tensor:
    """Draw from softmax(scores / temperature), truncated: the token with the largest score + Gumbel noise."""
    limits = there.limits.part(part)
    scores /= limits.temperature[:, None]
    truncate(scores, limits, max(top_k for top_k, _ in draws), draws[0][1])
    scores += gumbel(there.keys[part, None], torch.arange(scores.shape[1], device=scores.device))
    return scores.argmax(dim=-1)


def unpack(results: npt.NDArray[np.int64], batch: Batch) -> SampledTokens:
    """What `launch` returns: tokens; the largest logit of each request, and of each special one after adjustments; log
    probabilities and their tokens."""
    n, special, asking, k = len(batch.states), len(batch.special), len(batch.asking), batch.most_logprobs
    tokens, best, tops, rest = np.split(results, np.cumsum([n, -(-n // 2), special]))
    possible = np.ones(n, bool)
    possible[batch.special] = tops.view(np.float64) != -np.inf
    logs = rest[: asking * (k + 1)].view(np.float64).reshape(asking, k + 1).tolist()
    ids = rest[asking * (k + 1) :].reshape(asking, k).tolist()
    logprobs = {}
    for i, (own, *values), likeliest in zip(batch.asking, logs, ids, strict=True):
        count = batch.states[i].sampling.logprobs or 0
        logprobs[i] = Logprobs(own, list(zip(likeliest[:count], values[:count], strict=True)))
    sound = np.isfinite(best.view(np.float32)[:n]).tolist()
    return SampledTokens(tokens.tolist(), sound, possible.tolist(), logprobs)
