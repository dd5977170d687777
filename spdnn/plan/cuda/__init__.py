"""Plans of the GPU engine."""
