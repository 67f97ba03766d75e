"""Options are checked when they are made, and a complaint names field, value and bound."""

from __future__ import annotations

import dataclasses
import tracemalloc

import pydantic
import pytest
from pydantic import TypeAdapter, ValidationError, model_validator

from specllava.bench.lanes import bench_lanes
from specllava.core.config import DecodingConfig, one_line, short
from specllava.core.growth.rules.chain import BENCH_FLOOR

BOUNDS = [
    ("depth", 1, 32),
    ("nodes", 1, 256),
    ("max_branches", 1, 16),
    ("width", 1, 64),
    ("entropy_threshold", 0.0, 12.0),
    ("min_log_prob", -50.0, 0.0),
]


@pytest.mark.parametrize(("field", "low", "high"), BOUNDS)
def test_bounds_themselves_are_allowed(field: str, low: float, high: float):
    for value in (low, high):
        assert getattr(DecodingConfig(**{field: value}), field) == value


@pytest.mark.parametrize(("field", "low", "high"), BOUNDS)
def test_what_lies_outside_is_refused_with_field_value_and_bound(field: str, low: float, high: float):
    step = 1 if isinstance(low, int) else 0.25
    for value, bound in ((low - step, low), (high + step, high)):
        with pytest.raises(ValidationError) as caught:
            DecodingConfig(**{field: value})
        line = one_line(caught.value)
        assert line.startswith(f"{field} = {value!r}: ")
        assert line.endswith(f" {bound:g}")
        assert "\n" not in line


def test_an_answer_may_be_as_long_as_a_context_and_not_empty():
    assert DecodingConfig(max_new_tokens=1_000_000).max_new_tokens == 1_000_000
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        DecodingConfig(max_new_tokens=0)


@pytest.mark.parametrize(("field", "value"), [(name, float("nan")) for name, *_ in BOUNDS] + [("depth", 2.5)])
def test_values_that_are_no_such_number_are_refused(field: str, value: float):
    with pytest.raises(ValidationError, match=field):
        DecodingConfig(**{field: value})


@pytest.mark.parametrize(("field", "value"), [("rule", "forest"), ("drafter", "oracle")])
def test_unknown_names_are_refused_with_the_known_ones(field: str, value: str):
    with pytest.raises(ValidationError) as caught:
        DecodingConfig(**{field: value})
    assert one_line(caught.value).startswith(f"{field} = {value!r}: input should be ")


def test_unknown_options_are_refused():
    with pytest.raises(ValidationError) as caught:
        DecodingConfig(warmth=1.0)
    assert "warmth" in one_line(caught.value)


def test_one_line_names_three_complaints_and_counts_the_rest():
    with pytest.raises(ValidationError) as caught:
        DecodingConfig(depth=0, nodes=0, width=0, max_branches=0, max_new_tokens=0)
    line = one_line(caught.value)
    assert line.count("greater than or equal to 1") == 3
    assert line.endswith("; and 2 more")


def test_one_line_stays_short_whatever_was_given():
    with pytest.raises(ValidationError) as caught:
        DecodingConfig(rule="x\n" * 10_000)
    line = one_line(caught.value)
    assert "\n" not in line
    assert len(line) < 200


def test_one_line_is_cut_where_the_complaint_itself_is_long():
    class Long:
        @model_validator(mode="before")
        @classmethod
        def refuse(cls, value: object) -> object:
            raise ValueError("\x1b[31m no " * 100_000)

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(pydantic.dataclasses.dataclass(Long)).validate_python({"k" * 5_000: 1})
    line = one_line(caught.value)
    assert len(line) < 300 and line.isprintable()


def test_one_line_counts_errors_that_are_too_many_to_list():
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[int]).validate_python(["x"] * 50_000)
    tracemalloc.start()
    try:
        line = one_line(caught.value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "50,000 errors" in line
    assert peak < 2**20


def test_a_value_for_a_message_is_short_whatever_it_is():
    for value in ("x" * 10**6, 10**5000, [10**5000] * 10**6, {"a": "b" * 10**6}):
        assert len(short(value)) <= 60


@pytest.mark.parametrize("drafter", ["prompt-lookup", "none"])
def test_answers_are_the_targets_own_where_no_draft_is_drawn_from(drafter: str):
    drawn = DecodingConfig(children="drawn", temperature=1.0, rule="fixed")
    assert not drawn.keeps_tokens
    assert dataclasses.replace(drawn, drafter=drafter).keeps_tokens


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DecodingConfig().depth = 3


def test_every_option_has_a_help_text():
    schema = TypeAdapter(DecodingConfig).json_schema()["properties"]
    assert set(schema) == {field.name for field in dataclasses.fields(DecodingConfig)}
    assert all(entry.get("description", "").endswith(".") for entry in schema.values())


def test_benchmark_lanes_keep_to_the_stricter_limit():
    suited = bench_lanes(DecodingConfig())
    assert suited["chain"].min_log_prob == BENCH_FLOOR > suited["entropy"].min_log_prob
    assert suited["topk"].width < suited["entropy"].width and suited["sequoia"].nodes < suited["entropy"].nodes
    asked = DecodingConfig(depth=3, nodes=5, width=1, min_log_prob=-0.1)
    for name, lane in bench_lanes(asked).items():
        assert (lane.depth, lane.nodes, lane.width, lane.min_log_prob) == (3, 5, 1, -0.1), name
