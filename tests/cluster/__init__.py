"""End-to-end tests. A package, so that their server ends with the last of them and is in nobody's way afterwards."""
