"""The rule of the challenge in dense double precision, written from its definition alone."""

import numpy as np

from spdnn import Features, Network


def dense_inference(network: Network, features: Features) -> list[np.ndarray]:
    """The feature map after each layer, dense, float64."""
    Y = np.zeros((features.n_features, features.n_neurons))
    for f in range(features.n_features):
        for k in range(features.indptr[f], features.indptr[f + 1]):
            Y[f, features.indices[k]] = 1.0 if features.values is None else features.values[k]
    maps = []
    for layer in network.layers:
        Z = Y @ layer.weights.toarray().astype(np.float64)
        Z = Z + layer.bias * ((Z != 0) | (layer.bias_rule == "always"))
        if layer.activation == "relu":
            Z = np.maximum(Z, 0)
            Z = Z if layer.ymax is None else np.minimum(Z, layer.ymax)
        Y = Z
        maps.append(Y)
    return maps
