"""OpenAI's Responses API: all its state is in the pool, so that any gateway answers for any response."""
