from __future__ import annotations
from tests.unit.broker.asking import produce, read_all
from tests.unit.broker.house import House

async def test_what_was_produced_can_be_read(house: House) -> None:
    await house.make_topic("t")
    assert await produce(house, "t", b"a", b"b") == 0
    assert await produce(house, "t", b"c") == 2
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    await house.restart()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    house.kill()
    await house.open()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
    house.kill(keep_page_cache=False)
    await house.open()
    assert await read_all(house, "t") == [b"a", b"b", b"c"]
