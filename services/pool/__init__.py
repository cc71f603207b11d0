"""The request pool: requests, their tokens and the seats that run them, in a Redis or Valkey server."""
