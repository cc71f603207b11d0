"""What shows that the lean path computes on this device what transformers' own layers compute."""
