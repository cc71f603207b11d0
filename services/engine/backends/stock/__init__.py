"""transformers' own layers with our attention, for every decoder whose attention can be replaced. Imported only where
they run, because they take seconds to import."""
