"""A peer's book of batches. The random worlds of test_dealer.py use it as production does."""

from __future__ import annotations

from murmurate.core.batches.ledger import Ledger


def book_with(numbers: list[int], group: int = 1, seq: int = 1) -> Ledger:
    """These are ready, claimed, and the claims are confirmed."""
    book = Ledger(seq)
    for number in numbers:
        book.arrive(number, group)
    confirm(book)
    return book


def confirm(book: Ledger) -> list[tuple[int, int]]:
    claims, *_ = book.sent()
    for number, _ in claims:
        book.confirmed(number)
    return claims


def test_batches_are_claimed_ahead_in_groups() -> None:
    book = Ledger(7)
    for number in (1, 2, 3, 4, 5):
        book.arrive(number, 2)
    assert book.claims == [(1, 7), (2, 7), (3, 8), (4, 8), (5, 9)]


def test_a_group_that_is_begun_takes_no_more() -> None:
    book = book_with([1], group=4)
    assert book.take(1) == 1
    book.arrive(2, 4)
    assert book.claims == [(2, 2)]


def test_an_update_leaves_at_the_end_of_its_group() -> None:
    book = book_with([1, 2, 3], group=2)
    book.take(1)
    assert not book.may_publish(), "2 is claimed for it too"
    book.take(1)
    assert book.may_publish()
    assert book.published() == [1, 2]
    assert book.take(2) == 3
    assert book.may_publish()


def test_not_before_it_is_confirmed() -> None:
    book = Ledger()
    book.arrive(1, 1)
    book.take(1)
    assert not book.may_publish()
    confirm(book)
    assert book.may_publish()


def test_what_was_not_published_goes_with_the_next_group() -> None:
    book = book_with([1, 2, 3, 4, 5], group=2)
    book.take(1)
    book.take(1)  # and there was no room
    assert book.take(1) == 3
    assert book.claims == [(3, 1), (4, 1), (5, 2)]
    assert not book.may_publish()
    book.take(1)
    confirm(book)
    assert book.may_publish()
    assert book.published() == [1, 2, 3, 4]


def test_only_the_last_word_counts() -> None:
    book = Ledger()
    book.arrive(1, 1)
    book.sent()
    book.take(1)
    book.give_up_ready()  # claims it anew, for the same update
    book.confirmed(1)
    assert not book.may_publish(), "that was the answer to the first claim"
    book.sent()
    book.confirmed(1)
    assert book.may_publish()


def test_an_update_that_holds_less_than_was_said_is_asked_about_again() -> None:
    book = book_with([1, 2], group=2)
    book.take(1)
    book.drop()
    book.take(1)
    assert not book.may_publish()
    assert book.sent() == ([(2, 1)], [], [1], [])
    book.confirmed(2)
    assert book.may_publish()


def test_spent_or_given_back() -> None:
    book = book_with([1])
    book.take(1)
    book.drop(spent=True)
    assert book.sent() == ([], [1], [], [])
    assert 1 not in book


def test_an_open_batch_that_is_denied_spoils_the_steps() -> None:
    book = Ledger()
    book.arrive(1, 2)
    book.arrive(2, 2)
    book.take(1)
    book.take(1)
    book.sent()
    book.confirmed(2)
    book.denied(1)
    assert book.spoiled
    assert not book.may_publish()
    book.drop()
    assert book.sent() == ([], [], [2], [1])


def test_taken_with_a_claim_on_its_way() -> None:
    book = Ledger()
    book.arrive(1, 1)
    book.sent()
    book.taken(1)
    assert book.sent() == ([], [], [], [1])
    book.confirmed(1)
    assert book.sent() == ([], [], [1], []), "it is not here any more"


def test_taken_and_dealt_again() -> None:
    book = Ledger()
    book.arrive(1, 1)
    book.sent()
    book.taken(1)
    book.arrive(1, 1)
    assert book.sent() == ([(1, 1)], [], [], [1])
    book.confirmed(1)
    book.take(1)
    assert not book.may_publish(), "of two claims one is not answered"
    book.confirmed(1)
    assert book.may_publish()


def test_a_new_stream() -> None:
    book = book_with([1, 2, 3], group=2)
    book.take(1)
    assert book.restart() == [1]
    assert list(book.ready) == []
    assert not book.may_publish()
    book.confirmed(1)
    assert book.may_publish()
    assert book.restart(5) == []
    assert book.seq == 5
