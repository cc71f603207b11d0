"""NullEngine: an engine without a model, which answers at once, to measure everything around an engine."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from services.engine.deadly import DeadlyToken
from services.engine.settings import EngineSettings
from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult, Logprobs, NewRequest, PromptLogprobs
from services.models.info import ModelInfo

DEFAULT_BLOCKS = 65_536


LIKELY = -1.0  # the log probability of any token


@dataclass(slots=True)
class _Counters:
    request: NewRequest
    hash: int  # of the request's id
    num_tokens: int
    num_computed_tokens: int = 0
    drawn: int = -1  # its last token


class NullEngine:
    """The interface of Engine; its token is a function of request id and position. Imports no torch."""

    def __init__(self, figures: EngineFigures, deadly: DeadlyToken | None = None) -> None:
        self.figures = figures
        self._rows: dict[str, _Counters] = {}
        self._deadly = deadly or DeadlyToken()
        self._epoch: str | None = None

    @classmethod
    def load(cls, folder: Path, settings: EngineSettings) -> NullEngine:
        """With the vocabulary and length of the model in `folder`, whose weights are not read."""
        model = ModelInfo.load(folder, settings.cache_dir)
        return cls(
            EngineFigures(
                model=model.name,
                max_model_len=settings.max_model_len or model.max_model_len,
                num_blocks=settings.kv_blocks or DEFAULT_BLOCKS,
                block_size=settings.block_size,
                vocab_size=model.vocab_size,
                numerics="null",
            ),
            DeadlyToken(settings.deadly_token),
        )

    def reset(self, epoch: str) -> None:
        """See Engine.reset."""
        self._rows.clear()
        self._epoch = epoch

    def run(self, iteration: Iteration) -> IterationResult:
        """See Engine.run; nothing fails here."""
        started = time.perf_counter()
        if iteration.epoch != self._epoch:
            raise StaleEpoch(f"iteration of epoch {iteration.epoch!r}, the engine's is {self._epoch!r}")
        for id in iteration.released:
            self._rows.pop(id, None)
        for new in iteration.new:
            self._deadly.check(new.token_ids)
            self._rows[new.id] = _Counters(
                new, zlib.crc32(new.id.encode()), len(new.token_ids), new.num_computed_tokens
            )
        tokens: dict[str, int] = {}
        logprobs: dict[str, Logprobs] = {}
        for id, count in iteration.scheduled.items():
            row = self._rows[id]
            self._deadly.check((row.drawn,))
            row.num_computed_tokens += count
            assert row.num_computed_tokens <= row.num_tokens, f"{id}: {count} tokens are too many"
            if row.num_computed_tokens == row.num_tokens:
                tokens[id] = row.drawn = self._token(row)
                if row.request.sampling.logprobs is not None:
                    logprobs[id] = _logprobs(row)
                row.num_tokens += 1
        return IterationResult(iteration.epoch, iteration.step, tokens, logprobs, elapsed=time.perf_counter() - started)

    def _token(self, row: _Counters) -> int:
        """From the middle half of the vocabulary, where tokenizers keep no special tokens."""
        quarter = self.figures.vocab_size // 4
        return quarter + (row.hash + row.num_tokens * 2_654_435_761) % max(1, 2 * quarter)


def _logprobs(row: _Counters) -> Logprobs:
    """Of the token that was drawn, and of the prompt where it is the first."""
    sampling, prompt = row.request.sampling, None
    if sampling.prompt_logprobs is not None and row.num_tokens == row.request.num_prompt_tokens:
        count = row.num_tokens - 1
        most = count * sampling.prompt_logprobs
        prompt = PromptLogprobs([LIKELY] * count, [1] * count, [0] * most, [LIKELY] * most)
    return Logprobs(LIKELY, [(row.drawn, LIKELY)] * (sampling.logprobs or 0), prompt)
