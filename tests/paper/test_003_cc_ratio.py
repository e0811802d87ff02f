"""Paper 003: the computation-communication ratio, from its operands and from models."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from murmurate import workloads
from murmurate.workloads.fashion_mnist import FashionMnist, FashionMnistMlp
from murmurate.workloads.flops import cc_ratio, flops, flops_per_sample, recurrent_flops
from murmurate.workloads.lstm import RowReader


@pytest.mark.parametrize(
    ("model", "operations", "parameters", "ratio"),
    [
        ("AlexNet", 6.8e9, 62.25e6, 109.2),
        ("ResNet-50", 7.7e9, 25e6, 308.0),
        ("DenseNet-40", 5e9, 9e6, 555.6),
        ("GoogLeNet", 9.7e9, 13.5e6, 718.5),  # the paper prints 736
    ],
)
def test_the_papers_operands(
    model: str, operations: float, parameters: float, ratio: float
) -> None:
    assert cc_ratio(operations, parameters) == pytest.approx(ratio, abs=0.05), model


def by_model(model: nn.Module, *shape: int) -> float:
    count = sum(parameter.numel() for parameter in model.parameters())
    with torch.no_grad():
        return cc_ratio(flops(model, lambda: model(torch.zeros(1, *shape))), count)


def test_the_lstm_of_003_is_counted_though_torch_does_not_see_it() -> None:
    assert by_model(RowReader(), 1, 28, 28) == pytest.approx(55.0, abs=0.05)


def test_models_without_recurrence_are_as_torch_counts_them() -> None:
    lenet, mlp = FashionMnist.model(None), FashionMnistMlp.model(None)  # type: ignore[arg-type]
    conv1, conv2 = 2 * 28 * 28 * 6 * 25, 2 * 10 * 10 * 16 * 6 * 25
    linear = 2 * (400 * 120 + 120 * 84 + 84 * 10)
    assert by_model(lenet, 1, 28, 28) == pytest.approx((conv1 + conv2 + linear) / 61_706)
    assert by_model(mlp, 1, 28, 28) == pytest.approx(2 * (784 * 64 + 640) / 50_890)


@pytest.mark.parametrize("name", ["digits-bn", "char-transformer", "synthetic"])
def test_what_is_counted_is_what_torchs_counter_counts(name: str) -> None:
    workload = workloads.load(name)
    share = workloads.DataShare(0, 1, workloads.parse_split("none"), 0, workload.batch_size)
    model, batch = workload.model(), next(workload.batches(share))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        workload.loss(model, batch)
        assert counter.get_total_flops() > 0
    with torch.no_grad():
        assert flops(model, lambda: workload.loss(model, batch)) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("layer", "by_hand"),
    [
        (nn.LSTM(3, 5), 2 * 4 * 5 * (3 + 5)),
        (nn.GRU(3, 5), 2 * 3 * 5 * (3 + 5)),
        (nn.RNN(3, 5), 2 * 5 * (3 + 5)),
        (nn.LSTM(3, 5, num_layers=2), 2 * 4 * 5 * (3 + 5) + 2 * 4 * 5 * (5 + 5)),
        (nn.GRU(3, 5, bidirectional=True), 2 * 2 * 3 * 5 * (3 + 5)),
        (nn.LSTM(3, 5, proj_size=2), 2 * (4 * 5 * (3 + 2) + 5 * 2)),
    ],
)
def test_a_recurrent_layer_is_a_product_for_each_gate_at_each_place(
    layer: nn.RNNBase, by_hand: int
) -> None:
    inputs = torch.zeros(7, 2, 3)  # 7 places of 2 sequences
    assert recurrent_flops(layer, inputs) == 14 * by_hand
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # projections: not by oneDNN, says torch
        assert flops(layer, lambda: layer(inputs)) == 14 * by_hand


def test_counting_leaves_the_model_as_it_was() -> None:
    digits = workloads.load("digits-bn")
    model = digits.model()
    model[1].eval()  # type: ignore[index]
    share = workloads.DataShare(0, 1, workloads.parse_split("none"), 0, digits.batch_size)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert flops_per_sample(digits, model, next(digits.batches(share))) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [True, False, *[True] * (len(model) - 2)]  # type: ignore[arg-type,attr-defined]
