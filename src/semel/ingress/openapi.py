"""The OpenAPI description of the ingress, served at /openapi.json.

Always true: every path, parameter and status that the ingress answers is described here.
"""

from __future__ import annotations

from typing import Any

from semel import __version__

_PROBLEM = "application/problem+json"
_STATES = [
    "delivered",
    "handled",
    "discarded",
    "skipped by policy",
    "in doubt",
    "parked",
    "pending",
    "not seen",
    "unknown",
]

_RETRY_AFTER = {
    "Retry-After": {
        "description": "After how many seconds to send the request again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}


def _problem(why: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {_PROBLEM: {"schema": {"$ref": "#/components/schemas/HttpProblem"}}}
    described: dict[str, Any] = {"description": why, "content": content}
    return described if headers is None else {**described, "headers": headers}


def _json(why: str, schema: str, **more: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": why, "content": content, **more}


_HEAD: dict[str, Any] = {
    "400": _problem("The request is not HTTP, or a header is there twice."),
    "401": _problem(
        "The token is missing or wrong.",
        {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}},
    ),
    "408": _problem("The request did not arrive in time. The connection is closed."),
    "421": _problem("Without tokens: the request is not addressed to localhost."),
    "431": _problem("The header fields are too many or too large. The connection is closed."),
    "500": _problem("A row of the ledger is damaged, or the stream does not fit its settings."),
    "501": _problem("The body has a transfer coding other than `chunked`."),
    "503": _problem("The ledger does not answer, or the ingress stops.", _RETRY_AFTER),
}

_STORED: dict[str, Any] = {
    "type": "object",
    "required": ["entity", "event", "repeat"],
    "properties": {
        "entity": {"type": "string", "description": "The EntityID, given or assigned."},
        "event": {
            "type": "integer",
            "minimum": 1,
            "description": "The EventID: 1, 2, 3, ... for each entity, without gaps.",
        },
        "repeat": {
            "type": "boolean",
            "description": "True if source and id were stored before; these are the ids of then.",
        },
        "outcomes": {
            "type": "array",
            "description": "With `Prefer: wait`: what became of the event at each sink.",
            "items": {"$ref": "#/components/schemas/Outcome"},
        },
    },
}

_OUTCOME: dict[str, Any] = {
    "type": "object",
    "required": ["pipeline", "sink", "state"],
    "properties": {
        "pipeline": {"type": "string"},
        "sink": {"type": "string"},
        "state": {"type": "string", "enum": _STATES},
        "when": {"type": ["string", "null"], "description": "UTC, where it is known."},
        "minibatch": {"type": ["string", "null"]},
        "attempt": {"type": ["string", "null"]},
        "osn": {
            "type": ["array", "null"],
            "items": {"type": "integer"},
            "description": "The first and the last output sequence number it may have.",
        },
        "why": {"type": ["string", "null"], "description": "What the state rests on."},
    },
}

_PROBLEM_DOCUMENT: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What is wrong and what to do."},
        "event": {"type": "integer", "description": "The index of the event in the request."},
        "line": {"type": "integer", "description": "The line of the body, from 1 on."},
        "column": {"type": "integer", "description": "The column of that line, from 1 on."},
        "pointer": {"type": "string", "description": "A JSON pointer into the body."},
        "field": {"type": "string", "description": "A header, an attribute or a parameter."},
        "value": {"description": "The value that was refused, shortened."},
    },
}

_CLOUD_EVENT: dict[str, Any] = {
    "type": "object",
    "description": "CloudEvents 1.0, JSON format.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "minLength": 1},
        "subject": {"type": "string", "minLength": 1},
        "time": {"type": "string", "format": "date-time"},
        "datacontenttype": {"type": "string"},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
    "additionalProperties": {"type": ["string", "integer", "boolean", "null"]},
}


def _header(name: str, what: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": what,
        "schema": schema or {"type": "string"},
    }


_POST: dict[str, Any] = {
    "operationId": "postEvents",
    "summary": "Store events",
    "description": "All events of a request are durable when it is answered, or none is stored. A "
    "request that got no answer can be sent again: an event with the same source and id is stored "
    "once.",
    "parameters": [
        _header(
            "Semel-Entity", "The EntityID of all events of the request; percent-encoded UTF-8."
        ),
        _header(
            "Idempotency-Key",
            "For JSON and NDJSON, which have no ids: a key of this request that a retry repeats.",
        ),
        _header("Prefer", "`wait=10`: answer when each sink is done, at most 10 seconds later."),
        _header("ce-specversion", "CloudEvents in binary mode.", {"const": "1.0"}),
        _header("ce-id", "CloudEvents in binary mode."),
        _header("ce-source", "CloudEvents in binary mode."),
        _header("ce-type", "CloudEvents in binary mode."),
        _header("ce-subject", "CloudEvents in binary mode."),
        _header(
            "ce-time", "CloudEvents in binary mode.", {"type": "string", "format": "date-time"}
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/cloudevents+json": {"schema": {"$ref": "#/components/schemas/CloudEvent"}},
            "application/cloudevents-batch+json": {
                "schema": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"$ref": "#/components/schemas/CloudEvent"},
                }
            },
            "application/json": {"schema": {"description": "One event: any JSON value."}},
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "One JSON value on each line."}
            },
            "*/*": {
                "schema": {"description": "With `ce-` headers: the data of one event, as it is."}
            },
        },
    },
    "responses": {
        **_HEAD,
        "201": _json(
            "The events are durable; their ids in the order given.",
            "Events",
            headers={
                "Preference-Applied": {
                    "description": "`wait=10` if the outcome was waited for.",
                    "schema": {"type": "string"},
                }
            },
        ),
        "400": _problem("The body is not JSON or not UTF-8, or a header is there twice."),
        "409": _problem("Source and id belong to an event with other content."),
        "413": _problem("The request or an event is too large, or has too many events."),
        "415": _problem("The media type, its character set or its encoding is not read."),
        "422": _problem("An event is not valid, or has no entity where one is required."),
        "429": _problem("Too many requests of this client are not answered yet.", _RETRY_AFTER),
    },
}

_GET: dict[str, Any] = {
    "operationId": "getOutcome",
    "summary": "What became of an event at each sink",
    "description": "An answer is never stronger than what the ledger records.",
    "parameters": [
        {
            "name": "entity",
            "in": "path",
            "required": True,
            "description": "The EntityID; a slash in it is written as %2F.",
            "schema": {"type": "string"},
        },
        {
            "name": "event",
            "in": "path",
            "required": True,
            "description": "The EventID.",
            "schema": {"type": "integer", "minimum": 1},
        },
    ],
    "responses": {
        **_HEAD,
        "200": _json("What is known of the event.", "EventOutcomes"),
        "404": _problem("The stream has no such event."),
        "422": _problem("The EventID is not an integer from 1 on."),
    },
}

_OPEN: dict[str, Any] = {"security": []}
_SERVES: dict[str, Any] = {each: _HEAD[each] for each in ("400", "408", "431", "501")}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "semel ingest",
        "version": __version__,
        "description": "Takes events over HTTP and stores each once, numbered, in an inbox.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "servers": [{"url": "/"}],
    "security": [{"token": []}, {}],
    "paths": {
        "/v1/events": {"post": _POST},
        "/v1/events/{entity}/{event}": {"get": _GET},
        "/healthz": {
            "get": {
                "operationId": "getHealth",
                "summary": "Whether the ledger answers",
                **_OPEN,
                "responses": {
                    **_SERVES,
                    "200": _json("The ledger answers.", "Health"),
                    "500": _HEAD["500"],
                    "503": _HEAD["503"],
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "getMetrics",
                "summary": "Figures for Prometheus",
                "responses": {
                    **_SERVES,
                    "200": {
                        "description": "The text format of Prometheus.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    },
                    "401": _HEAD["401"],
                    "421": _HEAD["421"],
                },
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "getDescription",
                "summary": "This description",
                **_OPEN,
                "responses": {
                    **_SERVES,
                    "200": {
                        "description": "OpenAPI 3.1.",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                },
            }
        },
    },
    "components": {
        "securitySchemes": {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the file --token-file; none without it, on loopback.",
            }
        },
        "schemas": {
            "CloudEvent": _CLOUD_EVENT,
            "HttpProblem": _PROBLEM_DOCUMENT,
            "Outcome": _OUTCOME,
            "Stored": _STORED,
            "Events": {
                "type": "object",
                "required": ["events"],
                "properties": {
                    "events": {"type": "array", "items": {"$ref": "#/components/schemas/Stored"}}
                },
            },
            "EventOutcomes": {
                "type": "object",
                "required": ["entity", "event", "outcomes"],
                "properties": {
                    "entity": {"type": "string"},
                    "event": {"type": "integer"},
                    "outcomes": {
                        "type": "array",
                        "items": {"$ref": "#/components/schemas/Outcome"},
                    },
                },
            },
            "Health": {
                "type": "object",
                "required": ["status", "stream"],
                "properties": {
                    "status": {"const": "ok"},
                    "stream": {"type": "string"},
                },
            },
        },
    },
}
