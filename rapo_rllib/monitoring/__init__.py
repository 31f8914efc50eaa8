"""What people are told while a job runs: progress, metrics, transcripts, warnings."""
