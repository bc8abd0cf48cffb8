import pytest

from remuda.launch.small_records import SmallRecord


class Point(SmallRecord):
    x: int
    y: int = 7


class Named(Point):
    name: str = "n"


def test_fields_may_be_given_by_position_or_name_and_default() -> None:
    assert (Point(1).x, Point(1).y) == (1, 7)
    assert Point(1, 2) == Point(x=1, y=2) == Point(1, y=2)
    assert Named(1, 2, "a") == Named(x=1, y=2, name="a")


def test_values_compare_by_type_and_fields() -> None:
    assert Point(1) == Point(1)
    assert Point(1) != Point(2)
    assert Point(1) != Named(1)
    assert Point(1) != "Point(x=1, y=7)"
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_repr_reads_like_the_constructor_call() -> None:
    assert repr(Named(1)) == "Named(x=1, y=7, name='n')"


def test_replace_copies() -> None:
    first = Point(1)
    assert first.replace(y=3) == Point(1, 3)
    assert first == Point(1)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2})], ids=repr)
def test_wrong_fields_are_refused(args: tuple[int, ...], kwargs: dict[str, int]) -> None:
    with pytest.raises(TypeError):
        Point(*args, **kwargs)
