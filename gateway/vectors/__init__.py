"""Routes that make vectors of texts: embeddings, scores of pairs and rankings."""
