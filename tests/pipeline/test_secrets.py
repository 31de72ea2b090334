"""What a pipeline file takes from the environment and from files, and that no message shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.pipeline import read_file
from semel.sinks import Http, Postgres
from support.command_line import semel
from support.pipeline_files import Build, Wrong

SECRET = "hunter2-{hunter2}"

TEXT = """\
[pipeline]
name = "p${NAME}"
checkpoint = "${PLACE}/c"
ledger = "postgresql://u:${file:secrets/db}@127.0.0.1/db"
[source]
format = "json"
options = { path = "in", token = "${TOKEN}" }
[transform]
sql = "select '${x}' from source"
[identity]
entity = "customer"
event = "payment_id"
[[sinks]]
type = "http"
url = "https://service.example/{customer}?key=${file:secrets/key}"
headers = { Authorization = "Bearer ${TOKEN}", X = "$${TOKEN}" }
[[sinks]]
type = "postgres"
url = "postgresql://u:${file:secrets/db}@127.0.0.1/db"
table = "t"
"""


@pytest.fixture
def secrets(folder: Path) -> Path:
    """Files beside the pipeline file."""
    (folder / "secrets").mkdir()
    (folder / "secrets" / "db").write_text("database-password\n")
    (folder / "secrets" / "key").write_text("api-key-1234")
    return folder / "secrets"


def test_values_come_from_the_environment_and_from_files(secrets: Path, built: Build) -> None:
    pipeline = built(TEXT, TOKEN=SECRET, PLACE="/data")
    http, postgres = pipeline.sinks
    assert isinstance(http, Http)
    assert isinstance(postgres, Postgres)
    assert http.url.endswith("/{customer}?key=api-key-1234")
    assert http.headers["Authorization"] == "Bearer hunter2-{{hunter2}}", "not a template"
    assert postgres.url == "postgresql://u:database-password@127.0.0.1/db"
    words = pipeline.words()
    assert words["ledger"] == postgres.url
    assert words["name"] == "p${NAME}", "a name is a text"
    assert pipeline.checkpoint == "/data/c"
    sections = pipeline.file.sections
    assert sections.source is not None
    assert sections.source.options["token"] == SECRET
    assert sections.transform is not None
    assert sections.transform.sql == ("select '${x}' from source",)
    for shown in (repr(pipeline), repr(pipeline.file), str(pipeline.sinks)):
        assert not [each for each in (SECRET, "database-password", "api-key-1234") if each in shown]


def test_what_is_missing_is_named_with_its_line(secrets: Path, wrong: Wrong) -> None:
    (secrets / "key").write_text("")
    (secrets / "db").write_bytes(b"\xff\xfe")
    found = wrong(TEXT.replace('"in"', '"${}"').replace("{customer}", "${no"), TOKEN="")
    assert found == [
        "p.toml:3:14: the environment has no variable PLACE; set it",
        "p.toml:4:10: the file 'secrets/db' is not UTF-8",
        (
            "p.toml:7:20: expected ${NAME} (a variable of the environment) or ${file:PATH}, found "
            "'${}'; write $${ for the two characters themselves"
        ),
        "p.toml:7:35: the environment has no variable TOKEN; set it",
        (
            "p.toml:15:7: expected ${NAME} (a variable of the environment) or ${file:PATH}, found "
            "'${'; write $${ for the two characters themselves"
        ),
        "p.toml:15:7: the file 'secrets/key' is empty",
        "p.toml:16:29: the environment has no variable TOKEN; set it",
        "p.toml:19:7: the file 'secrets/db' is not UTF-8",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('format = "json"', 'format = "json"\nschema = "${TOKEN}"\nfrmat = "${TOKEN}"'),
        ('table = "t"', 'table = "t"\nschema = ""\ncolumns = "${TOKEN}"'),
        ('table = "t"', 'table = "t"\nwhere = "${TOKEN}"\nchunk_rows = "${TOKEN}"'),
        ('"https://service.example/', '"${TOKEN}:${TOKEN}@service.example/'),
        ('"https://service.example/', '"https://${TOKEN}:${TOKEN}@service.example/'),
        ("postgresql://u:", "postgres://${TOKEN}:/@"),
        ('type = "http"', 'type = "http"\nmethod = "${TOKEN}"\non_doubt = "${TOKEN}"'),
        ('type = "http"', 'type = "http"\nmethod = "${TOKEN}"'),
        ('type = "http"', 'type = "http"\nproxy = "${TOKEN}"\ncontent_type = "${TOKEN}\\u0007"'),
        ('name = "p${NAME}"', 'name = "p"\npartitions = "${TOKEN}"\nmode = "${TOKEN}"'),
        ("[source]", '[spark]\nmaster = "${TOKEN}"\nlog_level = "${TOKEN}"\n[source]'),
    ],
)
def test_no_message_shows_a_value_from_outside(
    old: str, new: str, secrets: Path, wrong: Wrong
) -> None:
    found = wrong(TEXT.replace(old, new), TOKEN=SECRET, PLACE="/data")
    shown = "\n".join(found)
    assert "hunter2" not in shown, shown
    assert "database-password" not in shown


@pytest.mark.parametrize(
    "secret",
    [
        "it's hunter2",
        "hunter2 'and' \"more\"",
        "hunter2\\more",
        "first line\nhunter2, the second",
        "\u202ehunter2\u202e",
        "{hunter2}",
        "hunter2/%?#@",
        "hünter2-hunter2",
        "hunter2" * 60,
    ],
    ids=ascii,
)
@pytest.mark.parametrize(
    "key", ["metrics", "format", "compression", "then", "stamps", "schema", "url", "method"]
)
def test_no_message_shows_a_value_from_outside_however_it_is_written(
    key: str, secret: str, secrets: Path, wrong: Wrong
) -> None:
    places = {
        "metrics": ('name = "p${NAME}"', 'name = "p"\nmetrics = "${TOKEN}"'),
        "format": ('type = "postgres"', 'type = "files"\nformat = "x ${TOKEN}"\n#'),
        "compression": ('type = "postgres"', 'type = "files"\ncompression = "${TOKEN}"\n#'),
        "then": ('type = "postgres"', 'type = "files"\nthen = { type = "a${TOKEN}" }\n#'),
        "stamps": (
            'type = "postgres"',
            'type = "kafka"\nservers = "h:1"\ntopic = "t"\nstamps = ["${TOKEN}"]\n#',
        ),
        "schema": ('table = "t"', 'table = "t"\nschema = "${TOKEN}"\ncolumns = "${TOKEN}"'),
        "url": ('"https://service.example/', '"https://${TOKEN}:${TOKEN}@service.example/'),
        "method": ('type = "http"', 'type = "http"\nmethod = "${TOKEN}"'),
    }
    old, new = places[key]
    text = TEXT.replace(old, new)
    if new.endswith("#"):
        text = text.replace('table = "t"', "").replace('url = "postgresql', 'url = "out" # "')
    shown = "\n".join(wrong(text, TOKEN=secret, PLACE="/data"))
    assert "unter2" not in shown, shown


def test_the_commands_print_no_value_from_outside(
    secrets: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("PLACE", "/data")
    path = folder / "p.toml"
    path.write_text(TEXT)
    for arguments in (("check",), ("explain",), ("check", "--json"), ("explain", "--json")):
        status, out, err = semel(capsys, arguments[0], str(path), *arguments[1:])
        assert status == 0, err
        for each in ("hunter2", "database-password", "api-key-1234"):
            assert each not in out + err


def test_a_file_that_is_a_folder_or_too_large_is_no_secret(folder: Path, wrong: Wrong) -> None:
    (folder / "large").write_bytes(b"x" * 100_000)
    text = TEXT.replace("secrets/key", "large").replace("secrets/db", ".")
    found = wrong(text, TOKEN=SECRET, PLACE="x")
    assert "p.toml:4:10: the file '.' cannot be read: Is a directory" in found
    assert any("the file 'large' cannot be read: it has more than" in each for each in found)


def test_a_secret_that_is_one_character_hides_nothing_else(built: Build, folder: Path) -> None:
    (folder / "p.toml").write_text(TEXT.replace("${file:secrets/db}", "x").replace("secrets/", ""))
    (folder / "key").write_text("k")
    read = read_file(folder / "p.toml", {"TOKEN": "e", "PLACE": "/"})
    assert read.problems.secrets == set()
