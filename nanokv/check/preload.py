"""Imported by the fork server of `rank_process`, once: every rank's process would load it again for half a second."""

import nanokv.check.ranks  # noqa: F401
from nanokv.check.rank_process import warm

warm()
