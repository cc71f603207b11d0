"""What every HTTP request passes: identifiers, keys, origins, headers, the body; and how routes are described."""
