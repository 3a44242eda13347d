"""The look of a report: light and dark, with nine colours that differ in hue and brightness."""

STYLE = """
:root { color-scheme: light dark; --text: #1d2530; --soft: #5c6773; --page: #fff; --card: #f5f7f9; --line: #d9dee4; --on: #fff;
  --c0: #2f6db5; --c1: #c8691c; --c2: #2b8a6b; --c3: #8b5fb0; --c4: #b23b5e; --c5: #7a7f2a; --c6: #1f9bb5; --c7: #6b4a2f; --c8: #7d8894; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ec; --soft: #9aa5b1; --page: #14181d; --card: #1d232a; --line: #333c46;
  --on: #10141a; --c0: #72aae8; --c1: #eb9a53; --c2: #5fc3a0; --c3: #bd97df; --c4: #e8809c; --c5: #bcc25c; --c6: #7fd6e8; --c7: #c9a583; --c8: #a4aeb8; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { background: var(--card); border-inline-start: 4px solid var(--c0); padding: .6rem .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .6rem; }
.tiles div { background: var(--card); padding: .6rem .9rem; } .tiles span { display: block; color: var(--soft); font-size: .85rem; }
.tiles b { font-size: 1.3rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: start; padding: .25rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.number { text-align: end; font-variant-numeric: tabular-nums; } td.text, pre { overflow-wrap: anywhere; white-space: pre-wrap; }
pre { font-size: .8rem; } .unknown { color: var(--soft); font-style: italic; }
.legend { color: var(--soft); font-size: .85rem; margin: .2rem 0 .6rem; } .legend span { margin-inline-end: 1.2rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-inline-end: .4em; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--soft); } svg text.on { fill: var(--on); }
.grid { stroke: var(--line); } polyline { fill: none !important; stroke-width: 1.8; stroke-linejoin: round; } .rest { fill: var(--line); }
.c0 { fill: var(--c0); stroke: var(--c0); background: var(--c0); }
.c1 { fill: var(--c1); stroke: var(--c1); background: var(--c1); }
.c2 { fill: var(--c2); stroke: var(--c2); background: var(--c2); }
.c3 { fill: var(--c3); stroke: var(--c3); background: var(--c3); }
.c4 { fill: var(--c4); stroke: var(--c4); background: var(--c4); }
.c5 { fill: var(--c5); stroke: var(--c5); background: var(--c5); }
.c6 { fill: var(--c6); stroke: var(--c6); background: var(--c6); }
.c7 { fill: var(--c7); stroke: var(--c7); background: var(--c7); }
.c8 { fill: var(--c8); stroke: var(--c8); background: var(--c8); }
rect { stroke: none !important; }
"""
