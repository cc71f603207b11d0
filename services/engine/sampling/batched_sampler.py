"""Choosing tokens on an accelerator: whole vocabularies, all requests at once; the host waits once, for the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from services.engine.batch.request_state import Row
from services.engine.batch.transfer import send
from services.engine.sampling import adjustments
from services.engine.sampling.noise import gumbel, keys
from services.engine.sampling.output import Choice, is_plain
from services.engine.sampling.truncation import Truncation, truncate
from services.messages import Logprobs

AT_ONCE = 1 << 24  # scores that are drawn from at once: noise takes 16 bytes of each


@dataclass(frozen=True, slots=True)
class Sent:
    """What the host has to say to an iteration, on the device. `special` are requests by number, in the order in which
    they are drawn: those that are not drawn at all are the last."""

    special: torch.Tensor  # [special]: which are not plainly greedy
    index: torch.Tensor
    columns: torch.Tensor
    settings: torch.Tensor  # these three are `Changes` of the special ones
    temperature: torch.Tensor  # [drawn], float32, and so are the next
    lowest: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    keys: torch.Tensor
    asking: torch.Tensor  # [asking]: requests by number that ask for log probabilities
    limited: torch.Tensor  # [limited]: which of the special ones have allowed tokens
    forbidden: torch.Tensor  # [limited, vocab], bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The requests of an iteration as whole-batch operations need them."""

    rows: Sequence[Row]
    special: list[int]
    groups: list[tuple[int, bool]]  # of each drawn one: top_k, whether it has top_p; equal ones side by side
    asking: list[int]
    likeliest: int  # the most that any asks the log probabilities of

    @classmethod
    def of(cls, rows: Sequence[Row], vocab_size: int) -> Batch:
        def kind(i: int) -> tuple[bool, bool, bool]:
            s = rows[i].sampling
            return s.temperature <= 0.0, s.top_p < 1.0, 0 < s.top_k < vocab_size

        special = sorted((i for i, row in enumerate(rows) if not is_plain(row)), key=kind)
        asking = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
        likeliest = max((min(rows[i].sampling.logprobs or 0, vocab_size) for i in asking), default=0)
        drawn = [rows[i].sampling for i in special if rows[i].sampling.temperature > 0.0]
        groups = [(s.top_k if s.top_k < vocab_size else 0, s.top_p < 1.0) for s in drawn]
        return cls(rows, special, groups, asking, likeliest)

    def send(self, vocab_size: int, device: torch.device) -> Sent:
        special = [self.rows[i] for i in self.special]
        drawn = special[: len(self.groups)]
        settings = [row.sampling for row in drawn]
        changes = adjustments.gather(special, vocab_size)
        limits = Truncation.of(settings, vocab_size)
        limited = [(i, row.allowed) for i, row in enumerate(special) if row.allowed]
        forbidden = [allowed.forbidden(device) for _, allowed in limited]
        sent = send(
            [
                np.array(self.special, np.int64),
                changes.index,
                changes.columns,
                changes.settings,
                limits.temperature,
                limits.lowest,
                limits.top_k,
                limits.top_p,
                keys((s.seed for s in settings), (s.choice for s in settings), (len(r.token_ids) for r in drawn)),
                np.array(self.asking, np.int64),
                np.array([i for i, _ in limited], np.int64),
            ],
            device,
        )
        nobody = torch.empty(0, vocab_size, dtype=torch.bool, device=device)
        return Sent(*sent, *[torch.stack(forbidden) if forbidden else nobody])

    def parts(self, vocab_size: int) -> Iterator[slice]:
        """The drawn ones in parts that fit at once and are alike in what truncates them."""
        begin = 0
        for end in range(1, len(self.groups) + 1):
            full = (end - begin + 1) * vocab_size > AT_ONCE
            if full or end == len(self.groups) or _kind(self.groups[end]) != _kind(self.groups[begin]):
                yield slice(begin, end)
                begin = end


def _kind(group: tuple[int, bool]) -> tuple[bool, bool]:
    return group[0] > 0, group[1]


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> Choice:
    """A token for each row of `logits` [requests, vocab], in any dtype. Requests have their adjustments."""
    batch = Batch.of(rows, logits.shape[1])
    return unpack(launch(logits, batch, batch.send(logits.shape[1], logits.device)).cpu().numpy(), batch)


def launch(logits: torch.Tensor, batch: Batch, sent: Sent) -> torch.Tensor:
    """All of the work, and no waiting. Returns what the host wants to know in one int64 tensor, see `unpack`."""
    raw, n = logits.float(), len(batch.rows)
    told = [torch.empty(n + -(-n // 2), dtype=torch.int64, device=logits.device)]
    tokens, best = told[0][:n], told[0][n:].view(torch.float32)[:n]
    torch.max(raw, dim=-1, out=(best, tokens))  # all that a batch of plainly greedy ones costs
    if batch.special:
        scores = raw.index_select(0, sent.special)
        if len(sent.index):
            values = adjustments.adjusted(scores, sent.index, sent.columns, sent.settings)
            scores.view(-1).index_copy_(0, sent.index, values)
        if len(sent.limited):
            left = scores.index_select(0, sent.limited).masked_fill_(sent.forbidden, -torch.inf)
            scores.index_copy_(0, sent.limited, left)
        tops, chosen = scores.max(dim=-1)
        told.append(tops.double().view(torch.int64))
        if drawn := len(batch.groups):
            chosen[:drawn] = _drawn(scores[:drawn], tops[:drawn], batch, sent)
        tokens.index_copy_(0, sent.special, chosen)
    if batch.asking:
        logs = raw.index_select(0, sent.asking).log_softmax(dim=-1)
        values, ids = logs.topk(batch.likeliest)
        own = logs.gather(1, tokens.index_select(0, sent.asking)[:, None])
        told += [torch.cat([own, values], dim=1).double().view(torch.int64).view(-1), ids.view(-1)]
    return torch.cat(told) if len(told) > 1 else told[0]


def _drawn(scores: torch.Tensor, tops: torch.Tensor, batch: Batch, sent: Sent) -> torch.Tensor:
    """The tokens of those that are drawn."""
    if scores.is_cuda and (kernel := _kernel()):
        return kernel(scores, tops, sent.temperature, sent.lowest, sent.top_k, sent.top_p, sent.keys)
    parts = batch.parts(scores.shape[1])
    return torch.cat([_part(scores[part] - tops[part, None], batch.groups[part], sent, part) for part in parts])


@cache
def _kernel() -> Callable[..., torch.Tensor] | None:
    """One launch for all of them, where there is Triton."""
    try:
        from services.engine.backends.cuda.kernels import draw
    except ImportError:
        return None
    return draw.draw


def _part(scores: torch.Tensor, groups: list[tuple[int, bool]], sent: Sent, part: slice) -> torch.Tensor:
    """Draw from softmax(scores / temperature), truncated: the token with the largest score + Gumbel noise."""
    scores /= sent.temperature[part, None]
    deepest, nucleus = max(top_k for top_k, _ in groups), groups[0][1]
    truncate(scores, sent.lowest[part], sent.top_k[part], sent.top_p[part], deepest, nucleus)
    scores += gumbel(sent.keys[part, None], torch.arange(scores.shape[1], device=scores.device))
    return scores.argmax(dim=-1)


def unpack(told: npt.NDArray[np.int64], batch: Batch) -> Choice:
    """What `launch` tells: tokens; the largest logit of each request, and of each special one once it is adjusted; log
    probabilities and their ids."""
    n, special, asking, k = len(batch.rows), len(batch.special), len(batch.asking), batch.likeliest
    tokens, best, tops, rest = np.split(told, np.cumsum([n, -(-n // 2), special]))
    possible = np.ones(n, bool)
    possible[batch.special] = tops.view(np.float64) != -np.inf
    logs = rest[: asking * (k + 1)].view(np.float64).reshape(asking, k + 1).tolist()
    ids = rest[asking * (k + 1) :].reshape(asking, k).tolist()
    logprobs = {}
    for i, (own, *values), likeliest in zip(batch.asking, logs, ids, strict=True):
        count = batch.rows[i].sampling.logprobs or 0
        logprobs[i] = Logprobs(own, list(zip(likeliest[:count], values[:count], strict=True)))
    return Choice(tokens.tolist(), np.isfinite(best.view(np.float32)[:n]).tolist(), possible.tolist(), logprobs)
