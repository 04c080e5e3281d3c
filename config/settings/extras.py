"""Which extra of the installation brings a package that is not on every machine, and how to get it."""

from __future__ import annotations

# By the name under which a package is imported: the smallest extra that names it.
EXTRA_OF = {
    "scipy": "train",
    "sklearn": "train",
    "torch": "lstm",
    "dp_accounting": "privacy",
    "argon2": "aggregator",
    "jinja2": "web",
    "markupsafe": "web",
    "onnx": "aggregator",
    "sqlalchemy": "aggregator",
    "psycopg": "postgres",
    "apprise": "notify",
    "prometheus_client": "aggregator",
    "starlette": "web",
    "threadpoolctl": "aggregator",
    "uvicorn": "web",
    "amqtt": "demo",
    "matplotlib": "demo",
    "pandas": "sim",
    "pyarrow": "sim",
    "pymseed": "mseed",
    "distributed": "cluster",
}


def advise_install(module: str | None) -> str:
    """Say how to install what an import of `module` did not find; fedgate is on no package index."""
    extra = EXTRA_OF.get((module or "").partition(".")[0])
    if extra is None:
        return "this installation is not whole: install fedgate again"
    return (
        f"it comes with fedgate's extra {extra!r}: pip install '.[{extra}]' in a checkout of fedgate, or"
        f" pip install 'FILE.whl[{extra}]' with the file of its wheel"
    )
