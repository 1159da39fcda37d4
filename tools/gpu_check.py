"""What only a GPU can tell, in one run of under eight minutes: are the kernels and the engine right on it, and how fast are they?

    python tools/gpu_check.py                    all parts, each in a process of its own, so that none can break another
    python tools/gpu_check.py --list             their names
    python tools/gpu_check.py --part serving     one part, in this process; its figures replace the older ones in the report
    python tools/gpu_check.py --interpret        the dry run without a GPU: the same code on small shapes; its times mean nothing

Writes gpu_check.json (every figure), gpu_check.md (the table that is printed, goals beside figures) and, where parts have their
own processes, gpu_check.log. Exit status 0: every correctness part that was asked for has passed and no part broke; a goal that
is missed does not change it. Needs torch, triton, safetensors, tokenizers, numpy and transformers; all weights are random.
"""
import argparse, json, math, os, platform, re, shutil, signal, subprocess, sys, tempfile, time, traceback
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

os.environ.setdefault('HF_HUB_OFFLINE', '1')
if '--interpret' in sys.argv: os.environ.update(TRITON_INTERPRET='1', LLM_INFER_KERNELS='auto')   # read by the imports below
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch
try: import jaxtyping
except ImportError:   # shapes are for readers and tests: without jaxtyping, Float[Tensor, "rows"] is Tensor
    jaxtyping = sys.modules['jaxtyping'] = ModuleType('jaxtyping')
    plain = type('plain', (), {'__class_getitem__': classmethod(lambda cls, item: item[0])})
    for kind in ('Bool', 'Float', 'Int', 'Int32', 'Int64'): setattr(jaxtyping, kind, plain)
from gpu_correctness import engine, kernels
from gpu_speed import ceilings, serving, speeds, transformers
from llm_infer.engine.cuda_graphs import capture_graph, capture_nothing

LIMIT = 465                                       # seconds for all parts together


# ---- the report, and what a part knows

def load_report(out):
    "The report as it stands in the folder `out`."
    path = out / 'gpu_check.json'
    return json.loads(path.read_text()) if path.exists() else {'parts': {}}

def save_report(out, report):
    (out / 'gpu_check.json').write_text(json.dumps(report, indent=1) + '\n')

@dataclass
class Run:
    "One part at work: where it runs, when it has to end, and its rows: the figures so far."
    name: str
    out: Path
    interpret: bool
    small: bool
    ends: float
    part: dict = field(default_factory=lambda: {'status': 'running', 'rows': [], 'notes': []})

    @property
    def device(self): return torch.device('cpu' if self.interpret else 'cuda')
    @property
    def time_left(self): return self.ends - time.monotonic()
    @property
    def capture(self): return capture_nothing if self.interpret else capture_graph

    @cached_property
    def cold(self):
        "Half a GiB to overwrite before each timed call: that empties the L2 cache, and gives the CPU time to queue the call."
        return torch.empty(1 if self.interpret else 1 << 29, dtype=torch.int8, device=self.device)

    def report(self): return load_report(self.out)

    def save(self):
        "Put the part into the report on disk. It is done after every figure, so that a crash loses none."
        report = self.report()
        report['parts'][self.name] = self.part
        save_report(self.out, report)

    def add(self, what, case, **figures):
        "A row of the report. `ok`: whether a check passed. `reached` and `goal`: a figure that should be as large."
        self.part['rows'].append({'what': what, 'case': case, **figures})
        self.save()

    def note(self, text):
        self.part['notes'].append(text)
        self.save()

    def failed(self, what, case, error):
        traceback.print_exc()
        self.add(what, case, ok=False, message=f'{type(error).__name__}: {error}'[:300])

    def guarded(self, what, case, call, *args):
        "`call(run, *args)`, unless the time is up; an exception becomes a row that has failed, and the part goes on."
        if self.time_left < 5: return self.note(f'{what}, {case}: left out, the time was up')
        try: call(self, *args)
        except Exception as error: self.failed(what, case, error)

    def compare(self, what, case, got, want, tolerance, **more):
        "A row for the largest error of `got` relative to 1 + |want|; NaN fails."
        want, error = want.to(got.device).double(), math.inf
        if got.shape == want.shape: error = ((got.double() - want).abs() / (1 + want.abs())).max().item() if got.numel() else 0.
        shown = error if math.isfinite(error) else 'inf'                                         # JSON knows no NaN
        self.add(what, case, error=shown, tolerance=tolerance, ok=error <= tolerance, **more)

    def speed(self, what, case, ms, ceilings, num_bytes=None, flops=None, goal=None):
        "A row for a time, as a rate and as a share of the device's ceiling for it."
        rate, ceiling, unit = (num_bytes / ms / 1e6, 'copy', 'GB/s') if num_bytes else (flops / ms / 1e9, 'matmul', 'TFLOP/s')
        self.add(what, case, ms=ms, value=rate, unit=unit, reached=rate / ceilings[ceiling], goal=goal)


# ---- part: sanitizer

def output_of(command, seconds, **environment):
    "(stdout and stderr, exit status) of a process; after `seconds` it is ended, and the status is None."
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace',
                               env={**os.environ, **environment}, start_new_session=True)
    try: return process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)                       # with what it has started itself
        return process.communicate()[0], None

def errors_found(output):
    "The number of errors or hazards that compute-sanitizer's output ends with; None if it ends without one."
    found = re.findall(r'(?:ERROR|RACECHECK) SUMMARY: (\d+)', output)
    return int(found[-1]) if found else None

def sanitizer(run):
    "The kernels' small shapes under compute-sanitizer. memcheck must find nothing; what the others find is for people to judge."
    tool = shutil.which('compute-sanitizer', path=os.environ.get('PATH', '') + os.pathsep + '/usr/local/cuda/bin')
    if tool is None: run.note('compute-sanitizer is not here: nothing was checked with it')
    for check in ('memcheck', 'racecheck', 'initcheck') if tool and not run.interpret else ():
        if run.time_left < 30: run.note(f'{check}: left out, the time was up'); continue
        with tempfile.TemporaryDirectory() as folder:
            command = [tool, '--tool', check, sys.executable, __file__, '--part', 'kernels', '--small', '--out', folder,
                       '--seconds', str(run.time_left - 20)]
            output, status = output_of(command, run.time_left - 3, PYTORCH_NO_CUDA_MEMORY_CACHING='1')   # each tensor by itself
            part = load_report(Path(folder))['parts'].get('kernels', {'status': 'not begun', 'rows': []})
        found, case = errors_found(output), f'kernels: {part["status"]}, {len(part["rows"])} checks'
        verdict = found == 0 and part['status'] == 'ok' if check == 'memcheck' else None
        if found is None: run.note(f'{check} came to no result (exit status {status}, {case}): {output[-300:]}')
        else: run.add(check, case, error=found, tolerance=0, ok=verdict)


# ---- all parts

PARTS = {'kernels': (kernels, 130), 'engine': (engine, 70), 'ceilings': (ceilings, 25), 'speeds': (speeds, 60),   # and seconds
         'serving': (serving, 80), 'transformers': (transformers, 75), 'sanitizer': (sanitizer, 120)}

def run_here(name, args, seconds):
    "One part in this process."
    start = time.monotonic()
    run = Run(name, args.out, args.interpret, args.interpret or args.small, start + seconds)
    torch.backends.cuda.matmul.allow_tf32 = False
    run.guarded(name, 'the part itself', PARTS[name][0])
    rows = run.part['rows']
    run.part['status'] = 'failed' if any(row.get('ok') is False for row in rows) else 'ok' if rows else 'skipped'
    run.part['seconds'] = round(time.monotonic() - start, 1)
    run.save()

def run_isolated(name, args, seconds):
    "One part in a process of its own, which is ended when its time is up; what it had put into the report stays there."
    command = [sys.executable, __file__, '--part', name, '--out', str(args.out), '--seconds', str(seconds),
               *['--interpret'] * args.interpret, *['--small'] * args.small]
    start, (output, status) = time.monotonic(), output_of(command, seconds + 15)
    with (args.out / 'gpu_check.log').open('a') as log: log.write(f'==== {name}\n{output}\n')
    report = load_report(args.out)
    part = report['parts'].setdefault(name, {'status': 'running', 'rows': [], 'notes': []})
    if part['status'] == 'running':
        why = 'ended, its time was up' if status is None else f'its process died with exit status {status}: {output[-300:]}'
        part.update(status='failed', notes=[*part['notes'], why], seconds=round(time.monotonic() - start, 1))
        save_report(args.out, report)

def about(args):
    "What was run, on what and when."
    device = 'none: interpreted on the CPU, no time means anything' if args.interpret else torch.cuda.get_device_name()
    return {'device': device, 'date': date.today().isoformat(), 'dry run': args.interpret, 'python': platform.python_version(),
            'cuda': torch.version.cuda, **{p: version(p) for p in ('torch', 'triton', 'transformers', 'numpy')}}

def checks_cells(rows):
    "Cells of the table for all checks of one kernel."
    bad = [r for r in rows if r['ok'] is False]
    worst = max(rows, key=lambda r: float(r.get('error', 0)) / (r.get('tolerance') or 1e-99))
    text = f'worst error {float(worst["error"]):.2g}, allowed {worst["tolerance"]:.2g}' if 'error' in worst else ''
    more = [r['detail'] for r in rows if 'detail' in r][-1:] + [f'failed: {r["case"]} {r.get("message", "")}' for r in bad[:2]]
    result = 'FAILED' if bad else 'passed' if rows[0]['ok'] else 'to be judged'
    return rows[0]['what'], f'{len(rows)} check{"s" * (len(rows) > 1)}', '; '.join(filter(None, [text, *more])), '', result

def figure_cells(row, dry):
    "Cells of the table for one figure and its goal."
    figure = f'{row["value"]:,.4g} {row["unit"]}' + (f', {row["ms"]:.4g} ms' if 'ms' in row else '')
    if dry: return row['what'], row['case'], figure + ' (meaningless)', '', ''
    goal, reached = row.get('goal'), row.get('reached')
    verdict = '' if goal is None else f'{goal:.2f}: {"met" if reached >= goal else "missed"}'
    return row['what'], row['case'], figure, '' if reached is None else f'{reached:.2f}', verdict

def table(report):
    "The report as Markdown."
    lines = [', '.join(f'{k}: {v}' for k, v in report['about'].items()), '',
             '| part | what | case | figure | reached | goal or result |', '|---|---|---|---|---|---|']
    for name, part in report['parts'].items():
        checks = {}
        for row in part['rows']:
            if 'ok' in row: checks.setdefault(row['what'], []).append(row)
        found = [checks_cells(rows) for rows in checks.values()]
        found += [figure_cells(row, report['about']['dry run']) for row in part['rows'] if 'ok' not in row]
        plain = [[cell.replace('|', '/').replace('\n', ' ') for cell in cells] for cells in found]
        lines += [f'| {name} | {" | ".join(cells)} |' for cells in plain]
    lines += ['', *(f'- {name}: {text}' for name, part in report['parts'].items() for text in part['notes']), '']
    ends = (f'{name} {part["status"]} ({part.get("seconds", 0)} s)' for name, part in report['parts'].items())
    return '\n'.join([*lines, ', '.join(ends)])

def arguments():
    "The command line."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--part', action='append', choices=list(PARTS), help='only this one; may be given several times')
    parser.add_argument('--list', action='store_true', help='the parts, and the seconds that each may take')
    parser.add_argument('--interpret', action='store_true', help='the dry run on the CPU')
    parser.add_argument('--small', action='store_true', help='kernels: only the small shapes')
    parser.add_argument('--isolate', action='store_true', help='a process for each part, in the dry run too')
    parser.add_argument('--seconds', type=float, help='the time for each part, in place of its own')
    parser.add_argument('--out', type=Path, default=os.environ.get('OUT', 'gpu_check'), help='default: $OUT, else ./gpu_check')
    args = parser.parse_args()
    if not (args.list or args.interpret or torch.cuda.is_available()): parser.error('no GPU here; --interpret is the dry run')
    return args

def main():
    args, ends = arguments(), time.monotonic() + LIMIT
    if args.list:
        for name, (part, seconds) in PARTS.items(): print(f'{name:13} {seconds:4} s  {part.__doc__}')
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    names, older, here = args.part or list(PARTS), load_report(args.out), about(args)
    same = older.get('about', {}).get('device') == here['device']
    kept = {name: part for name, part in older['parts'].items() if same and name not in names}
    save_report(args.out, {'about': here, 'parts': kept})
    isolate = args.isolate or len(names) > 1 and not args.interpret
    for name in names:
        seconds = min(args.seconds or PARTS[name][1], ends - time.monotonic() - 20)
        (run_isolated if isolate and seconds > 5 else run_here)(name, args, seconds)
        print(name, load_report(args.out)['parts'][name]['status'], flush=True)
    report = load_report(args.out)
    (args.out / 'gpu_check.md').write_text(table(report) + '\n')
    print(table(report))
    found = {name: report['parts'][name]['status'] for name in names}
    return int('failed' in found.values() or any(found.get(name, 'ok') != 'ok' for name in ('kernels', 'engine')))


if __name__ == '__main__': sys.exit(main())
