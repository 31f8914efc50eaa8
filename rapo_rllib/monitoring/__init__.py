"""Tell people how a job is doing: progress, metrics, transcripts, warnings."""
