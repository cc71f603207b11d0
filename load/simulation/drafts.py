"""What drafts gain by the share of guesses that are right, where tokens cost little beside an iteration or much."""

from __future__ import annotations

from pathlib import Path

from load.in_process import Setup
from load.report import tables
from load.simulation.cost import TABLE_1, PerToken
from load.simulation.engine import Cost
from load.simulation.specs import MAX_MODEL_LEN
from load.simulation.world import figures_of, run_simulated
from load.workloads import sized
from services.scheduling import Knobs

HELP = "what drafts gain"
STREAMS, SHARES = (1, 8, 32), (0.0, 0.5, 0.9, 1.0)
ENGINES: dict[str, Cost] = {"13B on one A100": TABLE_1["13B"], "A small model on two cores": PerToken(0.0075, 0.00125)}
PROMPT, OUTPUT, MOST = 128, 256, 16  # tokens of a request, and of a draft


def run(out: Path | None) -> str:
    about = f"{PROMPT} tokens in, {OUTPUT} out, drafts of up to {MOST}; gain by right guesses"
    figures = {
        f"{name}: {about}": {f"{streams} streams": gains(cost, streams) for streams in STREAMS}
        for name, cost in ENGINES.items()
    }
    return "\n\n".join(tables(figures))


def gains(cost: Cost, streams: int) -> dict[str, float]:
    """Tokens per second without drafts, and how many times as many with them, by the share of right guesses."""
    without = _rate(cost, streams, 0, 0.0)
    more = {f"{share:.0%} right, times": _rate(cost, streams, MOST, share) / without for share in SHARES}
    return {"tokens/s": without} | more


def _rate(cost: Cost, streams: int, most: int, accepted: float) -> float:
    figures, knobs = figures_of(streams * MAX_MODEL_LEN, MAX_MODEL_LEN), Knobs(streams, num_speculative_tokens=most)
    requests = [sized(PROMPT, OUTPUT) for _ in range(streams)]
    answers = run_simulated(requests, cost, figures, Setup(knobs), accepted=accepted)
    return streams * OUTPUT / max(answer.times[-1] for answer in answers)
