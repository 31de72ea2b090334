"""The ledger's table and function in PostgreSQL: where they are, and how they are created.

Always true:
- the ledger is the first table `semel_ledger` in the search path of the user, and its function is
  in the same schema; every statement names that schema, so nothing depends on the path any more;
- reading creates nothing;
- a table of that name with other columns is refused, and left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError
from semel.ledger.store.opening import SCHEMA, SCHEMA_KEY, check_schema

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

CONFLICT = "SM001"
"""The SQLSTATE of a requirement that does not hold."""

# The parallel arrays hold one entry per key, in key order. An act is i(nsert what is absent),
# p(ut), d(elete), s(weep) or r(equire only); an old payload is the one required, or null.
_TABLE = """
create table {schema}.semel_ledger (
  tbl text collate "C" not null,
  key text collate "C" not null,
  payload text not null,
  primary key (tbl, key)
) with (fillfactor = 80);
"""
_FUNCTION = """
create or replace function {schema}.semel_commit_1(
  tbls text[], keys text[], acts text[], olds text[], news text[],
  sweep_tbls text[], sweep_froms text[], sweep_tos text[]
) returns void language plpgsql volatile as $$
declare
  has text;
  bad_tbl text;
  bad_key text;
  at_fault int;
begin
  if current_setting('synchronous_commit') in ('off', 'local') then
    perform set_config('synchronous_commit', 'on', true);
  end if;

  -- 1. What a sweep will remove is touched as well, and takes its place in the order.
  if cardinality(sweep_tbls) > 0 then
    select array_agg(tbl), array_agg(key), array_agg(act), array_agg(old), array_agg(new)
      into tbls, keys, acts, olds, news
      from (select * from (
        select * from unnest(tbls, keys, acts, olds, news) as t(tbl, key, act, old, new)
        union all
        select l.tbl, l.key, 's', null, null
          from unnest(sweep_tbls, sweep_froms, sweep_tos) as s(tbl, key_from, key_to)
          join {schema}.semel_ledger l on l.tbl = s.tbl and l.key >= s.key_from
            and (s.key_to is null or l.key < s.key_to)
          where not exists (
            select from unnest(tbls, keys) as t(tbl, key) where t.tbl = l.tbl and t.key = l.key)
      ) touched order by tbl collate "C", key collate "C") ordered;
  end if;

  -- 2. A large commit that only puts and inserts: the steps below with a statement each. It takes
  --    its locks in the order of the keys too.
  if cardinality(keys) >= 64 and cardinality(sweep_tbls) = 0
      and not ('r' = any(acts) or 'd' = any(acts)) then
    with wanted as (
      select * from unnest(tbls, keys, acts, olds) as t(tbl, key, act, old) where t.act = 'p'
    ), locked as materialized (
      select l.tbl, l.key, l.payload from {schema}.semel_ledger l
        join wanted w on w.tbl = l.tbl and w.key = l.key
        order by l.tbl, l.key for no key update of l
    )
    select w.tbl, w.key into bad_tbl, bad_key
      from wanted w left join locked l on l.tbl = w.tbl and l.key = w.key
      where w.old is not null and l.payload is distinct from w.old limit 1;
    if bad_tbl is not null then
      raise exception using errcode = 'SM001', message = bad_tbl, detail = bad_key;
    end if;
    with wanted as (
      select * from unnest(tbls, keys, acts, news) with ordinality as t(tbl, key, act, new, at)
    ), added as (
      insert into {schema}.semel_ledger select tbl, key, new from wanted order by at
        on conflict do nothing returning tbl, key
    )
    select array_agg(tbl), array_agg(key), array_agg(act), array_agg(new)
      into tbls, keys, acts, news from wanted w
      where not exists (select from added a where a.tbl = w.tbl and a.key = w.key);
    if 'i' = any(acts) then
      at_fault := array_position(acts, 'i');
      raise exception using errcode = 'SM001', message = tbls[at_fault], detail = keys[at_fault];
    end if;
    update {schema}.semel_ledger l set payload = t.new
      from unnest(tbls, keys, news) as t(tbl, key, new) where l.tbl = t.tbl and l.key = t.key;
    return;
  end if;

  -- 3. Lock what is there and check what is required.
  for i in 1 .. coalesce(cardinality(keys), 0) loop
    continue when acts[i] = 'i';
    if acts[i] = 'r' then
      select payload into has from {schema}.semel_ledger
        where tbl = tbls[i] and key = keys[i] for share;
    else
      select payload into has from {schema}.semel_ledger
        where tbl = tbls[i] and key = keys[i] for no key update;
    end if;
    if olds[i] is not null and has is distinct from olds[i] then
      raise exception using errcode = 'SM001', message = tbls[i], detail = keys[i];
    end if;
  end loop;

  -- 4. Write. The primary key decides who was first where a row must be absent.
  for i in 1 .. coalesce(cardinality(keys), 0) loop
    if acts[i] = 'i' then
      insert into {schema}.semel_ledger values (tbls[i], keys[i], news[i]) on conflict do nothing;
      if not found then
        raise exception using errcode = 'SM001', message = tbls[i], detail = keys[i];
      end if;
    elsif acts[i] = 'p' then
      insert into {schema}.semel_ledger values (tbls[i], keys[i], news[i])
        on conflict on constraint semel_ledger_pkey do update set payload = excluded.payload;
    elsif acts[i] = 'd' then
      delete from {schema}.semel_ledger where tbl = tbls[i] and key = keys[i];
    end if;
  end loop;

  -- 5. Sweep, but not what this commit puts.
  for i in 1 .. cardinality(sweep_tbls) loop
    delete from {schema}.semel_ledger l
      where l.tbl = sweep_tbls[i] and l.key >= sweep_froms[i]
        and (sweep_tos[i] is null or l.key < sweep_tos[i])
        and not exists (
          select from unnest(tbls, keys, acts) as kept(tbl, key, act)
          where kept.act in ('i', 'p') and kept.tbl = l.tbl and kept.key = l.key);
  end loop;
end $$;
"""
_FIND = b"""
select quote_ident(n.nspname), c.relkind in ('r', 'p'),
  to_regprocedure(quote_ident(n.nspname) || '.semel_commit_1(text[],text[],text[],text[],text[],'
    || 'text[],text[],text[])') is not null,
  (select array_agg(attname || ' ' || format_type(atttypid, null) order by attnum)
    from pg_attribute where attrelid = c.oid and attnum > 0 and not attisdropped)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass('semel_ledger')
"""
_COLUMNS = ["tbl text", "key text", "payload text"]

# to_regclass does not see into a schema of the path that the user may not use.
_HIDDEN = b"""
select quote_ident(n.nspname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relname = 'semel_ledger' and not has_schema_privilege(n.oid, 'usage') and n.nspname in (
  select case when btrim(each) = '"$user"' then current_user else btrim(each, ' "') end
  from unnest(string_to_array(current_setting('search_path'), ',')) as each)
"""
_COMMIT = (
    "select {schema}.semel_commit_1(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[],"
    " %s::text[], %s::text[], %s::text[])"
)
_READ = (
    "select l.tbl, l.key, l.payload from unnest(%s::text[], %s::text[]) as wanted(tbl, key)"
    " join {schema}.semel_ledger l on l.tbl = wanted.tbl and l.key = wanted.key"
)
_SCAN = (
    "select key, payload from {schema}.semel_ledger where tbl=%s and key>%s and key>=%s"
    " order by key limit %s"
)
_SCAN_BELOW = _SCAN.replace(" order by", " and key<%s order by")
_VERSION = "insert into {schema}.semel_ledger values ('semel', 'schema', %s)"
_FIRST = b"select quote_ident(current_schema())"
_ALONE = b"select pg_advisory_xact_lock(495554355564)"
"""Two that open an empty database at once take turns; the number is any, and is semel's."""


@dataclass(frozen=True, slots=True)
class Place:
    """The schema that has the ledger, quoted, and the statements that name it.

    `complete` is False where the function is missing, which only a commit needs.
    """

    schema: str
    complete: bool
    commit: bytes
    read: bytes
    scan: bytes
    scan_below: bytes

    @classmethod
    def of(cls, schema: str, *, complete: bool) -> Place:
        """Write the statements."""

        def named(statement: str) -> bytes:
            return statement.replace("{schema}", schema.replace("%", "%%")).encode()

        return cls(schema, complete, named(_COMMIT), named(_READ), named(_SCAN), named(_SCAN_BELOW))


def find(connection: Connection, ledger: str) -> Place | None:
    """Find the ledger's table; None if there is none yet.

    Raises `ConfigurationError` for a table of that name that is not a ledger, or is a newer one.
    """
    found = connection.execute(_FIND).fetchall()
    if not found:
        return None
    [(schema, is_table, complete, columns)] = found
    if not is_table or columns != _COLUMNS:
        raise ConfigurationError(
            f"the ledger {ledger}: {schema}.semel_ledger exists, but does not have the columns of a"
            f" ledger (tbl, key and payload, all text). It is left as it is: name another database,"
            " or put another schema first in the user's search_path"
        )
    place = Place.of(schema, complete=complete)
    rows = connection.execute(place.read, ([SCHEMA_KEY.table], [SCHEMA_KEY.key])).fetchall()
    check_schema(rows[0][2] if rows else None, ledger)
    return place


def install(connection: Connection, ledger: str) -> Place:
    """Create the table, if there is none, in the first schema of the search path, and the function
    beside it. Raises `ConfigurationError`.
    """
    with connection.transaction():
        connection.execute(_ALONE)
        place = find(connection, ledger)
        if place is None:
            schema = _schema_to_create_in(connection, ledger)
            connection.execute(_TABLE.replace("{schema}", schema).encode())
            version = _VERSION.replace("{schema}", schema.replace("%", "%%"))
            connection.execute(version.encode(), [SCHEMA])
        else:
            schema = place.schema
        if place is None or not place.complete:
            connection.execute(_FUNCTION.replace("{schema}", schema).encode())
    return Place.of(schema, complete=True)


def _schema_to_create_in(connection: Connection, ledger: str) -> str:
    for (schema,) in connection.execute(_HIDDEN).fetchall():
        raise ConfigurationError(
            f"the ledger {ledger}: the schema {schema} is in the search path and holds a ledger, "
            "but this user may not use it. Nothing was created beside it: grant usage of the schema"
            " and its table, or remove the schema from the user's search_path"
        )
    [(schema,)] = connection.execute(_FIRST).fetchall()
    if schema is None:
        raise ConfigurationError(
            f"the ledger {ledger} has no schema to work in; set the user's search_path to a schema "
            "that exists and that the user may use"
        )
    return str(schema)
