"""The CPU engine: its face, a run, sizes, the forms of features, costs; kernels in `kernels`."""
