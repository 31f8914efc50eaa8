"""The env runner, the distribution of questions over several env runners, and the metrics of a rollout."""
