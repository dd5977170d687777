"""The GPU engine's kernels: functions of arrays and numbers only."""
