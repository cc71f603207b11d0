"""One iteration's requests: their states, the flat batch, the KV cache."""
