"""Ray shells: where processes live, how they find each other, and how they are replaced. They make no decisions about
requests."""
