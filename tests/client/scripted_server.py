"""What a small HTTP server says whose answers a test decides, for what the real one does not do on demand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from roundoff.wire import Batch

Answer = tuple[int, dict[str, str], bytes]


def problem(status: int, detail: str = "as the test wants it", **headers: str) -> Answer:
    """An error as the real server words it."""
    body = json.dumps({"title": "refused", "status": status, "detail": detail}).encode()
    return status, {"Content-Type": "application/problem+json", **headers}, body


@dataclass
class Scripted:
    """Takes runs and batches like the real server; `script` answers first, None meaning: do as usual.

    `batches` holds what was taken, `seen` every request's method, path and body as it came.
    """

    url: str
    script: Callable[[str, bytes], Answer | None] = lambda method, body: None
    batches: list[Batch] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.seen.append((method, path, body))
        scripted = self.script(method, body)
        if scripted is not None:
            return scripted
        if method == "PUT":
            self.starts.append(json.loads(body))
            run_id = path.rsplit("/", 1)[1]
            answer: dict[str, Any] = {"run_id": run_id, "attempt": 1, "page": f"/runs/{run_id}"}
        else:
            batch = Batch.model_validate_json(body)
            known = any((b.writer, b.seq) == (batch.writer, batch.seq) for b in self.batches)
            if not known:
                self.batches.append(batch)
            answer = {"status": "duplicate" if known else "accepted", "rows": 0}
        return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def scalars(self) -> list[tuple[int, str, float]]:
        """Every logged value that was taken: step, name, value."""
        return [
            (step, batch.scalars.names[int(name)], value)
            for batch in self.batches
            if batch.scalars
            for step, name, value in zip(
                batch.scalars.step.values(),
                batch.scalars.name.values(),
                batch.scalars.value.values(),
                strict=True,
            )
        ]
