"""Examine an episode: what is broken, what is likely to cause problems, and what is good to know.

    from wshard.doctor import examine

    report = examine("ep_001.wshard")
    for finding in report.findings:
        print(finding, "->", finding.advice)

A broken rule has the error code of the specification. A matter of judgement has one of the doctor's own codes,
listed in spec/registry.md, and a threshold in `ExamineOptions`.
"""

from shard_format.findings import Finding
from wshard.doctor._examine import examine
from wshard.doctor._findings import CODES, EpisodeReport, ExamineOptions

__all__ = ["CODES", "EpisodeReport", "ExamineOptions", "Finding", "examine"]
