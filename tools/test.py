"""What `make test` runs: is everything in sync, does every chapter run, does every test pass? Ends with the seconds of each part.

    python tools/test.py              all parts
    python tools/test.py sync         package, tests and README are what the notebooks export, and notebooks are clean
    python tools/test.py claims       every claim about inference has a cell that asserts it (tools/claims.py tells which)
    python tools/test.py notebooks    every chapter's notebook runs, and its stored outputs are what it prints
    python tools/test.py pytest       the exported tests

The notebooks in nbs/tests/ are not run here: what they hold is what pytest runs, and there at full size. `make run` runs them, too.
"""
import os, shutil, subprocess, sys, time
from pathlib import Path

root = Path(__file__).parent.parent
made = ('llm_infer', 'tests', 'README.md', 'nbs', 'index.ipynb')


def snapshot():
    "The bytes of every file that the notebooks make, and of the notebooks, by path."
    paths = [p for name in made for p in ([root / name] if (root / name).is_file() else (root / name).rglob('*'))]
    return {p.relative_to(root): p.read_bytes() for p in paths if p.is_file() and not {'__pycache__', '.ipynb_checkpoints'} & set(p.parts)}


def sync():
    "Export and clean everything again: nothing may change."
    before = snapshot()
    subprocess.run([sys.executable, 'tools/export.py'], cwd=root, check=True)
    for path in ('nbs', 'index.ipynb'): subprocess.run([Path(sys.executable).parent / 'nbdev_clean', '--fname', path], cwd=root, check=True)
    after = snapshot()
    changed = sorted(str(p) for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    if changed: print('not in sync with the notebooks (exported now; look at them and commit):', *changed, sep='\n  ')
    return not changed


def claims(): return subprocess.run([sys.executable, 'tools/claims.py', '--brief'], cwd=root).returncode == 0


def notebooks():
    get_compiler()
    chapters = [*sorted(root.glob('nbs/*.ipynb')), root / 'index.ipynb']
    return subprocess.run([sys.executable, 'tools/run.py', '--check', '--jobs', str(os.cpu_count() or 1), *chapters], cwd=root).returncode == 0


def install(*packages):
    "Install Debian packages, where there is apt and we may."
    if not shutil.which('apt-get') or os.geteuid() != 0: return
    quiet = {'env': {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}, 'stdout': subprocess.DEVNULL}
    subprocess.run(['apt-get', 'update', '-qq'], **quiet)
    subprocess.run(['apt-get', 'install', '-y', '-qq', '--no-install-recommends', *packages], **quiet)


def get_compiler():
    "Install a C compiler where there is none and we may; say what is missing where we may not."
    names = 'cc', 'gcc', 'clang', (os.environ.get('CC') or 'cc').split()[0]
    if any(map(shutil.which, names)): return
    print('no C compiler found: installing the package gcc, for the kernels in C', flush=True)
    install('gcc', 'libc6-dev')
    if not any(map(shutil.which, names)): print('WARNING: NO C COMPILER, SO NO KERNEL IN C IS TESTED. Install the package gcc.')


def get_clang():
    "Install Clang beside the compiler there is, where we may: the kernels in C are tested with both."
    if shutil.which('clang'): return
    install('clang', 'libomp-dev')
    if not shutil.which('clang'): return print('no Clang found: the kernels in C are tested with one compiler')
    version = subprocess.run(['clang', '-dumpversion'], capture_output=True, text=True).stdout.split('.')[0]
    install(f'libclang-rt-{version}-dev')                  # the sanitizers; Debian keeps them apart


def get_chromium():
    "Install Debian's chromium where there is no browser and we may; say what is missing where we may not."
    names = 'chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable', os.environ.get('CHROMIUM') or 'chromium'
    if any(map(shutil.which, names)): return
    print('no Chromium found: installing the package chromium, for the browser tests', flush=True)
    install('chromium', 'fonts-dejavu-core')
    if not any(map(shutil.which, names)):
        print('WARNING: NO BROWSER, SO NO WIDGET IS TESTED. Install the package chromium, or name a Chromium in the environment as CHROMIUM.')


def pytest():
    "A worker per core, each with one thread: most tests are too small to keep several threads busy."
    get_compiler()
    get_clang()
    get_chromium()
    workers = min(os.cpu_count() or 1, 8)
    command = [sys.executable, '-m', 'pytest', '-q', 'tests', '--durations=5', f'--numprocesses={workers}', '--dist=worksteal']
    return subprocess.run(command, cwd=root, env={**os.environ, 'OMP_NUM_THREADS': '1'}).returncode == 0


parts = {'sync': sync, 'claims': claims, 'notebooks': notebooks, 'pytest': pytest}
chosen, failed, lines = sys.argv[1:] or list(parts), [], []
for name in chosen:
    print(f'== {name}', flush=True)
    start = time.time()
    if not parts[name](): failed.append(name)
    lines.append(f'{name}: {"FAILED" if name in failed else "ok"} in {time.time() - start:.0f} s')
print(*lines, sep='\n')
sys.exit(1 if failed else 0)
