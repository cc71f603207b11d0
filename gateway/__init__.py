"""HTTP in, server-sent events out. Knows OpenAI's API, text and the pool; never talks to a scheduler or an engine."""
