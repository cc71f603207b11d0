"""`truncate_prompt_tokens`: which tokens of a prompt are kept."""

from __future__ import annotations

from gateway.schemas.common import GenerationFields


def truncated(prompt: list[int], fields: GenerationFields, longest: int) -> list[int]:
    """The last tokens of the prompt, as many as `fields` say, or the first with `truncation_side` right; -1 means
    `longest`, all that the output leaves room for."""
    keep = fields.truncate_prompt_tokens
    if keep is None or keep >= len(prompt):
        return prompt
    if keep < 0:
        keep = longest
    return prompt[:keep] if fields.truncation_side == "right" else prompt[max(0, len(prompt) - keep) :]
