"""Delivery: from the training thread to the server, without hurting the one or trusting the other."""

from .counters import Delivery as Delivery
from .intake import Intake as Intake
from .launcher import Identity as Identity, identify as identify
from .masking import presentable as presentable
from .notices import Notices as Notices
from .pipeline import Pipeline as Pipeline
from .sample import GroupSetting as GroupSetting, Sample as Sample, Sink as Sink
from .tee import Tee as Tee
from .termination import termination as termination
