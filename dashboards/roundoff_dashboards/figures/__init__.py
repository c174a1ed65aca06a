"""Figures as pure functions: answers of the server in, Plotly figures out. Usable in a notebook."""

from .curves import alert_spans as alert_spans, efficiency as efficiency, loss as loss
from .heatmap import heatmap as heatmap
from .spark import Spark as Spark, spark as spark
from .theme import THEMES as THEMES, Theme as Theme, ThemeName as ThemeName
