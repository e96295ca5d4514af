"""The attention mask and the positions that prompts have: any others, and the KV is not that of their tokens.

The answers are tensors on the device of the arguments, so that nothing waits for a GPU until they are looked at.
"""

from typing import Any

import torch


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
