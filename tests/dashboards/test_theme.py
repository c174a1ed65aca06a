"""Colours: readable, monotone in lightness, and the same in figures and styles."""

from __future__ import annotations

import re

import pytest

from roundoff_dashboards.figures import THEMES, ThemeName
from roundoff_dashboards.pages import STATIC


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG 2 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def tokens(theme: ThemeName) -> dict[str, str]:
    """The colours that the style sheet declares for a theme."""
    css = (STATIC / "app.css").read_text()
    start = css.index(":root {" if theme == "light" else ':root[data-theme="dark"]')
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css[start : css.index("}", start)]))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_small_text_is_readable(theme: ThemeName) -> None:
    styles = tokens(theme)
    for ground in ("paper", "panel", "hover"):
        for text in ("ink", "muted", "accent", "lost", "good", "broken"):
            assert contrast(styles[text], styles[ground]) >= 4.5, (text, ground)
    assert contrast(styles["lost"], styles["lost-wash"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ramp", ["warm", "cool"])
def test_ramps_are_monotone_in_lightness(theme: ThemeName, ramp: str) -> None:
    levels = [luminance(color) for color in getattr(THEMES[theme], ramp)]
    assert levels == sorted(levels, reverse=theme == "light")
    assert len(set(levels)) == len(levels)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_and_styles_agree(theme: ThemeName) -> None:
    styles, palette = tokens(theme), THEMES[theme]
    for name in ("paper", "panel", "ink", "muted", "line", "accent", "lost", "broken"):
        assert styles[name] == getattr(palette, name)


def test_the_system_s_dark_is_the_chosen_dark() -> None:
    css = (STATIC / "app.css").read_text()
    start = css.index("@media (prefers-color-scheme: dark)")
    system = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css[start : css.index("}", start)]))
    assert system == tokens("dark")
