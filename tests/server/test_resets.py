"""Resets over HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx

from actorproc import Batch, PartitionContext, PartitionHandler, Processor, Producer
from actorproc.config.settings import Settings
from actorproc.server import dashboard_app

TOKEN = "0123456789abcdef"


class Rows(PartitionHandler):
    output_schema = "value string"

    async def process(self, batch: Batch, ctx: PartitionContext) -> None:
        for record in batch:
            ctx.emit(record, {"value": record.text})


async def test_a_reset_is_shown_done_and_undone_and_wrong_bodies_are_refused(tmp_path: Path) -> None:
    log, container = str(tmp_path / "log"), str(tmp_path / "state")
    async with Producer(log, partitions=1) as producer:
        await producer.send_many([b"1", b"2", b"3"])
    await Processor(Rows, source=log, container=container).run(until_end=True)
    app = dashboard_app(container, Settings(http_token=TOKEN))
    transport, headers = httpx.ASGITransport(app), {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://test/api/processors/Rows/") as http:

        async def post(what: str, body: object) -> httpx.Response:
            return await http.post(what, json=body, headers=headers)

        shown = (await post("reset", {"to": "1", "partitions": ["0"]})).json()
        assert (shown["done"], shown["partitions"][0]["repeats"], shown["partitions"][0]["to"]) == (False, 2, 0)
        done = (await post("reset", {"to": "1", "partitions": ["0"], "yes": True, "reason": "wrong"})).json()
        assert (done["done"], done["effect"]) == (True, "repeats 2 and skips 0 records of 1 partition")
        refused = (await post("reset", {"to": "99", "partitions": ["0"], "yes": True})).json()
        assert (refused["done"], refused["partitions"][0]["refusal"]) == (False, "the newest record is 2")
        undone = (await post("undo", {"all": True, "yes": True})).json()
        assert undone["effect"] == "repeats 0 and skips 2 records of 1 partition"
        assert (await http.post("reset", json={"to": "1", "all": True})).status_code == 401
        for what, body in [
            ("reset", {"all": True}), ("reset", {"to": "1"}), ("undo", {"to": "1", "all": True}), ("undo", {}),
            ("reset", {"to": "1", "all": True, "partitions": ["0"]}), ("reset", {"to": "x", "all": True}),
            ("reset", {"to": "1", "all": True, "typo": 1}), ("undo", {"all": True, "reason": "x" * 501}),
            ("undo", {"all": True, "id": "x" * 101}),
        ]:  # fmt: skip
            assert (await post(what, body)).status_code == 400
