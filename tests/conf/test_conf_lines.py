from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.lines import key_lines

TEXT = '''\
top.dotted = 1

# [commented]
[swarm]  # a header with a comment
listen = [
    "a",  # x = 1
    "b]",

    # [not.a.table]
]
nested = [[1,
  2], [
  3]]
inline = { one = 1, two = { three = 3 } }
text = """
[neither.a.table]
key = 1
"""
raw = \'\'\'
name = "x"\'\'\'
"quoted.key" = 1
a.b.c = "three parts"
  [model.deep]
indented = true
[[many]]
x = 1
[[many]]
y = 2
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 1),
        (("top", "dotted"), 1),
        (("swarm",), 4),
        (("swarm", "listen"), 5),
        (("swarm", "nested"), 11),
        (("swarm", "inline"), 14),
        (("swarm", "inline", "two", "three"), 14),
        (("swarm", "text"), 15),
        (("swarm", "raw"), 19),
        (("swarm", "quoted.key"), 21),
        (("swarm", "a"), 22),
        (("swarm", "a", "b", "c"), 22),
        (("model",), 23),
        (("model", "deep", "indented"), 24),
        (("many",), 25),
        (("many", "x"), 26),
        (("many", "y"), 28),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_key_is_found_on_the_line_where_its_statement_begins(
    path: tuple[str, ...], line: int, ending: str
) -> None:
    assert key_lines(TEXT.replace("\n", ending))[path] == line


def test_what_only_looks_like_a_key_has_no_line() -> None:
    names = {part for path in key_lines(TEXT) for part in path}
    assert names.isdisjoint({"commented", "not", "neither", "key", "name"})


names = st.text("abc", min_size=1, max_size=3)
scalars = st.sampled_from(
    ["1", '"]"', "[1,\n2]", "[\n\n]", '"""\n[x]\n"""', "{ q = 1 }", "'''\n'''", "[ # ]\n 1 ]"]
)
blanks = st.sampled_from(["", "\n", "# c = 1\n", "\n# [c]\n\n"])


@given(st.dictionaries(names, st.dictionaries(names, st.tuples(blanks, scalars), max_size=4), max_size=4))
def test_every_key_of_any_file_is_found_where_it_was_written(
    tables: dict[str, dict[str, tuple[str, str]]],
) -> None:
    text = ""
    expected: dict[tuple[str, ...], int] = {}
    for table, keys in tables.items():
        expected[(table,)] = text.count("\n") + 1
        text += f"[{table}]\n"
        for key, (blank, value) in keys.items():
            text += blank
            expected[table, key] = text.count("\n") + 1
            text += f"{key} = {value}\n"
    found = key_lines(text)
    assert {path: line for path, line in found.items() if len(path) < 3} == expected
    assert {table: set(keys) for table, keys in tomllib.loads(text).items()} == {
        table: set(keys) for table, keys in tables.items()
    }


def test_a_long_list_takes_no_quadratic_time() -> None:
    # Every line once more through the parser would be 50 million lines.
    text = "a = [\n" + "1,\n" * 10_000 + "]\nb = 1\n"
    assert key_lines(text) == {("a",): 1, ("b",): 10_003}
