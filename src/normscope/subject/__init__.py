"""What is examined: a model, the data it sees, its loss; no curvature and no training in it."""
