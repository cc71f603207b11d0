"""The proof of the fast path: a trial shows that it computes on this device what transformers' own layers compute."""
