#!/usr/bin/env bash
# Edit a notebook as text:   tools/nb.sh nbs/x.ipynb /tmp/x.py    writes the percent script
#                            tools/nb.sh /tmp/x.py nbs/x.ipynb    puts it back, exports, runs and cleans the notebook
set -euo pipefail
cd "$(dirname "$0")/.."
py=.venv/bin/python; [ -x $py ] || py=python3
case "$1" in
  *.ipynb) $py -m jupytext --quiet --to py:percent -o "$2" "$1" ;;
  *) update=''; [ -e "$2" ] && update='--update'
     $py -m jupytext --quiet --to ipynb $update -o "$2" "$1"
     $py tools/export.py "$2"
     $py tools/run.py "$2" ;;
esac
