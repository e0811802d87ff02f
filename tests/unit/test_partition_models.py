"""Cut, train, paste: for every kind of model that can be split."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.partition_models import MODELS
from torch import nn

from murmurate.core.partition import (
    Held,
    Structure,
    analyse,
    cut,
    deal,
    load,
    masked,
    part_of,
    paste,
    weights_of,
)
from murmurate.core.partition.subnet import take
from murmurate.errors import ConfigError

_known: dict[str, tuple[nn.Module, tuple[Any, ...], Structure]] = {}


def known(name: str) -> tuple[nn.Module, tuple[Any, ...], Structure]:
    """A model in float64, an input, and what was found in it; found once."""
    if name not in _known:
        make, example = MODELS[name]
        torch.manual_seed(3)
        model = make().double()
        for buffer in model.buffers():  # statistics that are not all the same
            if buffer.is_floating_point() and "mask" not in name and buffer.dim() == 1:
                buffer.uniform_(0.5, 1.5)
        inputs = tuple(t.double() if t.is_floating_point() else t for t in example())
        _known[name] = model, inputs, analyse(model, inputs)
    return _known[name]


def some(structure: Structure, n: int, seed: int) -> list[Held]:
    rng = np.random.default_rng(seed)
    return deal(structure, list(rng.integers(1, 6, size=n)), rng)


# fmt: off
EXPECTED = {
    "mlp": {"1": 20, "3": 14},
    "mlp with batch-norm": {"0": 9, "3": 7},
    "cnn": {"0": 6, "4": 10, "8": 12},
    "depthwise": {"0": 8, "4": 6},  # a GroupNorm of 6 groups of 2
    "autoencoder": {"0": 6, "3": 7},
    "embedding": {"0": 10, "1": 8},
    "resnet": {"layers.0.conv1": 8, "layers.1.conv1": 12, "layers.2.conv1": 12},
    "encoder": {"layers.layers.0.self_attn.heads": 4, "layers.layers.0.linear1": 24,
                "layers.layers.1.self_attn.heads": 4, "layers.layers.1.linear1": 24},
    "cross decoder": {f"layers.layers.{i}.{part}": count for i in (0, 1) for part, count in
                      (("self_attn.heads", 4), ("multihead_attn.heads", 4), ("linear1", 24))},
    "grouped decoder": {"attention.q": 4, "gate": 24},  # 4 groups of keys and values, 8 heads
    "gpt": {"qkv": 6, "mlp.0": 20},
    "vit": {"qkv": 6},
}
# fmt: on


@pytest.mark.parametrize("name", MODELS)
def test_what_is_split(name: str) -> None:
    _, _, structure = known(name)
    assert {g.name: g.count for g in structure.groups} == EXPECTED[name]


@pytest.mark.parametrize("name", MODELS)
def test_a_subnet_is_the_masked_model(name: str) -> None:
    """Forward and gradients, to 1e-10: in training mode, batch statistics and all."""
    model, inputs, structure = known(name)
    for seed in range(3):
        for held in some(structure, 3, seed):
            subnet = cut(model, structure, held, scale=False)
            whole = masked(model, structure, held)
            got, expected = subnet(*inputs), whole(*inputs)
            assert torch.allclose(got, expected, rtol=0, atol=1e-10)
            direction = torch.randn(expected.shape, dtype=torch.float64)
            (got * direction).sum().backward()
            (expected * direction).sum().backward()
            mine = dict(subnet.named_parameters())
            for key, parameter in whole.named_parameters():
                assert parameter.grad is not None
                part = take(parameter.grad, structure.tensors[key].kept(held))
                grad = mine[key].grad
                assert grad is not None
                assert torch.allclose(grad, part, rtol=0, atol=1e-10), key


@given(name=st.sampled_from(sorted(MODELS)), n=st.integers(1, 9), seed=st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_cut_and_paste_is_the_identity(name: str, n: int, seed: int) -> None:
    """To the bit, in float32, for any number of peers and unequal shares."""
    model, _, structure = known(name)
    try:
        shares = some(structure, n, seed)
    except ConfigError:
        assert all(group.count < n for group in structure.groups)
        return
    weights = {key: value.detach().clone() for key, value in weights_of(model).items()}
    for held in shares:
        values = {k: v.detach() for k, v in weights_of(cut(model, structure, held)).items()}
        assert {k: tuple(v.shape) for k, v in values.items()} == {
            k: t.part(held) for k, t in structure.tensors.items()
        }
        paste(weights, structure, held, values)
    for key, value in weights_of(model).items():
        assert torch.equal(weights[key], value)


@pytest.mark.parametrize("name", MODELS)
def test_a_subnet_trains_by_itself(name: str) -> None:
    """Its own optimizer; the model it was cut from is not touched; same names."""
    model, inputs, structure = known(name)
    before = {key: value.detach().clone() for key, value in weights_of(model).items()}
    held = some(structure, 2, 1)[0]
    subnet = cut(model, structure, held)
    assert subnet.state_dict().keys() == model.state_dict().keys()
    optimizer = torch.optim.SGD(subnet.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = subnet(*inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for key, value in weights_of(model).items():
        assert torch.equal(before[key], value)


def test_values_can_be_loaded_into_a_subnet() -> None:
    model, inputs, structure = known("cnn")
    one, other = some(structure, 2, 5)
    weights = {key: value.detach() for key, value in weights_of(model).items()}
    subnet = cut(model, structure, one)
    for parameter in subnet.parameters():
        nn.init.zeros_(parameter)
    load(subnet, part_of(weights, structure, one))
    fresh = cut(model, structure, one)
    assert torch.equal(subnet(*inputs), fresh(*inputs))
    assert structure.parameters(one) == sum(p.numel() for p in subnet.parameters())
    assert structure.parameters(other) < sum(p.numel() for p in model.parameters())


def test_partial_sums_are_scaled_in_training_only() -> None:
    """F10: sqrt(H / h) on the sum, not on the bias; not where a norm follows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    structure = analyse(model, (x,))
    held = structure.hold([1, 6])
    plain, scaled = (cut(model, structure, held, scale=s) for s in (False, True))
    bias = model[2].bias
    assert torch.allclose(scaled(x) - bias, 2.0 * (plain(x) - bias))  # sqrt(8 / 2)
    assert torch.equal(scaled.eval()(x), plain.eval()(x))
    normed, _, structure = known("mlp with batch-norm")
    subnet = cut(normed, structure, some(structure, 3, 0)[0])
    assert [len(m._forward_pre_hooks) for m in subnet.children()] == [0, 0, 0, 0, 0, 0, 1]


def test_attention_scales_its_heads() -> None:
    model, inputs, structure = known("encoder")
    held = structure.everything()
    held[structure.groups[0].first + 1 : structure.groups[0].first + 4] = False
    subnet = cut(model, structure, held)
    assert subnet.layers.layers[0].self_attn.factor == 2.0  # type: ignore[union-attr,index]
    assert torch.isfinite(subnet(*inputs)).all()


# -- what cannot be handled ------------------------------------------------------------------------


class Whole(nn.Module):
    """Everything in it mixes: nothing can be split, and that is no error."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.fc(x))
        return out


def test_a_layer_norm_keeps_its_axis_whole() -> None:
    structure = analyse(Whole(), (torch.randn(2, 4),))
    assert structure.groups == ()
    assert structure.reasons["fc"] == "a LayerNorm is over it"
    with pytest.raises(ConfigError, match="model: none of its axes can be split"):
        deal(structure, [1, 1], np.random.default_rng(0))


def test_an_unknown_layer_stays_shared() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3, 4)
            self.lstm = nn.LSTM(4, 4, batch_first=True)
            self.wide = nn.Linear(4, 9)
            self.out = nn.Linear(9, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.lstm(self.embed(x))
            out: torch.Tensor = self.out(torch.relu(self.wide(states[:, -1])))
            return out

    structure = analyse(Reader(), (torch.randn(2, 5, 3),))
    assert [g.name for g in structure.groups] == ["wide"]
    assert structure.reasons["embed"] == "lstm() is not known"


def test_sizes_in_code_that_cannot_be_traced_are_named() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 1e9:
                return x
            out: torch.Tensor = (
                self.up(x).view(x.shape[0], 3, 2).transpose(1, 2).reshape(x.shape[0], 6)
            )
            return out

    model = nn.Sequential(Branching(), nn.Linear(6, 2))
    with pytest.raises(ConfigError, match="model: 0 names the size of an axis that is split") as it:
        analyse(model, (torch.randn(2, 4),))
    assert "\n" not in str(it.value)


def test_control_flow_is_no_obstacle_by_itself() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.up(x)
            out: torch.Tensor = self.down(torch.relu(y) if x.sum() > 0 else torch.tanh(y))
            return out

    assert [g.count for g in analyse(Branching(), (torch.randn(2, 4),)).groups] == [6]


def test_a_lazy_layer_is_named() -> None:
    with warnings.catch_warnings(action="ignore"):  # torch's own, once in a process
        model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ConfigError, match=r"model: 0\.weight has no shape yet"):
        analyse(model, (torch.randn(2, 4),))


def test_a_subnet_needs_a_unit_of_every_axis() -> None:
    model, _, structure = known("mlp")
    with pytest.raises(ConfigError, match="subnet: no unit of 3"):
        cut(model, structure, structure.hold([0, 1]))
    with pytest.raises(ConfigError, match="there are 34"):
        structure.hold([34])
