"""Conversion of trajectory groups into packed tensors for the learner."""
