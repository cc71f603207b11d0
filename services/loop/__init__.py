"""The engine loop: it keeps one engine busy and exchanges its work with the pool."""
