"""Classifiers: predictions, a pruned perceptron, branches."""
