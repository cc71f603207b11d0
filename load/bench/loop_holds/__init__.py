"""How long a client's bodies hold a gateway's event loop, and what they leave of its memory."""
