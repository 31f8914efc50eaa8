"""``rllib config``: every key of a job's ``config``."""
