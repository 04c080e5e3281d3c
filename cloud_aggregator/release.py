"""From parameters to a model that a gateway can trust: an ONNX graph, a golden pair, a signature."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from config import signing
from config.messages import Manifest
from config.settings import Limits
from config.survey import packed
from config.transfer import describe
from models.arrays import generator
from models.detectors import DETECTORS
from models.detectors.graph import OPSET
from models.features import FeatureSpec, feature_names
from models.federated.algorithm import Algorithm, Server, site_of
from models.units import COMMON

GOLDEN_ROWS = 4
GOLDEN_VALUES = 2_000  # about 40 KB of JSON: a manifest is one message


def make(
    algorithm: Algorithm,
    server: Server,
    key: Ed25519PrivateKey,
    *,
    version: int,
    name: str,
    run: str,
    features: FeatureSpec,
    max_payload_bytes: int,
    gateways: int,
    created_ns: int,
) -> tuple[Manifest, bytes]:
    """Return the signed manifest and the ONNX bytes of the server's shared parameters.

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
    return signed(manifest, key), body


def fitting(manifest: Manifest, body: bytes, key: Ed25519PrivateKey, limits: Limits) -> Manifest:
    """Return the manifest of a stored model as the present limits want it: it says how the body is cut."""
    transfer = describe(body, limits.max_payload_bytes)
    return manifest if manifest.model == transfer else signed(manifest.model_copy(update={"model": transfer}), key)


def again(manifest: Manifest, key: Ed25519PrivateKey, version: int, created_ns: int) -> Manifest:
    """Return the manifest of a model that is released once more, as a gateway takes no version below one it had."""
    return signed(manifest.model_copy(update={"version": version, "created_ns": created_ns}), key)


def signed(manifest: Manifest, key: Ed25519PrivateKey) -> Manifest:
    """Return the manifest with the signature of this key."""
    return manifest.model_copy(update={"signature": signing.sign(key, manifest.signed_bytes())})
