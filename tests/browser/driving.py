"""What drives a page and what feeds its server."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import httpx
from playwright.sync_api import ConsoleMessage, Page

from roundoff.wire import RunStart, RunStarted
from simulated_training import Training


@dataclass
class Watched:
    """A page and everything that went wrong in it."""

    page: Page
    complaints: list[str] = field(default_factory=list)


def watch(page: Page) -> Watched:
    watched = Watched(page)

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            watched.complaints.append(f"{message.type}: {message.text}")

    page.on("console", hear)
    page.on("pageerror", lambda error: watched.complaints.append(f"exception: {error}"))
    page.on(
        "dialog", lambda dialog: (watched.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss())
    )
    page.add_init_script(
        "addEventListener('securitypolicyviolation', "
        "event => console.error('policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
    )
    return watched


@dataclass
class Sender:
    """Posts one simulated training to a server, batch by batch, as a client would."""

    base: str
    training: Training
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempt: int = 1
    seq: int = 0
    sent: int = 0

    def start(self, *, project: str = "demo", name: str = "bf16 AdamW") -> Sender:
        """Create the run."""
        body = RunStart(project=project, name=name, token=uuid.uuid4().hex, config={"lr": 1e-3})
        answer = httpx.put(
            f"{self.base}/api/v1/runs/{self.run_id}", content=body.model_dump_json(), timeout=30
        )
        answer.raise_for_status()
        self.attempt = RunStarted.model_validate_json(answer.content).attempt
        return self

    def send(self, samples: int) -> Sender:
        """Post the next `samples` samples as one batch."""
        last = min(self.sent + samples, len(self.training.steps))
        batch = self.training.batch(self.sent, last, writer="writer", seq=self.seq, attempt=self.attempt)
        answer = httpx.post(
            f"{self.base}/api/v1/runs/{self.run_id}/batches", content=batch.model_dump_json(), timeout=30
        )
        answer.raise_for_status()
        self.seq, self.sent = self.seq + 1, last
        return self

    @property
    def path(self) -> str:
        """Address of the run's page."""
        return f"{self.base}/runs/{self.run_id}"
