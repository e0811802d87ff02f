"""Which form updates take where links decide: tried on links of known width and length."""

from __future__ import annotations

import math

import pytest

from murmurate.core.codecs.following import FORMS, CodecOfLink

SIZE = 1000


def trained(
    coding: CodecOfLink, steps: int, *, width: float = math.inf, way: int = 1, members: int = 2
) -> list[str]:
    """An update every four steps, as they are free, over a link that takes `width` bytes a step and
    is `way` steps long. The form of each."""
    forms: list[str] = []
    free = now = 0.0
    due, there = 4, dict[int, float]()
    for step in range(steps):
        now = float(step)
        coding.stepped(members, lambda number: there.get(number, 0.0) > now)  # noqa: B023
        if step >= due and now >= free:
            number = len(forms) + 1
            encoder = coding.encoder
            name = "fp32" if encoder is None else encoder.choice.name
            part = f" {encoder.choice.part}" if encoder and name == "topk" else ""
            forms.append(name + part)
            each = next(b for c, b in FORMS if c == (encoder.choice if encoder else FORMS[0][0]))
            free = now + each * SIZE / width
            there[number] = free + way
            due = step + 4
            coding.sent(number)
    return forms


def test_wide_links_get_numbers_as_they_are_after_a_few_updates() -> None:
    forms = trained(CodecOfLink(SIZE), 200)
    assert forms[0] == "topk 0.04"  # nobody knows yet what the links take
    assert set(forms[4:]) == {"fp32"}


@pytest.mark.parametrize("way", [6, 40])
def test_a_long_way_is_not_a_narrow_one(way: int) -> None:
    forms = trained(CodecOfLink(SIZE), 4000, way=way)
    assert set(forms[-100:]) == {"fp32"}


@pytest.mark.parametrize(
    ("fp32_takes", "form"), [(3, "fp32"), (16, "int8"), (50, "topk 0.16"), (750, "topk 0.01")]
)
def test_what_takes_long_goes_in_fewer_bytes(fp32_takes: float, form: str) -> None:
    forms = trained(CodecOfLink(SIZE), 8000, width=4 * SIZE / fp32_takes)
    assert forms[-200:].count(form) >= 190  # more bytes are tried now and then, ever more rarely


def test_more_bytes_are_tried_ever_more_rarely_where_they_take_long() -> None:
    forms = trained(CodecOfLink(SIZE), 40_000, width=4 * SIZE / 150)
    usual = max(set(forms), key=forms.count)
    tried = [at for at, form in enumerate(forms) if form not in (usual, "topk 0.01")]
    assert len(tried) < 30


def test_a_link_that_gets_wide_is_used() -> None:
    coding = CodecOfLink(SIZE)
    assert "fp32" not in trained(coding, 1000, width=4 * SIZE / 300)
    assert trained(coding, 4000)[-1] == "fp32"


def test_alone_nothing_is_encoded_and_the_first_update_to_others_is_small() -> None:
    coding = CodecOfLink(SIZE)
    assert set(trained(coding, 100, members=1)) == {"fp32"}
    assert trained(coding, 5)[0] == "topk 0.04"
