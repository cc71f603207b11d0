"""The server of a pool: find a Redis or Valkey binary, start it on a data folder, keep it running."""
