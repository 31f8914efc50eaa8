"""Texts to vectors: in this process, or by an endpoint."""
