"""A session that was stopped is named before anything is asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.errors import ConfigurationError
from semel.spark.deliver import deliver, deliver_batch
from support.spark.sessions import own_session


@pytest.mark.xdist_group("sessions")
def test_a_frame_of_a_stopped_session_is_refused(jvm: None, tmp_path: Path) -> None:
    spark = own_session(tmp_path)
    schema = "customer string, payment_id bigint"
    (tmp_path / "input").mkdir()
    streaming = spark.readStream.schema(schema).json(str(tmp_path / "input"))
    static = spark.read.schema(schema).json(str(tmp_path / "input"))
    words: dict[str, Any] = {"to": print, "entity": "customer", "event": "payment_id"}
    words |= {"name": "charges", "ledger": f"sqlite:///{tmp_path / 'ledger.db'}"}
    before = deliver(streaming, **words).option("checkpointLocation", str(tmp_path / "checkpoint"))
    spark.stop()
    said = r"pipeline 'charges(@1)?': the Spark session of the DataFrame is stopped"
    with pytest.raises(ConfigurationError, match=said):
        deliver(streaming, **words)
    with pytest.raises(ConfigurationError, match=said):
        deliver_batch(static, batch="1", **words)
    with pytest.raises(ConfigurationError, match=said):
        before.start()
    assert not (tmp_path / "ledger.db").exists()
