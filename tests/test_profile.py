"""``gt.profile``, ranges for torch's profilers, ``gt.memory``, ``gt.peak_memory``, and what notebooks show."""

import gc
import html.parser
import re
import subprocess
import sys
import threading
import tracemalloc
from xml.etree import ElementTree

import attrs
import browser
import launch
import pytest
import torch
from torch.profiler import ProfilerActivity

import gtrace as gt
from gtrace.core.backends.interpreter.interpreter import interpreter
from gtrace.core.passes.canonical import canonicalize
from gtrace.core.passes.whole_program import SIMPLIFIED
from gtrace.core.runtime.engine import engine
from gtrace.core.runtime.routes import Parts
from gtrace.observe import drawing
from gtrace.observe.program_stats import ProgramStats
from gtrace.observe.stats import Stats


def here():
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture(autouse=True)
def interpreted():
    with gt.config(auto_compile=False):
        yield


# profiles


def test_operations_of_an_interpreted_program_are_timed_with_their_lines():
    x = gt.ones((40, 40)).block_until_ready()
    with gt.profile() as p:
        for _ in range(3):
            y, line = gt.sinh(x @ x), here()
            z, last = (y * 0.25).sum(), here()
            float(z)
    times = {t.name: t for t in p.operations}
    assert set(times) == {"matmul", "sinh", "mul", "sum"}
    assert {t.calls for t in p.operations} == {3}
    assert all(t.seconds > 0 for t in p.operations)
    assert [times[name].line for name in ("matmul", "sinh", "mul", "sum")] == [line, line, last, last]
    assert [t.name for t in p.operations if t.product] == ["matmul"]
    assert p.regions == []
    assert p.recorded == 12
    assert [t.seconds for t in p.operations] == sorted((t.seconds for t in p.operations), reverse=True)


@pytest.mark.slow
def test_lines_are_known_of_programs_that_were_recorded_before():
    x = gt.ones(41).block_until_ready()

    def run():
        return float((gt.cosh(x) * 3).sum())

    before = {p.signature for p in gt.stats()}
    run()
    (program,) = (p for p in gt.stats() if p.signature not in before)
    assert program.ops == ("cosh", "mul", "sum")
    assert "unknown" in gt.explain(program.signature).to_html()
    with gt.profile() as p:
        run()
    assert {t.line.rpartition(":")[2] for t in p.operations} == {str(run.__code__.co_firstlineno + 1)}
    assert next(q for q in gt.stats() if q.signature == program.signature).calls == 2, "it is the same program"
    assert f"{__file__}:{run.__code__.co_firstlineno + 1}" in gt.explain(program.signature).to_html()


def test_a_backward_pass_has_the_lines_of_its_forward_pass():
    x = gt.ones(43).block_until_ready()
    with gt.profile() as p:
        gt.eval(gt.grad(lambda x: (gt.sin(x) * 5).sum())(x))
    cosine = next(t for t in p.operations if t.name == "cos")
    assert re.fullmatch(re.escape(__file__) + r":\d+ \(its backward pass\)", cosine.line)


def test_regions_of_a_compiled_program_are_timed():
    def body(c, x):
        return gt.tanh(c @ c + x), c.sum()

    step = gt.jit(lambda c, xs: gt.exp(gt.scan(body, gt.sin(c) * 2 + 1, xs)[0]).sum() * 3 + 1, backend="eager")
    c, xs = gt.ones((4, 4)), gt.ones((5, 4, 4))
    gt.eval(step(c, xs))
    with gt.profile() as p:
        for _ in range(2):
            gt.eval(step(c, xs))
    names = [t.name for t in p.regions]
    assert "scan from Python" in names
    assert sum(name.startswith("compiled, ") for name in names) == 2
    assert {t.calls for t in p.regions} == {2}
    assert all(t.line.startswith(__file__) for t in p.regions)
    page = gt.explain(step).to_html(p)
    assert page.count(" a call") >= 4
    assert "body of" in page


def test_shares_of_the_time_add_up():
    x = gt.ones((200, 200)).block_until_ready()
    product = gt.jit(lambda x: gt.tanh(x @ x @ x), backend="eager")
    with gt.profile() as p:
        for _ in range(3):
            gt.eval(product(x))
            float((x @ x).sum())
    assert set(p.shares) == {"products", "memory", "overhead", "compiling", "python"}
    assert sum(p.shares.values()) == pytest.approx(1.0)
    assert all(share >= 0 for share in p.shares.values())
    assert p.shares["products"] > 0
    assert p.shares["compiling"] > 0
    assert len(p.regions) == 1
    interpreted = sum(t.seconds for t in p.operations if t.product)
    assert p.shares["products"] * p.seconds > interpreted, "those of the compiled program count too"


def test_results_and_the_ledger_are_those_without_a_profile():
    x = gt.arange(12.0).reshape(3, 4)
    step = gt.jit(lambda x: gt.softmax(x * 2), backend="eager")

    def both():
        return step(x).numpy(), (gt.tanh(x) @ x.T).numpy()

    plain = both()
    with gt.profile():
        profiled = both()
    for a, b in zip(plain, profiled, strict=True):
        assert (a == b).all()


def test_a_profile_leaves_nothing_behind():
    wanted = gt.core.base.events.bus.wanted
    with pytest.raises(ZeroDivisionError), gt.profile() as p:
        float(gt.ones(3).sum())
        raise ZeroDivisionError
    assert p.seconds > 0
    assert gt.core.base.events.bus.wanted == wanted
    assert engine.observed.instrument is None
    before = sum(t.calls for t in p.operations)
    float(gt.ones(3).sum())
    assert sum(t.calls for t in p.operations) == before


def test_profiles_do_not_nest_and_are_used_once():
    with gt.profile() as p:
        with pytest.raises(gt.ArgumentError, match="one profile at a time"), gt.profile():
            pass
    with pytest.raises(gt.ArgumentError, match="a new profile"), p:
        pass
    assert engine.observed.instrument is None


def test_a_profile_holds_for_all_threads():
    x = gt.ones(9).block_until_ready()

    def work():
        for _ in range(20):
            float(gt.log1p(x).sum())

    with gt.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(t.calls for t in p.operations if t.name == "log1p") == 80


def test_a_profile_prints_and_shows_tables():
    with gt.profile() as p:
        float((gt.ones((5, 5)) @ gt.ones((5, 5))).sum())
    text = str(p)
    assert re.match(r"[\d.]+ \w+: products \d+%, memory \d+%, overhead \d+%, compiling 0%, python \d+%; \d+ ", text)
    assert re.search(r"\n +[\d.]+ \w+ +1 +[\d.]+ \w+  [0-9a-f]{12}  matmul  .*test_profile\.py:\d+(\n|$)", text)
    assert len(repr(p)) < 80
    assert "matmul" in p._repr_html_()


# torch's profilers


def ranges(profiled):
    return [event.name for event in profiled.events() if event.name.startswith("gtrace ")]


def test_runs_are_ranges_with_signatures_and_lines():
    step = gt.jit(lambda x: gt.tanh(x) * 2 + 1, backend="eager")
    x = gt.ones(44).block_until_ready()
    with gt.config(compile=True):  # and not on trial, where the times of calls decide which of them are interpreted
        gt.eval(step(x))
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiled:
        float((gt.expm1(x) * 2).sum()), (line := here())
        gt.eval(step(x)), (second := here())
    signatures = {p.ops: p.signature[:12] for p in gt.stats()}
    assert ranges(profiled) == [
        f"gtrace {signatures['expm1', 'mul', 'sum']} interpreted at {line}",
        "gtrace expm1", "gtrace mul", "gtrace sum",
        f"gtrace {signatures['tanh', 'mul', 'add']} compiled at {second}",
    ]  # fmt: skip


def test_ranges_of_operations_have_lines_where_these_are_known():
    step = gt.jit(lambda x: gt.tanh(x).sum(), backend="eager")
    x = gt.ones(45).block_until_ready()
    gt.eval(step(x))
    program = step.programs()[0]
    run = gt.from_graph(program.graph)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiled, gt.profile():
        gt.eval(run(x))
    assert any(re.fullmatch(r"gtrace [0-9a-f]{12} \w+ at .*:\d+", name) for name in ranges(profiled))


def test_without_a_profiler_there_are_no_ranges(monkeypatch):
    made = []
    monkeypatch.setattr("gtrace.core.runtime.instruments.record_function", lambda name: made.append(name))
    float(gt.ones(3).sum())
    assert made == []


def test_nothing_that_runs_is_replaced_when_nothing_is_measured(monkeypatch):
    replaced = []
    monkeypatch.setattr(
        "gtrace.core.runtime.observed_calls.instrumented",
        lambda program, run, instrument: replaced.append(program) or run,
    )
    assert float(gt.ones(3).sum()) == 3.0
    assert replaced == []
    with gt.profile():
        float(gt.ones(3).sum())
    assert replaced  # by this, the test would notice


# memory


def test_live_memory_by_the_line_that_made_it():
    tracemalloc.start(25)
    try:
        x, line = gt.ones((64, 1024)).block_until_ready(), here()
        y, other = gt.from_torch(torch.zeros(1 << 18)), here()
        step = gt.jit(lambda x: x * 2, backend="eager")
        z, third = step(x), here()
        pending = x + 1
        held = gt.memory()
    finally:
        tracemalloc.stop()
    rows = {row.line: row for row in held}
    assert rows[line].nbytes == 64 * 1024 * 4
    assert rows[line].kinds == {"f32[64,1024]": 1}
    assert rows[other].nbytes == 1 << 20
    assert rows[third].nbytes == 64 * 1024 * 4
    assert held.pending >= 1
    assert [row.nbytes for row in held] == sorted((row.nbytes for row in held), reverse=True)
    assert held.nbytes == sum(row.nbytes for row in held)
    assert f"1.0 MiB       1  {other}  1 x f32[262144]" in str(held)
    assert len(repr(held)) < 80
    assert f"{other}" in held._repr_html_()
    del x, y, z, pending, step
    gc.collect()
    assert not {line, other, third} & {row.line for row in gt.memory()}


def test_memory_that_pending_operations_keep_is_said_and_what_was_given_away_is_not():
    gc.collect()
    gt.eval(gt.zeros(1) + 1)  # runs, or forgets, what other tests have left
    before = gt.memory()
    x = gt.ones((512, 512)).block_until_ready()
    y = x * 2
    assert gt.memory().kept == before.kept, "the Array has it too"
    del x
    held = gt.memory()
    assert (held.nbytes - before.nbytes, held.kept - before.kept, held.pending - before.pending) == (0, 1 << 20, 1)
    assert "what is pending keeps 1.0 MiB besides" in str(held) or before.kept
    gt.eval(y)
    assert gt.memory().kept == before.kept
    f = gt.jit(lambda x: x + 1, donate_argnums=0, backend="eager")
    z = gt.eval(f(y))
    assert gt.memory().pending == before.pending, "what was given away has no value to come"
    del y, z


def test_arrays_that_share_memory_count_once():
    before = gt.memory().nbytes
    x = gt.from_torch(torch.zeros(1 << 20))
    view = x[: 1 << 10].block_until_ready()
    assert before + (1 << 22) <= gt.memory().nbytes <= before + (1 << 22) + view.nbytes


def test_without_tracemalloc_the_table_says_how_to_know_the_lines():
    x = gt.ones(5).block_until_ready()
    assert "after tracemalloc.start(25)" in str(gt.memory())
    assert "unknown line" in str(gt.memory())
    del x


def measured_peak(graph, tensors):
    """The most bytes that torch's CPU allocator held during an interpreted run, beside the inputs."""
    run = interpreter(graph)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        outputs = run(tensors)
    del outputs
    live = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def mlp(params, x):
    for w in params:
        x = gt.tanh(x @ w) * 0.5 + x
    return (x * x).sum()


def attention(q, k, v):
    return (gt.softmax(q @ k.mT / 8.0, axis=-1) @ v).sum()


def weighted(q, k, v):
    weights = gt.softmax(q @ k.mT / 8.0, axis=-1)
    return (weights @ v).sum() + weights[0, 0, 0]


def views(x):
    y = x.reshape(512, 128).T
    return (y * 2 + gt.flip(y, axis=0)).sum(axis=0)


W = [gt.ShapeDtypeStruct((256, 256), "float32")] * 3
X = gt.ShapeDtypeStruct((512, 256), "float32")
HEADS = [gt.ShapeDtypeStruct((4, 128, 64), "float32")] * 3
PEAKS = {
    "forward": (mlp, (W, X)),
    "gradient": (gt.grad(mlp), (W, X)),
    # by a kernel whose blocks, 80 KB to 600 KB for each thread, are not seen
    "attention": (attention, [gt.ShapeDtypeStruct((64, 256, 64), "float32")] * 3),
    "attention with its weights": (weighted, HEADS),
    # inside a call, the library copies transposed operands, and sorts in memory of its own: that is not seen
    "attention gradients": (gt.grad(attention, argnums=(0, 1, 2)), HEADS, 0.2),
    "views": (views, (gt.ShapeDtypeStruct((256, 256), "float32"),)),
    "sort": (lambda x: gt.sort(gt.exp(x))[::2], (gt.ShapeDtypeStruct(1 << 16, "float32"),), 0.4),
}


@pytest.mark.parametrize("name", PEAKS)
def test_the_predicted_peak_is_the_measured_one(name):
    function, args, *tolerance = PEAKS[name]
    predicted = gt.peak_memory(function, *args)
    graph = canonicalize(SIMPLIFIED.run(gt.make_graph(function)(*args))).graph
    tensors = [torch.rand(a.shape) for a in graph.avals]
    measured = measured_peak(graph, tensors)
    assert predicted.inputs == sum(t.nbytes for t in tensors)
    assert predicted.peak - predicted.inputs == pytest.approx(measured, rel=[*tolerance, 0.1][0])
    assert predicted.line.startswith(__file__)


def test_checkpointing_is_predicted_to_need_less():
    def loss(f):
        return lambda x: f(f(f(x))).sum()

    def block(x):
        for _ in range(8):
            x = gt.tanh(gt.sin(x) * 2)
        return x

    x = gt.ShapeDtypeStruct((1 << 16,), "float32")
    plain = gt.peak_memory(gt.grad(loss(block)), x)
    less = gt.peak_memory(gt.grad(loss(gt.checkpoint(block))), x)
    assert less.peak < 0.75 * plain.peak


def test_a_divided_program_has_one_peak():
    def layers(x):
        for _ in range(60):
            x = gt.tanh(x) * 2 + gt.sin(x)
        return x

    x = gt.ShapeDtypeStruct((1 << 14,), "float32")
    predicted = gt.peak_memory(layers, x)
    assert isinstance(gt.jit(layers).lower(gt.ones(1 << 14)).route, Parts)
    assert 3 * (1 << 16) <= predicted.peak <= 5 * (1 << 16)
    assert predicted.outputs == 1 << 16


def test_loops_and_branches_count_what_a_body_holds():
    def loop(c):
        return gt.fori_loop(0, 10, lambda k, c: gt.tanh(c @ c) + gt.sin(c), c)

    predicted = gt.peak_memory(loop, gt.ShapeDtypeStruct((64, 64), "float32"))
    one = 64 * 64 * 4
    assert predicted.operation in ("scan", "while_loop")
    assert one <= predicted.inputs <= one + 16
    assert one <= predicted.outputs <= one + 16
    assert 3 * one <= predicted.peak <= 5 * one


def test_nothing_runs_and_nothing_is_counted_as_run():
    calls = sum(p.calls for p in gt.stats())
    gt.peak_memory(mlp, W, X)
    assert sum(p.calls for p in gt.stats()) == calls


def test_inputs_that_are_results_are_no_further_memory():
    x = gt.ShapeDtypeStruct(1000, "float32")
    predicted = gt.peak_memory(lambda x: (x, x), x)
    assert (predicted.inputs, predicted.outputs, predicted.peak) == (4000, 0, 4000)


# what notebooks show


class Checker(html.parser.HTMLParser):
    """Every element is closed, in the right order; nothing comes from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.tags = [], [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not {"src", "onclick"} & dict(attrs).keys()
        assert dict(attrs).get("href", "#").startswith("#")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def checked(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    return checker


PROGRAM = ProgramStats(
    signature="abc123def456", structural="def", ops=("mul",), tier="failed", interpreted_calls=2,
    interpreted_seconds=0.5, compiled_calls=0, compiled_seconds=0.0, compile_seconds=0.0, expected_compile_seconds=1.0,
    break_even_calls=None, saved_seconds=None, reason="", verdict="failed: <b>no</b> & never",
)  # fmt: skip


def test_stats_print_as_a_table_and_have_a_short_repr():
    stats = Stats([PROGRAM, attrs.evolve(PROGRAM, signature="0" * 12)], 0)
    assert repr(stats) == "<Stats of 2 programs; print it for the table>"
    lines = str(stats).splitlines()
    assert "verdict" in lines[1]
    assert "abc123def456" in lines[3]
    assert lines[-1] == "2 programs, 4 calls, 0 compiles"
    assert "\x1b" not in str(stats)
    text = checked(stats._repr_html_())
    assert "failed: <b>no</b> & never" in text.texts, "escaped"
    assert "b" not in text.tags


def test_an_empty_table():
    assert str(Stats([], 0)) == "gtrace: no program ran"
    checked(Stats([], 0)._repr_html_())


def test_an_explanation_is_a_page_of_its_own():
    step = gt.jit(lambda x, y: gt.softmax(x @ y) + (x @ y), backend="eager")
    gt.eval(step(gt.ones((3, 3)), gt.ones((3, 3)))), (line := here())
    explanation = gt.explain(step)
    page = checked(explanation.to_html())
    assert {"html", "head", "title", "body", "table"} <= page.tags
    texts = "".join(page.texts)
    assert "matmul(%0, %1)" in texts and "softmax(" in texts
    first = int(line.rpartition(":")[2]) - 1
    assert texts.count(f"{__file__}:{first}") >= 3, "each operation has its line"
    assert explanation.program.signature[:12] in texts
    checked(explanation._repr_html_())


def test_an_explanation_of_several_programs_has_a_table_of_them():
    def layers(x):
        for _ in range(40):
            x = gt.tanh(x @ x) * 2 + gt.sin(x)
        return x.sum()

    step = gt.jit(layers, backend="eager")
    gt.eval(step(gt.ones((5, 5))))
    explanation = gt.explain(step)
    assert len(explanation.programs) > 1
    page = checked(explanation.to_html())
    for part in explanation.programs:
        assert part.program.signature[:12] in "".join(page.texts)


def picture_of(page):
    """Return the SVG elements of a page, parsed as XML."""
    return [
        ElementTree.fromstring(text)
        for text in re.findall(r'<div class="graph">(<svg.*?</svg>)</div>', page, re.DOTALL)
    ]


def of_class(svg, name):
    return [item for item in svg.iter("g") if name in item.get("class", "").split()]


def words(item):
    return [text.text for text in item.iter("text")]


def test_a_program_is_drawn_with_its_regions_as_boxes():
    def body(c, x):
        return gt.tanh(c @ c + x), c.sum()

    step = gt.jit(lambda c, xs: gt.exp(gt.scan(body, gt.sin(c) * 2 + 1, xs)[0]).sum() * 3 + 1, backend="eager")
    c, xs = gt.ones((4, 4)), gt.ones((5, 4, 4))
    gt.eval(step(c, xs))
    with gt.profile() as p:
        gt.eval(step(c, xs))
    (svg,) = picture_of(gt.explain(step).to_html(p))
    boxes, nodes, edges = (of_class(svg, name) for name in ("region", "node", "edge"))
    assert [box.get("class") for box in boxes] == ["region compiled", "region interpreted", "region compiled"]
    assert all(re.search(r", .* a call$", *words(box)) for box in boxes), "each region has its time"
    drawn = [words(node)[0] for node in nodes]
    assert drawn == ["%0", "sin", "mul", "add", "%1", "scan", "exp", "sum", "mul", "add"]
    assert len(edges) == 9, "one for each value that an operation takes"
    operations = [node for node in nodes if "input" not in node.get("class").split()]
    assert all(f"{__file__}:" in node.find("title").text for node in operations), "the line of each is shown on it"
    assert [words(node)[0] for node in of_class(svg, "returned")] == ["add"]
    # each operation is below those whose values it takes, and inside its box
    tops = [float(node.find("rect").get("y")) for node in nodes]
    assert tops == sorted(tops)
    ends = [float(box.find("rect").get("y")) + float(box.find("rect").get("height")) for box in boxes]
    assert tops[3] < ends[0] < tops[4] < ends[1] < tops[6] < ends[2]


def long_page():
    def long(x, w):
        for k in range(250):
            x = x + gt.tanh(x @ w) * (0.1 + 0.001 * k)
        return x

    step = gt.jit(long, backend="eager")
    gt.eval(step(gt.ones((3, 3)), gt.ones((3, 3))))
    explanation = gt.explain(step)
    assert sum(len(part.graph.nodes) for part in explanation.programs) == 1000
    return explanation.to_html()


@pytest.mark.slow
def test_a_program_of_a_thousand_operations_is_folded():
    page = long_page()
    checked(page)
    pictures = picture_of(page)
    assert max(len(of_class(svg, "node")) for svg in pictures) <= 2 * drawing.MAX_NODES
    whole = pictures[0]
    assert 2 <= len(of_class(whole, "node")) <= drawing.MAX_BOXES
    counts = [int(words(node)[0].split()[0]) for node in of_class(whole, "node")]
    assert sum(counts) == 1000
    links = [a.get("href").removeprefix("#") for a in whole.iter("a")]
    assert len(links) == len(counts) and len(set(links)) == len(links)
    assert all(page.count(f'id="{link}"') == 1 for link in links)


@pytest.mark.skipif(browser.BROWSER is None, reason="no browser")
def test_a_drawn_program_works_in_a_browser(tmp_path):
    probe = """<script>
    const svg = document.querySelector(".graph svg"), box = svg.getBoundingClientRect();
    const seen = [...svg.querySelectorAll(".node")].map(node => node.getBoundingClientRect());
    const apart = seen.every((a, j) => seen.every((b, k) => j <= k || a.right <= b.left || b.right <= a.left
      || a.bottom <= b.top || b.bottom <= a.top));
    const inside = seen.every(a => a.left >= box.left && a.right <= box.right && a.bottom <= box.bottom);
    const fits = [...svg.querySelectorAll(".node")].every(node => [...node.querySelectorAll("text")].every(
      text => text.getBBox().width <= node.querySelector("rect").getBBox().width));
    const fills = new Set([...svg.querySelectorAll(".region rect")].map(rect => getComputedStyle(rect).fill));
    location.hash = svg.querySelector("a").getAttribute("href");
    setTimeout(() => {
      const name = svg.querySelector("a").getAttribute("href").slice(1);
      const opened = document.getElementById(name).closest("details").open;
      const output = document.createElement("pre");
      output.id = "results";
      output.textContent = JSON.stringify({ nodes: seen.length, apart, inside, fits, fills: [...fills], opened });
      document.body.append(output);
    }, 200);
    </script></body>"""
    (tmp_path / "page.html").write_text(long_page().replace("</body>", probe))
    results = browser.browse(tmp_path)
    assert results["nodes"] > 1
    assert results["apart"] and results["inside"] and results["fits"]
    assert results["fills"] == ["rgb(234, 246, 238)"], "compiled"
    assert results["opened"], "a link to what is folded opens it"


def test_values_that_regions_pass_on_have_the_numbers_of_the_whole_program():
    def body(c, x):
        return gt.sin(c) @ x, None

    step = gt.jit(lambda c, xs: gt.exp(gt.scan(body, gt.sin(c) * 2 + 1, xs)[0]).sum() * 3 + 1, backend="eager")
    gt.eval(step(gt.ones((300, 300)), gt.ones((2, 300, 300))))
    explanation = gt.explain(step)
    assert "pays" not in str(explanation), "it was never interpreted"
    page = explanation.to_html()
    regions = re.findall(r"<b>(?:compiled|interpreted).*?takes (.*?); gives (.*?)<(.*?)</details>", page)
    assert len(regions) == 2
    for taken, given, text in regions:
        made = re.findall(r"<code>(%\d+):", text)
        assert set(given.split(", ")) <= set(made)
        assert not set(taken.split(", ")) & set(made)
    assert regions[0][1] in re.search(r"scan\((.*?)\)", page)[1], "the loop takes what the first region gives"


@pytest.mark.slow
def test_rich_is_imported_when_a_table_is_printed():
    code = (
        "import sys, gtrace as gt; s = gt.stats(); repr(s); gt.memory(); gt.profile();"
        " print('rich' in sys.modules); str(s); print('rich' in sys.modules)"
    )
    with launch.from_scratch():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
