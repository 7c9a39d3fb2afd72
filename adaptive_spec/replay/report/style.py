"""STYLE: how the page looks, in the light and in the dark, on a desk and on a phone."""

SERIES = 7  # colours that can be told apart by the colour-blind too (after Okabe and Ito)

STYLE = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1d2126;--soft:#5b636d;--faint:#b9bec5;--rule:#e4e6e9;
--s1:#0068a8;--s2:#c94f00;--s3:#00805c;--s4:#b04a86;--s5:#946200;--s6:#3d8fc4;--s7:#6d4bb3;--good:#00805c;--bad:#c23b22;
--d0:#eceef0;--d1:#08519c}
@media (prefers-color-scheme:dark){:root{--page:#14171a;--card:#1c2024;--ink:#e8eaec;--soft:#a3abb4;--faint:#59616a;
--rule:#31373d;--s1:#58b4f0;--s2:#ff9054;--s3:#35c99b;--s4:#ea9ccb;--s5:#e2ad3c;--s6:#9bd6ff;--s7:#b8a0f2;
--good:#35c99b;--bad:#ff7d66;--d0:#2a3036;--d1:#7cc4ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:1.9rem;line-height:1.2;margin:.2em 0 .3em}
h2{font-size:1.25rem;margin:2.4em 0 .3em;padding-top:.8em;border-top:1px solid var(--rule)}
h3{font-size:.95rem;margin:0 0 .5em;font-weight:600}
p{max-width:74ch;margin:.5em 0}
.lead-in,.caption,figcaption{color:var(--soft)}
.lead-in{font-size:1.05rem}
figcaption{font-size:.86rem;line-height:1.45;margin-top:.6em}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px;margin:1em 0;
align-items:start}
figure{margin:0;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px;min-width:0}
figure>svg,.plot>svg{display:block;width:100%;height:auto;max-width:600px;margin:0 auto}
.plot{overflow:hidden}.inside{overflow:hidden}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft)}
svg .name{font-size:11px;fill:var(--c)}svg .title{fill:var(--ink)}svg .note{font-size:11px}
svg .value{fill:var(--ink)}
.grid{stroke:var(--rule)}.axis,.tickmark{stroke:var(--faint)}.rule{stroke:var(--soft);stroke-dasharray:3 3}
.line polyline{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.line circle{fill:var(--c)}
.line.thick polyline{stroke-width:3.2}.line.dash polyline{stroke-dasharray:6 4}.line.dots polyline{stroke-dasharray:2 3}
.line.quiet polyline{stroke-width:1.1;opacity:.75}.line.quiet circle{r:1.6px;opacity:.75}
.lead{stroke:var(--c);stroke-width:.8;opacity:.45}
.band polygon{fill:var(--c);opacity:.15}.band line{stroke:var(--c);stroke-width:7;opacity:.25}
.whisker{stroke:var(--c);stroke-width:2.2}.dot{fill:var(--c)}
.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}
.s7{--c:var(--s7)}.ink{--c:var(--ink)}.soft{--c:var(--soft)}.quiet{--c:var(--faint)}
rect.fill{fill:var(--c)}
.key{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:.84rem;color:var(--soft);margin:.2em 0 .6em;padding:0;
list-style:none}
.key span{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:6px;vertical-align:-1px;
background:var(--c)}
.key.names{display:none}
.scroll{overflow-x:auto;margin:1em 0;background:var(--card);border:1px solid var(--rule);border-radius:10px}
table{border-collapse:collapse;width:100%;font-size:.86rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:6px 12px;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--soft)}tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}.good{color:var(--good)}.bad{color:var(--bad)}
.tag{display:inline-block;font-size:.75rem;font-weight:600;padding:1px 8px;border-radius:99px;
border:1px solid currentColor;color:var(--s2);margin-left:6px;white-space:nowrap}
details{margin:1em 0}summary{cursor:pointer;color:var(--s1);font-weight:600}
pre{overflow-x:auto;background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px;font-size:.8rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:.86rem}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere;min-width:0}
@media (max-width:560px){main{padding:18px 14px 40px}h1{font-size:1.5rem}figure{padding:10px 8px}
.plot.labelled>svg{width:142%;max-width:none}.key.names{display:flex}.plot .lead,.plot .name{display:none}
th,td{padding:5px 8px}dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
"""
