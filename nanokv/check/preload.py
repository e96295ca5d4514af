"""Imported by the fork server of `ranks`, once: what every rank's process would load again for half a second."""

from nanokv.check.ranks import warm

warm()
