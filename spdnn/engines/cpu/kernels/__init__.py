"""The CPU engine's compiled kernels: functions of arrays and numbers only."""
