"""The CPU engine's compiled kernels. They are functions of arrays and numbers only."""
