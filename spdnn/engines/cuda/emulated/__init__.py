"""The GPU kernels' compiled instructions (PTX), executed on this machine's CPU.

libNVVM compiles the kernels as it does for a GPU. Its PTX is parsed (`ptx`), translated to LLVM IR
(`translate`), compiled for this CPU and run, the thread blocks on all processors (`launch`).
`device` makes a device of it that differs from the simulated one in its launches only. `checks`
watches every access to memory: bounds, alignment, memory that nobody has written, races, barriers.
`counts` counts what a GPU would pay: instructions of warps, wavefronts, sectors, barriers.

Nothing here can show what ptxas, the GPU's memory order between thread blocks, CuPy or the driver
do. Its times say nothing about a GPU's.
"""
