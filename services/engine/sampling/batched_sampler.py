"""The batched sampler, for accelerators, and for a CPU without compiled functions: whole vocabularies and all requests
at once. The host waits for nothing but the result."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch import adjustments
from services.engine.batch.buffers import fetch, send
from services.engine.batch.request_state import RequestState
from services.engine.sampling import whole_rows
from services.engine.sampling.noise import gumbel, keys_at, stems
from services.engine.sampling.output import SampledTokens
from services.engine.sampling.truncation import DeviceTruncation, Truncation, truncate
from services.messages import Logprobs
from services.started import Started

AT_ONCE = 1 << 24  # scores that are drawn from at once: noise takes 16 bytes of each


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What the device needs of the requests: what `Batch.send` sends, in this order, and two more."""

    changed: torch.Tensor  # [changed]: requests whose logits change
    index: torch.Tensor
    columns: torch.Tensor
    settings: torch.Tensor  # these three are the `Changes` of the changed requests
    drawing: torch.Tensor  # [draws]: requests that draw
    sources: torch.Tensor  # [draws]: rows, in the logits of all requests and those of changed ones after them
    keys: torch.Tensor  # [draws], of their noise
    asking: torch.Tensor  # [asking]: requests that ask for log probabilities
    limited: torch.Tensor  # [limited]: which of the changed requests have allowed tokens
    masked: torch.Tensor  # [masked]: which of the changed requests have the mask of a grammar
    masks: torch.Tensor  # [masked, ceil(vocab / 32)], int32: a bit for each token that the grammar allows
    limits: DeviceTruncation = field(kw_only=True)  # [draws]
    forbidden: torch.Tensor = field(kw_only=True)  # [limited, vocab], bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of an iteration as whole-batch operations need them."""

    states: Sequence[RequestState]
    changed: list[int]  # those whose logits change
    drawing: list[int]
    draws: list[tuple[int, bool]]  # of each: top_k, whether it has top_p; those that one pass truncates are neighbours
    stems: npt.NDArray[np.uint64]  # [draws], of the keys of their noise
    asking: list[int]
    most_logprobs: int  # the largest number of log probabilities that a request asks for

    @classmethod
    def from_states(cls, states: Sequence[RequestState], vocab_size: int) -> Batch:
        def kind(i: int) -> tuple[bool, bool]:
            s = states[i].sampling
            return s.top_p < 1.0, 0 < s.top_k < vocab_size

        changed = [i for i, state in enumerate(states) if state.adjustments or state.is_limited]
        drawing = sorted((i for i, state in enumerate(states) if state.sampling.temperature > 0.0), key=kind)
        asking = [i for i, state in enumerate(states) if state.sampling.logprobs is not None]
        most = max((min(states[i].sampling.logprobs or 0, vocab_size) for i in asking), default=0)
        settings = [states[i].sampling for i in drawing]
        draws = [(s.top_k if s.top_k < vocab_size else 0, s.top_p < 1.0) for s in settings]
        of_noise = stems((s.seed for s in settings), (s.choice for s in settings))
        return cls(states, changed, drawing, draws, of_noise, asking, most)

    def keys(self) -> npt.NDArray[np.int64]:
        """[draws], of the noise of their next tokens."""
        return keys_at(self.stems, (self.states[i].num_tokens for i in self.drawing))

    def send(self, vocab_size: int, device: torch.device) -> OnDevice:
        changed = [self.states[i] for i in self.changed]
        settings = [self.states[i].sampling for i in self.drawing]
        copies = {i: len(self.states) + place for place, i in enumerate(self.changed)}
        changes = adjustments.gather([state.adjustments for state in changed], vocab_size)
        limited = [(i, state.allowed) for i, state in enumerate(changed) if state.allowed]
        forbidden = [allowed.forbidden(device) for _, allowed in limited]
        masks = [(i, mask) for i, state in enumerate(changed) if (mask := state.mask) is not None]
        *sent, temperature, lowest, top_k, top_p = send(
            [
                np.array(self.changed, np.int64),
                changes.index,
                changes.columns,
                changes.settings,
                np.array(self.drawing, np.int64),
                np.array([copies.get(i, i) for i in self.drawing], np.int64),
                self.keys(),
                np.array(self.asking, np.int64),
                np.array([i for i, _ in limited], np.int64),
                np.array([i for i, _ in masks], np.int64),
                np.array([mask for _, mask in masks], np.int32).reshape(len(masks), -(-vocab_size // 32)),
                *Truncation.from_params(settings, vocab_size),
            ],
            device,
        )
        others = torch.stack(forbidden) if forbidden else torch.empty(0, vocab_size, dtype=torch.bool, device=device)
        return OnDevice(*sent, limits=DeviceTruncation(temperature, lowest, top_k, top_p), forbidden=others)

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
    return BatchedSampler().start(logits, states)[1].result()


class BatchedSampler:
    """Samples for one iteration after another. What the last one has sent is kept where it is the same: all but the
    noise, for the same requests, if their settings change no logits."""

    def __init__(self) -> None:
        self._last: tuple[Batch, OnDevice] | None = None

    def start(
        self, logits: torch.Tensor, states: Sequence[RequestState]
    ) -> tuple[torch.Tensor, Started[SampledTokens]]:
        """The tokens [requests] on the device of the logits, and all that the host needs, on its way there."""
        if self._last and _same(states, self._last[0].states):
            batch, there = self._last
            if batch.drawing:
                there = replace(there, keys=send([batch.keys()], logits.device)[0])
        else:
            batch = Batch.from_states(states, logits.shape[1])
            there = batch.send(logits.shape[1], logits.device)
        self._last = (batch, there) if all(state.unchanged for state in states) else None
        results = launch(logits, batch, there)
        return results[: len(states)], fetch(results).then(lambda arrived: unpack(arrived, batch))


def _same(states: Sequence[RequestState], others: Sequence[RequestState]) -> bool:
    return len(states) == len(others) and all(map(operator.is_, states, others))


def launch(logits: torch.Tensor, batch: Batch, there: OnDevice) -> torch.Tensor:
    """Launch all work without waiting. Returns all results in one int64 tensor, see `unpack`."""
    raw, n = logits.float(), len(batch.states)
    results = [torch.empty(n + -(-n // 2), dtype=torch.int64, device=logits.device)]
    tokens, best = results[0][:n], results[0][n:].view(torch.float32)[:n]
    maxima = _find_best(raw, tokens, best)  # a batch of plain greedy requests costs no more than this
    copies, their_maxima = raw[:0], None
    if batch.changed:
        copies = _changed(raw, there)
        chosen, tops = torch.empty_like(there.changed), torch.empty(len(there.changed), device=raw.device)
        their_maxima = _find_best(copies, chosen, tops)
        results.append(tops.double().view(torch.int64))
        tokens.index_copy_(0, there.changed, chosen)
    if batch.drawing:
        if maxima is None:
            drawn = _draw(torch.cat([raw, copies]) if len(copies) else raw, batch, there)
        else:
            from services.engine.sampling.triton_draw import draw

            most = maxima if their_maxima is None else torch.cat([maxima, their_maxima])
            drawn = draw((raw, copies), most, there.sources, there.limits, there.keys)
        tokens.index_copy_(0, there.drawing, drawn)
    if batch.asking:
        if len(batch.asking) < n:
            raw = raw.index_select(0, there.asking)
            maxima = None if maxima is None else maxima.index_select(0, there.asking)
        logs, ids = whole_rows.score(raw, tokens.index_select(0, there.asking), batch.most_logprobs, maxima)
        results += [logs.view(torch.int64).view(-1), ids.view(-1)]
    return torch.cat(results) if len(results) > 1 else results[0]


def _find_best(rows: torch.Tensor, tokens: torch.Tensor, best: torch.Tensor) -> torch.Tensor | None:
    """Write the largest of each of `rows` [rows, vocab] into `best`, and which token has it into `tokens` [rows].
    Returns the maxima of their chunks where kernels need them."""
    if known := whole_rows.kernels(rows):
        maxima: torch.Tensor = known.maxima(rows)
        known.best(rows, maxima, tokens, best)
        return maxima
    torch.max(rows, dim=-1, out=(best, tokens))
    return None


def _changed(raw: torch.Tensor, there: OnDevice) -> torch.Tensor:
    """Copies of the rows that biases, penalties or masks change, with these changes."""
    scores = raw.index_select(0, there.changed)
    if len(there.index):
        values = adjustments.adjusted(scores, there.index, there.columns, there.settings)
        scores.view(-1).index_copy_(0, there.index, values)
    if len(there.limited):
        left = scores.index_select(0, there.limited).masked_fill_(there.forbidden, -torch.inf)
        scores.index_copy_(0, there.limited, left)
    if len(there.masked):
        left = scores.index_select(0, there.masked).masked_fill_(_forbidden(there.masks, raw.shape[1]), -torch.inf)
        scores.index_copy_(0, there.masked, left)
    return scores


def _forbidden(masks: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[masked, vocab], bool, from a bit for each token that is allowed."""
    bits = masks[:, :, None] >> torch.arange(32, dtype=torch.int32, device=masks.device) & 1
    return bits.flatten(1)[:, :vocab_size] == 0


def _draw(rows: torch.Tensor, batch: Batch, there: OnDevice) -> torch.Tensor:
    """The tokens [draws] that are drawn from some of `rows` [rows, vocab]."""
    parts = batch.parts(rows.shape[1])
    return torch.cat(
        [_draw_part(rows.index_select(0, there.sources[part]), batch.draws[part], there, part) for part in parts]
    )


def _draw_part(scores: torch.Tensor, draws: list[tuple[int, bool]], there: OnDevice, part: slice) -> torch.Tensor:
    """Draw from softmax(scores / temperature), truncated: the token with the largest score + Gumbel noise. The scores
    are overwritten."""
    limits = there.limits.part(part)
    scores -= scores.amax(dim=-1, keepdim=True)
    scores /= limits.temperature[:, None]
    truncate(scores, limits, max(top_k for top_k, _ in draws), draws[0][1])
    scores += gumbel(there.keys[part, None], torch.arange(scores.shape[1], device=scores.device))
    return scores.argmax(dim=-1)


def unpack(results: npt.NDArray[np.int64], batch: Batch) -> SampledTokens:
    """What `launch` returns: tokens; the largest logit of each request, and of each changed one after its changes; log
    probabilities and their tokens."""
    n, changed, asking, k = len(batch.states), len(batch.changed), len(batch.asking), batch.most_logprobs
    tokens, best, tops, rest = np.split(results, np.cumsum([n, -(-n // 2), changed]))
    possible = np.ones(n, bool)
    possible[batch.changed] = tops.view(np.float64) != -np.inf
    logs = rest[: asking * (k + 1)].view(np.float64).reshape(asking, k + 1).tolist()
    ids = rest[asking * (k + 1) :].reshape(asking, k).tolist()
    logprobs = {}
    for i, (own, *values), likeliest in zip(batch.asking, logs, ids, strict=True):
        count = batch.states[i].sampling.logprobs or 0
        logprobs[i] = Logprobs(own, list(zip(likeliest[:count], values[:count], strict=True)))
    sound = np.isfinite(best.view(np.float32)[:n]).tolist()
    return SampledTokens(tokens.tolist(), sound, possible.tolist(), logprobs)
