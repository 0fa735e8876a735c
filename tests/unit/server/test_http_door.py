"""What a process serves by HTTP: its health always, the rest when it is ready, built when it is first asked for."""

from __future__ import annotations

import pytest
from tests.unit.http.visitors import House, Script, Visitor

from headrace.doors.health.pages import HealthPages
from headrace.server.http_door import FrontDoor


class Source:
    async def page(self) -> bytes:
        return b"up 1\n"

    def checks(self) -> dict[str, str | None]:
        return {}


class Rest(Script):
    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class Entrance:
    """A front door whose application notes when it is built."""

    def __init__(self, *, open_to_all: bool = True) -> None:
        self.built: list[Rest] = []
        self.health = HealthPages(Source())
        self.front = FrontDoor(self.health, self._build, open_to_all=open_to_all)

    def visitor(self) -> Visitor:
        house = House()
        house.listener.application = self.front
        return house.visitor()

    def _build(self) -> Rest:
        self.built.append(Rest())
        return self.built[-1]


@pytest.fixture
def entrance() -> Entrance:
    return Entrance()


async def test_the_application_is_built_once_when_it_is_first_asked_for(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    visitor = entrance.visitor().asks("/livez").asks("/metrics").asks("/readyz")
    assert entrance.built == []
    visitor.asks("/topics", "POST", body=b"abc").asks("/topics")
    assert len(entrance.built) == 1
    assert [told.status for told in visitor.answers()] == [200] * 5


async def test_before_it_is_ready_only_its_health_is_served(entrance: Entrance) -> None:
    visitor = entrance.visitor().asks("/livez").asks("/topics").asks("/topics", "POST", body=b"x" * 2000)
    alive, *refused = visitor.answers()
    assert alive.status == 200
    assert [(told.status, told.code, told.headers["retry-after"]) for told in refused] == [(503, "not_ready", "1")] * 2
    assert entrance.built == []
    entrance.health.is_ready = True
    assert visitor.asks("/topics").answers()[-1].status == 200


async def test_bodies_are_as_large_as_the_application_allows(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    assert entrance.visitor().asks("/topics", "POST", body=b"x" * 1001).answer().status == 413


async def test_what_was_built_is_closed(entrance: Entrance) -> None:
    await entrance.front.close()
    entrance.health.is_ready = True
    entrance.visitor().asks("/topics")
    await entrance.front.close()
    assert entrance.built[0].is_closed


@pytest.mark.parametrize(
    ("headers", "is_served"),
    [
        ("", True),
        ("Origin: http://x\r\n", True),
        ("Origin: https://x\r\n", True),
        ("Origin: http://evil\r\n", False),
        ("Origin: null\r\n", False),
        ("Origin: http://proxied\r\nSec-Fetch-Site: same-origin\r\n", True),
        ("Sec-Fetch-Site: none\r\n", True),
        ("Sec-Fetch-Site: cross-site\r\n", False),
        ("Sec-Fetch-Site: same-site\r\n", False),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n", True),
    ],
)
async def test_pages_of_others_may_not_use_a_door_that_is_open_to_all(headers: str, is_served: bool) -> None:
    for open_to_all in (True, False):
        entrance = Entrance(open_to_all=open_to_all)
        entrance.health.is_ready = True
        told = entrance.visitor().asks("/topics", headers=headers).answer()
        assert told.status == (200 if is_served or not open_to_all else 403)


async def test_a_form_on_the_page_of_another_publishes_nothing(entrance: Entrance) -> None:
    entrance.health.is_ready = True
    headers = "Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"
    told = entrance.visitor().asks("/topics/a/messages", "POST", headers, b"x").answer()
    assert (told.status, told.code) == (403, "cross_origin")
    assert entrance.built[0].requests == []
