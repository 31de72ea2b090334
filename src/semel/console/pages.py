"""The pages of a console: what each reads from `semel.operate`, and the decision that one records.

Always true: every page is bounded: it shows a limited number of rows, and links to the next ones.
"""

from __future__ import annotations

import getpass
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from semel.console.fields import read_form, read_query
from semel.errors import ConfigurationError
from semel.operate import (
    STATES,
    ParkedChoice,
    choose_pipeline,
    find_entity,
    find_event,
    is_seen,
    read_parked_at,
    read_parked_page,
    read_pipeline_detail,
    read_pipelines_page,
    resolve_parked_at,
)
from semel.protocol import ParkedState
from semel.runtime import Process
from semel.web import HttpProblem, Lookups, shown

if TYPE_CHECKING:
    from starlette.requests import Request

    from semel.console.access import Access, Visitor
    from semel.console.live import LiveFigures
    from semel.console.render import Renderer
    from semel.ledger import Ledger
    from semel.operate import ParkedEvent, ResolvedEvent

log = logging.getLogger("semel.console")

_FILTERS = ("pipeline", "sink", "states", "entity", "why")
_DECIDABLE = (ParkedState.HELD, ParkedState.REJECTED, ParkedState.RESEND)


class Pages:
    """Answers visitors who are logged in."""

    def __init__(
        self,
        ledger: Ledger,
        renderer: Renderer,
        access: Access,
        live: LiveFigures,
        lookups: Lookups,
    ) -> None:
        self._ledger = ledger
        self._renderer = renderer
        self._access = access
        self._live = live
        self._lookups = lookups

    async def pipelines(self, request: Request, visitor: Visitor) -> Response:
        """Show some pipelines, those with problems first."""
        after, moving = read_query(request).get("after", ""), self._live.moving()
        found = await self._lookups.run(lambda: read_pipelines_page(self._ledger, after, moving))
        regions = self._renderer.pipelines_regions(found)
        return self._page("pipelines.html", visitor, regions=regions, found=found, after=after)

    async def pipeline(self, request: Request, visitor: Visitor) -> Response:
        """Show one pipeline."""
        name, moving = read_query(request).get("name", ""), self._live.moving()
        try:
            detail = await self._lookups.run(
                lambda: read_pipeline_detail(self._ledger, name, moving)
            )
        except ConfigurationError as error:
            raise HttpProblem(
                HTTPStatus.NOT_FOUND, f"there is no pipeline {shown(name)!r} in this ledger"
            ) from error
        regions = self._renderer.pipeline_regions(detail)
        return self._page("pipeline.html", visitor, regions=regions, name=name)

    async def parked(self, request: Request, visitor: Visitor) -> Response:
        """Show some parked events."""
        fields = read_query(request)
        chosen = {name: fields[name].strip() for name in _FILTERS if fields.get(name, "").strip()}
        after, where = fields.get("after", ""), ParkedChoice(**chosen)
        found = await self._lookups.run(lambda: read_parked_page(self._ledger, where, after))
        return self._page(
            "parked.html",
            visitor,
            found=found,
            where=where,
            filters={**chosen, "states": where.states},
            after=after,
            states=STATES,
        )

    async def event(self, request: Request, visitor: Visitor) -> Response:
        """Show one parked event, and the form to decide about it."""
        key = read_query(request).get("key", "")
        found = await self._lookups.run(lambda: _parked_at(self._ledger, key))
        return self._show_event(visitor, found, by=self._proposed_name())

    async def find(self, request: Request, visitor: Visitor) -> Response:
        """Show what is known of an event or an entity."""
        fields = read_query(request)
        pipeline, entity, event, sink = (
            fields.get(name, "").strip() for name in ("pipeline", "entity", "event", "sink")
        )
        values: dict[str, Any] = {"traces": None, "entities": None, "seen": False}
        trouble, status = "", HTTPStatus.OK
        if entity:
            try:
                values |= await self._lookups.run(
                    lambda: _find(self._ledger, entity, event, pipeline or None, sink or None)
                )
            except ConfigurationError as error:
                trouble, status = str(error), HTTPStatus.UNPROCESSABLE_ENTITY
        typed = {"pipeline": pipeline, "entity": entity, "sink": sink, "event": event}
        return self._page("find.html", visitor, status, trouble=trouble, **typed, **values)

    async def resolve(self, request: Request, visitor: Visitor) -> Response:
        """Record a decision about a parked event, and show the event as it is then."""
        form = await read_form(request)
        self._access.require_form(visitor, form)
        key = form.get("key", "")
        by, decision, reason = (form.get(name, "").strip() for name in ("by", "decision", "reason"))
        typed = {"by": by, "decision": decision, "reason": reason}
        missing = "a decision" if not decision else "a reason" if not reason else "your name"
        if not all(typed.values()):
            found = await self._lookups.run(lambda: _parked_at(self._ledger, key))
            trouble = f"{missing} is missing; it is kept in the ledger with the event"
            bad = HTTPStatus.UNPROCESSABLE_ENTITY
            return self._show_event(visitor, found, bad, trouble=trouble, **typed)
        moving = self._live.moving()

        def record() -> tuple[ParkedEvent, ResolvedEvent | None, str]:
            before = _parked_at(self._ledger, key)
            status = read_pipeline_detail(self._ledger, before.pipeline, moving).overview.status
            try:
                done = resolve_parked_at(
                    self._ledger, key, decision, by=by, reason=reason, status=status
                )
            except ConfigurationError as error:
                return before, None, str(error)
            return _parked_at(self._ledger, key), done, ""

        found, done, trouble = await self._lookups.run(record)
        if done is None:
            return self._show_event(visitor, found, HTTPStatus.CONFLICT, trouble=trouble, **typed)
        log.info("%s: %s (by %s)", done.event, done.state.value, by)
        return self._show_event(visitor, found, by=by, done=done)

    # -- how they answer

    def _page(
        self, template: str, visitor: Visitor, status: int = HTTPStatus.OK, **values: Any
    ) -> Response:
        token = self._access.form_token(visitor)
        text = self._renderer.page(template, visitor=visitor, form_token=token, **values)
        return Response(text, status, media_type="text/html")

    def _show_event(
        self, visitor: Visitor, found: ParkedEvent, status: int = HTTPStatus.OK, **values: Any
    ) -> Response:
        empty = {"reason": "", "decision": "", "done": None, "trouble": ""}
        decidable = found.row.state in _DECIDABLE
        return self._page(
            "event.html", visitor, status, event=found, decidable=decidable, **{**empty, **values}
        )

    def _proposed_name(self) -> str:
        """Return who decides, as the form proposes it: the user of this process on its own machine,
        as for `semel resolve`; behind a token it is not known.
        """
        if self._access.has_tokens:
            return ""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # this container has no such user
            user = "unknown"
        return f"{user}@{Process.here().host}"


def _parked_at(ledger: Ledger, key: str) -> ParkedEvent:
    try:
        return read_parked_at(ledger, key)
    except ConfigurationError as error:
        raise HttpProblem(HTTPStatus.NOT_FOUND, str(error)) from error


def _find(
    ledger: Ledger, entity: str, event: str, pipeline: str | None, sink: str | None
) -> dict[str, Any]:
    """Look for an event; an id of several columns is typed with commas between them."""
    if event:
        name = choose_pipeline(ledger, pipeline)
        several = len(ledger.id_forms(name)) > 1
        traces = find_event(ledger, entity, event.split(",") if several else [event], name, sink)
        return {"traces": traces, "seen": any(map(is_seen, traces))}
    known = find_entity(ledger, entity, pipeline, sink)
    return {"entities": known, "seen": any(known)}
