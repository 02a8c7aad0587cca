"""The command line, against a daemon double on a real control socket."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import typer

from registry.keys import KeyFileError
from ring.session_stats import SpeculationStats, Tried
from swarmd.cli import generate as generate_module
from swarmd.cli.app import app
from swarmd.cli.run import run
from swarmd.control import ControlServer, Emit
from swarmd.exit_status import MEANINGS, ExitStatus, status_of

Message = dict[str, Any]
ROOT = Path(__file__).parents[2]
PEERS = [f"12D3KooWBmAwcd4PJNJvfV89HwE48nwkRmAgo8Vy3uQEyNNHBox{n}" for n in (2, 3, 4)]

STATUS: Message = {
    "peer": PEERS[0],
    "version": "0.1.0",
    "swarm": "home",
    "state": "loading",
    "waiting_for": "[red]two[/red] more hosts\x1b[2J",
    "uptime_s": 200.0,
    "addresses": [f"/ip4/127.0.0.1/tcp/4710/p2p/{PEERS[0]}"],
    "leader": {"peer": PEERS[1], "term": 7, "me": False},
    "hosts": 3,
    "device": "cpu (2 threads)",
    "memory": {"limit": 3 << 30, "free": None},
    "model": {"id": "tale", "layers": 8, "path": "/models/tale", "runtime": "hf"},
    "block": {"plan": "ab", "lo": 0, "hi": 3, "state": "loading", "loaded": 1 << 20, "total": 4 << 20},
    "plan": {"id": "abcd", "state": "active", "term": 7, "head": PEERS[0], "predicted_tok_s": 12.34},
    "sessions": {"coordinated": 1, "held": 2},
    "log": [{"ago_s": 3.2, "event": "host_joined", "reason": "gossip"}],
}
PLAN: Message = {
    "model": "tale",
    "term": 7,
    "leader": PEERS[1],
    "ring": [
        {"peer": PEERS[0], "lo": 0, "hi": 3, "memory_bytes": 1 << 20, "memory_limit": 2 << 20, "load_bytes": 1 << 19, "compute_ns": 2_500_000, "hop_us": 350, "wire_ns": 1000, "overhead_ns": 2000},
        {"peer": PEERS[1], "lo": 3, "hi": 8, "memory_bytes": 3 << 20, "memory_limit": 4 << 20, "load_bytes": 0, "compute_ns": 4_000_000, "hop_us": 410, "wire_ns": 1000, "overhead_ns": 2000},
    ],
    "left_out": [{"peer": PEERS[2], "reason": "its memory holds no layer"}],
    "objective": {"kind": "tok_s", "prompt_tokens": 512},
    "context": 1024,
    "sessions": 4,
    "drafter": "",
    "frame_width": 1,
    "frames_in_flight": 1,
    "circuit_ns": 80_000_000,
    "bottleneck_ns": 4_000_000,
    "millitok_s": 12_500,
    "aggregate_millitok_s": 50_000,
    "load_ns": 0,
    "ttft_ns": 1_250_000_000,
}  # fmt: skip
PEER_ROW: Message = {
    "peer": PEERS[1],
    "me": False,
    "state": "serving",
    "connection": "direct",
    "address": "/ip4/10.0.0.2/tcp/4710",
    "rtt_ms": 1.25,
    "memory_limit": 1 << 30,
    "memory_free": 1 << 29,
    "layer_ms": 0.5,
    "block": "[0, 3) serving",
    "version": "0.1.0",
    "follows": PEERS[1],
    "heard_ago_s": 0.4,
    "note": "",
}
UNREACHED: Message = {**dict.fromkeys(PEER_ROW), "peer": PEERS[2], "me": False, "state": "unknown", "connection": "not connected", "note": "no route"}  # fmt: skip


class Coded(Exception):
    """An error that a daemon's operation raises."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DaemonDouble:
    """Serves the control socket from a thread, as the daemon's own process would; records what it is asked."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.requests: list[Message] = []
        self.has_template = True
        self.plan: Message = {"plan": PLAN, "id": "abcd", "state": "active"}
        self.generating = threading.Event()
        self.cancelled = threading.Event()

    @property
    def handlers(self) -> dict[str, Any]:
        return {"status": self.status, "peers": self.peers, "plan": self.give_plan, "generate": self.generate}

    async def status(self, request: Message, emit: Emit) -> Message:
        return STATUS

    async def peers(self, request: Message, emit: Emit) -> Message:
        return {"peers": [PEER_ROW, UNREACHED]}

    async def give_plan(self, request: Message, emit: Emit) -> Message:
        return self.plan

    async def generate(self, request: Message, emit: Emit) -> Message:
        self.requests.append(request)
        if "messages" in request and not self.has_template:
            raise Coded("chat_template_missing", "the tokenizer has no chat template")
        if request.get("model") == "other":
            raise Coded("model_unknown", "the swarm serves tale")
        await emit({"event": "started", "job": "j1", "model": "tale", "prompt_tokens": 3, "coordinator": PEERS[0], "plan": "ab"})  # fmt: skip
        await emit({"event": "token", "tokens": [5], "text": "Once "})
        if request["max_tokens"] == 1000:
            self.generating.set()
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled.set()
        await emit({"event": "token", "tokens": [6, 7], "text": "upon\n"})
        await emit(
            {
                "event": "done",
                "job": "j1",
                "finish_reason": "length",
                "usage": {"prompt_tokens": 3, "completion_tokens": 3},
                "timing": {"ttft_us": 500_000, "total_us": 1_500_000},
            }
        )
        return {
            "receipts_verified": 2,
            "receipts": 2,
            "ttft_s": 0.5,
            "tokens_per_traversal": 1.5,
            "speculation": SpeculationStats(
                "ngram", 8, 4, 3, 5, 2, 1600, 750, (Tried(1, 2, 1), Tried(2, 2, 2)), (Tried(0, 4, 3),)
            ).to_map(),
        }

    def run_in_thread(self) -> Iterator[DaemonDouble]:
        ready = threading.Event()
        scope = trio.CancelScope()
        tokens: list[trio.lowlevel.TrioToken] = []

        async def serve() -> None:
            tokens.append(trio.lowlevel.current_trio_token())
            with scope:
                async with ControlServer.claimed(self.state_dir) as server, trio.open_nursery() as nursery:
                    await nursery.start(server.run, self.handlers)
                    ready.set()

        thread = threading.Thread(target=trio.run, args=(serve,))
        thread.start()
        assert ready.wait(10)
        yield self
        tokens[0].run_sync_soon(scope.cancel)
        thread.join()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's configuration and state."""
    for name in [name for name in os.environ if name.startswith("SWARMD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonDouble]:
    yield from DaemonDouble(tmp_path / "state" / "swarmd").run_in_thread()


def swarmd(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swarmd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, timeout=60, check=False)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from swarmd.cli.run import run\n"
        "status = run(['--help'])\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Exit status" in done.stdout


def commands_and_options(command: Any, path: str) -> Iterator[tuple[str, set[str]]]:
    """Walk typer's tree of commands: each leaf's path and its long options."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from commands_and_options(inner, f"{path} {name}")
    else:
        names = {
            name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]
        }
        yield path, {name for name in names if name.startswith("--")}


def test_the_documentation_lists_every_command_option_and_exit_status() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    found = dict(commands_and_options(typer.main.get_command(app), "swarmd"))
    assert "swarmd join" in found
    for command, options in found.items():
        assert f"`{command}" in page
        missing = {option for option in options if option not in page}
        assert not missing, f"{command}: {missing}"
    written = set(re.findall(r"--[a-z][a-z-]+", page)) - {"--help", "--debug"}
    assert written == set().union(*found.values()) - {"--help"}, (
        "the page promises no option that is not there"
    )
    for status in MEANINGS:
        assert f"| {status.value} |" in page


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == ExitStatus.OK
    assert re.fullmatch(r"swarmd \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_init_writes_a_configuration_that_loads_and_an_identity_that_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init"]) == ExitStatus.OK
    first = capsys.readouterr().out
    assert (tmp_path / "state/swarmd/identity.key").stat().st_mode & 0o777 == 0o600
    assert run(["config", "show"]) == ExitStatus.OK
    assert "swarmd.toml:" in capsys.readouterr().out
    assert run(["init", "--force"]) == ExitStatus.OK
    peer = re.compile(r"12D3KooW\w{44}")
    assert peer.findall(first) == peer.findall(capsys.readouterr().out) != []


def test_init_never_overwrites_a_configuration_unless_forced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text("# precious\n")
    assert run(["init", "--path", "mine.toml"]) == ExitStatus.CONFIGURATION
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "mine.toml").read_text() == "# precious\n"


def test_config_show_says_where_each_value_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "swarmd.toml").write_text('[swarm]\nname = "lab"\n')
    monkeypatch.setenv("SWARMD_MODEL_CONTEXT", "77")
    assert run(["config", "show", "--json", "--set", "log.level=debug"]) == ExitStatus.OK
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["swarm.name"]["value"] == "lab"
    assert settings["swarm.name"]["source"].endswith("swarmd.toml:2")
    assert settings["model.context"] == {"value": "77", "source": "SWARMD_MODEL_CONTEXT"}
    assert settings["log.level"] == {"value": "debug", "source": "--set log.level"}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["fly"], ExitStatus.USAGE, "No such command 'fly'"),
        (["ctl", "status", "--fly"], ExitStatus.USAGE, "--fly"),
        (["generate", "hi", "--max-tokens", "0"], ExitStatus.USAGE, "--max-tokens"),
        (["config", "show", "--set", "swarm.name"], ExitStatus.USAGE, "KEY=VALUE"),
        (["config", "show", "--set", "swarm.nam=x"], ExitStatus.CONFIGURATION, "swarm.name"),
        (["config", "show", "--config", "absent.toml"], ExitStatus.CONFIGURATION, "absent.toml"),
        (["join", "--memory-limit", "lots"], ExitStatus.CONFIGURATION, "runtime.memory_limit"),
        (["join", "not-an-address"], ExitStatus.CONFIGURATION, "not-an-address"),
        (["ctl", "status"], ExitStatus.DAEMON, "swarmd join"),
        (["generate", "hi"], ExitStatus.DAEMON, "swarmd join"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_status(
    arguments: list[str], status: ExitStatus, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("swarmd: error: ")
    assert told in line


def test_every_wrong_setting_gets_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", "model.context=0", "--set", "swarm.name=Lab!"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["ctl", "peers", "--json"], "not_running"),
        (["config", "show", "--json", "--set", "a=1"], "config_invalid"),
        (["ctl", "peers", "--json", "--fly"], "usage"),
    ],
)
def test_with_json_a_failure_is_one_object_on_stdout(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) != ExitStatus.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (answer["ok"], answer["error"]["code"], err) == (False, code, "")


def test_an_unforeseen_error_is_one_line_that_names_the_file_with_its_traceback(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.plan = {"plan": {"ring": "not a ring"}}
    assert run(["ctl", "plan"]) == ExitStatus.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "this is a bug" in line
    file = re.search(r"traceback is in (\S+\.log)", line)
    assert file is not None
    assert "Traceback" in Path(file[1]).read_text()


def test_debug_shows_the_traceback(daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.plan = {"plan": {"ring": "not a ring"}}
    assert run(["--debug", "ctl", "plan"]) == ExitStatus.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_status_says_which_runtime_serves_and_when_it_is_silent(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATUS["model"], "runtime_instead_of", "vllm")
    monkeypatch.setitem(STATUS, "working", {"doing": "computing a frame", "silent_s": 42.0})
    assert run(["ctl", "status"]) == ExitStatus.OK
    out = capsys.readouterr().out
    assert "runtime hf (no vllm is installed)" in out
    assert "computing a frame, without progress for 42 s" in out
    monkeypatch.setitem(STATUS, "working", {"doing": "computing a frame", "silent_s": 0.1})
    assert run(["ctl", "status"]) == ExitStatus.OK
    assert "without progress" not in capsys.readouterr().out


def test_status_is_a_table_for_people(daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ctl", "status"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in (
        PEERS[0],
        "term 7",
        "[0, 3) loading, 1.0 MiB of 4.0 MiB",
        "12.3 tok/s",
        "host_joined",
        "3.0 GiB",
    ):
        assert told in out


def test_what_peers_say_is_neither_markup_nor_terminal_commands(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["ctl", "status"])
    out = capsys.readouterr().out
    assert "[red]two[/red] more hosts" in out
    assert "\x1b" not in out


def test_peers_shows_the_unreachable_too_and_why(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ctl", "peers"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in ("…NHBox3", "direct", "1.25 ms", "[0, 3) serving", "…NHBox4", "not connected", "no route"):
        assert told in out


def test_plan_shows_the_ring_and_who_was_left_out(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ctl", "plan"]) == ExitStatus.OK
    out = capsys.readouterr().out
    for told in (
        *("[0, 3)", "[3, 8)", "0.70 ms", "4 %", "T 80.00 ms, τ 4.00 ms", "predicted 12.5 tok/s"),
        *("50.0 tok/s of 4 sessions", "1.2 s to the first token", "…NHBox4", "its memory holds no layer"),
    ):
        assert told in out


def test_without_a_plan_the_reason_is_shown(daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.plan = {"plan": None, "reason": "memory is short by 2 GiB"}
    assert run(["ctl", "plan"]) == ExitStatus.OK
    assert capsys.readouterr().out.strip() == "no plan: memory is short by 2 GiB"


@pytest.mark.parametrize("op", ["status", "peers", "plan"])
def test_json_passes_the_daemons_answer_on(
    daemon: DaemonDouble, op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"status": STATUS, "peers": {"peers": [PEER_ROW, UNREACHED]}, "plan": daemon.plan}
    assert run(["ctl", op, "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out) == {"ok": True, **answers[op]}


def test_generated_text_goes_to_stdout_and_the_account_to_stderr(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "Tell me", "--max-tokens", "3"]) == ExitStatus.OK
    assert capsys.readouterr() == ("Once upon\n\n", "3 tokens, 2.0 tok/s, receipts 2/2 verified (length)\n")
    assert daemon.requests[0]["messages"] == [{"role": "user", "content": "Tell me"}]
    assert daemon.requests[0]["max_tokens"] == 3


def test_plain_continues_the_prompt_as_it_is(daemon: DaemonDouble) -> None:
    assert run(["generate", "Tell me", "--plain", "--model", "tale"]) == ExitStatus.OK
    assert daemon.requests == [
        {"op": "generate", "prompt": "Tell me", "model": "tale", "max_tokens": 256, "draft": "auto"}
    ]


def test_how_to_choose_tokens_and_where_to_stop_reaches_the_daemon(daemon: DaemonDouble) -> None:
    warm = ["--temperature", "0.7", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.05", "--seed", "7"]
    penalties = ["--repetition-penalty", "1.1", "--presence-penalty", "0.5", "--frequency-penalty", "0.25"]
    assert run(["generate", "Tell me", *warm, *penalties, "--stop", "END", "--stop", "\n"]) == ExitStatus.OK
    assert daemon.requests[-1]["stop"] == ["END", "\n"]
    assert daemon.requests[-1]["sampling"] == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "seed": 7,
    }


def test_a_model_without_a_template_gets_the_plain_prompt_and_the_user_is_told(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.has_template = False
    assert run(["generate", "Tell me"]) == ExitStatus.OK
    assert daemon.requests[-1]["prompt"] == "Tell me"
    assert "no chat template" in capsys.readouterr().err


def test_chat_insists_on_a_template(daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.has_template = False
    assert run(["generate", "Tell me", "--chat"]) == ExitStatus.FAILED
    assert "[chat_template_missing]" in capsys.readouterr().err


def test_generate_json_is_one_object(daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "Tell me", "--json"]) == ExitStatus.OK
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert err == ""
    assert (answer["ok"], answer["text"], answer["tokens"]) == (True, "Once upon\n", [5, 6, 7])
    assert (answer["receipts_verified"], answer["receipts"], answer["tok_s"]) == (2, 2, 2.0)


def test_generate_says_how_the_speculation_went(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "Tell me", "--stats", "--draft", "ngram"]) == ExitStatus.OK
    assert daemon.requests[-1]["draft"] == "ngram"
    assert capsys.readouterr().err.splitlines()[-5:] == [
        "first token after 0.500 s, 1.50 tokens a traversal",
        "drafter ngram: 3 of 4 drafts right, confidence 0.75",
        "5 frames, 2 of them wasted, 1.60 under way on average",
        "draft 1: 1/2, draft 2: 2/2",
        "context from 0: 3/4",
    ]


def test_a_drafter_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "hi", "--draft", "foo"]) == ExitStatus.USAGE
    assert "foo" in capsys.readouterr().err


def test_a_generation_that_fails_in_the_swarm_is_a_plain_failure(
    daemon: DaemonDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "hi", "--model", "other"]) == ExitStatus.FAILED
    assert capsys.readouterr().err == "swarmd: error: the swarm serves tale [model_unknown]\n"


def test_the_prompt_is_read_from_a_pipe(daemon: DaemonDouble) -> None:
    done = swarmd("generate", stdin="Piped prompt")
    assert done.returncode == 0, done.stderr
    assert daemon.requests[0]["messages"][0]["content"] == "Piped prompt"


def test_ctrl_c_cancels_the_generation_in_the_daemon(daemon: DaemonDouble) -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "swarmd", "generate", "hi", "--max-tokens", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.generating.wait(30)
    assert client.stdout is not None
    assert client.stdout.read(5) == "Once ", "text comes as it is made"
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    assert (client.returncode, err) == (130, "swarmd: interrupted\n")
    assert daemon.cancelled.wait(10)


def test_a_reader_that_has_had_enough_causes_no_complaint(daemon: DaemonDouble) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "swarmd", "generate", "hi"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_second_daemon_says_who_is_there_already(daemon: DaemonDouble) -> None:
    done = swarmd("join", "--listen", "/ip4/127.0.0.1/tcp/0", "--set", "swarm.mdns=false")
    assert done.returncode == ExitStatus.DAEMON
    (line,) = done.stderr.splitlines()
    assert f"pid {os.getpid()}," in line


def test_an_unsafe_key_file_has_its_exit_status() -> None:
    assert status_of(KeyFileError.code) == ExitStatus.IDENTITY


def test_tokens_per_second_counts_from_the_first_token_on() -> None:
    answer = generate_module.Answer(
        tokens=[1, 2, 3], done={"timing": {"ttft_us": 1_000_000, "total_us": 2_000_000}}
    )
    assert answer.tok_s == 2.0
    answer = generate_module.Answer(tokens=[1], done={"timing": {"ttft_us": 500_000, "total_us": 500_000}})
    assert answer.tok_s == 2.0


@pytest.mark.parametrize(("identical", "status"), [(True, ExitStatus.OK), (False, ExitStatus.FAILED)])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_demo_shows_plan_text_and_checks_and_fails_when_one_is_false(
    identical: bool,
    status: ExitStatus,
    as_json: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = {
        "ok": identical,
        "hosts": 3,
        "ring": PLAN["ring"],
        "text": "Once",
        "tokens": 1,
        "identical": identical,
        "receipts_verified": 2,
        "tok_s": 9.5,
        "predicted_tok_s": 12.5,
    }  # fmt: skip

    async def run_demo(
        hosts: int, prompt: str | None, max_tokens: int, memory_limit: int | None, on_event: Any
    ) -> Message:
        assert (hosts, prompt, max_tokens, memory_limit) == (4, "Hi", 5, None)
        on_event("stage", {"text": "Starting"})
        on_event("peers", {"peers": [PEER_ROW]})
        on_event("plan", PLAN)
        on_event("text", {"delta": "Once"})
        on_event("check", {"name": "identical", "ok": identical, "detail": ""})
        return result

    double = types.ModuleType("swarmd.demo")
    monkeypatch.setattr(double, "run_demo", run_demo, raising=False)
    monkeypatch.setitem(sys.modules, "swarmd.demo", double)
    monkeypatch.setattr("swarmd.cli.demo.logs.configure", lambda level, layout: None)
    arguments = [
        "demo",
        "--hosts",
        "4",
        "--prompt",
        "Hi",
        "--max-tokens",
        "5",
        *(["--json"] if as_json else []),
    ]
    assert run(arguments) == status
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == result
    else:
        answer = "yes" if identical else "NO"
        for told in (
            "Starting",
            "…NHBox3",
            "[0, 3)",
            "Once",
            f"identical: {answer}",
            "receipts 2/2 verified",
            "9.5 tok/s",
        ):
            assert told in out


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-"])
def test_closed_standard_streams_are_no_bug(redirection: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m swarmd config show {redirection}"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "bug" not in result.stderr


def test_an_output_that_lacks_a_character_gets_another(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "SWARMD_SWARM_NAME": "x" * 100}
    result = subprocess.run(
        [sys.executable, "-m", "swarmd", "config", "show"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert result.returncode == 3
    assert "Traceback" not in result.stderr


def test_a_prompt_that_is_not_utf8_is_a_usage_error(tmp_path: Path) -> None:
    for arguments, stdin in (([os.fsdecode(b"\xff\xfe")], None), ([], b"\xff\xfe")):
        result = subprocess.run(
            [sys.executable, "-m", "swarmd", "generate", *arguments],
            capture_output=True,
            input=stdin,
            cwd=tmp_path,
            check=False,
        )
        assert result.returncode == 2
        assert b"UTF-8" in result.stderr
