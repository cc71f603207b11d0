"""The requests of all routes as pydantic models with strict types and bounds, and the types of their answers."""
