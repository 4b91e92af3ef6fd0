"""The names of the bounds, also for modules that do without TensorFlow."""

# On the votes of a base classifier: "clopper_pearson" bounds each count by
# itself, "joint" tests the counts of two classes together.
VOTE_BOUNDS = ("clopper_pearson", "joint")

# On the mean of soft predictions.
SOFT_BOUNDS = ("hoeffding", "bernstein")
