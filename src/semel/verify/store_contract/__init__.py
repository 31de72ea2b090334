"""The contract of stores, public: what every store of a ledger must do, case by case.

`semel verify-store URL` runs the cases; a subclass of `StoreContract` makes each of them a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from semel.ledger import open_store
from semel.runtime import SystemClock
from semel.verify.store_contract.area import Area, PromiseBroken
from semel.verify.store_contract.cases import CASES, StoreCase

if TYPE_CHECKING:
    from collections.abc import Callable

    from semel.ledger.store import Store

__all__ = [
    "CASES",
    "Area",
    "PromiseBroken",
    "StoreCase",
    "StoreCaseResult",
    "StoreContract",
    "run_case",
]


@dataclass(frozen=True, slots=True)
class StoreCaseResult:
    """What became of one case: `finding` is empty if the store passed."""

    case: str
    says: str
    finding: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the store passed."""
        return not self.finding

    @property
    def verdict(self) -> str:
        """`ok` or `failed`."""
        return "ok" if self.ok else "failed"


def run_case(case: StoreCase, open_: Callable[[], Store]) -> StoreCaseResult:
    """Run one case against the store that `open_` opens. An exception of any kind is a finding."""
    clock = SystemClock()
    began = clock.monotonic()
    area = Area(open_)
    finding = ""
    try:
        try:
            case.check(area)
        finally:
            area.leave()
    except PromiseBroken as broken:
        finding = str(broken)
    except Exception as error:  # noqa: BLE001 - a store may raise anything, and it is reported
        finding = f"{type(error).__name__}: {error}"
    return StoreCaseResult(case.name, case.says, finding, clock.monotonic() - began)


class StoreContract:
    """Tests of one store: `class TestMine(StoreContract)`, with `url`.

    Attributes:
        url: the URL of the store, as an attribute or a property of the class, or as a fixture of
            this name.
        cases: the names of the cases to run; by default all.
    """

    url: Any = None
    cases: ClassVar[tuple[str, ...] | None] = None

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Make a test of each case; pytest calls this on the class."""
        if "semel_store_case" in metafunc.fixturenames:
            chosen = self.cases or tuple(case.name for case in CASES)
            metafunc.parametrize("semel_store_case", chosen)

    def test_the_store_keeps_its_promise(self, semel_store_case: str, request: Any) -> None:
        """Run one case of the contract."""
        __tracebackhide__ = True
        url = self.url if isinstance(self.url, str) else request.getfixturevalue("url")
        case = next(case for case in CASES if case.name == semel_store_case)
        result = run_case(case, partial(open_store, url))
        if not result.ok:
            raise AssertionError(f"{result.case}: {result.says}: {result.finding}")
