"""The file of ratios knows every kernel that is timed, and no other."""

import json

from tests.benchmarks import test_kernels
from tests.benchmarks.conftest import RATIOS


def test_every_kernel_has_a_ratio(request):
    timed = {item.name for item in request.session.items if getattr(item, "module", None) is test_kernels}
    ratios = json.loads(RATIOS.read_text())["ratios"]
    assert timed <= set(ratios) and all(ratio > 0 for ratio in ratios.values())
    assert {name.partition("[")[0] for name in ratios} == {name for name in vars(test_kernels) if name[:5] == "test_"}
