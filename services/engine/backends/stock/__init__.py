"""transformers' own layers with our attention, for every decoder that lets it be replaced. Imported where they run."""
