"""End-to-end tests. They are a package, so that their shared server ends with the last of them."""
