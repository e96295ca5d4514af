"""`MooncakeDistributedStore`: all calls of a client, put together from the files beside this one."""

from nanokv.integrations.mooncake.client import Client
from nanokv.integrations.mooncake.tensors import Tensors


class MooncakeDistributedStore(Client, Tensors):
    """A client of a store: see `Client.setup`. Its calls answer with integers, 0 for success, as the real ones."""
