"""How much is measured."""

from dataclasses import dataclass

from nanokv.bench.suite.settings import KIB, MIB


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Counts and choices of one run on a GPU.

    Attributes:
        sizes: payload bytes of objects, multiples of 16.
        objects: objects per launch of put_many and get_many.
        laps: launches of each kind per size, each with keys that were never used.
        warm: rounds of each kind before the first one that counts.
        page_bytes: bytes per page, except for `produce`.
        single_bytes, single_laps: bytes of the object that is put from a graph, and how often.
        single_sources: places that it is put from in turn; together larger than any L2 cache.
        chain: puts in one graph, one after the other.
        ctas: numbers of CTAs that produce at once.
        step_ctas: the same, where every step of a put is timed.
        inside: bytes of objects that a kernel puts and gets; 0: without payload.
        inside_source: bytes of the sources that its CTAs take in turn.
        pairs: pairs of allocating and freeing per launch, by all CTAs together.
        max_rounds: pairs at most per CTA.
        produce_repeats: launches of each kind.
        produce_page_bytes: bytes per page for `produce`, which fills no page.
        sweep_sizes, sweep_laps: sizes and laps of the sweeps.
        sweep_ctas: CTAs per multiprocessor.
        sweep_tiles: words per tile, for the plain copy.
        sweep_warps: warps per CTA, for the plain copy.
        version_rounds: puts of each size by v1 and v2.
        awake_puts, asleep_puts: timed announcements to a poller that is awake, and to one that sleeps.
        ingest_ctas, ingest_objects: CTAs that put at full speed, and objects of each launch.
        tokens: tokens of one write into an engine's cache.
        write_layers: layers of that cache, which take turns; together larger than any L2 cache.
        write_laps: writes of each kind.
        lookups: keys of a launch that finds and of one that removes.
        lookup_laps: launches of each kind.
        pair_sizes, pair_rounds: bytes and number of objects that one process puts and another gets.
        probe_bytes: of the copy that is the ceiling. probe_rounds: repetitions of each thing that is probed.
        order_stores: stores of 512 bytes before an ordered access.
        handshakes: handshakes of host and GPU, to compare their clocks.
        matmul: rows and columns of the matrices that keep the GPU busy.
        matmuls: products that are launched at a time.
    """

    sizes: tuple[int, ...] = (512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB)
    objects: int = 256
    laps: int = 50
    warm: int = 3
    page_bytes: int = 256 * KIB
    single_bytes: int = 2 * MIB
    single_laps: int = 1000
    single_sources: int = 64
    chain: int = 16
    ctas: tuple[int, ...] = (1, 8, 32, 132, 264, 528, 1056)
    step_ctas: tuple[int, ...] = (1, 132, 1056)
    inside: tuple[int, ...] = (0, 4 * KIB, 16 * KIB, 64 * KIB)
    inside_source: int = 256 * MIB
    pairs: int = 32_768
    max_rounds: int = 2048
    produce_repeats: int = 5
    produce_page_bytes: int = 4 * KIB
    sweep_sizes: tuple[int, ...] = (512 * KIB, 8 * MIB)
    sweep_laps: int = 10
    sweep_ctas: tuple[int, ...] = (2, 4, 8, 16, 32)
    sweep_tiles: tuple[int, ...] = (512, 1024, 2048, 4096)
    sweep_warps: tuple[int, ...] = (1, 2, 4)
    version_rounds: int = 200
    awake_puts: int = 1000
    asleep_puts: int = 50
    ingest_ctas: tuple[int, ...] = (1, 132, 1056)
    ingest_objects: int = 32_768
    tokens: tuple[int, ...] = (128, 4096)
    write_layers: int = 32
    write_laps: int = 96
    lookups: tuple[int, ...] = (1, 32, 256, 1024)
    lookup_laps: int = 100
    pair_sizes: tuple[int, ...] = (64 * KIB, MIB, 8 * MIB)
    pair_rounds: int = 200
    probe_bytes: int = 1 << 30
    probe_rounds: int = 300
    order_stores: tuple[int, ...] = (0, 1, 16)
    handshakes: int = 500
    matmul: int = 8192
    matmuls: int = 8


def toy() -> GpuSettings:
    """Little enough for Triton's interpreter: shows that everything works; the figures mean nothing."""
    return GpuSettings(
        sizes=(12 * KIB,),
        objects=2,
        laps=1,
        warm=1,
        page_bytes=4 * KIB,
        single_bytes=20 * KIB,
        single_laps=2,
        single_sources=2,
        chain=2,
        ctas=(2,),
        step_ctas=(2,),
        inside=(0, 8 * KIB),
        inside_source=32 * KIB,
        pairs=2,
        max_rounds=1,
        produce_repeats=1,
        sweep_sizes=(16 * KIB + 16,),
        sweep_laps=2,
        sweep_ctas=(2,),
        sweep_tiles=(512,),
        sweep_warps=(1,),
        version_rounds=3,
        awake_puts=3,
        asleep_puts=2,
        ingest_ctas=(2,),
        ingest_objects=6,
        tokens=(16,),
        write_layers=2,
        write_laps=1,
        lookups=(3,),
        lookup_laps=2,
        pair_sizes=(12 * KIB,),
        pair_rounds=3,
        probe_bytes=1 << 20,
        probe_rounds=3,
        order_stores=(0, 1),
        handshakes=3,
        matmul=16,
        matmuls=1,
    )
