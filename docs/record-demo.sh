#!/bin/sh
# Record `dripd demo` on a terminal of 80 x 24 and make docs/demo.svg of it: an asciinema cast, drawn by svg-term. It needs Node
# with npm, Python 3 with its venv module, and a Rust toolchain; asciinema and svg-term are installed below target/record.
#
# Look at the picture in a browser before it is committed.
set -eu
cd "$(dirname "$0")/.."

cargo build --quiet --release
mkdir -p target/record
cd target/record
[ -x venv/bin/asciinema ] || { python3 -m venv venv && venv/bin/pip install --quiet asciinema==2.4.0; }
[ -d node_modules/svg-term-cli ] ||
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix . svg-term-cli@2.1.1

# A demo that fails its own verdict is no picture to show.
TERM=xterm-256color venv/bin/asciinema rec --quiet --overwrite --cols 80 --rows 24 \
    --command '../release/dripd demo && echo kept > kept' demo.cast
[ -f kept ] || { echo "record-demo: the demo failed; target/record/demo.cast shows why" >&2; exit 1; }
rm kept

# The library of svg-term-cli rather than its command, which cannot set the height of a line: bars of several rows must touch.
node - <<'EOF'
const fs = require("fs");
const { render } = require("svg-term");
const SVGO = require("svgo");
const theme = { ...require("svg-term/lib/default-theme.js"), lineHeight: 1.16 };
theme.fontFamily = "'DejaVu Sans Mono', 'Bitstream Vera Sans Mono', Menlo, Consolas, monospace";

const [head, ...events] = fs.readFileSync("demo.cast", "utf8").trim().split("\n").map((line) => JSON.parse(line));
// Four pictures a second, as often as the charts move; the last one stays for a while before it begins again.
const frames = [];
for (const [at, kind, text] of events) {
  const last = frames.at(-1);
  if (last && at - last[0] < 0.25) last[2] += text;
  else frames.push([at, kind, text]);
}
frames.push([frames.at(-1)[0] + 5, "o", ""]);
const cast = [head, ...frames].map((line) => JSON.stringify(line)).join("\n");
const svg = render(cast, { window: true, cursor: false, theme });
new SVGO({ plugins: [{ collapseGroups: false }], floatPrecision: 2 })
  .optimize(svg)
  .then(({ data }) => fs.writeFileSync("../../docs/demo.svg", data + "\n"));
EOF
ls -l ../../docs/demo.svg
