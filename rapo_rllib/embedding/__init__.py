"""Texts to vectors: in this process, by OpenVINO, or by an endpoint."""
