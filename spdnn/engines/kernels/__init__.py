"""Kernels: functions of arrays and numbers, and nothing else."""
