"""The scan as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape

from roundoff.metrics import percent

from .look import TensorFacts
from .report import Scan

STYLE = """
:root { --paper: #faf9f6; --panel: #fff; --ink: #1f2328; --muted: #646b78; --line: #e6e3dc; --lost: #b5441f;
  --wash: #fbeee8; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161a; --panel: #1b1e24; --ink: #e7e5df; --muted: #98a0ab;
  --line: #2b3038; --lost: #ee8a5f; --wash: #33231d; } }
body { margin: 0 auto; max-width: 1200px; padding: 32px 24px; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 32px 0 8px; }
p { margin: 4px 0; } .muted, th { color: var(--muted); font-weight: 400; }
code, td.name { font-family: ui-monospace, SFMono-Regular, "DejaVu Sans Mono", Menlo, monospace; font-size: 12.5px;
  overflow-wrap: anywhere; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: 4px 16px;
  overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 5px 16px 5px 0; text-align: left; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--line); } td.share, th.share { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td.much { color: var(--lost); font-weight: 600; } li { margin: 6px 0; }
"""


def page(scan: Scan) -> str:
    """A complete HTML document: the findings first, then every tensor with its shares."""
    against = f" against <code>{escape(str(scan.other))}</code>" if scan.other else ""
    same = scan.same_share
    words = "" if same is None else f"<p>{percent(same)} of all 16-bit words are the same in both.</p>"
    said = "".join(
        f"<li><code>{escape(', '.join(found.tensors))}</code><br>{escape(found.says)}</li>"
        for found in scan.findings
    )
    skipped = "".join(f"<li><code>{escape(n)}</code>: {escape(why)}</li>" for n, why in scan.skipped.items())
    compared = scan.other is not None
    heads = ["tensor", "dtype", "shape"]
    shares = ["= 1", "= 0", "not finite", "bfloat16 values", *(["same"] if compared else [])]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(scan.path.name)} · roundoff scan</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(scan.path.name)}</h1>"
        f'<p class="muted"><code>{escape(str(scan.path))}</code>{against} · {len(scan.tensors):,} tensors</p>{words}'
        f"<h2>Findings</h2><section>{f'<ul>{said}</ul>' if said else '<p>Nothing stands out.</p>'}</section>"
        + (f"<h2>Not read</h2><section><ul>{skipped}</ul></section>" if skipped else "")
        + _names("Only here", scan.only_here)
        + _names("Only in the other", scan.only_there)
        + "<h2>Tensors</h2><section><table><thead><tr>"
        + "".join(f"<th>{head}</th>" for head in heads)
        + "".join(f'<th class="share">{head}</th>' for head in shares)
        + "</tr></thead><tbody>"
        + "".join(_row(facts, compared=compared) for facts in scan.tensors)
        + "</tbody></table></section></body></html>\n"
    )


def _names(title: str, names: tuple[str, ...]) -> str:
    if not names:
        return ""
    return f"<h2>{title}</h2><section><p><code>{escape(', '.join(names))}</code></p></section>"


def _row(facts: TensorFacts, *, compared: bool) -> str:
    cells = [
        f'<td class="name">{escape(facts.name)}</td>',
        f"<td>{escape(facts.dtype)}</td>",
        f"<td>{'×'.join(map(str, facts.shape)) or 'scalar'}</td>",
    ]
    floats = facts.is_float
    cells += [
        _share(count, facts.numel, shown=floats) for count in (facts.ones, facts.zeros, facts.nonfinite)
    ]
    cells.append(_share(facts.narrow, facts.numel, shown=facts.dtype == "float32"))
    if compared:
        if facts.same is None:
            cells.append(f'<td class="share">{escape(facts.other or "only here")}</td>')
        else:
            cells.append(_share(facts.same, facts.numel, shown=True))
    return f"<tr>{''.join(cells)}</tr>"


def _share(count: int, numel: int, *, shown: bool, loss: bool = True) -> str:
    """A cell; in the colour of loss where much of the tensor is."""
    if not shown or not numel:
        return '<td class="share">–</td>'
    return f'<td class="share{" much" if loss and count >= numel / 2 else ""}">{percent(count / numel)}</td>'
