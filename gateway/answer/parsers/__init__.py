"""Parsers: how the text of an answer is divided into content, reasoning and calls of tools.

A parser reads detokenized text. Its output depends on the text only, not on how the text is cut into tokens or events,
so a stream continues with the same deltas after a crash and at any gateway. `registry` has all parsers by vLLM's names.

transformers' parser of answers (`transformers.utils.chat_parsing`) is not used, because it returns the arguments of a
call only at its end, raises on a broken call, and adds 0.5 s and 17 MB to the start of a gateway.
"""
