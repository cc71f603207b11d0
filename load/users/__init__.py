"""What `load/locustfile.py` is made of; see docs/load_testing.md."""
