"""NVIDIA's inspector, really configured and stepped, with a run as its logger."""

from __future__ import annotations

from pathlib import Path

import nvdlfw_inspect.api as inspector
import torch
from reading import Stored

import roundoff
from roundoff.integrations.dlfw_inspect import RoundoffLogger

CONFIG = """
statistics:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  LogTensorStats:
    enabled: True
    tensors: [activation]
    stats: [min, max, l2_norm]
    freq: 2
"""


def test_its_statistics_stand_in_the_run(tmp_path: Path, shared_server: str) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    with roundoff.init("inspected", server=shared_server, first_step=4) as run:
        inspector.initialize(
            str(config), statistics_logger=RoundoffLogger(run), log_dir=str(tmp_path), init_training_step=4
        )
        for step in range(4, 9):
            tensor = torch.arange(4.0) * step
            inspector.log_tensor_stats(
                "decoder.1", tensor=tensor, tensor_name="activation", skip_reduction=True
            )
            run.log({"loss": 1.0}, step=step)
            inspector.step()
        inspector.end_debug()
    stored = Stored(shared_server)
    assert stored.series(run.id, "scalar:decoder.1_activation_max") == {4: 12.0, 6: 18.0, 8: 24.0}
    assert stored.series(run.id, "scalar:decoder.1_activation_min") == dict.fromkeys((4, 6, 8), 0.0)
    assert list(stored.series(run.id, "scalar:decoder.1_activation_l2_norm")) == [4, 6, 8]
    assert stored.run(run.id).dropped == {}
