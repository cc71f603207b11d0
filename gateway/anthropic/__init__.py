"""Anthropic's Messages API, for text: all its state is in the pool, so that any gateway answers for any message."""
