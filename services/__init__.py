"""The logic of Orca: plain Python objects that know neither Ray nor FastAPI."""
