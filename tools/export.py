"""Make the package and the tests from the notebooks.

    python tools/export.py                  everything: llm_infer/, tests/, README.md
    python tools/export.py nbs/x.ipynb …    just these notebooks' modules and tests

Cells marked `#| export` go to the module that the notebook's `#| default_exp` names (nbdev's own way). Cells marked
`#| test` go to tests/NAME.py, where `#| default_test NAME` stands once in the notebook: a directive of this project,
since nbdev exports into the package only. Nothing of the package is imported, so a broken module can still be exported.
"""
import subprocess, sys
from pathlib import Path
from fastcore.foundation import L
from nbdev.config import get_config
from nbdev.doclinks import nbdev_export, nbglob
from nbdev.export import nb_export
from nbdev.maker import ModuleMaker
from nbdev.process import NBProcessor


class TestCells:
    "A processor that collects the `#| test` cells of one notebook, and its title."
    def begin(self): self.cells, self.name = L(), None
    def _default_test_(self, cell, name): self.name = name
    def _test_(self, cell): self.cells.append(cell)
    def __call__(self, cell):
        if cell.cell_type == 'markdown' and cell.source.startswith('# '): self.cells.append(cell)


def export_tests(notebook, dest):
    "Write the notebook's `#| test` cells to `dest`/NAME.py; returns NAME, or None where the notebook has no tests."
    found = TestCells()
    NBProcessor(notebook, [found]).process()
    if not found.name: return None
    module = ModuleMaker(dest=dest, name=found.name, nb_path=notebook, is_new=True)
    module.make(found.cells, found.cells, lib_path=dest)
    module.fname.write_text(module.fname.read_text().rstrip() + '\n')
    return found.name


def export_readme(root):
    "README.md is index.ipynb with its outputs, as Markdown."
    if not (root / 'index.ipynb').exists(): return
    subprocess.run([sys.executable, '-m', 'nbconvert', '--to', 'markdown', 'index.ipynb', '--output', 'README.md', '--log-level=ERROR'],
                   cwd=root, check=True)
    readme = root / 'README.md'
    readme.write_text('\n'.join(line.rstrip() for line in readme.read_text().strip().splitlines()) + '\n')


def main(argv):
    cfg = get_config()
    root, notebooks = cfg.config_path, [Path(a) for a in argv] or nbglob(as_path=True).sorted('name')
    if argv:
        for nb in notebooks: nb_export(nb, lib_path=cfg.lib_path)
    else: nbdev_export()
    (root / 'tests').mkdir(exist_ok=True)
    made = {export_tests(nb, root / 'tests') for nb in notebooks} - {None}
    if not argv:
        for stale in set((root / 'tests').glob('*.py')) - {root / 'tests' / f'{name}.py' for name in made}: stale.unlink()
        export_readme(root)


if __name__ == '__main__': main(sys.argv[1:])
