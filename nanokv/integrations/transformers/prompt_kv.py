"""The KV of some prompts: a DynamicCache that knows the tokens it holds, so that its blocks have keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import DynamicCache

from nanokv.errors import InvalidArgument

if TYPE_CHECKING:
    from nanokv.integrations.transformers.blocks import PromptTarget


# --- the attention mask and the positions that prompts have: any others, and the KV is not that of their tokens ---
# The answers are tensors on the device of the arguments, so that nothing waits for a GPU until they are looked at.
def unexpected_mask(mask: Any, pads: list[int], columns: int) -> torch.Tensor | bool:
    """Whether an attention mask hides other tokens than the leading `pads` of each row.

    Args:
        mask: None, or [rows, columns], 0 or False for what is hidden.
        columns: tokens held and new ones.
    """
    if mask is None:
        return any(pads)
    if not isinstance(mask, torch.Tensor) or mask.shape != (len(pads), columns):
        return True
    if not any(pads):
        return ~(mask != 0).all()
    first = torch.tensor(pads, device=mask.device)[:, None]
    return ((mask != 0) != (torch.arange(columns, device=mask.device) >= first)).any()


def unexpected_positions(positions: Any, pads: list[int], past: int, new: int) -> torch.Tensor | bool:
    """Whether a token has another position than its number in its row, pads not counted. A pad may have any.

    Args:
        positions: None, for those after the `past` tokens held; or [rows or 1, new].
    """
    if positions is None:
        return any(pads)
    if not isinstance(positions, torch.Tensor) or positions.shape not in ((len(pads), new), (1, new)):
        return True
    columns = torch.arange(past, past + new, device=positions.device)
    if not any(pads):
        return (positions != columns).any()
    first = torch.tensor(pads, device=positions.device)[:, None]
    return ((positions != columns - first) & (columns >= first)).any()


# --- the prompt kv ----------------------------------------------------------------------------
@dataclass(slots=True)
class RowKeys:
    """A row's leading pads, and the keys of its first blocks, as far as they were computed."""

    pads: int
    keys: list[bytes] = field(default_factory=list)


class Prefixes(Protocol):
    """What a PromptKV knows of its `PrefixCache`: for which model it is, and how its blocks are stored."""

    model: Any
    eager: bool
    block_tokens: int

    def check_unchanged(self) -> None:
        """Raises InvalidArgument if the model has changed."""

    def store_new(self, kv: PromptKV, rows: Sequence[RowKeys], target: PromptTarget) -> int:
        """Put the blocks that are new, and note their keys in `rows`; returns how many were stored."""


class PromptKV(DynamicCache):
    """The `past_key_values` of one batch of prompts, made and filled by `PrefixCache.load`.

    It may be used for several calls of `generate`, of which each continues the text, and in loops that call the model.
    Beams, repeated and selected rows, and `crop` move its tokens with their KV.

    Attributes:
        tokens_reused: prompt tokens whose KV was read, in all rows.
        settled: keys of blocks that were read or put.
    """

    def __init__(
        self, prefixes: Prefixes, layers: list[Any], prompt: torch.Tensor, rows: list[RowKeys], target: PromptTarget
    ) -> None:
        super().__init__()
        self.layers, self.layer_class_to_replicate = layers, None
        self._prefixes = prefixes
        self._prompt = prompt  #: [rows, tokens] as given, on the model's device
        self._rows = rows
        self._target = target
        self._tokens = prompt[:, :0]  #: [rows, tokens] whose KV is held
        self._unexpected: torch.Tensor | bool = False  #: a call had another mask or other positions
        self._rows_are_beams = False
        self._caller: dict[str, int] = {}  #: the thread in which its model is at work, if it is: changes are atomic
        self.settled: set[bytes] = set()
        self.tokens_reused = 0

    @property
    def tokens(self) -> torch.Tensor:
        """The token ids whose KV is held, [rows, tokens], leading pads included; on the model's device."""
        return self._tokens

    @property
    def tokens_held(self) -> int:
        """How many tokens of each row are held, leading pads included."""
        return int(self._tokens.shape[1])

    @property
    def prompt_length(self) -> int:
        """Tokens of each row's prompt, leading pads included."""
        return int(self._prompt.shape[1])

    def fill(self, planes: torch.Tensor, read: list[list[bytes]]) -> None:
        """Take the KV of the first prompt tokens, [layers, 2, rows, heads, tokens, head_dim]; `read`: keys of a row."""
        held = planes.shape[4]
        for layer, (keys, values) in zip(self.layers, planes, strict=True):
            layer.update(keys, values)
        self._tokens = self._prompt[:, :held]
        self.settled.update(*read)
        self.tokens_reused = sum(max(held - row.pads, 0) for row in self._rows)

    def store(self) -> int:
        """Put every whole block that is not stored yet; returns how many were stored.

        What could not be stored is counted in the `stats` of the PrefixCache, and not tried again.

        Raises:
            InvalidArgument: this holds other KV than that of its tokens: nothing was stored.
        """
        _refuse(self._unexpected)
        self._check_lengths()
        return self._prefixes.store_new(self, self._rows, self._target)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Take the KV of new tokens in a layer: for the model, in a call of its own.

        Raises:
            InvalidArgument: another model calls, which knows nothing of this: its KV is none of these tokens' KV.
        """
        if self._caller.get("thread") != get_ident():
            raise InvalidArgument(
                "this PromptKV was made for another model than the one that fills it, or only a part of its model was "
                "called: take the PrefixCache of the model, and call that as a whole"
            )
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    # --- calls of the model ---
    def begin(self, model: Any, ids: torch.Tensor, mask: Any, positions: Any) -> None:
        """Before the model computes the KV of `ids`.

        Raises:
            InvalidArgument: the KV would not be that of these tokens, at their positions, after those held.
        """
        if model is not self._prefixes.model:
            raise InvalidArgument("this PromptKV was made for another model")
        if self._caller.setdefault("thread", get_ident()) != get_ident():
            raise InvalidArgument("another thread is using this PromptKV: each needs one of its own")
        self._check_lengths()
        repeats = self._repeats(len(ids))
        past, new = self.tokens_held, ids.shape[1]
        if self._rows_are_beams and new > 1:
            raise InvalidArgument("after beam search the rows are its last beams: load a PromptKV for the longer text")
        pads = [row.pads for row in self._rows for _ in range(repeats)]
        found = unexpected_mask(mask, pads, past + new), unexpected_positions(positions, pads, past, new)
        if new > 1 or past < self.prompt_length:  # a prompt: look at once, before anything is generated from it
            self._prefixes.check_unchanged()
            self._check_prompt(ids, repeats, unexpected=bool(found[0] | found[1]))
        elif any(each is True for each in found):  # of another shape, which shows without waiting for a GPU
            self._check_prompt(ids, repeats, unexpected=True)
        else:
            self._unexpected = self._unexpected | found[0] | found[1]
        if repeats > 1:
            self.batch_repeat_interleave(repeats)

    def give_up(self) -> None:
        """A call of this thread has raised, maybe before it began. What it has left is found by its length."""
        if self._caller.get("thread") == get_ident():
            self._caller.clear()

    def end(self, ids: torch.Tensor) -> None:
        """After the model has computed the KV of `ids`: record them, and store blocks that are full now."""
        self._caller.clear()
        before, self._tokens = self._tokens, torch.cat((self._tokens, ids), dim=1)
        self._check_lengths()
        if self._prefixes.eager and self._blocks(self.tokens_held) > self._blocks(before.shape[1]):
            self.store()

    def _blocks(self, held: int) -> int:
        return sum(max(held - row.pads, 0) // self._prefixes.block_tokens for row in self._rows)

    def _repeats(self, rows: int) -> int:
        """How often `generate` has repeated each prompt, for beams and for several answers."""
        held = len(self._rows)
        if rows != held and (rows % held or self.tokens_held > self.prompt_length):
            raise InvalidArgument(f"{rows} rows for a PromptKV of {held}")
        return rows // held

    def _check_prompt(self, ids: torch.Tensor, repeats: int, *, unexpected: bool) -> None:
        """Refuse tokens that are not those of the prompt, or whose mask or positions are unexpected, and say why."""
        past = self.tokens_held
        rest = self._prompt[:, past : past + ids.shape[1]].repeat_interleave(repeats, 0)
        are_those = torch.equal(ids[:, : rest.shape[1]], rest)
        if are_those and not unexpected:
            return
        again = min(past, ids.shape[1])
        if again and torch.equal(ids[:, :again], self._tokens[:, :again].repeat_interleave(repeats, 0)):
            raise InvalidArgument(
                f"the model was called with {again} tokens that are held, once more. With a PromptKV that is filled "
                "assisted decoding does so (`reset` it before), and so do `use_cache=False` and, in some versions of "
                "transformers (5.19), `prefill_chunk_size`: leave them out. Or no token is left to compute: `crop(-1)`"
            )
        if not are_those:
            raise InvalidArgument(f"the tokens from number {past} on are not those of the prompt that was loaded")
        _refuse(unexpected)

    def _check_lengths(self) -> None:
        """A call that failed, or one that was not seen, leaves KV whose tokens are not known."""
        lengths = {layer.get_seq_length() for layer in self.layers}
        if lengths != {self.tokens_held}:
            raise InvalidArgument(
                f"the layers hold {sorted(lengths)} tokens, and {self.tokens_held} were seen: a call of the model "
                "failed, or a part of the model, or another one, was called"
            )

    # --- changes of the rows, and of the length ---
    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take rows anew, as beam search does between two tokens."""
        super().reorder_cache(beam_idx)
        self._rows_are_beams = True
        self._take_rows(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only some rows."""
        super().batch_select_indices(indices)
        self._take_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        super().batch_repeat_interleave(repeats)
        self._take_rows(torch.arange(len(self._rows), device="cpu").repeat_interleave(repeats))

    def _take_rows(self, indices: torch.Tensor) -> None:
        indices = indices.to(self._tokens.device)
        self._tokens, self._prompt = self._tokens[indices], self._prompt[indices]
        if len(self._tokens) != len(self._rows) or any(row.pads for row in self._rows):
            pads = torch.tensor([row.pads for row in self._rows], device="cpu")[indices.cpu()].tolist()
        else:
            pads = [0] * len(self._rows)
        self._rows = [RowKeys(pad) for pad in pads]

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens; as `DynamicCache.crop`."""
        before = self.tokens_held
        super().crop(tokens_to_remove)
        self._tokens = self._tokens[:, : self.get_seq_length()]
        if self.tokens_held < before:
            self._forget_prompt()

    def reset(self) -> None:
        """Forget everything: it then holds no token, of no prompt."""
        super().reset()
        self._tokens = self._tokens[:, :0]
        self._forget_prompt()
        self._unexpected = self._rows_are_beams = False

    def _forget_prompt(self) -> None:
        """Forget what comes, in the prompt and its keys, after the tokens that are held: another text may follow."""
        self._prompt = self._prompt[:, : self.tokens_held]
        self._rows = [RowKeys(row.pads) for row in self._rows]


def _refuse(unexpected: torch.Tensor | bool) -> None:
    if bool(unexpected):
        raise InvalidArgument(
            "the model was called with an attention mask or positions that the prompt does not have: give `load` "
            "and `generate` the same attention_mask, and no position_ids"
        )
