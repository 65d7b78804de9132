"""`forerun up`: the platform on one machine."""

from forerun.cli.up.layout import SERVICES
from forerun.cli.up.platform import Platform

__all__ = ["SERVICES", "Platform"]
