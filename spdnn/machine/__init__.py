"""What this machine, its processors, GPUs and launcher are; compiling; provenance."""
