"""``rllib train``: jobs from files and options through Ray Tune, checked before it starts and shown while it runs."""
