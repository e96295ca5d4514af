"""Tensors of the store as files of safetensors, and back. A file has one tensor, named by its key."""

import logging

import torch

from nanokv.integrations.mooncake.codes import Code
from nanokv.integrations.mooncake.parallelism_layout import text_given
from nanokv.integrations.mooncake.tensor_values import TensorValues
from nanokv.integrations.mooncake.values import PLAIN, key_bytes

logger = logging.getLogger(__name__)

FILE_NOT_FOUND = -1100  #: of Mooncake's codes


class SafeTensors(TensorValues):
    """The package `safetensors` has to be installed; without it the calls fail as for a file that cannot be used."""

    def save_tensor_to_safetensor(self, key: str, file_name: object = None) -> int:
        """Write a tensor to a file, which is named as the key if no name is given: 0 or a code.

        FILE_NOT_FOUND: the key has no tensor. INVALID_PARAMS: the file cannot be written, or the client is not set up.

        Raises:
            RuntimeError: `file_name` is no str.
        """
        name = key_bytes(key)
        path = text_given(name if file_name is None else file_name)
        if not self._ready():
            return Code.INVALID_PARAMS
        tensor = self._tensor(name)
        if tensor is None:
            return FILE_NOT_FOUND
        try:
            from safetensors.torch import save_file

            save_file({text_given(name): tensor}, path)
        except Exception as error:  # safetensors has errors of its own, and the system's
            logger.error("NanoKV: tensor %r cannot be written to %r: %s", key, path, error)
            return Code.INVALID_PARAMS
        return Code.OK

    def load_tensor_from_safetensor(self, key: object = None, file_name: object = None) -> torch.Tensor | None:
        """Read the tensor of a file, which has to be named, and store it.

        It is stored under the key, or without one under the name of the file; a key that exists keeps its value. If the
        file has no tensor of the key's name, its first one is taken.

        Returns:
            The tensor of the file; None if the file cannot be read, or its tensor not stored.

        Raises:
            RuntimeError: `key` is no str.
            TypeError: `file_name` is no str.
        """
        if not isinstance(file_name, str | bytes):
            raise TypeError(f"incompatible function arguments: file_name must be a str, not {file_name!r}")
        path = text_given(file_name)
        name = path if key is None else text_given(key)
        if not self._ready():
            return None
        tensor = _loaded(path, name)
        if tensor is None:
            return None
        code = self._put_tensor(name.encode(), tensor, PLAIN, replace=False)
        if code:
            logger.error("NanoKV: the tensor of file %r is not stored as %r: code %d", path, name, code)
        return None if code else tensor


def _loaded(path: str, name: str) -> torch.Tensor | None:
    """The tensor of a name in a file, or the first one of the file."""
    try:
        from safetensors.torch import load_file

        tensors: dict[str, torch.Tensor] = load_file(path)
    except Exception as error:  # safetensors has errors of its own, and the system's
        logger.error("NanoKV: file %r cannot be read: %s", path, error)
        return None
    if not tensors:
        logger.error("NanoKV: file %r has no tensors", path)
        return None
    if name not in tensors and name != path:
        logger.warning("NanoKV: file %r has no tensor %r: its first one is taken", path, name)
    return tensors.get(name, next(iter(tensors.values())))
