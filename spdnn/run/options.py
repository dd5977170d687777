"""How a network is to be run: every choice that a session takes, as one value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spdnn.engines import DeviceChoice
from spdnn.run.plan_files import KeptPlans

Partition = Literal["contiguous", "interleaved"]
PARTITIONS: tuple[Partition, ...] = ("contiguous", "interleaved")


@dataclass(frozen=True)
class Options:
    """The choices of a session. Every one has a default.

    Attributes
    ----------
    engine : {"auto", "cpu", "cuda", "scipy"}
        What computes.
    mode : {"auto", "edges", "merge"}
        Whether equal neurons and equal features are merged. "auto" is the engine's best mode.
    threads : int, optional
        Threads of engine "cpu", for each rank. By default the processors that this process may
        use, at most ``OMP_NUM_THREADS``; the ranks of a node share its processors.
    device : int or {"emulated", "emulated-checked"}, optional
        For engine "cuda": which of the GPUs that this process sees, counted from 0; or a device
        that executes the GPU's instructions on the CPU, without or with checks of each access to
        memory.
    plan : Path or KeptPlans, optional
        File of the plan. It is written if it is not there, and read if it is. Or the folder of
        plans that are kept beside the data.
    tuning : Path, optional
        File of tile widths. They are measured for a few seconds for this network, number of
        features and machine, and read once they are there. They change no result.
    partition : {"contiguous", "interleaved"}
        Rank r of R takes the r-th part of the features, or every R-th from the r-th.
    checkpoint : Path, optional
        Folder that progress is written to. A run goes on from the progress that is there.
    checkpoint_every : int, optional
        Layers from one checkpoint to the next; by default a tenth of the network.
    """

    engine: str = "auto"
    mode: str = "auto"
    threads: int | None = None
    device: DeviceChoice | None = None
    plan: Path | KeptPlans | None = None
    tuning: Path | None = None
    partition: Partition = "contiguous"
    checkpoint: Path | None = None
    checkpoint_every: int | None = None


DEFAULTS = Options()
