"""Parts of the retrieval benchmark."""
