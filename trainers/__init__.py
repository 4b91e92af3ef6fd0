"""Keras trainers for randomized smoothing, one file a method."""
