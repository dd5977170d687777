"""Models made of networks: a pruned perceptron, fused branches."""
