"""The demo: real Spark, killed half-way, with semel and without, and a server that counts charges.

Importing a name imports its module.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.demo.charge_server import ChargeClient, ChargeServer, charge_client
    from semel.verify.demo.run import ChargeCounts, Demo, Unfinished
    from semel.verify.demo.standalone import ConnectServer, StandaloneCluster, spark_home

__all__ = [
    "ChargeClient",
    "ChargeCounts",
    "ChargeServer",
    "ConnectServer",
    "Demo",
    "StandaloneCluster",
    "Unfinished",
    "charge_client",
    "spark_home",
]

_HOMES = {
    "ChargeClient": "charge_server",
    "ChargeServer": "charge_server",
    "charge_client": "charge_server",
    "ConnectServer": "standalone",
    "StandaloneCluster": "standalone",
    "spark_home": "standalone",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'semel.verify.demo' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'run')}"), name)
