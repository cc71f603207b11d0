"""The logic of Orca: plain Python that uses neither Ray nor FastAPI."""
