"""The reference model of the pool: the rules of the Lua scripts in plain Python.

Property tests compare the two, and the simulator and benchmarks in process run on it.
"""
