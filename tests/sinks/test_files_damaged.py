"""Manifests that were damaged: they are named, and lead nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.errors import Diverged
from semel.sinks.files import committed
from semel.sinks.files.storage import Folder
from sinks.test_files import INPUT, rows_in, world_at


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def made(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return made


def part_with(**fields: Any) -> Callable[[bytes], bytes]:
    return damaged(lambda value: value["parts"][0].update(fields))


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda content: content[:-20],
    "not UTF-8": lambda content: content.replace(b"pay", b"\xff\xfe"),
    "nested without end": lambda _: b"[" * 200_000,
    "a list": lambda _: b"[]",
    "a text": lambda _: b'"manifest"',
    "without parts": damaged(lambda value: value.pop("parts")),
    "parts that are none": damaged(lambda value: value.update(parts={"a": 1})),
    "a part that is none": damaged(lambda value: value.update(parts=["part"])),
    "without a minibatch": damaged(lambda value: value.pop("minibatch")),
    "half a minibatch": damaged(lambda value: value.update(minibatch=[1])),
    "another minibatch": damaged(lambda value: value.update(minibatch=[1, 7])),
    "another format": damaged(lambda value: value.update(format="pickle")),
    "a pipeline that is a number": damaged(lambda value: value.update(pipeline=7)),
    "without a digest": damaged(lambda value: value["parts"][0].pop("digest")),
    "with a field that there is not": part_with(more=1),
    "rows that are a text": part_with(rows="2"),
    "bytes below zero": part_with(bytes=-1),
    "an attempt that is none": part_with(attempt=[1]),
    "a name that is none": part_with(name=7),
    "a name that is empty": part_with(name=""),
    "a part elsewhere": part_with(name="../../x"),
    "a part elsewhere, absolute": part_with(name="/etc/passwd"),
    "a part below": part_with(name="_aside/x"),
    "a part behind a name": part_with(name="part/../../x"),
    "the folder itself": part_with(name=".."),
    "a name with a NUL": part_with(name="part\x00"),
    "a name with a backslash": part_with(name="..\\x"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_named_and_leads_nowhere(
    tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_at(tmp_path)
    world.minibatch(0, INPUT)
    (tmp_path / "x").write_bytes(b"of somebody else")
    path = tmp_path / "pay/out/_manifests/0001-0000000000.json"
    path.write_bytes(damage(path.read_bytes()))
    left = snapshot(tmp_path)
    touched: list[str] = []

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(folder: Folder, *names: str) -> Any:
            touched.extend(names)
            return call(folder, *names)

        return watching

    for name in ("read", "move", "remove", "remove_folder"):
        monkeypatch.setattr(Folder, name, watched(getattr(Folder, name)))
    where = "pay/out/_manifests/0001-0000000000.json"
    with pytest.raises(Diverged, match=f"{where} is damaged"):
        rows_in(tmp_path)
    with pytest.raises(Diverged, match=f"{where} is damaged"):
        list(committed(tmp_path / "pay/out"))
    world.start()
    with pytest.raises(Diverged, match=f"{where} is damaged.*[Rr]estore it"):
        world.minibatch(0, INPUT)
    assert {each for each in touched if not each.startswith("_aside/")} == {
        "_manifests/0001-0000000000.json"
    }
    assert {name: left[name] for name in left if "_aside" not in name} == {
        name: content for name, content in snapshot(tmp_path).items() if "_aside" not in name
    }


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in sorted(folder.rglob("*"))
        if each.is_file()
    }


def test_types_that_a_manifest_does_not_keep_rightly_are_named(tmp_path: Path) -> None:
    world_at(tmp_path, format="json").minibatch(0, INPUT)
    path = tmp_path / "pay/out/_manifests/0001-0000000000.json"
    path.write_bytes(part_with(schema="bm90IGEgc2NoZW1h")(path.read_bytes()))
    with pytest.raises(Diverged, match="is damaged"):
        rows_in(tmp_path)
