"""Which request runs when: limits, admission by cost, slices in turn."""
