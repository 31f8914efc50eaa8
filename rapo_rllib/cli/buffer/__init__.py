"""``rllib buffer``: make, fill, look into and check a Step-Trace Buffer."""
