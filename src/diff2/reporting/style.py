"""How the report looks: on a screen of any width, light and dark, and on paper."""

STYLE = """
:root { --paper: #ffffff; --ink: #1b1f24; --soft: #5a6472; --line: #d9dee5; --card: #f6f8fa;
  --green: #1a7f4b; --amber: #9a5b00; --red: #b3261e; --on: #ffffff; --blue: #1f5fbf; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161b; --ink: #e6eaef; --soft: #9aa5b3; --line: #2c343e; --card: #1a2027;
    --green: #1e7a4c; --amber: #8a5600; --red: #a8322b; --blue: #7fb0ff; } }
* { box-sizing: border-box; }
html { font-size: 15px; }
body { margin: 0 auto; padding: 1rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: anywhere; }
header { padding: 1rem 1.25rem; border-radius: .6rem; color: var(--on); background: var(--red); }
header.green { background: var(--green); } header.amber { background: var(--amber); }
header p { margin: .15rem 0; } header .run { opacity: .9; } header .stated { font-size: 1.1rem; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; } h1::first-letter { text-transform: uppercase; }
h2 { margin: 0 0 .5rem; font-size: 1.05rem; } h3 { margin: .3rem 0; font-size: .85rem; color: var(--soft); }
.place { display: inline-block; min-width: 1.5em; color: var(--soft); font-weight: 400; }
main { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; margin-top: .8rem; }
section { padding: .8rem 1rem; border: 1px solid var(--line); border-radius: .6rem; background: var(--card);
  min-width: 0; }
section.whole { grid-column: 1 / -1; }
p { margin: .3rem 0; } .soft, .small, figcaption { color: var(--soft); font-size: .85rem; }
header .small { color: inherit; opacity: .9; }
.sentence { font-size: .95rem; border-left: 3px solid var(--line); padding-left: .8rem; }
.three { display: grid; grid-template-columns: auto minmax(0, 1fr) minmax(0, 1.5fr); gap: 1.6rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th, td { padding: .22rem .5rem .22rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line);
  font-weight: 400; }
thead th { border-top: 0; color: var(--soft); font-size: .78rem; vertical-align: bottom; }
.figures td, .figures thead th:not(:first-child) { text-align: right; padding-right: 0; padding-left: .6rem;
  font-variant-numeric: tabular-nums; }
td, th { overflow-wrap: normal; } .stack tbody th { min-width: 8.5rem; overflow-wrap: anywhere; }
td code { overflow-wrap: anywhere; } .three > :first-child th { white-space: nowrap; }
dl { margin: 0; font-size: .88rem; } dt { color: var(--soft); font-size: .78rem; } dd { margin: 0 0 .4rem; }
ul.checks { list-style: none; margin: 0; padding: 0; font-size: .88rem; }
.checks li { display: flex; gap: .5rem; padding: .12rem 0; } .mark { flex: 0 0 1.1em; font-weight: 700; }
.badge { padding: 0 .45em; border: 1px solid currentColor; border-radius: 1em; font-size: .78rem; white-space: nowrap; }
.share { color: var(--green); } .internal { color: var(--soft); } .secret { color: var(--red); }
@media (prefers-color-scheme: dark) { .share { color: #5fcf97; } .secret { color: #ff8a80; } }
code { font: .78rem/1.3 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
figure { margin: .6rem 0 0; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 10px; } .axis { stroke: var(--line); }
.limit { stroke: var(--soft); stroke-dasharray: 4 3; } .path { fill: none; stroke: var(--blue); stroke-width: 1.8; }
.lines { display: grid; grid-template-columns: 2fr 1fr 2fr; gap: 1.2rem; }
.line { margin-top: 2.2rem; border-top: 1px solid var(--ink); color: var(--soft); font-size: .8rem; }
@media (max-width: 46rem) { html { font-size: 16px; } body { padding: .6rem; } h1 { font-size: 1.4rem; }
  main, .three, .lines { grid-template-columns: minmax(0, 1fr); }
  .stack, .stack tbody, .stack tr, .stack th, .stack td { display: block; }
  .stack thead, .stack .empty { display: none; }
  .stack tr { border-top: 1px solid var(--line); padding: .35rem 0; } .stack th { font-weight: 600; }
  .stack th, .stack td { border: 0; padding: .05rem 0; } .three > :first-child th { white-space: normal; }
  .stack td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); } }
@media print {
  @page { size: A4; margin: 11mm; }
  :root { --paper: #fff; --ink: #000; --soft: #444; --line: #bbb; --card: #fff; --blue: #1f5fbf; --green: #1a7f4b;
    --amber: #9a5b00; --red: #b3261e; }
  html { font-size: 8.4pt; } body { padding: 0; max-width: none; line-height: 1.3; print-color-adjust: exact;
    -webkit-print-color-adjust: exact; }
  main { grid-template-columns: 1fr 1fr; gap: 2mm; margin-top: 2mm; } .three { gap: 5mm;
    grid-template-columns: auto minmax(0, 1fr) minmax(0, 1.5fr); }
  .lines { grid-template-columns: 2fr 1fr 2fr; } section { padding: 1.6mm 3mm; break-inside: avoid; }
  section.table { break-inside: auto; } tr, h2 { break-inside: avoid; } h2 { break-after: avoid; }
  header { padding: 2.5mm 4mm; } h2 { margin-bottom: 1mm; }
  th, td { padding-top: .3mm; padding-bottom: .3mm; } figure { max-width: 75mm; }
  .wide { overflow: visible; } td code { font-size: .62rem; white-space: nowrap; } .line { margin-top: 8mm; } }
"""
