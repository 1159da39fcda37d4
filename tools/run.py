"""Run notebooks from top to bottom, each in a fresh kernel.

    python tools/run.py [nb …]            run in place: the fresh outputs are stored, cleaned
    python tools/run.py --check [nb …]    run a copy in memory: fail on an error, and on a text output that is not the stored one
    python tools/run.py --widgets [nb …]  run nothing: give the stored widgets the JavaScript and CSS that llm_infer/viz/ has now

Without names: all of nbs/ and index.ipynb. Cells with a flag of `tst_flags` in settings.ini (`#| slow`, `#| cuda`, …) keep
their stored outputs and are not run, unless `--flags slow` (or `slow,cuda`) asks for them. `--jobs N` runs N notebooks at a time.
Two runs give the same bytes: no execution times are recorded and widget ids are made from the notebook's name. Of widgets, the state
of those that are shown is kept, so that a reader without a kernel can move them: in JupyterLab, and on the pages of `make site`.
"""
import argparse, hashlib, json, os, re, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbdev.clean import clean_nb
from nbdev.config import get_config

WIDGET_STATE, WIDGET_VIEW = 'application/vnd.jupyter.widget-state+json', 'application/vnd.jupyter.widget-view+json'
DIRECTIVE = re.compile(r'^[ \t]*#[ \t]*\|[ \t]*([\w:]+)[ \t]*(\S*)', re.M)


class Client(NotebookClient):
    "An nbclient that passes over cells with one of the flags in `skip`, so that their stored outputs survive."
    skip = frozenset()

    async def async_execute_cell(self, cell, cell_index, **kw):
        if cell.cell_type == 'code':
            flags = dict(DIRECTIVE.findall(cell.source))
            if self.skip & flags.keys() or flags.get('eval:') == 'false': return cell
        return await super().async_execute_cell(cell, cell_index, **kw)


def keep_shown_widgets(nb):
    """Drop from the notebook the states of widgets that no output shows; the others have no kernel any more. Returns the ids, in order.

    A widget is kept with those it refers to; of a layout, what is not the default.
    """
    stored = nb['metadata'].get('widgets', {}).get(WIDGET_STATE)
    if not stored: return []
    states, ids = stored['state'], []
    shown = [o.get('data', {}).get(WIDGET_VIEW, {}).get('model_id') for c in nb['cells'] for o in c.get('outputs', [])]
    while shown:
        model_id = shown.pop(0)
        if model_id in ids or model_id not in states: continue
        ids.append(model_id)
        shown += re.findall(r'IPY_MODEL_(\w+)', json.dumps({k: v for k, v in states[model_id]['state'].items() if k not in ('_esm', '_css')}))
    stored['state'] = {i: states[i] for i in ids}
    for model in stored['state'].values():
        if 'live' in model['state']: model['state']['live'] = False
        if model['model_name'] == 'LayoutModel': model['state'] = {k: v for k, v in model['state'].items() if v is not None}
    if not ids: del nb['metadata']['widgets']
    return ids


def fold_solutions(nb):
    "Fold the source of `#| solution` cells, as JupyterLab does with View > Collapse Selected Code, and of no others."
    for cell in nb['cells']:
        folded = cell['cell_type'] == 'code' and 'solution' in dict(DIRECTIVE.findall(''.join(cell['source'])))
        cell['metadata'] = {'jupyter': {'source_hidden': True}} if folded else {}


def execute(path, flags=()):
    "Run the notebook at `path` in a fresh kernel; returns its cleaned JSON as a dict. Raises CellExecutionError."
    nb = nbformat.read(path, as_version=4)
    client = Client(nb, timeout=None if flags else 900, kernel_name='python3', resources={'metadata': {'path': str(path.parent)}}, record_timing=False,
                    store_widget_state=True, coalesce_streams=True, extra_arguments=['--log-level=ERROR'])
    client.skip = frozenset(get_config().tst_flags.split()) - set(flags)
    client.execute()
    ids = keep_shown_widgets(nb)
    text = nbformat.writes(nb)
    for i, model_id in enumerate(ids): text = text.replace(model_id, hashlib.md5(f'{path.name}:{i}'.encode()).hexdigest())
    fresh = json.loads(text)
    fold_solutions(fresh)
    clean_nb(fresh, clean_ids=True, allowed_cell_metadata_keys=['jupyter'])
    fresh['metadata']['language_info'] = {'name': 'python'}   # all that nbconvert needs to mark code as Python
    return fresh


def refresh_widgets(path):
    """Leave the widgets that are shown, with the JavaScript and CSS of today; returns whether something has changed.

    Which file a widget is from says its JavaScript: `mount(el, 'stepper', …)` stands in stepper.js.
    """
    from llm_infer.viz.widget import widget_css, widget_source
    nb = json.loads(path.read_text(encoding='utf-8'))
    before = json.dumps(nb, sort_keys=True)
    keep_shown_widgets(nb)
    for model in nb['metadata'].get('widgets', {}).get(WIDGET_STATE, {}).get('state', {}).values():
        name = re.search(r"\bmount\(el, '(\w+)'", model['state'].get('_esm', ''))
        if name and (get_config().lib_path / 'viz' / f'{name[1]}.js').exists():
            model['state'].update(_esm=widget_source(name[1]), _css=widget_css(name[1]))
    changed = json.dumps(nb, sort_keys=True) != before
    if changed: store(path, nb)
    return changed


def store(path, nb): path.write_text(json.dumps(nb, sort_keys=True, indent=1, ensure_ascii=False) + '\n', encoding='utf-8')


def text_outputs(nb):
    "What a reader sees as text, cell by cell: printed streams and plain-text results."
    join = lambda x: ''.join(x) if isinstance(x, list) else x
    for i, cell in enumerate(nb['cells']):
        if cell['cell_type'] == 'code':
            yield i, [join(o.get('text', o.get('data', {}).get('text/plain', ''))) for o in cell['outputs']]


def run(path, check, flags):
    "Run one notebook; returns (path, seconds, problem or None)."
    start, problem = time.time(), None
    try:
        fresh = execute(path, flags)
        if check:
            changed = [i for (i, old), (_, new) in zip(text_outputs(json.loads(path.read_text())), text_outputs(fresh)) if old != new]
            if changed: problem = f'cells {changed}: the stored output is not what the cell prints now'
        else: store(path, fresh)
    except CellExecutionError as error: problem = str(error)
    return path, time.time() - start, problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('notebooks', nargs='*', type=Path)
    parser.add_argument('--check', action='store_true')
    parser.add_argument('--widgets', action='store_true')
    parser.add_argument('--flags', type=lambda s: s.split(','), default=[], metavar='slow,cuda')
    parser.add_argument('--jobs', type=int, default=1)
    args = parser.parse_args()
    root = get_config().config_path
    notebooks = [p.resolve() for p in args.notebooks] or [p for p in sorted((root / 'nbs').rglob('*.ipynb')) + [root / 'index.ipynb']
                                                if p.exists() and '.ipynb_checkpoints' not in p.parts]
    if args.widgets:
        sys.path.insert(0, str(root))
        for path in notebooks:
            if refresh_widgets(path): print(f'{path.relative_to(root)}: its widgets are of today')
        return 0
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(root), os.environ.get('PYTHONPATH')]))
    if args.jobs > 1: os.environ.setdefault('OMP_NUM_THREADS', str(max(1, (os.cpu_count() or 1) // args.jobs)))
    failed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for path, seconds, problem in pool.map(lambda p: run(p, args.check, args.flags), notebooks):
            failed += problem is not None
            print(f'{"FAIL" if problem else "ok":4s} {seconds:6.1f}s  {path.relative_to(root)}' + (f'\n{problem}' if problem else ''), flush=True)
    print(f'{len(notebooks) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__': sys.exit(main())
