"""Descriptions of objects that nats-server had removed, and has again after it lost its power."""

from shared.bus import Bus
from shared.bus.objects import DESCRIPTIONS, STREAM


async def test_an_object_that_was_deleted_stays_so_though_its_old_description_is_back(bus: Bus) -> None:
    objects = await bus.objects()
    await objects.put("kept", b"x" * 10)
    await objects.put("deleted", b"y" * 10)
    (old,) = [raw async for raw in bus.read_raw(STREAM, f"{DESCRIPTIONS}>") if b'"deleted",' in raw.data]
    await objects.delete("deleted")
    (newest,) = [raw async for raw in bus.read_raw(STREAM, old.subject)]
    for raw in (old, newest):  # in the order in which they were stored, none replacing another
        await bus.store_raw(raw.subject, raw.data, {})
    assert [*await objects.all()] == ["kept"]
    unneeded = await objects.unneeded()
    assert [*unneeded] == [old.subject]
    await objects.remove_unneeded(unneeded)
    assert [raw async for raw in bus.read_raw(STREAM, old.subject)] == []
    assert b"".join([chunk async for chunk in objects.chunks("kept")]) == b"x" * 10
