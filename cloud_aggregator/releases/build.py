"""From parameters to a model that a gateway can check: an ONNX graph and a golden pair."""

from __future__ import annotations

import numpy as np

from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.survey import packed
from fedgate.config.protocol.transfer import describe
from fedgate.models.arrays import generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.graph import OPSET
from fedgate.models.features import FeatureSpec, feature_names
from fedgate.models.federated.algorithm import Algorithm, Server, site_of
from fedgate.models.units import COMMON

GOLDEN_ROWS = 4
GOLDEN_VALUES = 2_000  # about 40 KB of JSON: a manifest is one message


def make(
    algorithm: Algorithm,
    server: Server,
    *,
    version: int,
    name: str,
    run: str,
    features: FeatureSpec,
    max_payload_bytes: int,
    gateways: int,
    created_ns: int,
) -> tuple[Manifest, bytes]:
    """Return the manifest, which is signed when it is announced, and the ONNX bytes of the server's shared parameters.

    The golden inputs are drawn from the version, so that equal parameters give equal bytes.
    """
    detector = DETECTORS[algorithm.detector]
    body = detector.graph(server.shared, algorithm.personal)
    rng = generator(version, server.round_index, "golden")
    feature_count = len(feature_names(features))
    rows = max(min(GOLDEN_ROWS, GOLDEN_VALUES // feature_count), 1)
    golden_x = (rng.normal(size=(rows, feature_count)) * server.shared.get(COMMON, 1.0)).astype(np.float32)
    surveyed = site_of(server.shared)
    manifest = Manifest(
        version=version,
        model=describe(body, max_payload_bytes),
        algorithm=name,
        detector=algorithm.detector,
        run=run,
        round_index=server.round_index,
        features=features,
        personal=algorithm.personal,
        opset=OPSET,
        golden_x=tuple(tuple(float(value) for value in row) for row in golden_x),
        site=packed(surveyed) if surveyed else "",
        golden_score=tuple(float(value) for value in detector.score(server.shared, golden_x)),
        gateways=gateways,
        created_ns=created_ns,
    )
    return manifest, body
