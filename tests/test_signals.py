"""Signals: the YAML file, the same from Python, and what both refuse."""

import itertools
import os
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import gtrace as gt
from gtrace.distributed.signals import registry
from gtrace.distributed.signals_file import read_signals

GOOD = """\
# a comment
forward:
  shard: {axis: 0, workers: [0, 1, 2, 3]}
  backward: backward
  compile: true
backward:
  shard:
    replicated: true
    workers: null
update:
  compile: max-autotune
plain:
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "signals.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Each test starts without signals and leaves none."""
    monkeypatch.setattr(registry, "_registered", {})
    with gt.config(signals=None):
        yield


def test_a_file_says_what_its_signals_mean(write):
    assert gt.load_config(write(GOOD)) == {
        "forward": gt.SignalConfig(gt.ShardConfig(axis=0, workers=(0, 1, 2, 3)), "backward", True),
        "backward": gt.SignalConfig(gt.ShardConfig(replicated=True)),
        "update": gt.SignalConfig(compile="max-autotune"),
        "plain": gt.SignalConfig(),
    }


def test_anchors_work(write):
    signals = gt.load_config(write("a: &a\n  shard: &s {axis: 1}\nb: *a\nc:\n  shard: *s\n"))
    assert signals["a"] == signals["b"] == signals["c"] == gt.SignalConfig(gt.ShardConfig(axis=1))


def multiplied(first, each, count=9):
    """Lists, or mappings, each of which names the one before nine times: 9 ** count values in some hundred letters."""
    pairs = itertools.pairwise("bcdefghijklm"[: count + 1])
    nested = (f"&{name} {each.format(','.join([f'*{before}'] * 9))}" for before, name in pairs)
    return f"&b {first}, {', '.join(nested)}"


# text, line, what the message says
BAD = {
    "unknown option": (
        "f:\n  shrad: {axis: 0}\n",
        2,
        "[f] expected one of shard, backward, compile, got 'shrad'. Did you mean 'shard'?",
    ),
    "unknown shard option": (
        "f:\n  shard:\n    axes: 0\n",
        3,
        "[f.shard] expected one of axis, workers, replicated, got 'axes'. Did you mean 'axis'?",
    ),
    "nothing near": ("f:\n  zzzzz: 0\n", 2, "got 'zzzzz'. Remove it."),
    "axis is text": (
        "f:\n  shard:\n    axis: zero\n",
        3,
        "[f.shard.axis] expected an integer of at least 0, got 'zero'",
    ),
    "axis is negative": ("f: {shard: {axis: -1}}\n", 1, "[f.shard.axis] expected an integer of at least 0, got -1"),
    "axis is a bool": ("f: {shard: {axis: true}}\n", 1, "got True"),
    "axis is a float": ("f: {shard: {axis: 1.0}}\n", 1, "got 1.0"),
    "workers is a number": (
        "f:\n  shard:\n    axis: 0\n    workers: 4\n",
        4,
        "[f.shard.workers] expected a list of ranks, got 4",
    ),
    "a worker twice": ("f:\n  shard: {axis: 0, workers: [0, 1, 0]}\n", 2, "expected each rank once, got 0"),
    "a negative worker": (
        "f:\n  shard: {axis: 0, workers: [0, -2]}\n",
        2,
        "expected ranks that are integers of at least 0, got -2",
    ),
    "a named worker": ("f:\n  shard: {axis: 0, workers: [a]}\n", 2, "got 'a'"),
    "no workers": ("f:\n  shard: {axis: 0, workers: []}\n", 2, "expected at least one rank, got []"),
    "replicated is text": (
        "f:\n  shard: {replicated: maybe}\n",
        2,
        "[f.shard.replicated] expected true or false, got 'maybe'",
    ),
    "both layouts": (
        "f:\n  shard:\n    {axis: 0, replicated: true}\n",
        3,
        "[f.shard] expected either an axis or replicated: true",
    ),
    "no layout": ("f:\n  shard: {workers: [0]}\n", 2, "[f.shard] expected an axis or replicated: true"),
    "shard is a number": ("f:\n  shard: 0\n", 2, "[f.shard] expected a mapping of options, got 0"),
    "unknown backward": (
        "f:\n  backward: bakward\nbackward:\n",
        2,
        "[f.backward] expected the name of a signal, got 'bakward'. Did you mean 'backward'?",
    ),
    "unknown backward, none near": ("f:\n  backward: x\n", 2, "The signals are f."),
    "backward is a number": ("f:\n  backward: 1\n", 2, "[f.backward] expected the name of a signal, got 1"),
    "unknown mode": ("f:\n  compile: max-autotne\n", 2, "got 'max-autotne'. Did you mean 'max-autotune'?"),
    "compile is a list": ("f:\n  compile: [1]\n", 2, "[f.compile] expected true, false or a mode"),
    "a signal twice": ("f:\ng:\nf:\n", 3, "[signals] expected each key once, got a second 'f'"),
    "an option twice": (
        "f:\n  compile: true\n  compile: false\n",
        3,
        "[f] expected each key once, got a second 'compile'",
    ),
    "a name that YAML takes for a bool": (
        "on:\n  compile: true\n",
        1,
        "expected signal names as strings, got True. Put it in quotes.",
    ),
    "a list of signals": (
        "- forward\n- backward\n",
        1,
        "[signals] expected a mapping of signal names, got ['forward', 'backward']",
    ),
    "a signal that is text": ("f: yes please\n", 1, "[f] expected a mapping of options, got 'yes please'"),
    "empty": ("", 1, "expected a mapping of signal names, got an empty file"),
    "only a comment": ("# nothing\n", 1, "got an empty file"),
    "broken YAML": ("f:\n  shard: {axis: 0\ng:\n", 3, "[signals] expected YAML, got an error:"),
    "tabs": ("f:\n\tshard:\n", 2, "expected YAML"),
    "two documents": ("f:\n---\ng:\n", 2, "expected YAML"),
    "undefined alias": ("f: *x\n", 1, "expected YAML"),
    "a tag that makes objects": ("f:\n  compile: !!python/object/apply:os.getcwd []\n", 2, "expected YAML"),
    "a number that is none": ("f:\n  shard: {axis: !!int x}\n", 2, "expected a YAML value"),
    "not text": (b"\xff\xfe\xfa\x00\x81", 1, "expected YAML"),
    "a control character": ("f: \x01\n", 1, "expected YAML"),
    "aliases that multiply": (f"a: [{multiplied('[x,x]', '[{}]')}]\n", 1, "expected at most 200,000 values, got more"),
    "merges that multiply": (
        f"a:\n  shard: {{axis: [{multiplied('{x: 1}', '{{<<: [{}]}}')}]}}\n",
        1,
        "expected at most 200,000 values, got more",
    ),
    "aliases that multiply a little": (
        f"a: [{multiplied('[x,x]', '[{}]', 4)}]\n",
        1,
        "[a] expected a mapping of options, got [['x', 'x'], [['x', 'x'], ['x', 'x'], ",
    ),
    "an alias of itself": ("a: &a [*a]\n", 1, "expected at most 200,000 values, got more"),
    "a number of many digits": (f"g: {{shard: {{axis: 0x{'f' * 9000}}}}}\nf: 1", 2, "got 1"),
    "a negative number of many digits": (f"f: {{shard: {{axis: -0x{'f' * 9000}}}}}\n", 1, "got a number of 36000 bits"),
    "a name of many letters": (f"f:\n  ? {'a' * 100_000}\n  : 1\n", 2, "got 'aaaa"),
    "too deep": ("f: " + "[" * 20000, 1, "nested too deeply"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_a_wrong_file_is_refused_with_its_line(case, write):
    text, line, words = BAD[case]
    path = write(text)
    with pytest.raises(gt.ConfigError) as caught:
        gt.load_config(path)
    message = str(caught.value)
    assert words in message and len(message) < 1000
    assert message.endswith(f"(at {path}:{line})")
    assert gt.config.signals is None
    assert not registry.signals()


@pytest.mark.parametrize("make", [lambda p: p / "absent.yaml", lambda p: p], ids=["absent", "a directory"])
def test_a_file_that_cannot_be_read(make, tmp_path):
    path = make(tmp_path)
    with pytest.raises(gt.ConfigError, match="expected the path of a YAML file that can be read") as caught:
        gt.load_config(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", [None, 3, b"signals.yaml"])
def test_a_path_that_is_none(path):
    with pytest.raises(gt.ConfigError, match="load_config"):
        gt.load_config(path)


def test_the_setting_loads_the_file_for_as_long_as_it_holds(write):
    with gt.config(signals=write(GOOD)):
        assert registry.signals()["update"].compile == "max-autotune"
    assert not registry.signals()


def test_loading_again_reads_again(write):
    assert gt.load_config(write("a:\n")) == {"a": gt.SignalConfig()}
    assert gt.load_config(write("b:\n")) == {"b": gt.SignalConfig()}


def test_a_file_that_went_wrong_leaves_the_earlier_one(write):
    gt.load_config(write("a:\n"))
    with pytest.raises(gt.ConfigError):
        gt.load_config(write("b: 1\n"))
    assert set(registry.signals()) == {"a"}


@pytest.mark.slow
def test_the_environment_names_the_file(write):
    env = os.environ | {"GT_CONFIG": write(GOOD)}
    code = "import gtrace; print(sorted(gtrace.distributed.signals.registry.signals()))"
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "['backward', 'forward', 'plain', 'update']\n"
    write("f:\n  compile: perhaps\n")
    run = subprocess.run([sys.executable, "-c", "import gtrace"], env=env, capture_output=True, text=True)
    assert run.returncode == 1
    assert "ConfigError: [f.compile] expected true, false or a mode" in run.stderr
    assert run.stderr.endswith(f"(at {env['GT_CONFIG']}:2)\n")


def test_python_takes_precedence_over_the_file(write):
    gt.load_config(write("a:\n  compile: true\nb:\n"))
    gt.register_config("a", gt.SignalConfig(backward_signal="b"))
    assert registry.signals()["a"] == gt.SignalConfig(backward_signal="b")
    gt.register_config("a", gt.SignalConfig(backward_signal="a"))
    assert registry.signals()["a"].backward_signal == "a"


def test_a_file_may_name_a_backward_made_in_python(write):
    gt.register_config("elsewhere", gt.SignalConfig())
    assert gt.load_config(write("a:\n  backward: elsewhere\n"))["a"].backward_signal == "elsewhere"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gt.ShardConfig(axis=-1), "[axis] expected an integer of at least 0, got -1"),
        (lambda: gt.ShardConfig(axis="0"), "got '0'"),
        (lambda: gt.ShardConfig(), "expected an axis or replicated: true"),
        (lambda: gt.ShardConfig(axis=0, replicated=True), "expected either an axis or replicated: true"),
        (lambda: gt.ShardConfig(axis=0, workers=(1, 1)), "expected each rank once, got 1"),
        (lambda: gt.ShardConfig(axis=0, workers={1}), "expected a list of ranks"),
        (lambda: gt.ShardConfig(replicated=1), "expected true or false, got 1"),
        (lambda: gt.SignalConfig(shard={"axis": 0}), "expected a gt.ShardConfig"),
        (lambda: gt.SignalConfig(backward_signal=""), "expected the name of a signal, got ''"),
        (lambda: gt.SignalConfig(compile="reduce-overhed"), "Did you mean 'reduce-overhead'?"),
        (lambda: gt.register_config("", gt.SignalConfig()), "expected the name of a signal, got ''"),
        (lambda: gt.register_config("f", {"compile": True}), "expected a gt.SignalConfig"),
        (
            lambda: gt.register_config("f", gt.SignalConfig(backward_signal="g")),
            "[backward] expected the name of a signal, got 'g'",
        ),
    ],
)
def test_python_refuses_the_same_and_names_the_users_line(make, words):
    with pytest.raises(gt.ConfigError) as caught:
        make()
    assert words in str(caught.value)
    assert str(caught.value).endswith(f"(at {__file__}:{make.__code__.co_firstlineno})")


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6).map(lambda s: "s" + s)
shards = st.one_of(
    st.builds(
        gt.ShardConfig, axis=st.integers(0, 5), workers=st.none() | st.lists(st.integers(0, 9), min_size=1, unique=True)
    ),
    st.just(gt.ShardConfig(replicated=True)),
)


@given(st.dictionaries(names, st.tuples(st.none() | shards, st.booleans() | st.just("reduce-overhead")), min_size=1))
def test_what_is_written_is_read(tmp_path_factory, signals):
    text = {
        name: {
            "compile": mode,
            "backward": name,
            "shard": shard
            and {"axis": shard.axis, "workers": shard.workers and list(shard.workers), "replicated": shard.replicated},
        }
        for name, (shard, mode) in signals.items()
    }
    path = tmp_path_factory.mktemp("signals") / "signals.yaml"
    path.write_text(yaml.safe_dump(text, allow_unicode=True), encoding="utf-8")
    assert read_signals(str(path)) == {
        name: gt.SignalConfig(shard, name, mode) for name, (shard, mode) in signals.items()
    }
