"""How fast semel is: measurements against peers, run by `python -m benchmarks NAME`."""

import sys
from pathlib import Path

# The servers are those of the tests. Also in Spark's Python workers, which import this package.
_TESTS = str(Path(__file__).parents[1] / "tests")
if _TESTS not in sys.path:
    sys.path.append(_TESTS)
