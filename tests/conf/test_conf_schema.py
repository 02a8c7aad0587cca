from __future__ import annotations

import base64
import dataclasses

import pytest
from pydantic import ValidationError

from conf.schema import BUNDLED_PUBLISHER, Config, Model, Runtime, Swarm
from conf.settings import SettingError, sections, settings, value_text

ID = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
KEY = base64.b64encode(bytes(32)).decode()

GOOD = [
    ("swarm.name", "a"),
    ("swarm.name", "0-x" + "y" * 60),
    ("swarm.listen", "/ip4/127.0.0.1/tcp/0"),
    ("swarm.listen", "/ip6/::/tcp/65535,/ip4/0.0.0.0/tcp/1"),
    ("swarm.bootstrap", ""),
    ("swarm.bootstrap", f"/ip4/192.0.2.7/tcp/4710/p2p/{ID}"),
    ("swarm.bootstrap", f"/dns4/a-b.example.org/tcp/1/p2p/{ID}"),
    ("swarm.announce", f"/dns/example.org/tcp/4710, /dns6/x/tcp/1/p2p/{ID}"),
    ("model.context", "1"),
    ("model.path", ""),
    ("runtime.memory_limit", "auto"),
    ("runtime.memory_limit", "6GiB"),
    ("runtime.memory_limit", "1.5 GB"),
    ("runtime.memory_limit", "123456789"),
    ("runtime.dtype", "float16"),
    ("registry.publishers", f"{KEY},{BUNDLED_PUBLISHER}"),
    ("plan.settle_seconds", "0"),
    ("plan.progress_timeout", "0.5"),
    ("http.listen", ""),
    ("http.listen", "127.0.0.1:0"),
    ("http.listen", "127.9.9.9:65535"),
    ("http.listen", "[::1]:4711"),
    ("log.level", "debug"),
]

BAD = [
    ("swarm.name", "", "pattern"),
    ("swarm.name", "Home", "pattern"),
    ("swarm.name", "-x", "pattern"),
    ("swarm.name", "home\n", "pattern"),
    ("swarm.name", "x" * 64, "pattern"),
    ("swarm.listen", "", "at least 1"),
    ("swarm.listen", "0.0.0.0:4710", "not an address such as"),
    ("swarm.listen", "/ip4/0.0.0.0/udp/4710", "not an address such as"),
    ("swarm.listen", "/ip4/0.0.0.0/tcp", "not an address such as"),
    ("swarm.listen", "/ip4/0.0.0.0/tcp/65536", "from 0 to 65535"),
    ("swarm.listen", "/ip4/0.0.0.0/tcp/-1", "from 0 to 65535"),
    ("swarm.listen", "/ip4/0.0.0.0/tcp/٣", "from 0 to 65535"),
    ("swarm.listen", "/ip4/0.0.0.256/tcp/1", "256"),
    ("swarm.listen", "/ip6/1.2.3.4/tcp/1", "1.2.3.4"),
    ("swarm.listen", "/ip6/fe80::1%eth0/tcp/1", "zone"),
    ("swarm.listen", "/dns/example.org/tcp/1", "/ip4/"),
    ("swarm.listen", f"/ip4/0.0.0.0/tcp/1/p2p/{ID}", "nothing may follow"),
    ("swarm.bootstrap", "/ip4/192.0.2.7/tcp/4710", "/p2p/"),
    ("swarm.bootstrap", f"/ip4/192.0.2.7/tcp/0/p2p/{ID}", "port 0"),
    ("swarm.bootstrap", f"/ip4/192.0.2.7/tcp/1/p2p/{ID[:-1]}", "52 characters"),
    ("swarm.bootstrap", f"/ip4/192.0.2.7/tcp/1/p2p/{ID}/p2p-circuit", "only /p2p/"),
    ("swarm.announce", "/dns/exa mple/tcp/1", "host name"),
    ("http.listen", "4711", "not an address such as"),
    ("http.listen", "localhost:4711", "not an address such as"),
    ("http.listen", "::1:4711", "not an address such as"),
    ("http.listen", "[127.0.0.1]:4711", "not an address such as"),
    ("http.listen", "[::1%lo]:4711", "not an address such as"),
    ("http.listen", "0.0.0.0:4711", "other machines"),
    ("http.listen", "[::]:4711", "other machines"),
    ("http.listen", "192.0.2.7:4711", "other machines"),
    ("http.listen", "127.0.0.1:65536", "from 0 to 65535"),
    ("http.listen", "127.0.0.1:x", "from 0 to 65535"),
    ("swarm.announce", "/dns/-x/tcp/1", "host name"),
    ("swarm.announce", "/onion3/x/tcp/1", "none of"),
    ("swarm.announce", "/dns/example.org/tcp/0", "port 0"),
    ("swarm.mdns", "perhaps", "boolean"),
    ("model.id", "", "at least 1"),
    ("model.path", "a\0b", "path"),
    ("model.context", "0", "greater than or equal to 1"),
    ("model.context", "many", "integer"),
    ("model.context", "1.5", "integer"),
    ("model.sessions", "-1", "greater than or equal to 1"),
    ("runtime.name", "a b", "pattern"),
    ("runtime.memory_limit", "", "6GiB"),
    ("runtime.memory_limit", "0", "6GiB"),
    ("runtime.memory_limit", "-6GiB", "6GiB"),
    ("runtime.memory_limit", "6 parsecs", "6GiB"),
    ("runtime.threads", "-1", "greater than or equal to 0"),
    ("runtime.dtype", "int8", "'bfloat16'"),
    ("registry.publishers", "", "at least 1"),
    ("registry.publishers", "secret", "44 characters"),
    ("registry.publishers", base64.b64encode(bytes(31)).decode(), "44 characters"),
    ("registry.publishers", KEY[:-2] + "B=", "44 characters"),
    ("plan.settle_seconds", "-1", "greater than or equal to 0"),
    ("plan.settle_seconds", "nan", "finite"),
    ("plan.progress_timeout", "0", "greater than 0"),
    ("plan.progress_timeout", "inf", "finite"),
    ("log.level", "loud", "'warning'"),
    ("log.format", "xml", "'json'"),
]


@pytest.mark.parametrize(("key", "text"), GOOD)
def test_a_possible_value_is_taken(key: str, text: str) -> None:
    settings()[key].from_text(text)


@pytest.mark.parametrize(("key", "text", "allowed"), BAD)
def test_an_impossible_value_is_answered_with_what_is_allowed(key: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingError, match=r"(?s).") as caught:
        settings()[key].from_text(text)
    assert allowed in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swarm.name", 1),
        ("swarm.listen", "/ip4/0.0.0.0/tcp/4710"),
        ("swarm.listen", [1]),
        ("swarm.mdns", 1),
        ("swarm.mdns", "true"),
        ("state.dir", 1),
        ("model.context", 1024.0),
        ("model.context", "1024"),
        ("model.context", True),
        ("runtime.memory_limit", True),
        ("runtime.memory_limit", {}),
        ("plan.settle_seconds", "2"),
        ("plan.settle_seconds", True),
        ("log.level", {"a": 1}),
    ],
)
def test_a_type_that_does_not_fit_is_refused_in_a_file(key: str, value: object) -> None:
    with pytest.raises(SettingError):
        settings()[key].from_toml(value)


def test_a_whole_number_will_do_for_seconds() -> None:
    assert settings()["plan.settle_seconds"].from_toml(3) == 3.0


def test_sizes_are_bytes() -> None:
    assert Runtime(memory_limit="6GiB").memory_limit == 6 * 2**30  # type: ignore[arg-type]  # parsed by the schema
    assert settings()["runtime.memory_limit"].from_text("500MB") == 500_000_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [("6GiB", "6GiB"), ("1536 MiB", "1536MiB"), ("1000000001", "1000000001B"), ("auto", "auto")],
)
def test_a_size_is_shown_as_what_it_exactly_is(text: str, shown: str) -> None:
    setting = settings()["runtime.memory_limit"]
    assert value_text(setting.from_text(text)) == shown
    assert setting.from_text(shown) == setting.from_text(text)


def test_every_default_passes_its_own_check_and_survives_its_text() -> None:
    for setting in settings().values():
        assert setting.from_text(value_text(setting.default)) == setting.default


def test_the_tree_is_frozen() -> None:
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.swarm.name = "x"  # type: ignore[misc]  # what the test is about


def test_the_tree_checks_what_code_puts_in() -> None:
    with pytest.raises(ValidationError):
        Model(context=0)
    with pytest.raises(ValidationError):
        Swarm(nam="x")  # type: ignore[call-arg]  # what the test is about
    assert Config(model=Model(context=7)).model.context == 7


def test_every_key_is_explained_in_the_docstring_of_its_section() -> None:
    defaults = Config()
    for setting in settings().values():
        doc = type(getattr(defaults, setting.section)).__doc__ or ""
        assert f"        {setting.name}: " in doc, setting.key


def test_variables_are_named_after_section_and_key() -> None:
    assert settings()["runtime.memory_limit"].variable == "SWARMD_RUNTIME_MEMORY_LIMIT"
    assert len({setting.variable for setting in settings().values()}) == len(settings())
    assert sections() == ("swarm", "state", "model", "runtime", "registry", "plan", "http", "log")
