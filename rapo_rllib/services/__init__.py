"""Web services that parts of a job ask: JSON requests, and the credentials for them."""
