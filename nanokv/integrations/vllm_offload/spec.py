"""`NanoKVOffloadingSpec`: what `OffloadingConnector` loads by `spec_name` and `spec_module_path`.

The engine's scheduler and each of its workers join one NanoKV world on their host, each as a rank of its own.
"""

from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from nanokv.errors import InvalidArgument
from nanokv.integrations.joining import join
from nanokv.integrations.vllm_offload.counts import definitions
from nanokv.integrations.vllm_offload.identity import identity_of
from nanokv.integrations.vllm_offload.manager import NanoKVOffloadingManager
from nanokv.integrations.vllm_offload.settings import OF_A_SPEC, split, with_room_for
from nanokv.integrations.vllm_offload.worker import NanoKVOffloadingWorker

PREFIX = "nanokv."


class NanoKVOffloadingSpec(OffloadingSpec):
    """Offloads an engine's blocks to a NanoKV world of its host.

    Settings are those of `nanokv.integrations.joining.Settings`, and model, revision and threads, in
    `kv_connector_extra_config`, each after `nanokv.`.

    Raises:
        InvalidArgument: a setting is wrong, or the engine is of a kind that is not supported; it says which.
    """

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Counters of chunks: see `counts.py`."""
        return definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        _check_supported(config)
        given = {
            name.removeprefix(PREFIX): value for name, value in config.extra_config.items() if name.startswith(PREFIX)
        }
        self._own, settings = split(given, OF_A_SPEC)
        if settings.cluster:
            raise InvalidArgument("a cluster needs the tier, NanoKVTier: a spec's objects are read in place")
        nbytes = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
        self._settings = with_room_for(nbytes, settings)
        self._identity = identity_of(
            config, kind="chunk", nbytes=nbytes, model=self._own.model, revision=self._own.revision
        )
        self._manager: NanoKVOffloadingManager | None = None
        self._worker: NanoKVOffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's side, the same at each call."""
        if self._manager is None:
            self._manager = NanoKVOffloadingManager(
                join(self._settings, self._identity),
                self.config.parallel.world_size,
                events=self.kv_events_config.enable_kv_cache_events,
            )
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """A worker's side, the same at each call."""
        if self._worker is None:
            self._worker = NanoKVOffloadingWorker(
                join(self._settings, self._identity),
                kv_caches,
                self.blocks_per_chunk,
                self.config.parallel.rank,
                self._own.threads,
            )
        return self._worker


def _check_supported(config: OffloadingConfig) -> None:
    if config.parallel.pp_size > 1:
        raise InvalidArgument("pipeline parallelism is not supported: stages offload different layers. Use NanoKVTier")
    if config.canonical_layout:
        raise InvalidArgument("canonical_layout is not supported: objects hold a worker's pages as they are")
