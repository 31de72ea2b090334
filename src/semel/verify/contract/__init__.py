"""The contract suite: it crashes a sink at every step and says whether it earns its capability.

Importing a name imports its module: the pytest plugin loads in every run of pytest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.verify.contract.cases import CASES, ContractCase
    from semel.verify.contract.forkserver import ForkServer
    from semel.verify.contract.plugin import SinkContract
    from semel.verify.contract.rows import Maker
    from semel.verify.contract.suite import (
        SEED,
        SETTLES_S,
        CaseResult,
        Earned,
        Finding,
        Subject,
        Suite,
        earned,
    )

__all__ = [
    "CASES",
    "SEED",
    "SETTLES_S",
    "CaseResult",
    "ContractCase",
    "Earned",
    "Finding",
    "ForkServer",
    "Maker",
    "SinkContract",
    "Subject",
    "Suite",
    "earned",
]

_HOMES = {
    "CASES": "cases",
    "ContractCase": "cases",
    "ForkServer": "forkserver",
    "Maker": "rows",
    "SinkContract": "plugin",
}


def __getattr__(name: str) -> object:
    """Import a name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'semel.verify.contract' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'suite')}"), name)
