"""An engine for tests whose output is the prompt again, round and round: a test chooses what is said by asking.

Everything around it is the real thing. The request fails where the prompt says so, and is slow where it says so.
"""

from __future__ import annotations

import math
import time

from services.errors import StaleEpoch
from services.messages import EngineFigures, Iteration, IterationResult, Logprobs, NewRequest
from services.text import Tokenizer

FAIL = "FAIL"  # what follows it in the prompt is said, then the request fails
SLOW = "SLOW"  # each iteration takes 20 ms


class EchoEngine:
    def __init__(self, figures: EngineFigures, tokenizer: Tokenizer) -> None:
        self.figures = figures
        self._tokenizer = tokenizer
        self._epoch: str | None = None
        self.asked: list[NewRequest] = []  # all that came
        self._rows: dict[str, tuple[NewRequest, int]] = {}

    def reset(self, epoch: str) -> None:
        self._epoch, self._rows = epoch, {}

    def run(self, iteration: Iteration) -> IterationResult:
        if iteration.epoch != self._epoch:
            raise StaleEpoch(iteration.epoch)
        for id in iteration.released:
            self._rows.pop(id, None)
        for new in iteration.new:
            self.asked.append(new)
            self._rows[new.id] = (new, len(new.token_ids) - new.num_prompt_tokens)
        result = IterationResult(iteration.epoch, iteration.step, {})
        for id in iteration.scheduled:
            self._one(id, result)
        return result

    def _one(self, id: str, result: IterationResult) -> None:
        new, position = self._rows[id]
        prompt = new.token_ids[: new.num_prompt_tokens]
        text = self._tokenizer.decode(prompt)
        if SLOW in text:
            time.sleep(0.02)
        if FAIL in text:
            said = self._tokenizer.encode(text.partition(FAIL)[2])
            if position == len(said):
                result.failed[id] = "the prompt said so"
                return
            prompt = said
        token = prompt[position % len(prompt)]
        result.tokens[id] = token
        if new.sampling.logprobs is not None:
            likeliest = [((token + i) % self.figures.vocab_size, -0.5 - i) for i in range(new.sampling.logprobs)]
            result.logprobs[id] = Logprobs(-0.5, [(t, p if i < 4 else -math.inf) for i, (t, p) in enumerate(likeliest)])
        self._rows[id] = (new, position + 1)
