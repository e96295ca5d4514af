"""The plan of a session on a GPU that is at hand for half an hour: `python -m bench.gpu.plan` prints it.

A GPU is scarce, and a first run on silicon fails somewhere. So the order is: what must be right, then what is measured,
then what is only of interest; nothing waits for a person in between, and a part that hangs costs its limit and no more.

1. `make test-gpu`, whole, in one go: the parts below. It takes less than ten minutes, also if every part hangs.
2. Compare with the model of the time: `python -m bench.gpu.model --measured bench/results/gpu.json`.
3. Mend what failed. `python -m tests.gpu --only NAME` runs one group, body or benchmark again.
4. With what is left, in this order: `make test-gpu` once more if a fix touched a kernel; `--only sweep`; a second kind
   of GPU, if there is one.
5. Commit bench/results/gpu.json, and replace "not measured" in README.md, docs/gpu.md and docs/benchmarks.md.

Before the GPU is taken, everything that needs none has run: `make test-all` compiles every kernel for it and runs the
compiled code.
"""

from typing import NamedTuple


class Part(NamedTuple):
    """Some bodies or benchmarks, with the seconds that they may take, the compilation of kernels included."""

    name: str
    seconds: int
    what: str


#: groups of bodies: one process each, all at once, since most of their time is compilation
BODIES_SECONDS = 230
LITMUS_SECONDS = 40

#: benchmarks: one process each, one after the other, on a GPU that does nothing else
LIMITS = {
    "many": 75,
    "single": 45,
    "produce": 75,
    "announce": 75,
    "versions": 75,
    "sweep": 75,
    "symmetric": 45,
}
ALL_SECONDS = 290  #: for all benchmarks; one that would begin later is skipped
LEAST_SECONDS = 10  #: a benchmark begins only if so many are left
TOY_SECONDS = 280  #: for each, interpreted

PARTS = (
    Part("bodies", BODIES_SECONDS, "every device function and kernel, on real segments; all groups at once"),
    Part("litmus", LITMUS_SECONDS, "the orderings that the protocol rests on, two million instances of each shape"),
    Part("bench", ALL_SECONDS, f"benchmarks, the most telling first: {', '.join(LIMITS)}"),
)


def main() -> None:
    """Print the parts."""
    for part in PARTS:
        print(f"{part.name:8} {part.seconds:4} s  {part.what}")
    print(f"{'all':8} {sum(part.seconds for part in PARTS):4} s  at most; then the steps in bench/gpu/plan.py")


if __name__ == "__main__":
    main()
