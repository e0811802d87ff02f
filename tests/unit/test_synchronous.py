"""Training in step: plans, sums by groups, the joint gradient, and what a newcomer is given."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from murmurate.core.layout import Layout
from murmurate.core.synchronous.agreement import (
    Claim,
    GroupPlan,
    draw_up,
    meets_at,
    read_claim,
    read_plan,
)
from murmurate.core.synchronous.rules import dealt, group_problem, groups_of
from murmurate.edge.net.collective import Collective, GroupBroken, MeetingPlace, reachable
from murmurate.errors import RemoteProtocolError, TransportError
from murmurate.training.handover import Handover
from murmurate.training.joint_gradient import DONE, TRAINING, JointGradient

CPU = torch.device("cpu")


def net(seed: int = 0, *, norm: bool = False) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = [torch.nn.Linear(6, 8), torch.nn.ReLU()]
    if norm:
        layers.insert(1, torch.nn.BatchNorm1d(8))
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3))


# -- who is in the group -----------------------------------------------------------------------


def test_the_plan_follows_from_the_claims_whatever_their_order() -> None:
    claims = [
        Claim(name="c", number=3, step=7),
        Claim(name="a", number=1, step=0),
        Claim(name="b", number=9, step=8),
    ]
    plan = draw_up(claims, "k/1")
    assert plan == draw_up(reversed(claims), "k/1")
    assert plan.members == ("a", "b", "c")
    assert (plan.source, plan.behind) == ("b", ("a", "c"))


def test_before_the_first_step_the_founders_weights_count() -> None:
    claims = [Claim(name="a", number=1, step=0), Claim(name="b", number=1, step=0, founder=True)]
    plan = draw_up(claims, "k/1")
    assert (plan.source, plan.behind) == ("b", ())


def test_all_meet_at_the_same_place() -> None:
    assert meets_at({"node-2": "x:1", "node-1": "y:2"}) == "node-1"


def test_claims_and_plans_survive_the_way_there_and_back() -> None:
    claim = Claim(name="n", number=4, step=2, founder=True)
    plan = GroupPlan(key="a/1", members=("a", "b"), source="b", behind=("a",), speaker="a")
    assert read_claim(claim.text().encode()) == claim
    assert read_plan(plan.text().encode()) == plan


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"name": "a", "number": -1, "step": 0}',
        b'{"name": "a", "number": true, "step": 0}',
        b'{"name": "a", "number": 1, "step": 1e3}',
        b'{"name": "", "number": 1, "step": 1}',
        b'{"name": "a\\nb", "number": 1, "step": 1}',
        b'{"name": "a", "number": 99999999999999999999, "step": 1}',
    ],
)
def test_a_claim_that_no_member_writes_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_claim(text)


@pytest.mark.parametrize(
    "change",
    [
        {"members": "ab"},
        {"members": ["a", "a"]},
        {"members": [str(each) for each in range(1025)]},
        {"source": "c"},
        {"speaker": "c"},
        {"behind": ["c"]},
        {"key": 3},
    ],
)
def test_a_plan_that_no_member_writes_is_refused(change: dict[str, object]) -> None:
    plan = {"key": "a/1", "members": ["a", "b"], "source": "b", "behind": ["a"]}
    with pytest.raises(RemoteProtocolError):
        read_plan(json.dumps({**plan, **change}).encode())


def test_groups_that_do_not_divide_are_named() -> None:
    assert group_problem(8, 4) == ""
    assert group_problem(10, 4) == "10 nodes cannot be put into groups of 4; 1, 2, 5, 10 can"
    assert groups_of(7, 4) == [[0, 1, 2, 3], [4, 5, 6]]
    assert dealt("abc", 2) == [("a", "b"), ("c",)]


def test_members_meet_at_the_first_ones_store() -> None:
    first, second = MeetingPlace("127.0.0.1", "127.0.0.1"), MeetingPlace("127.0.0.1", "127.0.0.1")
    claim = Claim(name="b", number=1, step=5)
    assert second.visit(first.address, claim) is None
    claims = first.claims({"b", "c"})
    assert claims == {"b": claim}
    plan = draw_up([*claims.values(), Claim(name="a", number=1, step=0)], first.next_key("a"))
    first.announce(plan, claims)
    assert second.visit(first.address, claim) == plan
    assert first.claims({"b"}) == {}, "one that was answered counts no more"
    assert first.ready(first.address, plan, "a") is False
    assert second.ready(first.address, plan, "b") is True
    second.give_up(first.address, plan)
    assert first.ready(first.address, plan, "a") is None


def test_one_that_is_gone_is_not_waited_for() -> None:
    place = MeetingPlace("127.0.0.1", "127.0.0.1")
    address = place.address
    assert reachable(address)
    del place
    assert not reachable(address)
    other = MeetingPlace("127.0.0.1", "127.0.0.1")
    with pytest.raises(TransportError, match="nobody listens"):
        other.visit(address, Claim(name="b", number=1, step=0))


# -- sums ----------------------------------------------------------------------------------------


def together(size: int, work: Callable[[Collective], object], group: int = 0) -> list[object]:
    """What each of so many members comes to, in a thread of its own."""
    store = HashStore()
    found: list[object] = [None] * size

    def member(rank: int) -> None:
        try:
            found[rank] = work(Collective(store, "k", rank, size, "127.0.0.1", group=group))
        except BaseException as error:
            found[rank] = error  # shown where it can be seen
            raise

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return found


@pytest.mark.parametrize(("size", "group"), [(8, 4), (12, 4), (7, 4), (8, 8), (3, 1)])
def test_a_sum_by_groups_is_the_flat_sum(size: int, group: int) -> None:
    """003: reduced inside, all-reduced across, broadcast inside."""
    generator = torch.Generator().manual_seed(0)
    each = [torch.randn(1001, generator=generator) for _ in range(size)]
    mean = torch.stack(each).double().mean(0)

    def work(collective: Collective) -> torch.Tensor:
        flat = each[collective.rank].clone()
        collective.sum(flat, lambda: "")
        return flat / size

    flat, grouped = together(size, work), together(size, work, group)
    for found in (flat, grouped):
        for mine in found:
            assert isinstance(mine, torch.Tensor), mine
            assert torch.equal(mine, found[0]), "the same bits on all members"  # type: ignore[arg-type]
            assert float((mine.double() - mean).abs().max()) <= 1e-6
    assert float((flat[0] - grouped[0]).abs().max()) <= 1e-6  # type: ignore[operator]


def test_a_sum_that_one_does_not_come_to_is_given_up() -> None:
    there = []

    def work(collective: Collective) -> str:
        there.append(collective)
        if collective.rank == 2:
            return "stays away"  # with its connections open, as one that was stopped does
        looks = iter(["", "node-2 is gone"])
        with pytest.raises(GroupBroken, match="node-2 is gone"):
            collective.sum(torch.ones(10), lambda: next(looks))
        collective.close()
        return "went on"

    assert together(3, work) == ["went on", "went on", "stays away"]


# -- the joint gradient -------------------------------------------------------------------------


def gradients(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()


def test_n_identical_shards_are_one_node_with_the_n_fold_batch() -> None:
    members = 4
    torch.manual_seed(3)
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    alone = net()
    models = [net() for _ in range(members)]

    def makes(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)

    optimizers = [makes(model) for model in models]
    single = makes(alone)

    def member(collective: Collective) -> None:
        model = models[collective.rank]
        layout, parameters = Layout.of(model, statistics=True)
        joint = JointGradient(model, layout, parameters, members, CPU)
        for _ in range(10):
            gradients(model, x, y)
            joint.fill(collective.rank, TRAINING, 5, contributes=True, wish=False)
            collective.sum(joint.flat, lambda: "")
            said = joint.said()
            assert (said.weight, said.samples) == (members, 5 * members)
            joint.put_back(said.weight)
            optimizers[collective.rank].step()

    assert together(members, member) == [None] * members
    for _ in range(10):
        gradients(alone, x.repeat(members, 1), y.repeat(members))
        single.step()
    for model in models:
        for mine, ours in zip(alone.parameters(), model.parameters(), strict=True):
            assert float((mine - ours).detach().abs().max()) <= 1e-6


def joint_of(model: torch.nn.Module, size: int = 2) -> JointGradient:
    layout, parameters = Layout.of(model, statistics=True)
    return JointGradient(model, layout, parameters, size, CPU)


def test_a_gradient_that_is_no_number_is_left_out_of_the_mean() -> None:
    good, bad = net(), net()
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    gradients(good, x, y)
    gradients(bad, x, y)
    wanted = [each.grad.clone() for each in good.parameters() if each.grad is not None]
    first = next(bad.parameters())
    assert first.grad is not None
    first.grad[0, 0] = float("nan")
    a, b = joint_of(good), joint_of(bad)
    assert a.fill(0, TRAINING, 4, contributes=True, wish=False)
    assert not b.fill(1, TRAINING, 4, contributes=True, wish=False)
    b.flat.add_(a.flat)
    said = b.said()
    assert (said.weight, said.samples) == (1, 8)
    b.put_back(said.weight)
    for parameter, gradient in zip(bad.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, gradient)


def test_nobody_has_a_gradient_and_nothing_is_changed() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gradients(model, torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    optimizer.step()
    before = copy.deepcopy(model.state_dict())
    joint = joint_of(model, size=1)
    joint.fill(0, DONE, 0, contributes=False, wish=True)
    said = joint.said()
    assert (said.weight, said.wish, said.intents) == (0, True, (DONE,))
    joint.put_back(said.weight)
    optimizer.step()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_a_parameter_without_a_gradient_anywhere_has_none_in_the_end() -> None:
    model = net()
    gradients(model, torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    first, second, *_ = model.parameters()
    first.grad = None
    joint = joint_of(model)
    joint.fill(0, TRAINING, 4, contributes=True, wish=False)
    mine = joint.flat.clone()
    joint.fill(1, TRAINING, 4, contributes=True, wish=False)
    joint.flat.add_(mine)
    joint.put_back(2)
    assert first.grad is None
    assert second.grad is not None


def test_running_statistics_become_the_mean_of_all() -> None:
    one, other = net(norm=True), net(norm=True)
    for model, shift in ((one, 0.0), (other, 3.0)):
        gradients(model, torch.randn(8, 6) + shift, torch.randint(0, 3, (8,)))
    wanted = (one[1].running_mean + other[1].running_mean) / 2  # type: ignore[operator]
    a, b = joint_of(one), joint_of(other)
    a.fill(0, TRAINING, 8, contributes=True, wish=False)
    b.fill(1, TRAINING, 8, contributes=True, wish=False)
    a.flat.add_(b.flat)
    a.put_back(2)
    assert torch.allclose(one[1].running_mean, wanted)  # type: ignore[arg-type]


# -- what a newcomer is given -------------------------------------------------------------------


def trained(optimizer: str, *, norm: bool = False) -> tuple[Handover, torch.nn.Module, object]:
    model = net(norm=norm)
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    gradients(model, torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))
    made.step()
    layout, parameters = Layout.of(model, statistics=True)
    return Handover(model, made, layout, parameters), model, made


def test_a_newcomer_goes_on_as_the_others_do() -> None:
    giver, model, _ = trained("Adam", norm=True)
    packed = giver.pack(step=7, samples=99)
    fresh = net(seed=5, norm=True)
    optimizer = torch.optim.Adam(fresh.parameters(), lr=0.5)
    layout, parameters = Layout.of(fresh, statistics=True)
    taker = Handover(fresh, optimizer, layout, parameters)
    assert taker.unpack(packed) == {"step": 7, "samples": 99}
    assert torch.equal(taker.weights(), giver.weights())
    assert torch.equal(fresh[1].running_var, model[1].running_var)  # type: ignore[index, arg-type]
    assert optimizer.param_groups[0]["lr"] == 0.01
    state = optimizer.state[next(fresh.parameters())]
    assert float(state["step"]) == 1
    assert float(state["exp_avg_sq"].sum()) > 0


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[:-9],
        lambda packed: torch.zeros(64, dtype=torch.uint8),
        lambda packed: packed[:0],
    ],
)
def test_a_handover_that_cannot_be_read_changes_nothing(
    spoil: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    giver, _, _ = trained("SGD")
    taker, _, _ = trained("SGD")
    before = taker.weights()
    with pytest.raises(RemoteProtocolError):
        taker.unpack(spoil(giver.pack(step=1, samples=0)))
    assert torch.equal(taker.weights(), before)


def test_a_handover_of_another_model_changes_nothing() -> None:
    giver, _, _ = trained("SGD", norm=True)
    taker, _, _ = trained("SGD")
    before = taker.weights()
    with pytest.raises(RemoteProtocolError, match="another model"):
        taker.unpack(giver.pack(step=1, samples=0))
    assert torch.equal(taker.weights(), before)
