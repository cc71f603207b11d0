"""What a client may ask for, as pydantic models: strict types, bounds, no unknown fields."""
