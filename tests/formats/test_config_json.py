"""JSON is written byte for byte as Java does and read in all of fastjson's forms.

Proved by every config file of every golden store, by one document with every kind of value as 4.9.7
and 5.5.0 print it (data/Fastjson.java), by tables of odd texts, by round trips of random documents,
by comparing the fast reader with the general one, and by random bytes.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import ConfigFormatError
from oberth.formats import json_reader
from oberth.formats.config_json import (
    DEPTH_MAX,
    Dialect,
    FieldList,
    InlineList,
    ObjectKey,
    Shown,
    config_in_slices,
    encode_config,
    format_config,
    format_double,
    parse_config,
)
from oberth.formats.json_lenient import LenientParser
from oberth.formats.json_reader import CONTAINERS_MAX, VALUES_MAX, parse_request
from oberth.formats.json_values import LENIENT_SIZE_MAX

DATA = Path(__file__).parent / "data"


def general(text: str) -> Any:
    """The value by the general reader, whatever the fast one would make of it."""
    return LenientParser(text, "text").parse()


def bean(
    *,
    items: list[Any],
    strings: list[str],
    boxed: Any,
    array: tuple[int, ...] = (1, 2, 3),
    entries: dict[Any, Any] | None = None,
) -> dict[str, Any]:
    return {
        "a": 1,
        "boxed": boxed,
        "d": 1.5,
        "list": FieldList(items),
        "m": entries or {},
        "nul": None,
        "prim": array,
        "s": "x",
        "set": strings,
    }


def java_document(dialect: Dialect) -> dict[Any, Any]:
    """What data/Fastjson.java builds."""

    def array(*items: int) -> Any:  # Long[]: an array to fastjson 1, a list to fastjson 2
        return items if dialect is Dialect.V4_9 else FieldList(items)

    def strings(*items: str) -> list[str]:
        return InlineList(items) if dialect is Dialect.V4_9 else FieldList(items)

    def default() -> dict[str, Any]:
        return bean(items=[], strings=strings(), boxed=array(1, 2))

    every = "".join(map(chr, range(0x20))) + "\"\\/<>&'é中\x7f\x80\u2028\u2029\ufeff😀\ud800x"
    return {
        "bean": bean(
            items=[bean(items=[], strings=strings(), boxed=array(), array=()), None],
            strings=strings("q", "r"),
            boxed=array(1, 2),
            entries={
                0: 5,
                1: default(),
                2: [1, 2],
                3: {"k": 1},
                4: {},
                5: [],
                6: "str",
                7: {1: 2},
            },
        ),
        every: every,
        "n": None,
        "f": 1.0,
        "e": 1e20,
        "big": (1 << 63) - 1,
        "bool": True,
        "chr": "c",
        "bd": 1.10,
        "mix": {"s": 1, 2: 3, 4: 5, True: 6, "t": 7},
        "ll": [[1, 2], ["a"], []],
    }


@pytest.mark.parametrize(("dialect", "version"), [(Dialect.V4_9, "4.9.7"), (Dialect.V5, "5.5.0")])
def test_every_kind_of_value_as_java(dialect: Dialect, version: str) -> None:
    pretty, _, compact = (DATA / f"fastjson-{version}.txt").read_bytes().partition(b"\n-----\n")
    document = java_document(dialect)
    # A BigDecimal keeps its 1.10; there is no such value in RocketMQ's documents.
    assert encode_config(document, dialect).replace(b":1.1,", b":1.10,") == pretty
    assert encode_config(document, dialect, pretty=False).replace(
        b":1.1,", b":1.10,"
    ) == compact.rstrip(b"\n")


def test_java_document_is_read_back() -> None:
    for version in ("4.9.7", "5.5.0"):
        pretty, _, compact = (DATA / f"fastjson-{version}.txt").read_bytes().partition(b"\n-----\n")
        assert parse_config(pretty) == parse_config(compact)
        assert parse_config(pretty)["bean"]["m"][7] == {1: 2}


def config_texts(facts: dict[str, Any]) -> dict[str, str]:
    return {
        name: text
        for name, text in facts["configFiles"].items()
        if isinstance(text, str) and text.startswith("{")
    }


def test_golden_config_files(
    golden_name: str, golden_facts: Callable[[str], dict[str, Any]]
) -> None:
    facts = golden_facts(golden_name)
    dialect = Dialect.V5 if facts["rocketmqVersion"].startswith("5") else Dialect.V4_9
    for name, text in config_texts(facts).items():
        value = parse_config(text.encode(), name=name)
        assert general(text) == value
        # int[] is the only array in the files.
        for topic in value.get("filterDataByTopic", {}).values():
            for group in topic["groupFilterData"].values():
                group["bloomFilterData"]["bitPos"] = tuple(group["bloomFilterData"]["bitPos"])
        assert format_config(value, dialect, pretty="\n" in text) == text, name


ODD_TEXTS: list[tuple[str, Any]] = [
    ("{}", {}),
    ("[]", []),
    ("null", None),
    ("{0:12,1:15\n}", {0: 12, 1: 15}),
    ('{"0":12}', {"0": 12}),
    ("{-3:1}", {-3: 1}),
    ("{'a':'b'}", {"a": "b"}),
    ("{a:1,b_c:2,$d:3,é:4}", {"a": 1, "b_c": 2, "$d": 3, "é": 4}),
    ("{,,a:1,,b:2,,}", {"a": 1, "b": 2}),
    ("[,1,,2,]", [1, 2]),
    ("/* x */{a/**/:// y\n1}//z", {"a": 1}),
    ("{a:12L,b:-3S,c:4b,d:1.5F,e:2D,f:.5,g:+1,h:1.,i:1e3}",
     {"a": 12, "b": -3, "c": 4, "d": 1.5, "e": 2.0, "f": 0.5, "g": 1, "h": 1.0, "i": 1000.0}),
    ("[NaN,undefined,true,false,null]", [None, None, True, False, None]),
    (r'"\x41\u00e9\'\/\b\v\0"', "Aé'/\b\v\0"),
    (r'"\ud83d\ude00"', "😀"),
    (r'["\ud800"]', ["\ufffd"]),
    ('\ufeff{"a":1}', {"a": 1}),
    ("9223372036854775807", 2**63 - 1),
    ("123456789012345678901234567890", 123456789012345678901234567890),
    ('{"a":1,"a":2}', {"a": 2}),
    ('{{"topic":"T","queueId":1}:5}', {ObjectKey([("topic", "T"), ("queueId", 1)]): 5}),
    ('{"a":{"b":1},"c":{"$ref":"$.a"}}', {"a": {"b": 1}, "c": {"b": 1}}),
    ('{"a":[{"b":1},2],"c":{"$ref":"$.a[0]"}}', {"a": [{"b": 1}, 2], "c": {"b": 1}}),
    ('{"a":{"$ref":"a","x":1}}', {"a": {"$ref": "a", "x": 1}}),
    ("[Set[1,2],TreeSet['a']]", [[1, 2], ["a"]]),
    ("{true:1,null:2}", {"true": 1, "null": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), ODD_TEXTS)
def test_odd_texts(text: str, value: Any) -> None:
    assert parse_config(text) == value
    assert parse_config(text.encode("utf-8")) == value
    assert general(text) == value
    # == does not tell 1 from True and 1.0.
    assert repr(parse_config(text)) == repr(general(text))


def test_bare_and_quoted_keys_stay_apart() -> None:
    value = parse_config('{"m":{0:1,"1":2}}')
    assert [type(key) for key in value["m"]] == [int, str]
    assert format_config(value, Dialect.V4_9, pretty=False) == '{"m":{0:1,"1":2}}'
    assert json.loads(format_config(value, Dialect.PLAIN)) == {"m": {"0": 1, "1": 2}}


def test_object_key() -> None:
    key = next(iter(parse_config('{{"brokerName":"b","queueId":0}:1}')))
    assert (key["brokerName"], key["queueId"], key[0]) == ("b", 0, ("brokerName", "b"))
    assert key.as_dict() == {"brokerName": "b", "queueId": 0}
    assert format_config({key: 1}, pretty=False) == '{{"brokerName":"b","queueId":0}:1}'
    with pytest.raises(KeyError):
        key["topic"]


REFERENCE = '{"$ref":"$.%s"}'


def _many_references(count: int, items: int) -> str:
    """So many references to one list."""
    listed = ",".join("1" for _ in range(items))
    return f'{{"a":[{listed}],"b":[{",".join([REFERENCE % "a"] * count)}]}}'


def _chain_of_references(levels: int, each: int) -> str:
    """Lists that have the one before so many times."""
    lists = (f'"l{n}":[{",".join([REFERENCE % f"l{n - 1}"] * each)}]' for n in range(1, levels))
    return f'{{"l0":[1],{",".join(lists)}}}'


REFUSED: list[tuple[str, str]] = [
    ("", "empty"),
    ("  \n /* only this */ ", "empty"),
    ("{", "line 1, column 2: a key is expected, found the end"),
    ('{\n"a":1\n"b":2}', "line 3, column 1: ',' or '}' is expected, found '\"b\":2}'"),
    ('{"a" 1}', "':' is expected"),
    ("[1 2]", "',' or ']' is expected"),
    ('{"a":}', "a value is expected"),
    ('"abc', "column 1: a string does not end"),
    (r'"\q"', "an escape is expected"),
    (r'"\u12"', "hex digits"),
    ("{} {}", "behind the end"),
    ("tru", "a value is expected"),
    ("1" * 500 + "L", "a number of 500 characters"),
    ("/* {}", "a value is expected"),
    ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), "inside each other"),
    ("[" * 100_000, "inside each other"),
    ('{"a":{"$ref":"$"}}', "contains itself"),
    ('{"a":{"$ref":".."}}', "contains itself"),
    ('{"a":{"$ref":"$.b"}}', "to nothing"),
    ('{"$ref":"$"}', "to nothing"),
    ('{"a":{"$ref":"x"}}', "no known form"),
    ('{{"$ref":"$"}:1}', "cannot be a key"),
    ('{{{"a":1}:1}:1}', "a key inside of a key"),
    ('{{"x":[{{"a":1}:1}]}:1}', "a key inside of a key"),
    ("{" * 40 + '"a\'\\""' + ":1}" * 40, "a key inside of a key"),  # text of 2 ** 40 characters
    ("{" + "{}:1," * 65 + "}", "more than 64 objects that are keys"),
    ("{" + "{}:1," * 3200 + "}", "more than 500 objects that are keys"),
    ('{"a":{"x":{"$ref":"$.b"}},"b":{"y":{"$ref":"$.a"}}}', "round in circles"),
    (_many_references(200, 400), "values where references are filled in, 65536 are allowed"),
    (_many_references(257, 1), "more than 256 references"),
    ("{'a':[" + "[]," * 1024 + "]}", "more than 1024 objects and lists"),
    ("{'a':[" + "{}," * 1024 + "]}", "more than 1024 objects and lists"),
    (_chain_of_references(DEPTH_MAX, 1), "where references are filled in"),
    (_chain_of_references(20, 8), "values where references are filled in, 65536 are allowed"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigFormatError) as raised:
        parse_config(text, name="topics.json", is_body=True)
    assert str(raised.value).startswith("topics.json: ")
    assert message in str(raised.value)


def test_a_file_may_hold_more_than_a_body() -> None:
    """A short configuration file of many short names is read as a long one is."""
    text = "{'t':{" + ",".join(f"{number}:{{}}" for number in range(1500)) + "}}"
    assert len(text) < LENIENT_SIZE_MAX
    assert len(parse_config(text)["t"]) == 1500
    with pytest.raises(ConfigFormatError, match="more than 1024 objects"):
        parse_config(text, is_body=True)
    shared = "{'a':[1],'b':[" + ",".join(["{'$ref':'$.a'}"] * 300) + "]}"
    assert parse_config(shared)["b"] == [[1]] * 300


def test_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "CONFIG_SIZE_MAX", 10)
    with pytest.raises(ConfigFormatError, match="11 bytes, at most 10"):
        parse_config(b"[1,2,3,4,5]")


def test_deepest_document_that_is_read() -> None:
    text = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert parse_config(text) == general(text)
    assert format_config(parse_config(text), pretty=False) == text
    wide = "[" + ",".join(["{}"] * 1000) + "]"
    assert len(parse_config(wide)) == 1000


def test_what_cannot_be_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, {"a": object()}, {"a": {1, 2}}):
        with pytest.raises(ConfigFormatError):
            format_config(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (1.0, "1.0"), (0.8, "0.8"), (0.001, "0.001"), (1e-4, "1.0E-4"),
        (0.000125, "1.25E-4"), (1234567.5, "1234567.5"), (1e7, "1.0E7"),
        (12345678.25, "1.234567825E7"), (-1.5e300, "-1.5E300"), (5e-324, "4.9E-324"),
        (math.inf, "null"), (math.nan, "null"),
    ],
)  # fmt: skip
def test_doubles(value: float, text: str) -> None:
    # Java prints the smallest double as 4.9E-324; one digit is enough to read it back.
    assert format_double(value) in (text, "5.0E-324")


KEYS = st.text(max_size=8).filter(lambda key: key != "$ref") | st.integers(-(2**63), 2**63 - 1)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([Dialect.V4_9, Dialect.V5]), st.booleans())
def test_round_trip(value: Any, dialect: Dialect, pretty: bool) -> None:
    text = format_config(value, dialect, pretty=pretty)
    assert parse_config(text) == value
    assert general(text) == value


@given(VALUES)
def test_plain_json_is_json(value: Any) -> None:
    json.loads(format_config(value, Dialect.PLAIN))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_read_back(value: float) -> None:
    assert float(format_double(value)) == value


@given(st.binary(max_size=60) | st.text("{}[]\",:'/*\\0123456789.eE-+LSxu$ref@ \n", max_size=60))
def test_parse_or_documented_error(data: bytes | str) -> None:
    with contextlib.suppress(ConfigFormatError):
        parse_config(data)


@given(st.text('{}[]",:0123456789-a \n', max_size=40))
def test_fast_reader_equals_general_one(text: str) -> None:
    fast = json_reader._parse_fast(text.encode())
    if fast is not json_reader._NOT_PLAIN:
        assert repr(fast) == repr(general(text))


def test_a_document_in_slices_is_the_same() -> None:
    rows = {f"t{number}": {"a": number, "none": None, "list": [1, "x"]} for number in range(2000)}
    long = {number: [str(number)] for number in range(5000)}
    tree: dict[str, Any] = {
        "version": {"n": 1},
        "none": None,
        "rows": rows,
        "deep": {"x": {"y": long}},
        "flat": {
            "text": {"a": '\x00\x1f\x7f\u2028"\\/\n\té', "b": True, "c": {}, "d": -1},
            "half": {"a": "\ud800"},
            "long": {"a": 1 << 70},
            "double": {"a": 1e20},
            "bare": {0: 1, 1: 2},
            "mixed": {"a": 1, 2: 3},
            "none": {"a": None, "b": 1},
        },
        "z": [{}],
    }
    shown: dict[str, Any] = {
        **tree,
        "rows": Shown({name: name for name in rows}, rows.__getitem__),
        "z": Shown(["z"], lambda _: {}),
    }
    found = []

    def slices() -> Generator[None, None, None]:
        found.append((yield from config_in_slices(shown)))

    assert sum(1 for _ in slices()) > 10
    assert found == [encode_config(tree, pretty=False)]
    empties: list[dict[str, Any]] = [{}, {"a": {}, "b": []}]
    for empty in empties:
        with pytest.raises(
            StopIteration, match=re.escape(encode_config(empty, pretty=False).decode())
        ):
            next(config_in_slices(empty))


@pytest.mark.parametrize("missing", [slice(0), slice(None, None, 3), slice(None)])
def test_entries_that_are_text_already_are_written_as_they_are(missing: slice) -> None:
    table: dict[str, Any] = {
        f'"é\n\t{number}': {"a": number, "b": [], "c": {}, "d": '\t\n"\\', "e": {0: 1, 1: 2}}
        for number in range(1000)
    }
    texts = {key: format_config({key: value})[1:-2] for key, value in table.items()}
    assert texts['"é\n\t0'].startswith("\n\t")
    for key in list(table)[missing]:
        del texts[key]
    asked: list[str] = []

    def written(key: str) -> str | None:
        asked.append(key)
        return texts.get(key)

    shown = Shown(dict(table), dict, written)
    shown.items.insert(0, "gone")
    found: list[bytearray] = []

    def slices() -> Generator[None, None, None]:
        whole = {"t": shown, "u": Shown({}, dict, written)}
        found.append((yield from config_in_slices(whole)))
        page = {"t": Shown(table, dict, written).page(1, 2)}
        found.append((yield from config_in_slices(page)))

    for _ in slices():
        assert len(asked) <= 128, "a slice is a quarter of a millisecond"
        asked.clear()
    some = {key: table[key] for key in list(table)[1:3]}
    assert found == [
        encode_config({"t": table, "u": {}}, pretty=False),
        encode_config({"t": some}, pretty=False),
    ]


def test_what_a_request_holds_is_limited() -> None:
    for item, allowed in ((b"[]", CONTAINERS_MAX), (b"1", VALUES_MAX)):
        body = b"[" + b",".join([item] * (allowed - 1)) + b"]"
        assert len(parse_request(body, name="body")) == allowed - 1
        with pytest.raises(ConfigFormatError, match=f"at most {allowed} are allowed"):
            parse_request(body[:-1] + (b"," + item) * 3 + b"]", name="body")


def test_bare_keys_of_long_bodies_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look takes 0.16 us a byte: a heartbeat of 512 KiB of quotes held the loop for 83 ms."""
    body = b"{" + b",".join(b"%d:1" % number for number in range(20_000)) + b"}"
    assert len(parse_request(body[: body.rindex(b",", 0, LENIENT_SIZE_MAX * 8)] + b"}", name="x"))
    monkeypatch.delattr(json_reader, "_string_or_bare_key")
    for long in (body, b'""' * (256 * 1024)):
        with pytest.raises(ConfigFormatError, match="in a dialect of JSON, at most 16384"):
            parse_request(long, name="x")


TABLES = {
    "dataVersion": {"counter": 3},
    "offsetTable": {f"topic{n}@g}},": dict.fromkeys(range(3), n) for n in range(200)},
    "empty": {},
    "pullOffsetTable": {f"t{n}": {"0": n} for n in range(50)},
    "deep": {"a": {"b": {"c": {"d": 1}, "e": {"f": 2}}, "g": {}}, "h": {}},
    "last": 7,
}


@pytest.mark.parametrize("size", [1, 7, 100, 5000, 1 << 20])
@pytest.mark.parametrize("pretty", [False, True])
@pytest.mark.parametrize("name", ["plain", "},", '"},"x":{', "{{", "}}", "\\"])
def test_tables_in_pieces_are_what_they_are_at_once(
    monkeypatch: pytest.MonkeyPatch, size: int, pretty: bool, name: str
) -> None:
    monkeypatch.setattr(json_reader, "PIECE_SIZE", size)
    document = {**TABLES, name: {name: {name: 1}, "other": {"x": 1}}, "end": {"a": {}, name: {}}}
    for text in (encode_config(document, pretty=pretty), json.dumps(document).encode()):
        assert json_reader.parse_tables(text, name="x") == parse_config(text)
    for text in (b"[1]", b"7", b"{}", b"{'a':{},'b':{}}", b'{"a":{},"b":{"$ref":"$.a"}}'):
        assert json_reader.parse_tables(text, name="x") == parse_config(text)
    cut = encode_config(document)[:-30]
    with pytest.raises(ConfigFormatError):
        json_reader.parse_tables(cut, name="x")


PLAIN_TEXTS = ["''", '"a b"', "'é'", "7", "-0", "+3L", "12S", "4b", "1.50", "-2.5L", "NaN", "true"]
OTHER_TEXTS = ["1F", "1.5D", "1e3", "9" * 25, r"'\n'", "[]", "{a:1}", "/**/ 1", "\x011", "null"]


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_plain_items_are_what_the_others_are(blank: str) -> None:
    """Those that are read in one step, alone and between those that are not."""
    for text in (*PLAIN_TEXTS, *OTHER_TEXTS):
        alone = parse_config(f"/**/{text}")
        for around in ("1", "1F"):
            item = f"{blank}{text}{blank}"
            assert repr(general(f"[{around},{item},{around},,{item}]")) == repr(
                [eval_number(around), alone, eval_number(around), alone]
            )
            found = general(f"{{'a':{around},b:{item},'c':{item}}}")
            assert repr(found) == repr({"a": eval_number(around), "b": alone, "c": alone})
    for key, value in (
        ("1", 1),
        ("1L", 1),
        ("1.5", 1.5),
        ("true", "true"),
        ("'x'", "x"),
        ("''", ""),
    ):
        for inner in ("1", "1F"):
            found = general(f"{{{blank}{key}{blank}:{inner}}}")
            assert repr(found) == repr({value: eval_number(inner)})
    for text in (
        "[1 2]",
        "['a' 'b']",
        "[1.]x",
        "[1$]",
        "[trues]",
        "{a:true.b}",
        "{1:1 2:2}",
        "[1,",
    ):
        with pytest.raises(ConfigFormatError):
            general(text)


def eval_number(text: str) -> float:
    return 1.0 if text == "1F" else 1


def test_as_many_queues_are_keys_as_have_room() -> None:
    keys = [f'{{"brokerName":"b","queueId":{number},"topic":"T"}}' for number in range(2000)]
    assert len(parse_config("{" + ",".join(f"{key}:1" for key in keys) + "}")) == 2000
    assert len(parse_config("{" + ",".join(f'{{"a":{n}}}:1' for n in range(64)) + "}")) == 64


@pytest.mark.parametrize("end", ["$", "..", "L$", "e", "e1$", ".1$"])
def test_a_number_that_is_none_is_looked_at_once(end: str) -> None:
    # Tried in all ways, as many steps as the square of its length: a minute and more.
    with pytest.raises(ConfigFormatError, match="a value is expected"):
        parse_config(f"{{'a':{'1' * 60_000}{end}}}")


SHORT_ESCAPES = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r",
}  # fmt: skip


def quoted(text: str, dialect: Dialect) -> str:
    """A text as Java writes it, character by character."""
    unsafe = '["\\\\\x00-\x1f]'
    if dialect is Dialect.V4_9:
        unsafe = '["\\\\\x00-\x1f\x7f-\x9f\u2028\u2029]'

    def escape(match: re.Match[str]) -> str:
        digits = "04X" if dialect is Dialect.V4_9 else "04x"
        return SHORT_ESCAPES.get(match[0]) or f"\\u{ord(match[0]):{digits}}"

    return '"' + re.sub(unsafe, escape, text) + '"'


@given(
    st.text() | st.text(st.sampled_from('"\\/\0\b\t\x1f\x7f\x85\xa0\u2028\u2029\ud800\U0001f600a'))
)
def test_texts_are_quoted_as_java_does(text: str) -> None:
    every = "".join(map(chr, range(0x200)))
    for dialect in Dialect:
        for each in (text, every, text + every):
            assert format_config(each, dialect) == quoted(each, dialect)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_text_full_of_quotes_is_quoted_at_once(dialect: Dialect) -> None:
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    profiled = sys.getprofile()
    sys.setprofile(count)
    try:
        found = format_config('"\1' * 100_000, dialect)
    finally:
        sys.setprofile(profiled)
    assert len(found) == 800_002
    assert calls < 100


def test_long_texts_make_slices_and_have_an_end() -> None:
    """Few entries may be megabytes."""
    rows = [{"a": "x" * 200_000, "b": number} for number in range(30)]
    found: list[bytes] = []

    def slices(size_max: int | None) -> Generator[None, None, None]:
        found.append(bytes((yield from config_in_slices({"rows": rows}, size_max))))

    assert sum(1 for _ in slices(None)) >= 5
    assert found == [encode_config({"rows": rows}, pretty=False)]
    with pytest.raises(ConfigFormatError, match="longer than 1000000 bytes"):
        next(slices(1_000_000))
