"""The flat view of a model: every kind of parameter, and what a difference is called."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from murmurate.core.layout import Layout, TensorSpec, tracked
from murmurate.errors import ConfigError


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight


def test_offsets_follow_the_order_of_the_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    layout, parameters = Layout.of(model)
    assert [t.name for t in layout.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert (layout.size, layout.nbytes, len(layout)) == (13, 52, 4)
    flat = layout.gather(parameters)
    assert flat.tolist() == [x for p in model.parameters() for x in p.flatten().tolist()]


def test_a_tied_weight_is_exchanged_once() -> None:
    layout, parameters = Layout.of(Tied())
    assert [t.name for t in layout.tensors] == ["embed.weight"]
    assert layout.size == 15
    assert len(parameters) == 1


def test_frozen_parameters_and_buffers_stay_at_home() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(False)
    layout, _ = Layout.of(model)
    assert [t.name for t in layout.tensors] == ["0.bias", "1.weight", "1.bias"]


def test_scatter_undoes_gather_in_place() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).double()
    layout, parameters = Layout.of(model)
    assert layout.dtype == torch.float64
    flat = layout.gather(parameters)
    before = [p.data_ptr() for p in parameters]
    layout.scatter(flat * 2, parameters)
    assert torch.equal(layout.gather(parameters), flat * 2)
    assert [p.data_ptr() for p in parameters] == before


def test_gained_is_what_changed_by_whatever_means() -> None:
    model = nn.Linear(2, 2)
    layout, parameters = Layout.of(model)
    weights = layout.gather(parameters)
    with torch.no_grad():
        model.bias.add_(1.0)
    assert layout.gained(parameters, weights).tolist() == pytest.approx([0, 0, 0, 0, 1, 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_updates_too_small_for_the_models_dtype_add_up(dtype: torch.dtype) -> None:
    """1 + 2^-12 is 1 in bfloat16 and float16: a hundred of them must not be lost."""
    model = nn.Linear(1, 1)
    model.weight = nn.Parameter(torch.ones(1, 1, dtype=dtype))
    layout, parameters = Layout.of(model)
    weights = layout.gather(parameters)
    small = torch.tensor([2.0**-12, 0.0])
    for _ in range(1024):
        weights += small
        layout.scatter(weights, parameters)
        gained = layout.gained(parameters, weights)
        assert gained.tolist() == [0.0, 0.0], "rounding must not look like training"
    assert model.weight.item() == 1.25
    assert float(weights[0]) == 1.25


def test_a_step_in_a_narrow_dtype_is_counted_from_what_it_saw() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    layout, parameters = Layout.of(model)
    weights = torch.tensor([1.0 + 2.0**-12])
    layout.scatter(weights, parameters)
    with torch.no_grad():
        model.weight += 0.5
    assert layout.gained(parameters, weights).tolist() == [0.5]


def test_one_wide_parameter_makes_all_wide() -> None:
    model = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1).double(), nn.Linear(1, 1).half()])
    layout, parameters = Layout.of(model)
    assert layout.dtype == torch.float64
    assert layout.narrow
    weights = layout.gather(parameters)
    assert layout.gained(parameters, weights).abs().max() == 0.0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.ReLU(), "nothing to do"),
        (nn.LazyLinear(3), "no shape yet"),
        (nn.Linear(2, 2, device="meta"), "meta device"),
        (nn.Linear(2, 2, dtype=torch.complex64), "weight is torch.complex64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_model_that_cannot_be_exchanged_is_named(model: nn.Module, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Layout.of(model)


def test_the_schema_depends_on_names_shapes_and_dtypes_only() -> None:
    def schema(model: nn.Module) -> str:
        return Layout.of(model)[0].schema

    assert schema(nn.Linear(2, 3)) == schema(nn.Linear(2, 3))
    others = [nn.Linear(3, 2), nn.Linear(2, 3).double(), nn.Linear(2, 3, bias=False), Tied()]
    assert len({schema(model) for model in others} | {schema(nn.Linear(2, 3))}) == 5


def test_a_difference_is_told_tensor_by_tensor() -> None:
    layout, _ = Layout.of(nn.Linear(2, 3))
    weight, bias = layout.tensors
    assert layout.difference(layout.tensors) == ""
    assert layout.difference([weight]) == "lacks bias float32[3]"
    assert "has extra float32[1] more" in layout.difference(
        [weight, bias, TensorSpec("extra", "float32", (1,))]
    )
    other = TensorSpec("weight", "float64", (2, 3))
    assert layout.difference([other, bias]) == (
        "has weight float64[2, 3], here it is float32[3, 2]"
    )
    assert layout.difference([bias, weight]) == "has the same tensors in another order"
    many = [TensorSpec(f"t{i}", "float32", (1,)) for i in range(9)]
    assert layout.difference(many).endswith("and 8 more")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_local_steps_stay_on_top_of_weights_that_change(dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    layout, parameters = Layout.of(model)
    weights = layout.gather(parameters)
    with torch.no_grad():
        model.weight += 0.5
    ahead = layout.ahead(parameters, weights)
    weights = weights + 2.0  # in another buffer
    before = weights.clone()
    ahead.put_back(weights)
    assert torch.equal(weights, before)
    torch.testing.assert_close(
        layout.gained(parameters, weights)[:6],
        torch.full((6,), 0.5).to(layout.dtype),
        rtol=0,
        atol=0.02,
    )
    assert layout.gained(parameters, weights)[6:].abs().max() < 0.02


def lined_up(model: nn.Module) -> tuple[Layout, list[nn.Parameter]]:
    layout, parameters = Layout.of(model)
    layout.line_up(parameters)
    return layout, parameters


def test_in_line_or_not_the_same_comes_out() -> None:
    torch.manual_seed(0)
    plain: Any = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model = copy.deepcopy(plain)
    layout, parameters = lined_up(model)
    assert layout.in_line(parameters) is not None
    other, others = Layout.of(plain)
    weights = other.gather(others)
    assert torch.equal(layout.gather(parameters), weights)
    for one in (model, plain):
        with torch.no_grad():
            one[1].weight += 1.0
    gained = other.gained(others, weights)
    assert torch.equal(layout.gained(parameters, weights), gained)
    ahead, ahead_too = layout.ahead(parameters, weights), other.ahead(others, weights)
    weights *= 3.0
    ahead.put_back(weights)
    ahead_too.put_back(weights)
    assert torch.equal(layout.gather(parameters), other.gather(others))
    layout.scatter(weights, parameters)
    assert torch.equal(model[1].bias, weights[-2:])


def test_training_goes_on_in_line_and_after_it() -> None:
    torch.manual_seed(0)
    plain, x = nn.Linear(4, 3), torch.randn(5, 4)
    model = copy.deepcopy(plain)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (plain, model)]
    layout, parameters = Layout.of(model)

    def step() -> None:
        for each, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
        assert torch.equal(plain.weight, model.weight)

    step()
    layout.line_up(parameters)
    step()
    layout.let_go(parameters)
    assert model.weight.untyped_storage().nbytes() == 4 * model.weight.numel()
    step()


@pytest.mark.parametrize("what", ["dtype", "shared", "part"])
def test_parameters_that_must_stay_where_they_are_stay(what: str) -> None:
    model = nn.Linear(4, 3)
    if what == "dtype":
        model.bias = nn.Parameter(model.bias.detach().to(torch.bfloat16))
    elif what == "shared":
        model.share_memory()
    else:
        model.bias = nn.Parameter(torch.zeros(9)[:3])
    places = [p.data_ptr() for p in model.parameters()]
    layout, parameters = lined_up(model)
    assert [p.data_ptr() for p in parameters] == places
    assert layout.in_line(parameters) is None


def test_one_that_was_moved_afterwards_is_seen() -> None:
    model = nn.Linear(4, 3)
    layout, parameters = lined_up(model)
    weights = layout.gather(parameters)
    model.weight.data = model.weight.data + 1.0
    assert layout.gained(parameters, weights)[:12].sub(1.0).abs().max() < 1e-6
    layout.scatter(weights, parameters)
    assert torch.equal(model.weight.flatten(), weights[:12])


# -- running statistics, behind the parameters ---------------------------------------------------


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 3),
        nn.BatchNorm1d(3),
        nn.Sequential(
            nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, track_running_stats=False)
        ),
    )


def test_statistics_lie_behind_the_parameters_where_they_are_asked_for() -> None:
    model = normed()
    plain, _ = Layout.of(model)
    layout, parameters = Layout.of(model, statistics=True)
    names = ["1.running_mean", "1.running_var", "2.0.running_mean", "2.0.running_var"]
    assert [t.name for t in layout.tensors] == [*(t.name for t in plain.tensors), *names]
    assert (layout.trained, layout.size, plain.trained) == (plain.size, plain.size + 12, plain.size)
    assert layout.statistics == slice(plain.size, plain.size + 12)
    assert list(tracked(model)) == names
    running = [each.tensor for each in tracked(model).values()]
    flat = layout.gather([*parameters, *running])
    assert flat[layout.statistics].tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 3 + [1.0] * 3


def test_a_model_without_statistics_has_the_layout_it_always_had() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    plain, asked = Layout.of(model)[0], Layout.of(model, statistics=True)[0]
    assert (plain.schema, plain.tensors, plain.size) == (asked.schema, asked.tensors, asked.size)
    assert asked.trained == asked.size


def test_what_is_asked_of_parameters_leaves_statistics_out() -> None:
    model = normed()
    layout, parameters = Layout.of(model, statistics=True)
    weights = torch.cat((layout.gather(parameters), torch.full((12,), 9.0)))
    for line_up in (False, True):
        if line_up:
            layout.line_up(parameters)
        assert not layout.gained(parameters, weights).any()
        assert layout.equal(parameters, weights)
        assert len(layout.values(parameters, slice(layout.trained - 2, layout.size))) == 2
        ahead = layout.ahead(parameters, weights, slice(None))
        ahead.put_back(weights)
        layout.scatter(weights, parameters)
        assert layout.equal(parameters, weights)
        assert all(float(each.tensor.max()) <= 1.0 for each in tracked(model).values())


def test_statistics_are_sent_as_the_weights_are_whatever_they_are_in_the_model() -> None:
    half = normed().half()
    layout, _ = Layout.of(half, statistics=True)
    assert layout.dtype == torch.float32
    assert {t.dtype for t in layout.tensors[-4:]} == {"float32"}
    wide, _ = Layout.of(normed().double(), statistics=True)
    assert {t.dtype for t in wide.tensors} == {"float64"}


def test_statistics_alone_are_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match="nothing to do"):
        Layout.of(nn.BatchNorm1d(3, affine=False), statistics=True)
