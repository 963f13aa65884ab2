"""Names that libraries import for functions in other processes, which there are not: none is sent anywhere."""

from __future__ import annotations

from gtrace.jax.extend.absent import absent_class

__all__ = ["DeviceList"]

DeviceList = absent_class("DeviceList")
