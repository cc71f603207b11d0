"""What drafts gain by the share of guesses that are right, where rows cost little beside an iteration."""

from __future__ import annotations

from pathlib import Path

from load.in_process import Setup
from load.report import tables
from load.simulation.cost import TABLE_1, Partition
from load.simulation.specs import MAX_MODEL_LEN
from load.simulation.world import figures_of, run_simulated
from load.workloads import sized
from services.scheduling import Knobs

HELP = "what drafts gain"
MODEL, STREAMS, SHARES = "13B", (1, 8, 32), (0.0, 0.5, 0.9, 1.0)
PROMPT, OUTPUT, MOST = 128, 256, 16  # tokens of a request, and of a draft


def run(out: Path | None) -> str:
    about = f"{MODEL} on one A100: {PROMPT} tokens in, {OUTPUT} out, drafts of up to {MOST}; gain by right guesses"
    return "\n\n".join(tables({about: {f"{streams} streams": gains(TABLE_1[MODEL], streams) for streams in STREAMS}}))


def gains(partition: Partition, streams: int) -> dict[str, float]:
    """Tokens per second without drafts, and how many times as many with them, by the share of right guesses."""
    without = _rate(partition, streams, 0, 0.0)
    more = {f"{share:.0%} right, times": _rate(partition, streams, MOST, share) / without for share in SHARES}
    return {"tokens/s": without} | more


def _rate(partition: Partition, streams: int, most: int, accepted: float) -> float:
    figures, knobs = figures_of(partition.num_slots, MAX_MODEL_LEN), Knobs(streams, num_speculative_tokens=most)
    requests = [sized(PROMPT, OUTPUT) for _ in range(streams)]
    answers = run_simulated(requests, partition, figures, Setup(knobs), accepted=accepted)
    return streams * OUTPUT / max(answer.times[-1] for answer in answers)
