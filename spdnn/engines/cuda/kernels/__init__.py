"""The GPU engine's kernels: functions of arrays, numbers, and records of them."""
