"""Writes expected.json, the numbers of the quickstarts on JAX itself: python tests/ecosystem/expect.py [LIBRARY ...]

It runs in an environment with JAX and the libraries. A number under "sampled ~b" is compared up to b.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
EXPECTED = HERE / "expected.json"


def main(names):
    table = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    for script in sorted((HERE / "quickstarts").glob("try_*.py")):
        name = script.stem.removeprefix("try_")
        if names and name not in names:
            continue
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
        table[name] = {part: [float(f"{x:.9g}") for x in numbers] for part, numbers in lines}
        print(f"{name}: {len(lines)} parts", flush=True)
    lines = [f" {json.dumps(name)}: {json.dumps(table[name])}" for name in sorted(table)]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
