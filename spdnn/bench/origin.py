"""Sources and checksums of the data of a measurement."""

import hashlib
from typing import Any

from spdnn.features import Features
from spdnn.network import Network
from spdnn.sources.features import SourcedFeatures
from spdnn.sources.folder import RECIPE
from spdnn.sources.networks import SourcedNetwork


def data_facts(network: SourcedNetwork, features: SourcedFeatures) -> dict[str, Any]:
    """Sources and checksums of a network and its inputs, ready for JSON.

    Weights that the recipe makes have no checksum: the version of this package determines them.

    Parameters
    ----------
    network : SourcedNetwork
        The network to run.
    features : SourcedFeatures
        Its inputs.
    """
    return {
        "weights": network.source,
        "inputs": features.source,
        "weights_sha256": None if network.source == RECIPE else network_sha256(network.network),
        "inputs_sha256": features_sha256(features.features),
    }


def features_sha256(features: Features) -> str:
    """Compute the sha256 of features in index form: their starts, neurons and values."""
    begin, end = features.indptr[0], features.indptr[-1]
    digest = hashlib.sha256(features.indptr - begin)
    digest.update(features.indices[begin:end])
    if features.values is not None:
        digest.update(features.values[begin:end])
    return digest.hexdigest()


def network_sha256(network: Network) -> str:
    """Compute the sha256 of the weights of all layers, in CSR form, and of their biases."""
    digest = hashlib.sha256()
    for layer in network.layers:
        weights = layer.weights
        for part in (weights.indptr, weights.indices, weights.data, layer.bias):
            digest.update(part.tobytes())
    return digest.hexdigest()
