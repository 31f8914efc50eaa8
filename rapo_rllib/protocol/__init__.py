"""The text protocol. ``chat`` turns text into append-only tokens, ``steps`` reads what the policy wrote."""
