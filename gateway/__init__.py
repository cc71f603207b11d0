"""HTTP in, server-sent events out. Knows OpenAI's API, Anthropic's, text and the pool; no scheduler and no engine."""
