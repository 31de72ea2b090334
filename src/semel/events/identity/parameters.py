"""The parameters with which a user says what identifies an event, and the identity they imply.

Always true: nothing is guessed. Parameters that contradict each other are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.errors import ConfigurationError
from semel.events.identity.counter import Counter
from semel.events.identity.given import Given
from semel.events.identity.identity import Identity
from semel.events.identity.position import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

OFFSET = "offset"
CHOICES = (
    'entity="customer", event="payment_id" if columns identify an event; '
    'identity="position" if the DataFrame keeps topic, partition and offset of its source; '
    'identity="counter" with entity="customer" if semel should count events (the checkpoint must '
    "then not be lost)"
)


@dataclass(frozen=True)
class Named:
    """The user's parameters about identity."""

    identity: str | Identity | None = None
    entity: str | None = None
    event: str | Sequence[str] | None = None
    order_by: str | Sequence[str] | None = None
    increasing: bool = False

    def events(self) -> tuple[str, ...]:
        """Return the event columns, one or several."""
        return _several(self.event)


def implied(named: Named) -> Identity | None:
    """Return the identity that the parameters imply; None if the columns decide.

    Raises `ConfigurationError` for parameters that contradict each other.
    """
    if named.identity is None:
        events = named.events()
        return given_named(named) if events and events[0] != OFFSET else None
    if not isinstance(named.identity, str):
        if isinstance(named.identity, Identity):
            _refuse_besides(named)
            return named.identity
        raise _unknown(named.identity)
    if named.identity == Position.kind:
        return position_named(named)
    if named.identity == Given.kind:
        return given_named(named)
    if named.identity == Counter.kind:
        return _counter(named)
    raise _unknown(named.identity)


def _unknown(identity: object) -> ConfigurationError:
    return ConfigurationError(
        f"unknown identity {identity!r}; use 'position', 'given' or 'counter': {CHOICES}"
    )


def position_named(named: Named) -> Position:
    """Return position identity as the parameters name it. Raises `ConfigurationError`."""
    events = named.events()
    if events and events[0] != OFFSET:
        raise ConfigurationError(
            f"event={list(events)!r} with position identity: an event is identified by its "
            'offset, or by offset and ordinal: event=["offset", "ordinal"]'
        )
    if named.increasing or named.order_by:
        raise ConfigurationError(
            "position identity orders events by offset: remove order_by and increasing"
        )
    return Position(ordinals=events[1:], entity=named.entity)


def given_named(named: Named) -> Given:
    """Return given identity as the parameters name it. Raises `ConfigurationError`."""
    if named.entity is None or not named.events():
        raise ConfigurationError(
            'given identity needs both entity="customer" (whose event it is) and '
            'event="payment_id" (unique for that entity, never reused)'
        )
    return Given(named.entity, named.events(), named.increasing, _several(named.order_by))


def _counter(named: Named) -> Counter:
    if named.entity is None or named.events():
        raise ConfigurationError(
            'identity="counter" counts the events of each entity: pass entity="customer" and '
            "remove event="
        )
    if named.increasing:
        raise ConfigurationError("counted ids always increase: remove increasing")
    return Counter(named.entity, _several(named.order_by))


def _refuse_besides(named: Named) -> None:
    if named.entity or named.events() or named.order_by or named.increasing:
        raise ConfigurationError(
            "an identity object already names entity, event, order_by and increasing: remove these "
            "parameters"
        )


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
