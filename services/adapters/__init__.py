"""LoRA adapters: their folders, and where their content is kept."""
