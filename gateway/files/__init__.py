"""Files of tenants on disk: uploads, and what batches write."""
