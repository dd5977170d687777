"""Fast and exact inference of very deep, very sparse neural networks.

Examples
--------
Read the challenge's files, run them and look at the result::

    import spdnn

    network = spdnn.read_network("neuron1024.tar.gz", neurons=1024, layers=120)
    features = spdnn.read_features("sparse-images-1024.tsv.gz", neurons=1024)
    result = spdnn.infer(network, features)
    print(result.categories, result.edges_per_second)
"""

from spdnn.errors import DataError, DeviceError, PlanError, SpdnnError
from spdnn.features import Features
from spdnn.io.formats import write_features, write_network
from spdnn.machine.provenance import own_version
from spdnn.models.branches import fuse
from spdnn.models.mlp import SparseMLP
from spdnn.network import Layer, Network
from spdnn.run.prediction import Prediction
from spdnn.run.result import Result
from spdnn.run.session import Session, infer, predict
from spdnn.sources.features import read_features
from spdnn.sources.networks import read_network

__version__ = own_version()

__all__ = [
    "DataError",
    "DeviceError",
    "Features",
    "Layer",
    "Network",
    "PlanError",
    "Prediction",
    "Result",
    "Session",
    "SparseMLP",
    "SpdnnError",
    "fuse",
    "infer",
    "predict",
    "read_features",
    "read_network",
    "write_features",
    "write_network",
]
