"""One connection to Redis that sends each command once, and classifies its outcome.

Always true:
- nothing is repeated here, nor by the client library: a command that was sent and not answered is
  `OutcomeUnknown`;
- an error reply that Redis sends before it runs a script is `NotDelivered`, or a
  `ConfigurationError` if the configuration must change; an unclassified reply means unknown;
- no message shows a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, NotDelivered, OutcomeUnknown, SemelError
from semel.sinks.redis.scripts import CHECK
from semel.sinks.redis.urls import settings_of
from semel.urls import redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.sinks.redis.scripts import Script

NOT_NOW = frozenset(
    {
        "BUSY",
        "LOADING",
        "MASTERDOWN",
        "READONLY",
        "CLUSTERDOWN",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "TRYAGAIN",
        "ASK",
        "MOVED",
    }
)
"""The error codes of Redis for a write that it cannot accept at the moment, and has not made."""

NOT_ALLOWED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})
"""The error codes of Redis for a user without the right to do this."""

_REDIRECTS_MAX = 5


class RedisConnection:
    """A connection of one session; it is made at the first use, and replaced if it is lost."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.shown = redact(url)
        self._kind, self._settings = settings_of(url, deadline_s)
        from redis import exceptions

        self._errors = exceptions
        self._connection: Any = None

    def ask(self, *command: bytes) -> Any:
        """Do a command that has no effect: what is not known of it can be asked again."""
        try:
            return self._exchange([_array(len(command)), *map(_bulk, command)])
        except OutcomeUnknown as error:
            raise NotDelivered(str(error)) from error

    def run(self, script: Script, keys: Sequence[bytes], values: Sequence[bytes],
            more: tuple[int, Any, int, Any] = (0, b"", 0, b"")) -> Any:  # fmt: skip
        """Run a script by its name, by its text where Redis does not know it yet.

        `more` are further keys and values as they go on the wire: how many, and their bytes.
        """
        key_count, key_bytes, value_count, value_bytes = more
        rest: list[Any] = [
            _bulk(b"%d" % (len(keys) + key_count)),
            *map(_bulk, keys),
            key_bytes,
            *map(_bulk, values),
            value_bytes,
        ]
        first = _array(3 + len(keys) + key_count + len(values) + value_count)
        for _ in range(_REDIRECTS_MAX):
            try:
                return self._exchange([first, _bulk(b"EVALSHA"), _bulk(script.name), *rest])
            except self._errors.NoScriptError:
                self._require_lua(script.body)
                self._exchange([_array(3), _bulk(b"SCRIPT"), _bulk(b"LOAD"), _bulk(script.text)])
            except self._errors.MovedError as moved:
                self._go_to(moved.host, moved.port)
        raise NotDelivered(
            f"{self.shown}: the cluster redirects from one node to the next without end"
        )

    def close(self) -> None:
        """Close the connection; one that is lost already is not an error."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.disconnect()

    def _require_lua(self, body: bytes) -> None:
        """Raise `ConfigurationError` for a body that is not valid Lua by itself: one that closes
        semel's function and goes on would run outside of it.
        """
        if not body:
            return
        why = self.ask(b"EVAL", CHECK.text, b"0", body)
        if why:
            raise ConfigurationError(
                f"{self.shown}: the script is not valid Lua: {why.decode(errors='replace')}"
            )

    # -- the wire

    def _exchange(self, parts: list[Any]) -> Any:
        """Send and read the reply. Raises NoScriptError and MovedError, which had no effect."""
        connection = self._connected()
        errors = self._errors
        try:
            connection.send_packed_command(_gathered(parts), check_health=False)
            return connection.read_response()
        except (errors.NoScriptError, errors.MovedError):
            raise
        except errors.ResponseError as error:
            raise self._classify(error) from None
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            self.close()
            raise self.forbidden(str(error)) from None
        except errors.BusyLoadingError as error:
            self.close()
            raise NotDelivered(f"{self.shown} is loading its data ({error})") from None
        except Exception as error:
            self.close()
            raise OutcomeUnknown(
                f"{self.shown}: the connection was lost after a command was sent "
                f"({type(error).__name__}: {error})"
            ) from error

    def _connected(self) -> Any:
        if self._connection is not None:
            return self._connection
        errors = self._errors
        made = self._kind(**self._settings)
        try:
            made.connect()
        except SemelError:
            raise
        except (errors.AuthenticationError, errors.AuthorizationError) as error:
            raise self.forbidden(str(error)) from None
        except errors.ResponseError as error:
            raise self._classify(error) from None
        except Exception as error:
            raise NotDelivered(
                f"{self.shown} does not answer ({type(error).__name__}: {error}). Check that Redis "
                "is running and reachable"
            ) from error
        self._connection = made
        return made

    def _go_to(self, host: str, port: int) -> None:
        """Connect to the node that has the keys, as the cluster reports it."""
        self.close()
        self._settings = {**self._settings, "host": host or self._settings["host"], "port": port}

    def _classify(self, error: Exception) -> SemelError:
        """Classify an error reply."""
        code = _code(self._errors, error)
        if code in NOT_ALLOWED:
            return self.forbidden(str(error))
        if code in NOT_NOW:
            self.close()  # a replica that was a primary: resolve the name again
            return NotDelivered(
                f"{self.shown} does not accept writes at the moment: {code} {error}"
            )
        text = str(error)
        if "compiling script" in text:
            return ConfigurationError(f"{self.shown}: the script is not valid Lua: {text}")
        if code == "CROSSSLOT" or "unknown command" in text or "DB index" in text:
            return ConfigurationError(f"{self.shown}: {text}")
        return OutcomeUnknown(f"{self.shown}: {code} {text}".replace("  ", " "))

    def forbidden(self, text: str) -> ConfigurationError:
        """Return the error for a user without the necessary rights."""
        return ConfigurationError(
            f"{self.shown} does not allow it: {text}. Check user and password in the URL, and that "
            "the user may run EVALSHA, SCRIPT LOAD, INFO, HGETALL, HLEN, HSET, DEL and "
            "the sink's own command on its keys and on 'semel:*'"
        )


def _code(errors: Any, error: Exception) -> str:
    """Return the code that Redis' error began with; the client library removes some of them."""
    kinds = {
        errors.ReadOnlyError: "READONLY",
        errors.OutOfMemoryError: "OOM",
        errors.MasterDownError: "MASTERDOWN",
        errors.ClusterDownError: "CLUSTERDOWN",
        errors.TryAgainError: "TRYAGAIN",
        errors.MovedError: "MOVED",
        errors.AskError: "ASK",
        errors.NoPermissionError: "NOPERM",
        errors.ClusterCrossSlotError: "CROSSSLOT",
    }
    return kinds.get(type(error)) or str(error).partition(" ")[0]


def _array(count: int) -> bytes:
    return b"*%d\r\n" % count


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _gathered(parts: list[Any]) -> list[Any]:
    """Join small parts, so that they are sent in few packets; large parts are sent unchanged."""
    made: list[Any] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < 65_536:
            small.append(bytes(part))
        else:
            made += [b"".join(small), part]
            small = []
    return [*made, b"".join(small)] if small else made
