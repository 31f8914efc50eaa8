"""JSON requests to web services, credentials for them, and checked reading of JSON files that a process wrote earlier."""
