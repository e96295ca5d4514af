"""`python -m tests.gpu`: the bodies on the first GPU, without pytest.

With TRITON_INTERPRET=1 and `--device cpu` they are interpreted. Prints a line a body, and ends with 1 if one failed.
"""

import argparse
import sys
import time
import traceback

import torch

from tests.gpu.bodies import BODIES


def main() -> int:
    """Run the bodies; 0 if all passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that torch can use")
        return 1
    failed = 0
    for body in BODIES:
        if chosen.only in (None, body.__name__):
            start = time.perf_counter()
            try:
                body(torch.device(chosen.device))
                print(f"ok {body.__name__} {time.perf_counter() - start:.1f} s", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED {body.__name__}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
