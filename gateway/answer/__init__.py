"""Tokens become answers: what all APIs have in common.

`choice` turns the tokens of a sequence into deltas, of which the objects and events of all APIs are made. A parser of
what a family of models writes besides text (tool calls, reasoning) belongs here, between the detokenizer and deltas.
"""
