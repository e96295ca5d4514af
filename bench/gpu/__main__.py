"""`python -m bench.gpu [NAME...]`: run benchmarks on a GPU, print the targets, write JSON."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nanokv.bench.gpu.plan import LIMITS
from nanokv.bench.gpu.runner import about, judged, run_all, run_child


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write. Exit code 1 if a benchmark failed, 2 if the arguments are wrong; 0 despite missed targets."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="NanoKV's benchmarks on a GPU.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIMITS)}; default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--toy", action="store_true", help="little, with TRITON_INTERPRET=1 and --device cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there, after each benchmark")
    parser.add_argument("--commit", help="of this checkout, where there is no git")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    wrong = [name for name in given.names if name not in LIMITS]
    if wrong:
        parser.error(f"no benchmark is called {', '.join(wrong)}; there are {', '.join(LIMITS)}")
    if given.child:
        return run_child(given.names[0], given.device, given.child, is_toy=given.toy)
    where = about(given.device, is_toy=given.toy, at=given.commit)
    results = []
    for result in run_all(given.device, given.names, is_toy=given.toy):
        results.append(result)
        print("ok" if result["ok"] else "FAILED", result["name"], f"{result['seconds']} s", result["note"], flush=True)
        if given.json:
            done = where | {"results": results, "targets": judged(results)}
            given.json.write_text(json.dumps(done, indent=1) + "\n", encoding="utf-8")
    for target in judged(results):
        sign, mark = ("≥" if target["at_least"] else "≤"), ("reached" if target["reached"] else "NOT REACHED")
        print(f"{mark}: {target['what']}: {target['measured']:.2f} {sign} {target['limit']:g} {target['unit']}")
    return 0 if all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
