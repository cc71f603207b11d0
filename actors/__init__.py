"""Ray shells: where processes live, how they find each other, how they come back. No decisions."""
