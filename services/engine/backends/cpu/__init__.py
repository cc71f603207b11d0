"""The lean path on a CPU: a decoder's layers as one compiled function. Where there is no compiler, there is none."""
