"""Every page of the console shows what the ledger has, and a decision is reflected at once."""

from __future__ import annotations

import html
import json
import re
import signal
import time
from pathlib import Path

import pytest

from semel.ledger import Ledger, open_store
from semel.ledger.keys import make_key
from semel.ledger.store.commit import Put
from semel.protocol import ParkedState
from support.command_line import pipeline_at, semel
from support.console.generated_ledger import GeneratedPipeline
from support.console.running_console import Console, next_event
from support.destinations import lost

Out = pytest.CaptureFixture[str]


def words(page: str) -> str:
    """The text of a page on one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def event_link(page: str, entity: str) -> str:
    """The address of a parked event on a page that lists it."""
    found = re.search(rf'href="(/parked/event\?key=[^"]*)"><b>{entity}</b>', page)
    assert found is not None, page
    return html.unescape(found[1])


def test_the_pipelines_are_shown_with_what_is_wrong_and_what_to_type(console: Console) -> None:
    text = words(console.text("/"))
    assert "1 of 2 pipelines on this page needs a person." in text
    assert "2 events are in doubt at sink bank" in text
    assert "1 event was rejected by sink bank: it did not arrive" in text
    assert "semel parked ls charges" in text
    assert "Run 3 ended, and minibatch 1.412 is not complete." in text
    assert "semel run FILE" in text


def test_a_ledger_without_pipelines_says_so(url: str) -> None:
    store = open_store(url)
    store.commit([], [Put(make_key("markers", "x", 1), "{}")])
    store.close()
    with Console(url) as console:
        assert "No pipeline has run with this ledger yet." in console.text("/")
        assert "No such event is parked." in console.text("/parked")


def test_one_pipeline_is_shown_with_all_that_the_ledger_has_of_it(console: Console) -> None:
    page = console.text("/pipeline", {"name": "charges"})
    text = words(page)
    assert "run 3, process 4211 on spark-driver-7" in text
    assert "Throughput of the newest 59: median" in text
    assert "Time of the newest 60: median" in text
    assert "5 s are required" in text
    assert "1,204 repeats suppressed" in text
    assert "bank 3 pending, 5 complete" in text
    assert "Marker" in text
    assert "a minibatch takes 0.4 s and 0.3 ms for each event" in text
    assert "dedupe changelog 8 184,210 50.0 MiB" in text
    assert "bank 2 1 0 400,025 400,028 opaque 0 0 3" in text
    assert "books 0 0 0 400,028 400,028 transactional 0 0 0" in text
    assert page.count("<svg") == 3


def test_a_pipeline_that_is_not_there_is_a_page_that_says_so(console: Console) -> None:
    answer = console.get("/pipeline", {"name": "<b>no</b>"})
    assert answer.status == 404
    assert b"there is no pipeline &#39;&lt;b&gt;no&lt;/b&gt;&#39; in this ledger" in answer.body
    assert b"<b>no" not in answer.body


def test_parked_events_are_filtered(console: Console) -> None:
    def entities(**where: str) -> list[str]:
        page = console.text("/parked", where)
        return re.findall(r"<b>(\w+)</b>", page)

    assert entities() == ["c1042", "c7", "c99"]
    assert entities(states="all") == ["c1042", "c3", "c7", "c99"]
    assert entities(states="rejected") == ["c99"]
    assert entities(why="CARD") == ["c99"]
    assert entities(pipeline="charges", entity="c7") == ["c7"]
    assert entities(pipeline="charges", sink="books") == []
    assert entities(pipeline="receipts") == []
    for wrong in ({"states": "x"}, {"sink": "bank"}, {"pipeline": "no"}):
        assert console.get("/parked", wrong).status == 422


@pytest.mark.parametrize(
    ("decision", "state"),
    [("delivered", "delivered"), ("resend", "resend"), ("discard", "discarded")],
)
def test_a_decision_is_recorded_and_reflected_at_once(
    console: Console, ledger: Ledger, decision: str, state: str
) -> None:
    link = event_link(console.text("/parked"), "c1042")
    page = console.text(link)
    assert "in doubt; a person decides" in page
    assert "payment_id" in page
    form = {
        "form_token": console.form_token(link),
        "key": html.unescape(re.findall(r'name="key" value="([^"]*)"', page)[0]),
        "decision": decision,
        "reason": "seen in the bank's statement",
        "by": "ann",
    }
    for _ in range(2):  # the same decision again changes nothing
        answer = console.post("/parked/event", form)
        assert answer.status == 200, answer.body
        assert f"Recorded: {state}" in words(answer.body.decode())
    [(_, row)] = [each for each in ledger.parked("charges") if each[1].entity == "c1042"]
    assert (row.state.value, row.by, row.reason) == (state, "ann", "seen in the bank's statement")
    waiting = words(console.text("/"))
    assert "1 event is in doubt at sink bank" in waiting
    assert "c1042" not in console.text("/parked")
    assert "c1042" in console.text("/parked", {"states": state})


def test_a_decision_needs_a_reason_a_name_and_an_event_that_can_be_decided(
    console: Console, ledger: Ledger
) -> None:
    link = event_link(console.text("/parked", {"states": "all"}), "c7")
    key = html.unescape(re.findall(r'name="key" value="([^"]*)"', console.text(link))[0])
    form = {
        "form_token": console.form_token(link),
        "key": key,
        "decision": "delivered",
        "reason": "x",
        "by": "ann",
    }
    for name, what in (("reason", "a reason"), ("by", "your name"), ("decision", "a decision")):
        answer = console.post("/parked/event", {**form, name: " "})
        assert answer.status == 422
        assert f"{what} is missing" in answer.body.decode()
    assert console.post("/parked/event", {**form, "key": "no/such/key"}).status == 404
    assert console.post("/parked/event", {**form, "decision": "as-recorded"}).status == 409
    assert console.post("/parked/event", {**form, "decision": "retry"}).status == 409
    assert [row.state for _, row in ledger.parked("charges") if row.entity == "c7"] == [
        ParkedState.HELD
    ]
    settled = event_link(console.text("/parked", {"states": "all"}), "c3")
    assert "Record the decision" not in console.text(settled)


def test_an_event_is_found_with_the_words_of_ledger_find(tmp_path: Path, capsys: Out) -> None:
    world = pipeline_at(tmp_path / "real.db")
    url = f"sqlite:///{tmp_path}/real.db"
    world.out.plan(lost)
    world.minibatch(0, "a1 b2")
    with Console(url) as console:
        for entity, event in (("a", "1"), ("b", "2"), ("c", "9")):
            page = words(console.text("/find", {"entity": entity, "event": event}))
            arguments = ("ledger", "find", "--entity", entity, "--event", event, "--json")
            [traced] = json.loads(semel(capsys, *arguments, "--ledger", url)[1])
            assert f"out {traced['state']} " in page
        assert "Handled up to" in console.text("/find", {"entity": "a"})
        assert "The ledger knows nothing" in console.text("/find", {"entity": "z"})
        assert console.get("/find", {"entity": "a", "pipeline": "no"}).status == 422


def test_the_short_name_on_the_page_works_in_the_terminal(
    console: Console, url: str, capsys: Out
) -> None:
    page = console.text(event_link(console.text("/parked"), "c7"))
    [short] = set(re.findall(r"<code>(@[0-9a-f]+)</code>", page))
    status, out, _ = semel(capsys, "parked", "show", short, "--ledger", url)
    assert status == 0
    assert "charges/bank/c7/1200" in out


def test_live_figures_move_and_end_at_shutdown(
    console: Console, charges: GeneratedPipeline
) -> None:
    with console.stream("/live?pipeline=charges") as stream:
        assert stream.status == 200
        first = json.loads(next_event(stream, "regions"))
        assert {"state", "advice", "figures", "charts", "sinks", "partitions"} <= first.keys()
        assert "unconfirmed" in first["state"]
        charges.now = time.time()
        charges.put([charges.owner(beat=2)])
        second = json.loads(next_event(stream, "regions"))
        assert "partitions" not in second  # only what changed is sent
        while "running" not in second.get("state", ""):
            second = json.loads(next_event(stream, "regions"))
        charges.put(charges.parked("c8", 9))
        third = json.loads(next_event(stream, "regions"))
        assert "3 events are in doubt" in third["advice"]
        assert "partitions" not in third
        assert console.stop(signal.SIGTERM) == 0
        assert next_event(stream, "regions") == ""
    assert not [line for line in console.err if "Traceback" in line]


def test_a_heartbeat_that_does_not_move_is_silent_after_ten_seconds(console: Console) -> None:
    with console.stream("/live") as stream:
        began = time.monotonic()
        while "silent" not in next_event(stream, "regions"):
            assert time.monotonic() - began < 30
        assert time.monotonic() - began > 9


def test_a_ledger_that_does_not_answer_is_a_page_and_live_figures_say_so(
    console: Console, url: str
) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    with console.stream("/live") as stream:
        next_event(stream, "regions")
        path.rename(path.with_suffix(".away"))
        trouble = ""
        while not trouble:
            trouble = json.loads(next_event(stream, "polled"))["trouble"]
        assert "was removed or replaced while in use" in trouble
        answer = console.get("/")
        assert answer.status == 422
        assert "was removed or replaced while in use" in answer.body.decode()
        assert b"Traceback" not in answer.body
        path.with_suffix(".away").rename(path)
        while trouble:
            trouble = json.loads(next_event(stream, "polled"))["trouble"]
    assert console.get("/").status == 200
    assert console.get("/healthz").status == 200


def test_a_damaged_row_is_shown_and_hides_no_other(
    console: Console, charges: GeneratedPipeline
) -> None:
    charges.put([Put(make_key("parked", "charges", "bank", "c2", "a1", 1, 1), "{broken")])
    assert "1 row of the ledger cannot be read" in words(console.text("/"))
    page = console.text("/parked")
    assert "A row cannot be read" in page
    assert "c1042" in page
