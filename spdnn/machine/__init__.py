"""Facts of this machine, its processors, GPUs, memory and launcher; compiling; provenance."""
