#!/bin/sh
# Make a site of the pages: target/book/site/html. The pages link to files of the repository, so mdBook is given a copy of those.
set -eu
cd "$(dirname "$0")/.."
book=target/book
rm -rf "$book"
mkdir -p "$book/tree"
git ls-files '*.md' docs examples clients systemd config.toml compose.yaml Dockerfile .ci/run 'LICENSE-*' | tar -cf - -T - | tar -xf - -C "$book/tree"
cp docs/book.toml "$book/"
# In the copy the summary stands at the top.
sed -E 's|\]\(\.\./|](|; t; s|\]\(([a-z-]+\.md)|](docs/\1|' docs/SUMMARY.md > "$book/tree/SUMMARY.md"
rm "$book/tree/docs/SUMMARY.md"
sed -i 's|\[All pages\](docs/SUMMARY.md), ||' "$book/tree/README.md"
mdbook build "$book" -d "$PWD/$book/site"
echo "the site is in $book/site/html: open index.html there"
