"""From entry names to paths under a folder; the rules are the library's own."""

from __future__ import annotations

from shard_format._safe_paths import Plan, Refused, plan_extraction

__all__ = ["Plan", "Refused", "plan_extraction"]
