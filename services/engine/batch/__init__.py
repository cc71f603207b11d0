"""The requests of an iteration: what their settings do to their logits, their tokens as flat arrays, their KV cache."""
