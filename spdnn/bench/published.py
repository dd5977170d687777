"""Rates that others have published. They are shown beside measured ones, and marked as published.

The sources, as named in ``published.csv``:

* Hidayetoglu et al., "At-Scale Sparse Deep Neural Network Inference With Efficient GPU
  Implementation", HPEC 2020: tables I and II (which also list Davis et al., Ellis and
  Rajamanickam, and Bisson and Fatica, all HPEC 2019).
* Jiang et al., "SNICIT: Accelerating Sparse Neural Network Inference via Compression at Inference
  Time on GPU", ICPP 2023: table 3, also for XY (Xin et al., HPEC 2021) as its authors ran it.
* The measurements (``runs.md``) in the repository of PNNL's implementations, 2022.
"""

import csv
from importlib.resources import files
from typing import NamedTuple


class Published(NamedTuple):
    """A rate that was published elsewhere.

    Attributes
    ----------
    source : str
        Authors and venue.
    year : int
        Year of publication.
    hardware, devices : str
        What it ran on, and how many of them.
    neurons, layers : int
        The network.
    teraedges_per_second : float
        The rate by the challenge's count.
    note : str
        Where in the source it stands.
    """

    source: str
    year: int
    hardware: str
    devices: str
    neurons: int
    layers: int
    teraedges_per_second: float
    note: str


def published() -> list[Published]:
    """Read all published rates, sorted by network, the fastest first."""
    text = (files("spdnn.bench") / "published.csv").read_text()
    rows = [
        Published(
            row["source"],
            int(row["year"]),
            row["hardware"],
            row["devices"],
            int(row["neurons"]),
            int(row["layers"]),
            float(row["teraedges_per_second"]),
            row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    ]
    return sorted(rows, key=lambda row: (row.neurons, row.layers, -row.teraedges_per_second))
