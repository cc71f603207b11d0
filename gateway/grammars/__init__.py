"""Grammars of requests: from the fields of the APIs to the grammar that the engine follows (see `services/grammar`)."""
