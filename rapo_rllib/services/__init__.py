"""Web services that parts of a job ask: JSON requests and credentials for them; and JSON files that are read back."""
