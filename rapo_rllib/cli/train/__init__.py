"""``rllib train``: check jobs from files and options, run them by Ray Tune, and report while they run."""
