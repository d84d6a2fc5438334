"""Sums up what gcov prints, and exits with 1 below a share of lines: gcov -n … | coverage.py 95."""

from __future__ import annotations

import re
import sys


def main(least: float) -> int:
    found = re.findall(
        r"^File '.*/src/(\w+\.c)'\nLines executed:([\d.]+)% of (\d+)",
        sys.stdin.read(),
        re.MULTILINE,
    )
    total = sum(int(count) for *_, count in found)
    reached = sum(float(share) * int(count) / 100 for _, share, count in found)
    for name, share, count in sorted(found, key=lambda one: float(one[1]))[:6]:
        print(f"{name}: {share} % of {count} lines")
    share = 100 * reached / max(total, 1)
    print(f"the tests reach {share:.1f} % of {total} lines")
    return 0 if share >= least else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
