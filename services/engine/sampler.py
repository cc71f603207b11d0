"""One token for each request that reached the end of its input, each by its own settings."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from services.engine.noise import gumbel, key
from services.engine.penalties import penalise, penalised
from services.engine.rows import Row
from services.engine.truncation import truncate
from services.messages import Logprobs


@dataclass(slots=True)
class Sampled:
    """Tokens and asked log probabilities by request id; in `failed` why a request got none."""

    tokens: dict[str, int] = field(default_factory=dict)
    logprobs: dict[str, Logprobs] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Sampler:
    """Draws tokens. A request's token depends on its own logits, tokens and settings alone, never on the batch."""

    def __init__(self, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._eos = eos_token_ids
        self._vocab_size = vocab_size

    def sample(self, logits: torch.Tensor, rows: list[Row]) -> Sampled:
        """A token for each row of `logits` [requests, vocab], the model's raw output in any dtype."""
        raw = logits.float()
        best, choices = raw.max(dim=-1)
        sound = best.isfinite().tolist()
        tokens = choices.tolist()
        special = [i for i, row in enumerate(rows) if sound[i] and self._is_special(row)]
        for i, token in zip(special, self._choose(raw[special], [rows[i] for i in special]), strict=True):
            tokens[i] = token
        result = Sampled()
        for row, ok, token in zip(rows, sound, tokens, strict=True):
            if not ok:
                result.failed[row.id] = f"the model's logits at position {len(row.token_ids)} are not finite"
            elif token is None:
                result.failed[row.id] = "logit_bias, stop_token_ids and min_tokens leave no token to choose"
            else:
                result.tokens[row.id] = token
        asking = [i for i, row in enumerate(rows) if row.id in result.tokens and row.sampling.logprobs is not None]
        if asking:
            result.logprobs = _logprobs(raw[asking], [rows[i] for i in asking], [tokens[i] for i in asking])
        return result

    def _is_special(self, row: Row) -> bool:
        """Whether its token is more than the likeliest one."""
        s = row.sampling
        return s.temperature > 0.0 or bool(s.logit_bias) or penalised(row) or row.num_output_tokens < s.min_tokens

    def _choose(self, logits: torch.Tensor, rows: list[Row]) -> list[int | None]:
        """The tokens of rows that are not plainly greedy; None where nothing is left to choose."""
        if not rows:
            return []
        for scores, row in zip(logits, rows, strict=True):
            self._constrain(scores, row)
            if penalised(row):
                penalise(scores, row)
        best, choices = logits.max(dim=-1)
        tokens: list[int | None] = choices.tolist()
        possible = best.isfinite().tolist()
        drawn = [i for i, row in enumerate(rows) if possible[i] and row.sampling.temperature > 0.0]
        # one at a time a CPU's caches hold all intermediate values, which is ten times as fast
        at_once = 1 if logits.device.type == "cpu" else 64
        for part in (drawn[i : i + at_once] for i in range(0, len(drawn), at_once)):
            for i, token in zip(part, _draw(logits[part], [rows[i] for i in part]), strict=True):
                tokens[i] = token
        return [token if ok else None for token, ok in zip(tokens, possible, strict=True)]

    def _constrain(self, scores: torch.Tensor, row: Row) -> None:
        """Add logit_bias; rule out EOS and stop token ids while the output is shorter than min_tokens."""
        s = row.sampling
        if s.logit_bias:
            ids = torch.tensor(list(s.logit_bias), device=scores.device)
            scores[ids] += torch.tensor(list(s.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        if row.num_output_tokens < s.min_tokens:
            # with ignore_eos an EOS ends nothing, so nothing is to be kept from it
            ends = {*s.stop_token_ids, *(() if s.ignore_eos else self._eos)}
            scores[[id for id in ends if 0 <= id < self._vocab_size]] = -torch.inf


def _draw(logits: torch.Tensor, rows: list[Row]) -> list[int]:
    """Draw from softmax(logits / temperature), truncated: the token with the largest score + Gumbel noise."""
    settings = [row.sampling for row in rows]
    temperatures = torch.tensor([s.temperature for s in settings], device=logits.device)
    scores = (logits - logits.max(dim=-1, keepdim=True).values) / temperatures[:, None]
    truncate(scores, settings)
    keys = [key(s.seed, s.choice, len(row.token_ids)) for s, row in zip(settings, rows, strict=True)]
    scores += gumbel(torch.tensor(keys, device=scores.device), scores.shape[1])
    tokens: list[int] = scores.argmax(dim=-1).tolist()
    return tokens


def _logprobs(logits: torch.Tensor, rows: list[Row], tokens: list[int]) -> dict[str, Logprobs]:
    """Log probabilities of the raw logits [requests, vocab], before temperature, bias and penalties."""
    logs = logits.log_softmax(dim=-1)
    found: dict[str, Logprobs] = {}
    for row_logs, row, token in zip(logs, rows, tokens, strict=True):
        values, ids = row_logs.topk(min(row.sampling.logprobs or 0, logits.shape[1]))
        found[row.id] = Logprobs(row_logs[token].item(), list(zip(ids.tolist(), values.tolist(), strict=True)))
    return found
