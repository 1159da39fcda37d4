"""Which tile sizes are best on the GPU at hand: the attention kernel's, for each phase and head_dim, and the splits of a decode.

    python tools/autotune.py                             everything: some 200 kernels to compile, a few seconds each
    python tools/autotune.py --phases decode --head-dims 128
    python tools/autotune.py --interpret                 a dry run without a GPU: tiny shapes, few candidates, times mean nothing

Each candidate runs on one batch in bfloat16 and is dropped if it does not compile, spills, or differs from PyTorch's attention.
Of the others the five fastest are printed beside the table's present choice, and at the end a row to paste into `LAUNCH` of
33_attention. A present choice that is within 2% of the fastest stays, since that much is noise. The splits have a rule and no
table: there the script prints what the rule loses. Exit status 1 where a present choice is dropped.
"""
import argparse, os, sys, time
from collections import Counter
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from unittest.mock import patch

if '--interpret' in sys.argv: os.environ['TRITON_INTERPRET'] = '1'       # read when triton is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch, triton
from triton.runtime.jit import JITFunction
from llm_infer.kernels.attention import LAUNCH, Launch, attention_torch, attention_triton, launch_for
from llm_infer.kernels.flash_decoding import num_kv_splits
from llm_infer.kernels.triton_compat import INTERPRETED, gpu

DEVICE = torch.device('cpu' if INTERPRETED else 'cuda')
NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE = (6, 2, 16) if INTERPRETED else (32, 8, 16)
BATCHES = {'prefill': [(20, 20), (9, 30)], 'decode': [(1, 70)] * 2} if INTERPRETED else {                # (query_len, seq_len)
    'prefill': [(3000, 3000), (1000, 4000)], 'decode': [(1, 1000 + 100 * i) for i in range(64)]}
SPLITS, CONTEXT = ((1, 2, 3), 100) if INTERPRETED else ((1, 2, 4, 8, 16, 32, 64), 8192)


def attention_call(requests, head_dim):
    "A function of `launch` and `num_splits` that runs the kernel on a random batch, and what it should give."
    query_lens, seq_lens = zip(*requests)
    tensor = partial(torch.tensor, dtype=torch.int32, device=DEVICE)
    num_blocks = [-(-n // BLOCK_SIZE) for n in seq_lens]
    free, table = torch.randperm(sum(num_blocks)).tolist(), torch.zeros(len(requests), max(num_blocks), dtype=torch.int32)
    for row, n in zip(table, num_blocks): row[:n] = torch.tensor([free.pop() for _ in range(n)])
    random = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device=DEVICE)
    caches = [random(sum(num_blocks), BLOCK_SIZE, NUM_KV_HEADS, head_dim) for _ in range(2)]
    q = random(sum(query_lens), NUM_HEADS, head_dim)
    rest = table.to(DEVICE), tensor([0, *accumulate(query_lens)]), tensor(seq_lens), head_dim ** -.5
    want = attention_torch(q.float(), *(c.float() for c in caches), *rest)
    return partial(attention_triton, q, *caches, *rest), want


def candidates(phase, head_dim):
    "The launches to try; the present choice is the first."
    stages = (1, 2) if torch.version.hip else (2, 3, 4)
    sizes = {'prefill': ((64, 128), (32, 64, 128), (4, 8), stages), 'decode': ((16,), (16, 32, 64, 128), (2, 4, 8), stages)}
    if INTERPRETED: sizes = {'prefill': ((32,), (32,), (4,), (3,)), 'decode': ((16,), (32,), (4,), (3,))}
    present = launch_for(gpu(DEVICE).generation, phase, head_dim, torch.bfloat16)
    return list(dict.fromkeys([present, *(Launch(*c) for c in product(*sizes[phase]))]))


def watched(call):
    "What `call()` gives, and whether one of the kernels that it launches keeps registers in memory."
    found, run = [], JITFunction.run
    def noted(kernel, *args, **options):
        found.append(run(kernel, *args, **options))
        return found[-1]
    with patch.object(JITFunction, 'run', noted): out = call()
    return out, any(kernel.n_spills for kernel in found)


def milliseconds(call):
    "The median of as many calls as fit in a tenth of a second, each with cold caches; interpreted, of one call."
    if not INTERPRETED: return triton.testing.do_bench(call, warmup=25, rep=100, return_mode='median')
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def measured(call, want):
    "Milliseconds of a call and None, or None and why it is dropped."
    try: out, spills = watched(call)
    except Exception as error:           # too much shared memory, or the compiler fails: this one is of no use, the next may be
        if 'CUDA error' in str(error): raise                                               # after which nothing else can run
        return None, f'{type(error).__name__}: {str(error)[:70]!r}'
    off = ((out.float() - want).abs().max() / want.abs().max()).item()
    if spills or not off < 2e-2: return None, 'spills' if spills else f'off by {off:.0e}'
    return milliseconds(call), None


def tune(phase, head_dim):
    "Prints the fastest launches, and returns the one for the table; None where the present choice is dropped."
    run, want = attention_call(BATCHES[phase], head_dim)
    results = {launch: measured(partial(run, launch=launch, num_splits=1), want) for launch in candidates(phase, head_dim)}
    times, present = {launch: took for launch, (took, why) in results.items() if why is None}, next(iter(results))
    print(f'\n{phase}, head_dim {head_dim}: {len(results)} candidates')
    for why, count in Counter(why for _, why in results.values() if why).items(): print(f'  {count:3d} dropped: {why}')
    for launch in sorted(times, key=times.get)[:5]: print(f'  {times[launch]:9.4f} ms  {tuple(launch)}')
    if present not in times: return print(f'  the present choice {tuple(present)} is dropped: {results[present][1]}')
    best = min(times, key=times.get)
    print(f'  {times[present]:9.4f} ms  {tuple(present)} at present, {times[present] / times[best]:.2f} times the fastest')
    return best if times[best] < .98 * times[present] else present


def tune_splits(head_dim):
    "Prints what each number of splits takes for decodes of few requests, beside the rule's choice."
    print(f'\nsplits of decodes, head_dim {head_dim}, {CONTEXT} keys: milliseconds, the rule\'s choice in brackets')
    for num_reqs in (1, 2) if INTERPRETED else (1, 2, 4, 8, 16, 32, 64):
        run, want = attention_call([(1, CONTEXT)] * num_reqs, head_dim)
        rule = num_kv_splits(num_reqs, num_reqs, NUM_KV_HEADS, CONTEXT, gpu(DEVICE).num_sms)
        results = {n: measured(partial(run, num_splits=n), want) for n in sorted({*SPLITS, rule})}
        times = {n: took for n, (took, why) in results.items() if why is None}
        cells = [f'[{n}: {took:.4f}]' if n == rule else f'{n}: {took:.4f}' for n, took in times.items()]
        loss = f'{times[rule] / min(times.values()):.2f} times the fastest' if rule in times else f'dropped, {results[rule][1]}'
        print(f'  {num_reqs:2d} requests  {"  ".join(cells)}  the rule: {loss}')


def as_row(generation, found):
    "The row of LAUNCH with what was found in place."
    lines = []
    for phase, present in LAUNCH[generation].items():
        row = present | {head_dim: launch for head_dim, launch in found.get(phase, {}).items() if launch}
        lines.append(f"'{phase}': {{" + ', '.join(f'{d}: Launch{tuple(launch)}' for d, launch in row.items()) + '}')
    return f"    '{generation}': {{" + f',\n{" " * (len(generation) + 9)}'.join(lines) + '},'


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--phases', nargs='*', default=['prefill', 'decode'], choices=['prefill', 'decode'])
    parser.add_argument('--head-dims', nargs='*', type=int, default=[64] if INTERPRETED else [64, 128, 256], metavar='64')
    parser.add_argument('--interpret', action='store_true', help='a dry run on the CPU')
    args = parser.parse_args()
    if not set(args.head_dims) <= {64, 128, 256}: parser.error('the table has head_dim 64, 128 and 256')
    if not (INTERPRETED or torch.cuda.is_available()): parser.error('no GPU here; --interpret makes a dry run without one')
    torch.manual_seed(0)
    generation = gpu(DEVICE).generation
    name = 'the interpreter (times mean nothing)' if INTERPRETED else torch.cuda.get_device_name()
    print(f'{generation}: {name}, Triton {triton.__version__}')
    found = {phase: {head_dim: tune(phase, head_dim) for head_dim in args.head_dims} for phase in args.phases}
    if 'decode' in args.phases: tune_splits(args.head_dims[-1])
    print('\nthe row for LAUNCH:', as_row(generation, found), sep='\n')
    return int(any(launch is None for rows in found.values() for launch in rows.values()))


if __name__ == '__main__': sys.exit(main())
