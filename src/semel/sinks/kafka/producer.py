"""A Kafka producer that holds the fence of one `transactional.id`, and what its errors mean.

Always true:
- before a commit was requested, nothing of a transaction can arrive; after that only its answer, or
  the progress in Kafka, shows its outcome;
- a transaction that expired, was fenced or had no answer never counts as a success;
- a writer whose last transaction failed is not used again.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING, Any

from semel.errors import (
    ConfigurationError,
    Fenced,
    MissingExtra,
    NotDelivered,
    OutcomeUnknown,
    Rejected,
    SemelError,
    plain_text,
)
from semel.runtime import SystemClock
from semel.urls import conceal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from semel.sinks.kafka.records import Records

CLOCK = SystemClock()

_LOG = logging.getLogger(__name__)

FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
AT_FAULT = frozenset(
    {
        "MSG_SIZE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "_INVALID_DIFFERENT_RECORD",
    }
)
"""Kafka's errors for a record that it does not accept, now or later. For a batch of several the
client reports INVALID_RECORD also if their time is wrong; a single record shows which it is.
"""

TOPIC_AT_FAULT = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION"})
PARTITION_AT_FAULT = frozenset({"_UNKNOWN_PARTITION"})
"""Errors for something that does not exist. They are an event's fault only if the event chose it
(`chosen`).
"""

RIGHTS = frozenset({"TOPIC_AUTHORIZATION_FAILED"})

HINTS = {
    "INVALID_TIMESTAMP": (
        "records have the time of this machine's clock: correct the clock, or "
        "raise message.timestamp.before.max.ms and "
        "message.timestamp.after.max.ms of the topic"
    ),
}
"""What to do, if it is not about rights or the sink's config."""

PURGED = frozenset({"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_STATE"})
WRONG = frozenset(
    {
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "UNSUPPORTED_SASL_MECHANISM",
        "INVALID_TRANSACTION_TIMEOUT",
        "UNSUPPORTED_VERSION",
        "_UNSUPPORTED_FEATURE",
        "POLICY_VIOLATION",
        "INVALID_TIMESTAMP",
        "INVALID_REQUIRED_ACKS",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "UNSUPPORTED_COMPRESSION_TYPE",
    }
)
"""Errors that a retry does not fix: the configuration must change."""

_SECRET = re.compile(r"password|secret|oauthbearer\.config|\.pem$")
"""Settings whose values are shown nowhere, also where the client repeats them."""

MOMENT_S = 0.2
"""How long an abort is tried if the time of its call is over: the next fence aborts it too."""


class ClientLog:
    """The destination of librdkafka's own log: it has nothing new, because errors are raised."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Write a debug line."""
        del level
        _LOG.debug(text, *arguments)


class ErrorText:
    """The client's text as it may be in a message: one line, without secrets of its config."""

    def __init__(self, config: Mapping[str, object]) -> None:
        found = [str(value) for name, value in config.items() if _SECRET.search(name)]
        found += [part for each in found for part in re.findall(r"=\s*(\S+)", each)]
        self._secrets = {each for each in found if len(each) >= 4}

    def __call__(self, refused: Any) -> str:
        """Return the text of an error of the client's."""
        return plain_text(conceal(refused.str(), self._secrets))


def client_library() -> Any:
    """Return the client library. Raises `MissingExtra` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise MissingExtra("confluent-kafka is not installed: pip install 'semel[kafka]'") from None
    return confluent_kafka


class Writer:
    """One producer, from its fence to its first failure. Used by one thread."""

    def __init__(self, config: Mapping[str, object], where: str, *, patience_s: float) -> None:
        self._kafka = client_library()
        self._where = where
        self._shown = ErrorText(config)
        self._patience_s = patience_s
        self._ends = 0.0
        self._refused: Any = None
        self._reason: Any = None
        self.usable = False
        try:
            self._producer = self._kafka.Producer(
                {
                    **config,
                    "on_delivery": self._report,
                    "error_cb": self._on_error,
                    "logger": ClientLog(),
                    "delivery.report.only.error": True,
                }
            )
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            raise no_such_config(where, error) from None

    def fence(self, patience_s: float) -> None:
        """Take the `transactional.id`: the producer that had it is refused from now on, and its
        uncommitted records are dropped. Raises `NotDelivered` if no broker answers.
        """
        ends = CLOCK.monotonic() + patience_s
        while True:
            left = ends - CLOCK.monotonic()
            try:
                self._producer.init_transactions(max(min(left, 1.0), 0.01))
            except self._kafka.KafkaException as error:
                self._listen()
                if not error.args[0].retriable() or left <= 0 or self._hopeless():
                    raise self._before_commit(
                        self._reason_or(error.args[0]), frozenset()
                    ) from error
            else:
                self.usable = True
                return

    def transact(
        self, fill: Callable[[Writer], None], *, chosen: frozenset[str] = frozenset()
    ) -> None:
        """Make one transaction of what `fill` produces: all of it or nothing. `chosen`: errors
        about topics or partitions that the rows name, so that the rows are at fault.

        Raises `NotDelivered`, `Rejected` or `Fenced` if nothing of it arrived, `OutcomeUnknown` if
        that is unknown: the next fence finds out. All of it has one deadline.
        """
        self.usable, self._refused = False, None
        self._ends = CLOCK.monotonic() + self._patience_s
        try:
            self._producer.begin_transaction()
            fill(self)
            self._flush()
        except (self._kafka.KafkaException, SemelError) as error:
            found = error if isinstance(error, SemelError) else self._classified(error, chosen)
            self._abort(found)
            raise found from error
        self._commit()
        self.usable = True

    def send(self, records: Records, topic: str) -> None:
        """Produce records within the transaction, in their order.

        One by one and by position costs less than the client's `produce_batch`, which wants a dict
        for each record and takes no headers.
        """
        produce = self._producer.produce
        for run in records.runs():
            count = len(run)
            columns = zip(
                run.topics or repeat(topic, count),
                run.values.to_pylist(),
                repeat(None, count) if run.keys is None else run.keys.to_pylist(),
                run.partitions or repeat(-1, count),
                repeat(None, count) if run.bare else run.headers(),
                strict=True,
            )
            for name, value, key, partition, headers in columns:
                try:
                    produce(name, value, key, partition, None, None, 0, headers)
                except BufferError:
                    self.put(name, value, key, partition, headers)
            self._producer.poll(0)  # what has arrived makes room
            self._see()

    def put(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = -1,
        headers: Any = None,
    ) -> None:
        """Produce one record within the transaction; wait while the client's queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
            except BufferError:
                self._producer.poll(0.01)
                self._see()
            else:
                return

    def close(self) -> None:
        """Close the connection; the next fence aborts an open transaction."""
        self.usable = False
        self._producer.purge()
        del self._producer

    # -- the steps of a transaction

    def _flush(self) -> None:
        """Wait until the brokers have every record."""
        while self._producer.flush(min(max(self._left(), 0.01), 0.2)):
            self._see()
        self._see()

    def _left(self) -> float:
        """How many seconds the call has still."""
        return self._ends - CLOCK.monotonic()

    def _see(self) -> None:
        if self._refused is not None:
            raise self._kafka.KafkaException(self._refused)
        if self._left() < 0:
            raise NotDelivered(
                f"{self._where}: the brokers did not accept a chunk within {self._patience_s:g} s "
                f"({self._shown(self._reason) if self._reason else 'no error was reported'}). "
                "Nothing of it is visible"
            )

    def _commit(self) -> None:
        """Ask for the commit until it is answered. From here on the outcome can be unknown."""
        while True:
            left = self._left()
            try:
                self._producer.commit_transaction(max(left, 0.01))
            except self._kafka.KafkaException as error:
                refused = error.args[0]
                if refused.name() in FENCED:
                    raise self._fenced() from error
                if not refused.retriable() or left <= 0:
                    raise OutcomeUnknown(
                        f"{self._where}: the commit of a chunk was not answered "
                        f"({self._shown(refused)})"
                    ) from error
            else:
                return

    def _abort(self, found: SemelError) -> None:
        """Abort the transaction; if that fails, the writer is not used again."""
        if isinstance(found, Fenced):
            return
        try:
            self._producer.abort_transaction(min(max(self._left(), MOMENT_S), 10.0))
        except self._kafka.KafkaException:
            return
        self.usable = True

    # -- what errors mean

    def _listen(self) -> None:
        """Let the client report what it has received from its brokers."""
        with suppress(self._kafka.KafkaException):
            self._producer.poll(0)

    def _classified(self, error: Exception, chosen: frozenset[str]) -> SemelError:
        """Return what went wrong with a transaction; if its records were only dropped because of
        it, the client reports the reason when it is asked for another one.
        """
        refused = error.args[0]
        if refused.name() in PURGED:
            try:
                self._producer.begin_transaction()
            except self._kafka.KafkaException as why:
                refused = why.args[0]
        return self._before_commit(refused, chosen)

    def _before_commit(self, refused: Any, chosen: frozenset[str]) -> SemelError:
        """Return what an error means before a commit was requested: nothing arrived."""
        name, text = refused.name(), self._shown(refused)
        if name in FENCED:
            return self._fenced()
        if name in AT_FAULT:
            return Rejected(f"Kafka rejected the record: {text}")
        if name in chosen:
            return Rejected(
                "Kafka does not accept records for the topic or partition that the event names: "
                f"{text}"
            )
        if name in TOPIC_AT_FAULT | PARTITION_AT_FAULT | RIGHTS | WRONG:
            hint = HINTS.get(name, "check the rights of the user and the sink's config")
            return ConfigurationError(
                f"{self._where}: {text} ({name}). Nothing was sent; {hint}, then restart the query"
            )
        return NotDelivered(f"{self._where}: {text} ({name})")

    def _fenced(self) -> Fenced:
        return Fenced(f"{self._where}: a later session has the transactional.id")

    def _hopeless(self) -> bool:
        return self._reason is not None and self._reason.name() in WRONG

    def _reason_or(self, refused: Any) -> Any:
        return self._reason if self._reason is not None and self._hopeless() else refused

    def _report(self, refused: Any, message: Any) -> None:
        """Callback for a record that was not accepted; only the first error is kept."""
        del message
        if refused is not None and self._refused is None:
            self._refused = refused

    def _on_error(self, error: Any) -> None:
        """Callback for connection errors; kept for the text of a later error."""
        if not self._hopeless():
            self._reason = error


def no_such_config(where: str, error: Exception) -> ConfigurationError:
    """Return which setting the client refuses. Its own text may have the value, and so a secret."""
    refused = error.args[0] if error.args else error
    text = refused.str() if hasattr(refused, "str") else str(refused)
    if text.startswith("Failed to create"):  # about settings that do not go together: no values
        return ConfigurationError(f"{where}: {text}; check the sink's config")
    name = re.search(r'"([a-z][a-z.]*\.[a-z.]+)"|property "([a-z.]+)"|`([a-z.]+)`', text)
    setting = "a setting" if name is None else repr(next(filter(None, name.groups())))
    what = "does not know" if "No such" in text else "refuses the value of"
    return ConfigurationError(f"{where}: Kafka's client {what} {setting} in the sink's config")
