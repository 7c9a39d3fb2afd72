"""Which requests a canary takes: a share of them, chosen by a hash of the request's id."""

from __future__ import annotations

import zlib


def is_in_share(request_id: str, share: float) -> bool:
    """Whether a request belongs to the share; the same id always gets the same answer, in every process.

    Parameters
    ----------
    request_id : str
    share : float
        0 takes none, 1 all; who is in a smaller share is in every larger one.
    """
    if share >= 1.0:
        return True
    return zlib.crc32(request_id.encode()) < share * 2.0**32
