"""Layer 1: the text protocol. ``chat`` turns text into append-only tokens, ``steps`` reads what the policy wrote."""
