"""Rows of every format, the prompts made of them, and the tables that answers are written to."""

import csv
import gc
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from services.local.batches.requests import CHAT, MAX_LINE_BYTES, RESPONSES, TEXT, RequestMaker, cut
from services.local.batches.rows.errors import RowsError
from services.local.batches.rows.files import RowFile, format_of
from services.local.batches.rows.tables import Columns, require_format, table_at
from services.local.batches.rows.template import Template

MORE = ("answer",)


def row_file(path: Path, contents: str | bytes) -> RowFile:
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return RowFile(path, format_of(path, path.name), path.name)


def read(file: RowFile) -> list[tuple[int, dict[str, Any]]]:
    return [(row.line, row.values) for row in file.rows()]


def maker(prompt: str, endpoint: str = CHAT, system: str | None = None) -> RequestMaker:
    parsed = None if system is None else Template.parse(system)
    return RequestMaker(endpoint=endpoint, prompt=Template.parse(prompt), system=parsed, body={"model": "m"})


def test_csv_has_quotes_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.csv", '\ufeffid,"my text"\r\n1,"a ""b"",\nc"\r\n\r\n2,ü\r\n')
    assert file.columns() == ["id", "my text"]
    assert read(file) == [(2, {"id": "1", "my text": 'a "b",\nc'}), (5, {"id": "2", "my text": "ü"})]


def test_the_other_formats(tmp_path: Path) -> None:
    assert read(row_file(tmp_path / "a.tsv", "x\ty\n1\ta,b\n")) == [(2, {"x": "1", "y": "a,b"})]
    assert read(row_file(tmp_path / "a.txt", "one\r\n\n two \nthree")) == [
        (1, {"text": "one"}),
        (3, {"text": " two "}),
        (4, {"text": "three"}),
    ]
    rows = read(row_file(tmp_path / "a.ndjson", '{"a": 1}\n\n{"a": [2, null], "b": "x"}\n'))
    assert rows == [(1, {"a": 1}), (3, {"a": [2, None], "b": "x"})]


@pytest.mark.parametrize(
    ("begins", "format"), [(' {"a": 1}\n', "jsonl"), ("a,b\n", "text"), ("PAR1", "parquet"), ("", "text")]
)
def test_where_the_name_does_not_tell_the_beginning_does(tmp_path: Path, begins: str, format: str) -> None:
    assert row_file(tmp_path / "stdin", begins).format == format


@pytest.mark.parametrize(
    ("name", "begins", "said"),
    [
        ("a.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0), "compressed; unpack it with gunzip first"),
        ("a.xlsx", b"PK\x03\x04", "a spreadsheet or an archive; save its rows as CSV"),
        ("a.json", b'[\n  {"a": 1},\n  {"a": 2}\n]\n', "one JSON array; write an object on each line"),
    ],
)
def test_what_would_be_taken_for_prompts_is_refused(tmp_path: Path, name: str, begins: bytes, said: str) -> None:
    with pytest.raises(RowsError, match=f"^{name} cannot be read: it is {said}"):
        row_file(tmp_path / name, begins)


@pytest.mark.parametrize(
    ("name", "contents", "said"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "a,a\n", "a.csv line 1: two columns have the name 'a'"),
        ("a.csv", "a,b\n1,2\n3\n", "a.csv line 3: 1 fields for 2 columns, a, b"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv line 2: 3 fields for 2 columns, a, b"),
        ("a.csv", 'a\n"x\n', "a.csv line 2: unexpected end of data"),
        ("a.csv", b"a\n\xff\n", "a.csv from line 1 on: no UTF-8 text"),
        ("a.txt", b"\xff\n", "a.txt from line 1 on: no UTF-8 text"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "a.jsonl line 2: no JSON object"),
        ("a.jsonl", '{"a": 1}\n{"a"\n', "a.jsonl line 2: no JSON object"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, name: str, contents: str | bytes, said: str) -> None:
    with pytest.raises(RowsError, match=said.replace("[", r"\[")):
        list(maker("x").lines(row_file(tmp_path / name, contents)))


def test_a_template_has_columns_and_escaped_braces(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.jsonl", '{"a b": "x{y}", "n": 1.5, "no": null, "yes": true, "l": [1, "ü"]}\n')
    template = Template.parse("{{{a b}}} {n}|{no}|{yes}|{l} {{}}")
    assert template.columns == ["a b", "n", "no", "yes", "l"]
    assert template.render(next(file.rows()), file.name) == '{x{y}} 1.5||true|[1,"ü"] {}'


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{a:{b}}", "{text.__class__}", "{a!r:x}"]
)
def test_nothing_but_a_name_stands_in_braces(text: str) -> None:
    with pytest.raises(RowsError, match="the template"):
        Template.parse(text)


def test_a_missing_column_is_named_with_its_line_and_those_there_are(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.jsonl", '{"a": 1}\n{"b": 1, "c": 2}\n')
    with pytest.raises(RowsError, match=r"a.jsonl line 2: no column 'a'; its columns are b, c"):
        list(maker("{a}").lines(file))


def test_each_row_is_a_line_of_the_endpoint(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.txt", "one\ntwo\n")
    first, second = (json.loads(line) for line in maker("Say {text}", CHAT, "Be {text}").lines(file))
    messages = [{"role": "system", "content": "Be one"}, {"role": "user", "content": "Say one"}]
    assert first == {
        "custom_id": "row-1",
        "method": "POST",
        "url": CHAT,
        "body": {"model": "m", "messages": messages},
    }
    assert second["custom_id"] == "row-2"
    bodies = [json.loads(next(maker("{text}", each).lines(file)))["body"] for each in (TEXT, RESPONSES)]
    assert bodies == [{"model": "m", "prompt": "one"}, {"model": "m", "input": "one"}]


def test_rows_are_cut_into_batches_that_hold_all_of_them(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.txt", "".join(f"{n}\n" for n in range(10)))
    lines = list(maker("{text}").lines(file))
    told: list[int] = []
    parts = cut(iter(lines), 4, told.append)
    assert [(part.first, part.num_rows) for part in parts] == [(1, 4), (5, 4), (9, 2)]
    assert sum(part.num_bytes for part in parts) == sum(map(len, lines)) and told == list(range(1, 11))
    assert [part.digest for part in parts] == [part.digest for part in cut(iter(lines), 4, told.append)]
    assert parts[0].digest != cut(iter(lines[1:]), 4, told.append)[0].digest
    with pytest.raises(RowsError, match="there are no rows"):
        cut(iter([]), 4, told.append)


def test_a_row_that_no_batch_takes_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.txt", "x\n" + "y" * MAX_LINE_BYTES + "\n")
    with pytest.raises(RowsError, match=r"a.txt line 2: its request is longer"):
        list(maker("{text}").lines(file))


def written(file: RowFile, output: Path) -> None:
    with table_at(output, Columns.of(file), MORE, replace=False) as table:
        for number, row in enumerate(file.rows(), 1):
            table.write(row.values | {"answer": None if number == 2 else f"is {number},\n"})


def test_answers_stand_behind_the_rows_own_columns(tmp_path: Path) -> None:
    file = row_file(tmp_path / "a.jsonl", '{"a": 1}\n{"b": "x", "a": null}\n')
    written(file, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as source:
        assert list(csv.reader(source)) == [["a", "b", "answer"], ["1", "", "is 1,\n"], ["", "x", ""]]
    written(file, tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [{"a": 1, "answer": "is 1,\n"}, {"b": "x", "a": None, "answer": None}]


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_a_line_break_of_any_kind_stays_within_its_answer(tmp_path: Path, end: str) -> None:
    with table_at(tmp_path / "out.csv", Columns({}), ("answer",), replace=False) as table:
        table.write({"answer": f"a{end}b"})
    with (tmp_path / "out.csv").open(newline="") as source:
        assert list(csv.reader(source)) == [["answer"], [f"a{end}b"]]


def test_without_pyarrow_parquet_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RowsError, match=r"pip install 'slackwater\[parquet\]'"):
        row_file(tmp_path / "a.parquet", "PAR1").columns()
    with pytest.raises(RowsError, match="pyarrow"):
        require_format(tmp_path / "out.parquet")


def test_parquet_keeps_its_types(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"n": [1, None], "text": ["a", "b"], "l": [[1, 2], []]})
    pq.write_table(table, tmp_path / "a.parquet")
    file = RowFile(tmp_path / "a.parquet", "parquet", "a.parquet")
    assert file.columns() == ["n", "text", "l"]
    written(file, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.schema.equals(table.schema.append(pa.field("answer", pa.string())))
    assert found.to_pylist()[0] == {"n": 1, "text": "a", "l": [1, 2], "answer": "is 1,\n"}
    with pytest.raises(RowsError, match=r"b.parquet cannot be read as Parquet"):
        row_file(tmp_path / "b.parquet", "PAR1").columns()


def test_parquet_of_other_rows_has_the_types_that_they_all_have(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [
        {"i": 1, "f": 1, "m": 1, "b": True, "t": {"x": 1}, "z": None},
        {"i": None, "f": 2.5, "m": "x", "b": False, "t": "s"},
    ]
    file = row_file(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    written(file, tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    kinds = {"i": "int64", "f": "double", "m": "string", "b": "bool", "t": "string", "z": "string", "answer": "string"}
    assert {field.name: str(field.type) for field in found.schema} == kinds
    assert found.to_pylist() == [
        {"i": 1, "f": 1.0, "m": "1", "b": True, "t": '{"x":1}', "z": None, "answer": "is 1,\n"},
        {"i": None, "f": 2.5, "m": "x", "b": False, "t": "s", "z": None, "answer": None},
    ]


def test_numbers_that_parquet_has_no_type_for_are_written_all_the_same(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"i": 2**63, "m": 2**53 + 1, "n": -(2**63)}, {"i": 1, "m": 0.5, "n": 2**63 - 1}]
    file = row_file(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    written(file, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").drop_columns("answer").to_pylist() == [
        {"i": str(2**63), "m": float(2**53), "n": -(2**63)},
        {"i": "1", "m": 0.5, "n": 2**63 - 1},
    ]


def test_parquet_that_is_broken_inside_is_named(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(5000)]}), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    file = row_file(tmp_path / "b.parquet", whole[:1000] + b"\xff" * 2000 + whole[3000:])
    assert file.columns() == ["text"]
    with pytest.raises(RowsError, match=r"b.parquet cannot be read as Parquet"):
        read(file)


def test_a_parquet_table_that_is_given_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow.parquet")
    late: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", late.append)

    def give_up() -> None:
        with table_at(tmp_path / "out.parquet", Columns({"n": int}), MORE, replace=False) as table:
            table.write({"n": 1, "answer": "a"})
            raise RowsError("no more")

    with pytest.raises(RowsError, match="no more"):
        give_up()
    gc.collect()
    assert (late, list(tmp_path.iterdir())) == ([], [])
