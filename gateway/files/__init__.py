"""The files of tenants on disk: uploads, and the output of batches."""
