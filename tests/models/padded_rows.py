"""Rows of tokens, and masks of rows that begin late or end early."""

import torch

IDS = torch.randint(256, (3, 75), generator=torch.Generator().manual_seed(0))


def masked(left, right):
    """1, but 0 for the first `left` positions of the first row and the last `right` of the third."""
    mask = torch.ones_like(IDS)
    mask[0, :left] = 0
    mask[2, IDS.shape[1] - right :] = 0
    return mask
