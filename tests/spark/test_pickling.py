"""A sink that cannot be pickled is refused on the driver, with the part that holds it back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.protocol import Capability
from semel.sinks import Session, Sink, Target, sink
from semel.spark.checks import refuse_rooted


@dataclass(frozen=True, kw_only=True)
class Bank(Sink):
    connection: Any = None
    pool: dict[str, Any] = field(default_factory=dict)

    @property
    def capability(self) -> Capability:
        return Capability.OPAQUE

    def open(self, target: Target) -> Session:
        raise AssertionError("it is not opened")


class Client:
    def __init__(self) -> None:
        self.guard = threading.Lock()

    def send(self, event: object) -> None:
        raise AssertionError("it is not called")


def closing_over(value: object) -> Callable[[object], None]:
    def charge(event: object) -> None:
        raise AssertionError(value, event)

    return charge


def with_a_global(value: object) -> Callable[[object], None]:
    known: dict[str, Any] = {"__name__": "__main__", "bank": value, "fine": 7}
    exec("def charge(event):\n    return [bank.send(each) for each in (event, fine)]", known)
    made: Callable[[object], None] = known["charge"]
    return made


def refusal(described: Sink) -> str:
    with pytest.raises(ConfigurationError) as refused:
        refuse_rooted([described])
    return str(refused.value)


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (
            lambda: closing_over(threading.Lock()),
            "'value' of the function charge is a _thread.lock",
        ),
        (lambda: closing_over(Client()), "'guard' of 'value' of the function charge is a"),
        (lambda: with_a_global(Client()), "'guard' of 'bank' of the function charge is a"),
        (lambda: Client().send, "'guard' of the object of 'function' is a _thread.lock"),
        (lambda: partial(print, threading.Lock()), "argument 0 of 'function' is a _thread.lock"),
    ],
)
def test_what_a_function_takes_with_it_and_cannot_be_pickled_is_named(
    made: Callable[[], Callable[[object], None]], where: str
) -> None:
    said = refusal(sink(name="out")(made()))
    assert f"sink 'out' cannot be sent to the executors: {where}" in said
    assert said.endswith(
        "Open it inside the function, or keep it in a module that the function imports"
    )


def test_the_attribute_of_a_sink_that_cannot_be_pickled_is_named() -> None:
    with socket.socket() as connection:
        said = refusal(Bank(name="bank", connection=connection))
        assert "executors: 'connection' is a socket.socket, which cannot be pickled" in said
        assert "Open it in the sink's open(), which runs on the executor" in said
        said = refusal(Bank(name="bank", pool={"a": 1, "b": [connection]}))
        assert "element 0 of 'b' of 'pool' is a socket.socket" in said


def test_what_can_be_pickled_is_taken() -> None:
    fine = [sink(closing_over(3)), sink(with_a_global("x")), Bank(name="bank", pool={"a": [1]})]
    refuse_rooted(fine)
