"""Imported once, by the fork server of `rank_process`: otherwise every process would import and load it again."""

import nanokv.check.corruption.run
import nanokv.check.histories.recordings
import nanokv.check.kills.roles
import nanokv.check.soak.work  # noqa: F401
from nanokv.check.rank_process import warm

warm()
