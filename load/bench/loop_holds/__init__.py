"""How long request bodies block a gateway's event loop, and how much memory they leave behind."""
