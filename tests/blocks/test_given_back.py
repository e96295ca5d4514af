"""What is given back: by calls, by the last reference, with the manager, and not by a fork."""

import copy
import gc
import os
import pickle
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from torch.utils.dlpack import from_dlpack

import nanokv
from nanokv.blocks import BlockManager
from nanokv.blocks.manager import PoolStatus
from nanokv.errors import CacheClosed, InvalidArgument, NanoKVError
from tests.blocks.conftest import (
    LAYOUT,
    PAGE,
    NewPool,
    block_of,
    cached,
    completed,
    hash_of,
    registered,
    taken,
)
from tests.support.until import until

KVBM = "KVBM block manager"


# --- what is given back without a call ---
def test_the_last_reference_gives_a_block_back(new_pool: NewPool) -> None:
    pool = new_pool(8)
    handles: list[Any] = [taken(pool, 1)[0], completed(pool, block_of(0)), registered(pool, block_of(1))]
    handles.append(handles[-1].clone())
    assert pool.status() == PoolStatus(8, 5, 2, 1, 0)
    del handles[2]
    gc.collect()
    assert pool.status().active == 1
    handles.clear()
    gc.collect()
    assert pool.status() == PoolStatus(8, 7, 0, 0, 1)


def test_a_dropped_handle_takes_no_lock(new_pool: NewPool) -> None:
    pool = new_pool(8)
    blocks = taken(pool, 2)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with pool._lock:
            held.set()
            done.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    blocks.clear()  # would wait for `hold`, if it took the lock
    gc.collect()
    assert len(pool._dropped) == 2
    done.set()
    other.join()
    assert pool.status().filling == 0


def test_a_view_keeps_its_block(new_pool: NewPool) -> None:
    pool = new_pool(2)
    cached(pool, 0, 1)
    (block,) = pool.match_blocks([hash_of(1)])
    (mutable,) = taken(pool, 1)
    views: list[Any] = [from_dlpack(block[0]), np.from_dlpack(mutable)]
    del block, mutable
    gc.collect()
    assert pool.status() == PoolStatus(2, 0, 1, 1, 0) and float(views[0].mean()) == 1.0
    views.clear()
    gc.collect()
    assert pool.status() == PoolStatus(2, 1, 0, 0, 1)


def test_with_gives_a_block_back(new_pool: NewPool) -> None:
    pool = new_pool(2)
    with taken(pool, 1)[0] as block:
        assert pool.status().filling == 1
    assert pool.status().filling == 0 and not block.valid
    with registered(pool, block_of(0)) as immutable, immutable.clone():
        assert pool.status().active == 1
    assert pool.status().inactive == 1


def test_closing_gives_back_all_but_registered_blocks(new_pool: NewPool) -> None:
    pool = new_pool(8)
    kept: list[Any] = [taken(pool, 2), completed(pool, block_of(0)), registered(pool, block_of(1))]
    kept += [kept[-1].clone(), registered(pool, block_of(1))]
    pool.close()
    pool.close()
    with BlockManager(pool.cache, LAYOUT) as other:
        assert other.status() == PoolStatus(8, 7, 0, 0, 1)
    with pytest.raises(CacheClosed):
        pool.status()
    kept.clear()
    gc.collect()


def test_closing_the_cache_closes_the_manager() -> None:
    (cache,) = nanokv.local_world(1, 8 * PAGE, page_bytes=PAGE, evict=False)
    pool = BlockManager(cache, LAYOUT)
    blocks: list[Any] = [*taken(pool, 2), registered(pool, block_of(0))]
    cache.close()
    with pytest.raises(CacheClosed):
        pool.allocate_blocks(1)
    blocks[0].drop()
    pool.close()
    with pytest.raises(CacheClosed):
        BlockManager(cache, LAYOUT)


def test_a_block_that_took_too_long_is_registered_all_the_same(new_pool: NewPool) -> None:
    pool = new_pool(2, world={"write_timeout": 0.05})
    complete = completed(pool, block_of(0), 4.0)
    slow = taken(pool, 1)[0]
    until(lambda: pool.cache.stats()["quarantined_pages"] == 2)  # the sweeper gave both up
    assert pool.status() == PoolStatus(2, 0, 2, 0, 0)
    block = complete.register()
    slow.drop()
    assert float(block.tensor.mean()) == 4.0
    until(lambda: pool.status() == PoolStatus(2, 1, 0, 1, 0))


def test_a_fork_cannot_use_a_pool_and_takes_nothing_away(new_pool: NewPool) -> None:
    pool = new_pool(4)
    block = registered(pool, block_of(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork with threads
        child = os.fork()
    if not child:
        code = 1
        try:
            block.drop()
            pool.status()
        except NanoKVError as error:
            code = "is a fork" not in str(error)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert pool.status() == PoolStatus(4, 3, 0, 1, 0) and block.valid


def test_a_handle_is_not_copied(new_pool: NewPool) -> None:
    block = registered(new_pool(4), block_of(0))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidArgument, match="clone"):
            copied(block)
