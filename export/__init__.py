"""The certifier as a SavedModel for TF Serving."""
