#!/bin/sh
# Writes .ci/requirements/*.txt: exact versions for each dependency group, solved together by uv so that the files agree.
set -eu
cd "$(dirname "$0")/.."
python=.venv/bin/python
# uv does not read pip's configuration.
UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$("$python" -m pip config get global.index-url 2>/dev/null || echo https://pypi.org/simple)}
export UV_DEFAULT_INDEX
together=$(mktemp)
trap 'rm -f "$together"' EXIT

solve() {
  "$python" -m uv pip compile --quiet --upgrade --no-header --no-annotate --python "$python" "$@"
}

write() {
  file=$1 head=$2
  shift 2
  { echo "# Exact versions for $head; renew with \`make lock\`."; solve "$@"; } >".ci/requirements/$file.txt.new"
  mv ".ci/requirements/$file.txt.new" ".ci/requirements/$file.txt"
}

# Each file also holds what the package itself needs. Notebooks of the documentation name extras.
package=pyproject.toml laboratory=lab/pyproject.toml
extras="--extra dask --extra notebook --extra plan"
solve $package $laboratory $extras --group build --group test --group bench --group docs --group lint --group lock \
  --group peers --group ray --group jupyter --group mpich --group openmpi --group release >"$together"
with="--constraint $together"
write run build $package $with --group build
write lock lock $package $with --group lock
write test "test, bench, lab" $package $laboratory $with --group test --group bench
write bench bench $package $with --group bench
write docs "docs, lab" $package $laboratory $with $extras --group docs
write lint "lint, test, bench, lab" $package $laboratory $with --group lint --group test --group bench
write jupyter "jupyter, notebook, dashboard" $package $with --extra notebook --extra dashboard --group jupyter
for group in peers ray mpich openmpi release; do
  write "$group" "$group" $package $with --group "$group"
done
# PSI/J needs other versions than all the others, and its file holds only what it needs.
write psij psij --group psij
