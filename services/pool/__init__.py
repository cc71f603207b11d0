"""The request pool: requests, their tokens and who runs them, in a Redis or Valkey server."""
