"""Settings: the environment, ``gt.config``, and what both refuse."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

import gtrace as gt
from gtrace.core.base.config import Config, process_rank
from gtrace.testing import assert_close

DEFAULTS = Config()


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("GT_AUTO_COMPILE", "0", "auto_compile", False),
        ("GT_AUTO_COMPILE", "no", "auto_compile", False),
        ("GT_COMPILE", "1", "compile", True),
        ("GT_COMPILE", "True", "compile", True),
        ("GT_HOTPATH_THRESHOLD", "7", "hot_threshold", 7),
        ("GT_HOTPATH_MIN_SEQ", "1", "min_seq", 1),
        ("GT_CONFIG", "signals.yaml", "signals", "signals.yaml"),
        ("GT_DEBUG_COMPILE", "2", "debug_compile", 2),
        ("GT_INSTRUCTION_LOG", "log.txt", "instruction_log", "log.txt"),
        ("GT_EAGER", "on", "eager", True),
        ("GT_MAX_PENDING", "10", "max_pending", 10),
        ("GT_PROGRAM_MEMORY", "64MiB", "program_memory", 2**26),
        ("GT_BACKGROUND", "0", "background", False),
        ("GT_CACHE_DIR", "/tmp/x", "cache_dir", "/tmp/x"),
        ("GT_CACHE_SIZE", "0", "cache_size", 0),
        ("GT_CACHE_SIZE", "500MB", "cache_size", 500_000_000),
        ("GT_CACHE_SIZE", "3 GiB", "cache_size", 3 * 2**30),
        ("GT_COMPILE_TIMEOUT", "30", "compile_timeout", 30),
        ("GT_AUDIT", "0.02", "audit", 0.02),
        ("GT_DEVICE", "cuda:1", "device", "cuda:1"),
        ("GT_MAX_PENDING_BYTES", "4096", "max_pending_bytes", 4096),
        ("GT_DEBUG_KEY_REUSE", "1", "debug_key_reuse", True),
        ("GT_DETERMINISTIC", "1", "deterministic", True),
        ("GT_CHECK_STATIC_INDICES", "1", "check_static_indices", True),
        ("GT_THREEFRY_PARTITIONABLE", "0", "threefry_partitionable", False),
        ("GT_VERIFY_PASSES", "1", "verify_passes", True),
        ("GT_COLLECTIVE_TIMEOUT", "20", "collective_timeout", 20),
    ],
)
def test_each_variable_sets_its_setting(variable, text, name, value):
    assert getattr(DEFAULTS, name) != value
    assert getattr(Config.from_env({variable: text}), name) == value
    assert Config.from_env({variable: ""}) == DEFAULTS, "an empty variable counts as unset"


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("GT_AUTO_COMPILE", "maybe", "0 or 1"),
        ("GT_COMPILE", "2", "0 or 1"),
        ("GT_EAGER", "eager", "0 or 1"),
        ("GT_HOTPATH_THRESHOLD", "often", "an integer of at least 1"),
        ("GT_HOTPATH_THRESHOLD", "0", "an integer of at least 1"),
        ("GT_HOTPATH_MIN_SEQ", "2.5", "an integer of at least 1"),
        ("GT_MAX_PENDING", "-1", "an integer of at least 1"),
        ("GT_DEVICE", "mps", '"cpu", "cuda" or a GPU by number'),
        ("GT_DEVICE", "cuda:", '"cpu", "cuda" or a GPU by number'),
        ("GT_DEBUG_COMPILE", "3", "0 (silent), 1 (one line per event) or 2"),
    ],
)
def test_a_value_that_a_variable_cannot_take(variable, text, expected):
    with pytest.raises(gt.ConfigError) as caught:
        Config.from_env({variable: text})
    message = str(caught.value)
    assert message.startswith(f"[{variable}] expected {expected}")
    assert f"got {text!r}" in message


def test_a_misspelled_variable_warns_and_names_the_right_one():
    with pytest.warns(gt.ConfigWarning, match="GT_HOTPATH_TRESHOLD is not a gtrace setting.*GT_HOTPATH_THRESHOLD"):
        settings = Config.from_env({"GT_HOTPATH_TRESHOLD": "3"})
    assert settings == DEFAULTS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("variable", ["GT_RACING_TEAM", "GTK_THEME", "MY_GT_COMPILE", "gt_compile"])
def test_a_variable_of_another_program_is_left_alone(variable):
    assert Config.from_env({variable: "whatever"}) == DEFAULTS


def test_a_wrong_variable_stops_the_import():
    run = subprocess.run(
        [sys.executable, "-c", "import gtrace"],
        env=os.environ | {"GT_COMPILE": "perhaps"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1
    # libraries may write more as Python ends
    (line,) = [line for line in run.stderr.splitlines() if "ConfigError: " in line]
    assert line.endswith("[GT_COMPILE] expected 0 or 1, got 'perhaps'. Set it to a valid value or unset it.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auto_compiel": True}, "expected the name of a setting, got 'auto_compiel'. Did you mean auto_compile?"),
        ({"zzz": 1}, "got 'zzz'. The settings are auto_compile, compile,"),
        ({"auto_compile": "yes"}, "expected bool or int for auto_compile, got 'yes'"),
        ({"auto_compile": 2}, "expected 0 or 1 for auto_compile, got 2"),
        ({"hot_threshold": 0}, "expected an integer of at least 1 for hot_threshold, got 0"),
        ({"hot_threshold": 2.0}, "expected int or None for hot_threshold, got 2.0"),
        ({"hot_threshold": True}, "expected int or None for hot_threshold, got True"),
        ({"min_seq": None}, "expected int for min_seq, got None"),
        ({"debug_compile": 5}, "for debug_compile, got 5"),
        ({"instruction_log": 1}, "expected str or None for instruction_log, got 1"),
        ({"signals": ""}, "expected a path for signals, got ''"),
        ({"device": "gpu"}, 'expected "cpu", "cuda" or a GPU by number, such as "cuda:1" for device, got \'gpu\''),
        ({"device": None}, "expected str for device, got None"),
    ],
)
def test_gt_config_refuses(changes, words):
    before = gt.config.current
    with pytest.raises(gt.ConfigError) as caught:
        gt.config.update(**changes)
    assert words in str(caught.value)
    with pytest.raises(gt.ConfigError), gt.config(**changes):
        pytest.fail("the block must not run")
    assert gt.config.current is before


def test_settings_come_back_after_the_block_also_when_it_raises():
    before = gt.config.current
    with gt.config(min_seq=9), gt.config(hot_threshold=4, auto_compile=0):
        assert (gt.config.min_seq, gt.config.hot_threshold) == (9, 4)
        assert gt.config.auto_compile is False, "an int that stands for a flag becomes one"
    assert gt.config.current == before
    with pytest.raises(KeyError), gt.config(min_seq=9):
        raise KeyError
    assert gt.config.current == before


def test_update_stays_until_the_end_of_an_enclosing_block():
    before = gt.config.current
    with gt.config():
        gt.config.update(min_seq=8)
        assert gt.config.min_seq == 8
    assert gt.config.current == before


def test_a_change_that_an_observer_refuses_is_undone(tmp_path):
    good = tmp_path / "log"
    with gt.config(instruction_log=str(good)):
        before = gt.config.current
        with pytest.raises(gt.ConfigError, match="GT_INSTRUCTION_LOG"):
            gt.config.update(instruction_log=str(tmp_path / "absent" / "log"), min_seq=7)
        assert gt.config.current == before
        float(gt.ones(1) + 1)
    assert "RECORD" in good.read_text(), "the log that was there goes on"


def test_an_unknown_setting_cannot_be_read():
    with pytest.raises(AttributeError):
        gt.config.auto_compiel  # noqa: B018


def test_eager_mode_runs_each_operation_as_it_is_recorded(tmp_path):
    log = tmp_path / "log"
    with gt.config(eager=True, instruction_log=str(log)):
        x = gt.array([1.0, 2.0, 3.0])
        y = x * 2
        z = y + 1
        assert z.tolist() == [3.0, 5.0, 7.0]
    lines = log.read_text().splitlines()
    kinds = [line.split(" | ")[2].strip() for line in lines]
    assert kinds == ["RECORD", "FORCE", "RUN"] * 2
    causes = [line.split(" | ")[4].strip() for line in lines if "FORCE" in line]
    assert causes == ["eager", "eager"]


def test_eager_mode_names_the_line_of_a_bad_value():
    x, index = gt.array([1.0, 2.0]), gt.array([0, 5])
    lazily = gt.take(x, index, mode="raise")  # the mistake
    with pytest.raises(gt.ExecutionError):
        lazily.tolist()
    with gt.config(eager=True), pytest.raises(gt.ExecutionError) as caught:
        gt.take(x, index, mode="raise")
    assert caught.traceback[0].lineno + 1 == test_eager_mode_names_the_line_of_a_bad_value.__code__.co_firstlineno + 6


def test_eager_mode_gives_the_same_gradients():
    def loss(w):
        return (gt.tanh(w * 3) ** 2).sum()

    w = gt.array([0.1, -0.4])
    expected = gt.grad(loss)(w).tolist()
    with gt.config(eager=True):
        assert_close(gt.grad(loss)(w).tolist(), expected, check_dtype=False)
        assert_close(gt.jit(loss)(w), loss(w), check_dtype=False)


def test_overlapping_blocks_of_two_threads_leave_nothing_behind():
    before = gt.config.current
    steps = [threading.Event() for _ in range(4)]
    seen = {}

    def first():
        with gt.config(min_seq=7):
            steps[0].set()
            steps[1].wait(10)
            seen["first"] = gt.config.min_seq
        steps[2].set()

    def second():
        steps[0].wait(10)
        with gt.config(min_seq=9):
            steps[1].set()
            steps[2].wait(10)
            seen["second"] = gt.config.min_seq

    threads = [threading.Thread(target=f) for f in (first, second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert seen == {"first": 7, "second": 9}
    assert gt.config.current == before


def test_a_block_is_its_threads_own():
    seen = []
    with gt.config(min_seq=7):
        gt.config.update(window=123)
        look = threading.Thread(target=lambda: (seen.append(gt.config.current), gt.config.update(max_pending=55)))
        look.start()
        look.join()
        # the block's own settings stand; others follow the process
        assert (gt.config.min_seq, gt.config.window, gt.config.max_pending) == (7, 123, 55)
    assert (seen[0].min_seq, seen[0].window) == (3, 60000)
    assert (gt.config.min_seq, gt.config.window, gt.config.max_pending) == (3, 60000, 55)


def test_a_block_is_its_tasks_own():
    async def task(value):
        with gt.config(min_seq=value):
            await asyncio.sleep(0.01 * value)
            return gt.config.min_seq

    async def main():
        return await asyncio.gather(task(4), task(2), task(3))

    assert asyncio.run(main()) == [4, 2, 3]
    assert gt.config.min_seq == 3


@pytest.mark.parametrize(("text", "rank"), [("3", 3), ("", 0), ("x", 0), ("-1", 0), (None, 0)])
def test_the_rank_is_that_of_the_launcher_if_it_is_a_number(text, rank, monkeypatch):
    if text is None:
        monkeypatch.delenv("RANK", raising=False)
    else:
        monkeypatch.setenv("RANK", text)
    assert process_rank() == rank
