"""Any key with any value."""

from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import configurations
from tests.fuzz.world import arguments


@fuzz(configurations(), examples=36)
def test_configurations(example):
    model, values = example
    check_call(arguments(model=model, **values))
