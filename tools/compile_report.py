"""What the kernels cost on GPUs that are not here: compiled for each target, then read from the machine code.

    python tools/compile_report.py                        every op, every target, as a Markdown table
    python tools/compile_report.py rope attention --targets sm_90 --only Llama --json report.json

A case calls an op as the engine does, with tensors that have shapes and no memory (device 'meta'). The launch is not made but
noted: kernel, arguments, constants, warps, stages. From these follows what Triton would compile, for any target. So what is
reported is what the engine launches, and an op needs no more than its cases below to be in the report.
Exit status 1 where a limit is broken. Needs no GPU.
"""
import argparse, json, os, re, subprocess, sys, tempfile, time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

os.environ.pop('TRITON_INTERPRET', None)             # an interpreted kernel cannot be compiled
os.environ['LLM_INFER_KERNELS'] = 'triton'           # ops launch kernels for tensors of any device
os.environ['TRITON_DEFAULT_FP_FUSION'] = '1'         # said here, because its default changes in Triton 3.10
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from llm_infer.kernels import attention as attention_module
from llm_infer.kernels.kv_write import kv_write
from llm_infer.kernels.rms_norm import add_rms_norm, rms_norm
from llm_infer.kernels.rope import apply_rope
from llm_infer.kernels.sampling import exponential_draw, penalties_and_temperature, top_k_top_p_cut
from llm_infer.kernels.silu_and_mul import silu_and_mul

TARGETS = {'sm_80': GPUTarget('cuda', 80, 32), 'sm_90': GPUTarget('cuda', 90, 32), 'sm_100': GPUTarget('cuda', 100, 32),
           'gfx942': GPUTarget('hip', 'gfx942', 64)}
SHARED_LIMIT = {'sm_80': 163 * 1024, 'sm_90': 227 * 1024, 'sm_100': 227 * 1024, 'gfx942': 64 * 1024}   # bytes for one program
TYPES = {torch.bfloat16: 'bf16', torch.float16: 'fp16', torch.float32: 'fp32', torch.int32: 'i32', torch.int64: 'i64', torch.bool: 'i1'}
TOOLS = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin'


# ---- from a call to the machine code

def noted_launches(call):
    "(kernel, argument by name, options) of every launch that `call()` would make."
    launches = []
    def note(kernel, *args, grid, warmup, **kwargs):
        given = dict(zip(kernel.arg_names, args)) | {k: v for k, v in kwargs.items() if k in kernel.arg_names}
        launches.append((kernel, given, {k: v for k, v in kwargs.items() if k not in kernel.arg_names}))
    with patch.object(JITFunction, 'run', note): call()
    return launches


def signature_of(kernel, given):
    "Types, constants and known multiples of 16, as Triton derives them from the arguments of a launch."
    types, constants, attributes = {}, {}, {}
    def of(value, path, specialize=True):
        if isinstance(value, tuple): return tuple(of(v, (*path, i)) for i, v in enumerate(value))
        if isinstance(value, float): return 'fp32'
        if specialize and not isinstance(value, torch.Tensor) and value == 1:
            constants[path] = 1
            return 'constexpr'
        if isinstance(value, torch.Tensor) or specialize and value % 16 == 0: attributes[path] = [['tt.divisibility', 16]]
        return '*' + TYPES[value.dtype] if isinstance(value, torch.Tensor) else 'i32' if abs(value) < 2 ** 31 else 'i64'
    for i, p in enumerate(kernel.params):
        if p.is_constexpr: types[p.name], constants[(i,)] = 'constexpr', given[p.name]
        else: types[p.name] = of(given[p.name], (i,), not p.do_not_specialize)
    return types, constants, attributes


def disassembly(cubin):
    "The machine code of a cubin as text, its registers, and its bytes of stack: spilled registers."
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        Path(file.name).write_bytes(cubin)
        run = lambda *command: subprocess.run(command, capture_output=True, text=True, check=True).stdout
        usage = run(TOOLS / 'cuobjdump', '--dump-resource-usage', file.name)
        return run(TOOLS / 'nvdisasm', file.name), *(int(re.search(rf'{name}:(\d+)', usage)[1]) for name in ('REG', 'STACK'))


def widest_access(code):
    "The most bytes that one thread loads or stores with one instruction."
    bits = re.findall(r'\b(?:LDG|STG|LDGSTS)\.E\.(?:\w+\.)*?(64|128)\b', code)                         # NVIDIA
    words = re.findall(r'\b(?:global|buffer)_(?:load|store)_dwordx(\d)', code)                         # AMD
    return max([4, *(int(n) // 8 for n in bits), *(4 * int(n) for n in words)])


def compiled(launch, target):
    "Compile a noted launch for a target; returns the figures of the report."
    kernel, given, options = launch
    types, constants, attributes = signature_of(kernel, given)
    start = time.time()
    binary = triton.compile(ASTSource(kernel, types, constants, attributes), target=TARGETS[target], options=options)
    if 'cubin' in binary.asm:
        code, registers, spilled = disassembly(binary.asm['cubin'])
    else:
        code = binary.asm['amdgcn']
        field = lambda name: int(re.search(rf'\.{name}:\s*(\d+)', code)[1])
        registers, spilled = field('vgpr_count'), field('private_segment_fixed_size')
    operations = Counter(re.findall(r'\b(HGMMA|HMMA|UTCHMMA|v_mfma)', code))
    return {'target': target, 'kernel': kernel.__name__,
            'tile': {k: v for k, v in given.items() if k.startswith('BLOCK') and k != 'BLOCK_SIZE' or k == 'ROWS'},
            'num_warps': options.get('num_warps', 4), 'num_stages': options.get('num_stages', 3), 'registers': registers,
            'spilled': spilled, 'shared': binary.metadata.shared, 'widest': widest_access(code), 'tensor_core': dict(operations),
            'seconds': round(time.time() - start, 1)}


# ---- what is reported: per op, (name, call) of its launches in the engine, for a target

def sizes(hidden, heads, kv_heads, head_dim, intermediate):
    return SimpleNamespace(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim, intermediate=intermediate)

MODELS = {'Llama-3-8B': sizes(4096, 32, 8, 128, 14336), 'SmolLM2': sizes(576, 9, 3, 64, 1536),
          'Qwen3-0.6B': sizes(1024, 16, 8, 128, 3072)}
HEADS = {**MODELS, 'head_dim 80': sizes(0, 32, 32, 80, 0), 'head_dim 96': sizes(0, 32, 32, 96, 0),
         'head_dim 256': sizes(0, 16, 8, 256, 0), 'one K/V head': sizes(0, 7, 1, 64, 0)}
TOKENS, BF16 = 1000, torch.bfloat16


def empty(*shape, dtype=BF16): return torch.empty(shape, dtype=dtype, device='meta')

def qkv_heads(c, num_tokens=TOKENS, dtype=BF16):
    "q, k and v as views of their fused tensor."
    return empty(num_tokens, c.heads + 2 * c.kv_heads, c.head_dim, dtype=dtype).split([c.heads, c.kv_heads, c.kv_heads], 1)


def rms_norm_cases(target):
    def both(width): return partial(add_rms_norm, empty(TOKENS, width), empty(TOKENS, width), empty(width), 1e-5)
    for model, c in MODELS.items(): yield f'{model}, residual and norm', both(c.hidden)
    yield 'hidden_size 16,384, residual and norm', both(16384)
    yield 'Llama-3-8B, first norm', partial(rms_norm, empty(TOKENS, 4096), empty(4096), 1e-5)
    yield 'Qwen3-0.6B, heads of q', partial(rms_norm, qkv_heads(MODELS['Qwen3-0.6B'])[0], empty(128), 1e-6)

def rope_cases(target):
    for model, c in MODELS.items():
        positions, table = empty(TOKENS, dtype=torch.int64), empty(8192, c.head_dim, dtype=torch.float32)
        q, k, v = qkv_heads(c)
        yield model, partial(apply_rope, q, k, positions, table)
        yield f'{model}, last layer: k alone', partial(apply_rope, q[:, :0], k, positions, table)

def kv_write_cases(target):
    for model, c in MODELS.items():
        cache = empty(10000, 16, c.kv_heads, c.head_dim)
        yield model, partial(kv_write, *qkv_heads(c)[1:], cache, cache, empty(TOKENS, dtype=torch.int64))

def silu_and_mul_cases(target):
    for model, c in MODELS.items(): yield model, partial(silu_and_mul, empty(TOKENS, 2 * c.intermediate))


def attention_call(c, dtype, target, phase, num_splits=1, block_size=16, **variation):
    "A call of attention_triton on three prompts of 1,000 tokens, or three decodes."
    q = qkv_heads(c, 3000 if phase == 'prefill' else 3, dtype)[0]
    cache = empty(10000, block_size, c.kv_heads, c.head_dim, dtype=dtype)
    table, cu_seqlens, seq_lens = (empty(*shape, dtype=torch.int32) for shape in ((3, 500), (4,), (3,)))
    launch = attention_module.launch_for(target, phase, c.head_dim, dtype)
    return partial(attention_module.attention_triton, q, cache, cache, table, cu_seqlens, seq_lens, c.head_dim ** -.5,
                   launch=launch, num_splits=num_splits, **variation)

def attention_cases(target):
    "All attention launches, the merge of flash-decoding among them; Gemma's variations with its head_dim of 256."
    for model, c in HEADS.items():
        yield f'{model}, prefill', attention_call(c, BF16, target, 'prefill')
        yield f'{model}, decode', attention_call(c, BF16, target, 'decode')
        yield f'{model}, decode, 8 splits', attention_call(c, BF16, target, 'decode', 8)
    for model in ('Llama-3-8B', 'head_dim 256'):
        c, gemma = HEADS[model], {'sliding_window': 4096, 'soft_cap': 50.}
        for phase in ('prefill', 'decode'):
            yield f'{model}, {phase}, window and cap', attention_call(c, BF16, target, phase, **gemma)
            yield f'{model}, {phase}, float32', attention_call(c, torch.float32, target, phase)
        yield f'{model}, blocks of 1', attention_call(c, BF16, target, 'decode', block_size=1)
        yield f'{model}, blocks of 48', attention_call(c, BF16, target, 'prefill', block_size=48)
        launch = attention_module.launch_for(target, 'prefill', c.head_dim, BF16)
        yield f'{model}, contiguous', partial(attention_module.tiled_attention, *qkv_heads(c), c.head_dim ** -.5, launch)

VOCABULARIES = (49152, 128256, 151936)   # SmolLM2, Llama 3, Qwen 3

def sampling_cases(target):
    "The sampler's stages on 32 rows of logits."
    for vocab_size in VOCABULARIES:
        logits, floats, ints = empty(32, vocab_size, dtype=torch.float32), empty(32, dtype=torch.float32), empty(32, dtype=torch.int64)
        tables = (empty(40, vocab_size, dtype=dtype) for dtype in (torch.bool, torch.int32))
        yield f'{vocab_size:,} logits, penalties', partial(penalties_and_temperature, logits, *tables, ints, *[floats] * 4)
        yield f'{vocab_size:,} logits, cut', partial(top_k_top_p_cut, logits, ints, floats, floats)
        yield f'{vocab_size:,} logits, draw', partial(exponential_draw, logits, floats, ints)


OPS = {'rms_norm': rms_norm_cases, 'rope': rope_cases, 'kv_write': kv_write_cases, 'silu_and_mul': silu_and_mul_cases,
       'sampling': sampling_cases}
if hasattr(attention_module, 'attention_triton'): OPS['attention'] = attention_cases


# ---- the report

def problems(row):
    """What a row breaks: nothing spilled; shared memory within the target's limit; Hopper's own instruction in prefill tiles.
    And in kernels that only move memory, on NVIDIA's: 8 bytes at a time for a thread at least, so 256 for a warp."""
    target, limit = row['target'], SHARED_LIMIT[row['target']]
    if row['spilled']: yield f'{row["spilled"]} bytes spilled'
    if row['shared'] > limit: yield f'{row["shared"]} bytes of shared memory, {limit} allowed'
    if target == 'sm_90' and row['tile'].get('BLOCK_M', 0) >= 64 and not row['tensor_core'].get('HGMMA'): yield 'no HGMMA'
    if target != 'gfx942' and row['op'] != 'attention' and row['widest'] < 8: yield f'{row["widest"]} bytes at a time'


def report(target, op, only=''):
    "All rows of one target and one op; each has the list of its `problems`."
    rows = []
    for case, call in OPS[op](target):
        if not re.search(only, case): continue
        for launch in noted_launches(call):
            row = {'op': op, 'case': case, **compiled(launch, target)}
            rows.append({**row, 'problems': list(problems(row))})
    return rows


HEADER = ('target', 'case', 'kernel', 'tile', 'warps, stages', 'registers', 'spilled', 'shared', 'widest', 'tensor core')
WIDTHS = (6, 39, 23, 14, 13, 9, 7, 9, 6, 12)

def line(cells): return '| ' + ' | '.join(f'{str(c):{w}}' for c, w in zip(cells, WIDTHS)) + ' |'

def cells_of(row):
    "A row as text; without the seconds, so that it is the same on every run."
    tile, launch = ' x '.join(str(v) for v in row['tile'].values()), f'{row["num_warps"]}, {row["num_stages"]}'
    operations = ', '.join(f'{n} {name}' for name, n in row['tensor_core'].items()) or '-'
    return (row['target'], row['case'], row['kernel'], tile, launch, row['registers'], row['spilled'], f'{row["shared"]:,} B',
            f'{row["widest"]} B', operations)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('ops', nargs='*', default=list(OPS), help=f'of {", ".join(OPS)}; default: all')
    parser.add_argument('--targets', nargs='*', default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument('--only', default='', help='a regular expression on the names of cases')
    parser.add_argument('--jobs', type=int, default=os.cpu_count() or 1, help='processes that compile')
    parser.add_argument('--json', type=Path, help='write the rows, with the seconds that each took, to this file')
    args = parser.parse_args()
    if unknown := set(args.ops) - set(OPS): parser.error(f'no op {", ".join(sorted(unknown))}; there are {", ".join(OPS)}')
    todo = [(target, op, args.only) for op in args.ops for target in args.targets]
    rows, start = [], time.time()
    print(line(HEADER)); print('|' + '|'.join('-' * (w + 2) for w in WIDTHS) + '|', flush=True)
    with ProcessPoolExecutor(min(args.jobs, len(todo)), mp_context=get_context('spawn')) as pool:
        for found in pool.map(report, *zip(*todo)):
            rows += found
            for row in found: print(line(cells_of(row)), *row['problems'], flush=True)
    if args.json: args.json.write_text(json.dumps(rows, indent=1) + '\n')
    broken = sum(bool(row['problems']) for row in rows)
    print(f'\n{len(rows)} kernels by Triton {triton.__version__}, {broken} with problems')
    print(f'{time.time() - start:.0f} s', file=sys.stderr)
    return int(broken > 0 or not rows)


if __name__ == '__main__': sys.exit(main())
