from myxtts.pipeline.set_aside_journal import SetAsideJournal


def confirm_all(journal):
    journal.begin_confirming()
    return [journal.confirm() for _ in journal.pairs]


def test_only_what_no_producer_confirmed_before_is_news():
    journal = SetAsideJournal([(1, 2)])
    assert confirm_all(journal) == [False]
    journal.add(3, 4)
    assert confirm_all(journal) == [False, True]
    assert confirm_all(journal) == [False, False]


def test_a_producer_that_dies_before_it_has_confirmed_all_leaves_the_rest_news():
    journal = SetAsideJournal()
    journal.add(1, 0)
    journal.begin_confirming()
    assert confirm_all(journal) == [True]


def test_a_place_may_be_set_aside_twice():
    journal = SetAsideJournal([(1, 2)])
    journal.add(1, 2)
    assert journal.pairs == [(1, 2), (1, 2)]
