"""The fast path on a CPU: all layers of a decoder as one compiled function. It needs a compiler on the machine."""
