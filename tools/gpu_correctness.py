"""What tools/gpu_check.py checks before it measures: every kernel against its definition, the engine against transformers.

Each function takes a `Run` of gpu_check, which says where to compute, and to which the results go.
"""
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate

import torch
import torch.nn.functional as F
from llm_infer.config import LLAMA_3_8B, SMOLLM2_135M, SchedulerConfig
from llm_infer.core.request import Request
from llm_infer.core.scheduler import Scheduler
from llm_infer.engine.cuda_graphs import DecodeGraphs, capture_sizes
from llm_infer.engine.runner import ModelRunner
from llm_infer.kernels.attention import attention, attention_reference, attention_triton, tiled_attention
from llm_infer.kernels.embedding import embedding, gather_rows
from llm_infer.kernels.flash_decoding import merge_splits, merge_splits_reference
from llm_infer.kernels.kv_write import kv_write, kv_write_reference, slots_of
from llm_infer.kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference
from llm_infer.kernels.rope import apply_rope, cos_sin_table, rope_inv_freq, rotate_
from llm_infer.kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference
from llm_infer.model.llama import Llama, new_kv_cache
from llm_infer.model.weights import fused_shapes, tensor_places
from llm_infer.sampling.params import SamplingParams
from llm_infer.sampling.sampler import Sampler

BF16, FP32 = torch.bfloat16, torch.float32
TOLERANCE = {FP32: 1e-5, BF16: 2e-2}              # of a kernel's result, relative to 1 + |result in float64|
LOGIT_TOLERANCE = {FP32: 1e-4, BF16: .25}         # of a logit, which has a spread of 1, against transformers in float32
GREEDY = SamplingParams(temperature=0, max_tokens=None)

def models(run):
    "The sizes of the models, by name; with room for 8,192 tokens of context and some more."
    if run.interpret:
        return {'tiny': replace(SMOLLM2_135M, vocab_size=64, hidden_size=48, intermediate_size=64, num_layers=2, num_heads=3,
                                num_kv_heads=1, head_dim=16, rotary_dim=16, max_position_embeddings=128)}
    return {'SmolLM2-135M': replace(SMOLLM2_135M, max_position_embeddings=16384),
            'Llama-3-8B': replace(LLAMA_3_8B, max_position_embeddings=16384)}



# ---- part: kernels

def numbers(run, *shape, dtype=FP32, seed=0):
    "Normal numbers, as a view with gaps of NaN between its rows."
    wide = torch.full((*shape[:-1], shape[-1] + 64), torch.nan, dtype=dtype)
    wide[..., :shape[-1]] = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return wide.to(run.device)[..., :shape[-1]]

@contextmanager
def poisoned():
    "Fresh tensors are full of NaN, so that what a kernel fails to write is seen."
    torch.use_deterministic_algorithms(True, warn_only=True)
    try: yield
    finally: torch.use_deterministic_algorithms(False)

def check_norms(run):
    "RMSNorm of tokens and of heads, and the residual add with it, whose sum must be right to the bit."
    for shape in [(1, 576), (5, 65), (3, 3, 64)] + [(33, 576), (257, 4096), (2, 16384), (3, 1), (33, 9, 128)] * (not run.small):
        for dtype, tolerance in TOLERANCE.items():
            case, x, weight = f'{shape} {dtype}', numbers(run, *shape, dtype=dtype), numbers(run, shape[-1], dtype=dtype, seed=1)
            with poisoned(): got = rms_norm(x, weight, 1e-5)
            run.compare('rms_norm', case, got, rms_norm_reference(x.double(), weight.double(), 1e-5), tolerance)
            if len(shape) == 3: continue
            residual = numbers(run, *shape, dtype=dtype, seed=2)
            total = residual + x
            add_rms_norm(x, residual, weight, 1e-5)
            run.compare('add_rms_norm', case, x, rms_norm_reference(total.double(), weight.double(), 1e-5), tolerance)
            run.compare('add_rms_norm', f'{case}, the sum', residual, total, 0)

def check_rope(run):
    "q and k in place, as views of a wider tensor; all of head_dim, or part of it."
    shapes = [(3, 9, 3, 64, 64), (2, 7, 1, 80, 32)] + [(257, 32, 8, 128, 128), (33, 0, 8, 128, 128)] * (not run.small)
    for num_tokens, heads, kv_heads, head_dim, rotary_dim in shapes:
        table = cos_sin_table(rope_inv_freq(rotary_dim, 1e5), 500).to(run.device)
        positions = torch.randint(0, 500, (num_tokens,), generator=torch.Generator().manual_seed(3)).to(run.device)
        for dtype, tolerance in TOLERANCE.items():
            both = [numbers(run, num_tokens, n, head_dim, dtype=dtype, seed=n) for n in (heads, kv_heads)]
            wants = [x.double() for x in both]
            for want in wants: rotate_(want, positions, table.double())
            apply_rope(*both, positions, table)
            for name, got, want in zip('qk', both, wants):
                run.compare('rope', f'{name} {tuple(got.shape)}, {rotary_dim} turned, {dtype}', got, want, tolerance)

def check_kv_write(run):
    "Every token in its slot, nothing anywhere else, slot -1 nowhere."
    for num_tokens, kv_heads, head_dim, num_blocks, block_size in [(5, 3, 20, 9, 1), (9, 3, 64, 3, 16), (70, 8, 128, 2, 64)]:
        for dtype in TOLERANCE:
            slots = torch.randperm(num_blocks * block_size, generator=torch.Generator().manual_seed(4))[:num_tokens]
            slots[::4] = -1
            key, value = (numbers(run, num_tokens, kv_heads, head_dim, dtype=dtype, seed=i) for i in range(2))
            want = torch.full((2, num_blocks, block_size, kv_heads, head_dim), torch.nan, dtype=dtype)
            got = want.to(run.device, copy=True)
            kv_write(key, value, *got, slots.to(run.device))
            kv_write_reference(key.cpu(), value.cpu(), *want, slots)
            case = f'{num_tokens} tokens, {kv_heads} x {head_dim}, blocks of {block_size}, {dtype}'
            run.compare('kv_write', case, got.nan_to_num(1e9), want.nan_to_num(1e9), 0)

def check_gate_and_gathers(run):
    "silu_and_mul, and the two gathers, which are exact."
    for num_tokens, size in [(3, 65), (2, 1536)] + [(257, 14336)] * (not run.small):
        for dtype, tolerance in TOLERANCE.items():
            x = numbers(run, num_tokens, 2 * size, dtype=dtype)
            with poisoned(): got = silu_and_mul(x)
            run.compare('silu_and_mul', f'{num_tokens} x {size} {dtype}', got, silu_and_mul_reference(x.double()), tolerance)
    table, rows = numbers(run, 300, 576, dtype=BF16), torch.tensor([0, 299, 7, 7], device=run.device)
    for what, got in (('embedding', embedding(rows, table)), ('gather_rows', gather_rows(table, rows))):
        run.compare(what, 'of 300 rows', got, table.cpu()[rows.cpu()], 0)

def paged_batch(requests, heads, kv_heads, head_dim, block_size, dtype):
    "What attention takes, on the CPU, for (query_len, seq_len) pairs; unused slots are NaN, unused entries of the table absurd."
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(shape, generator=generator).to(dtype)
    query_lens, seq_lens = zip(*requests)
    num_blocks = [-(-n // block_size) for n in seq_lens]
    free = torch.randperm(sum(num_blocks) + 3, generator=generator).tolist()
    caches = torch.full((2, len(free), block_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    table = torch.full((len(requests), max(num_blocks) + 1), 2 ** 30, dtype=torch.int32)
    for row, n, seq_len in zip(table, num_blocks, seq_lens):
        row[:n] = torch.tensor([free.pop() for _ in range(n)], dtype=torch.int32)
        caches.flatten(1, 2)[:, slots_of(row, torch.arange(seq_len), block_size)] = random(2, seq_len, kv_heads, head_dim)
    q = random(sum(query_lens), heads + 2 * kv_heads, head_dim)[:, :heads]   # a view, as q is of the fused qkv
    return q, *caches, table, *(torch.tensor(x, dtype=torch.int32) for x in ([0, *accumulate(query_lens)], seq_lens))

MIXED = ((37, 37), (1, 50), (0, 9), (16, 48), (5, 37), (5, 3), (1, 1))      # prompt, decode, nothing, chunks, too many queries
DECODES = ((1, 300), (1, 17), (1, 64), (1, 1))

def attention_cases(run):
    "(requests, heads, K/V heads, head_dim, block size, dtype, num_splits, variation), the most important ones first."
    for dtype in TOLERANCE:
        if run.small:
            yield MIXED[1:], 3, 1, 64, 16, dtype, 1, {}
            yield DECODES, 7, 1, 80, 1, dtype, 3, {}
        else:   # as the two models launch it
            for sizes in ((32, 8, 128), (9, 3, 64)):
                yield ((400, 400), (30, 90)), *sizes, 16, dtype, 1, {}
                yield ((1, 5000), (1, 33)), *sizes, 16, dtype, None, {}
    for variation in ({'sliding_window': 20}, {'soft_cap': 2.}, {'sliding_window': 17, 'soft_cap': 2.}):
        yield MIXED, 3, 1, 64, 16, BF16, 1, variation
    for i, heads in enumerate([(2, 2), (9, 3), (32, 8), (7, 1)] * (not run.small)):   # any two of the sizes meet in some case
        for j, head_dim in enumerate((64, 80, 128, 256)):
            sizes = *heads, head_dim, (1, 16, 64)[(i + j) % 3], (FP32, BF16)[(i + j // 2) % 2]
            yield MIXED, *sizes, 1, {}
            yield DECODES, *sizes, 1 + 4 * (j % 2), {}

def check_attention(run):
    "The kernel, whole and split, against its definition: one query and one head at a time, in float64."
    for requests, heads, kv_heads, head_dim, block_size, dtype, num_splits, variation in attention_cases(run):
        case = f'{requests}, {heads}/{kv_heads} x {head_dim}, blocks of {block_size}, {dtype}, splits {num_splits}, {variation}'
        if run.time_left < 15: run.note(f'attention, {case}: left out, the time was up'); continue
        batch = paged_batch(requests, heads, kv_heads, head_dim, block_size, dtype)
        want = attention_reference(*(x.double() if x.is_floating_point() else x for x in batch), head_dim ** -.5, **variation)
        with poisoned():
            got = attention_triton(*(x.to(run.device) for x in batch), head_dim ** -.5, num_splits=num_splits, **variation)
        run.compare('attention' if num_splits == 1 else 'flash_decoding', case, got, want, TOLERANCE[dtype])

def check_tiled_attention(run):
    "The kernel that reads no cache, on whole prompts."
    for num_tokens, heads, kv_heads, head_dim in [(70, 3, 1, 64)] + [(400, 32, 8, 128), (130, 9, 3, 80)] * (not run.small):
        for dtype, tolerance in TOLERANCE.items():
            sizes = (0, heads), (1, kv_heads), (2, kv_heads)
            operands = [numbers(run, num_tokens, n, head_dim, dtype=dtype, seed=seed) for seed, n in sizes]
            q, keys, values = (x.double().transpose(0, 1) for x in operands)
            want = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True).transpose(0, 1)
            with poisoned(): got = tiled_attention(*operands, head_dim ** -.5)
            run.compare('tiled_attention', f'{num_tokens} tokens, {heads}/{kv_heads} x {head_dim}, {dtype}', got, want, tolerance)

def check_merge(run):
    "The merge of the splits, some of them without a key."
    for num_splits, num_tokens, heads, head_dim in [(3, 2, 3, 80)] + [(64, 5, 32, 128), (7, 1, 9, 256)] * (not run.small):
        parts, lse = (numbers(run, num_splits, num_tokens, heads, n, seed=n).contiguous() for n in (head_dim, 1))
        lse = 3 * lse[..., 0]
        lse[1:, 0], parts[1:, 0] = -1e30, 0.
        for dtype, tolerance in TOLERANCE.items():
            with poisoned(): got = merge_splits(parts, lse, dtype)
            want = merge_splits_reference(parts.double(), lse.double(), torch.float64)
            case = f'{num_splits} splits of {num_tokens} x {heads} x {head_dim}, {dtype}'
            run.compare('merge_splits', case, got, want, tolerance)

def check_far_blocks(run, stride=2 ** 30 + 64):
    "Three blocks, the last beyond 2^31 numbers though the stride fits in 32 bits: written and read with 64-bit offsets."
    storages = [torch.empty(2 * stride + 512, dtype=torch.float16, device=run.device) for _ in range(2)]   # hardly touched
    caches = [storage.as_strided((3, 16, 2, 16), (stride, 32, 16, 1)) for storage in storages]
    key, value, q = (numbers(run, 36, n, 16, dtype=torch.float16, seed=i) for i, n in enumerate((2, 2, 4)))
    kv_write(key, value, *caches, torch.arange(36, device=run.device))
    for cache, rows in zip(caches, (key, value)): run.compare('kv_write', 'far block', cache[2, :4], rows[32:], 0)
    for cache in caches: cache[2, 4:] = torch.nan
    tables = [torch.tensor(x, dtype=torch.int32) for x in ([[0, 1, 2]], [0, 3], [36])]
    got = attention(q[:3], *caches, *(x.to(run.device) for x in tables), .25)
    near = (x.cpu().double() for x in (q[:3], *(cache.contiguous() for cache in caches)))
    run.compare('attention', 'far block', got, attention_reference(*near, *tables, .25), 4e-3)

def kernels(run):
    "Every kernel against its definition in float64."
    small = check_norms, check_rope, check_kv_write, check_gate_and_gathers, check_merge, check_far_blocks
    for check in (*small, check_tiled_attention, check_attention):
        run.guarded(check.__name__.removeprefix('check_'), 'the check itself', check)


# ---- part: engine

def random_weights(config, dtype, device):
    "Weights by the engine's names, with a spread that keeps the activations near 1; norms are ones."
    generator, weights = torch.Generator(device).manual_seed(0), {}
    for name, shape in fused_shapes(tensor_places(config)).items():
        tensor = torch.empty(shape, dtype=dtype, device=device)
        weights[name] = tensor.fill_(1) if len(shape) == 1 else tensor.normal_(0, shape[-1] ** -.5, generator=generator)
    if config.tie_word_embeddings: weights['lm_head'] = weights['embed_tokens']
    return weights

def transformers_model(config, weights, attn_implementation):
    "transformers' model over the same memory: its tensors are views of the fused ones."
    from transformers import LlamaConfig, LlamaForCausalLM
    c = config
    sizes = LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, head_dim=c.head_dim, rms_norm_eps=c.rms_norm_eps,
        max_position_embeddings=c.max_position_embeddings, rope_parameters={'rope_type': 'default', 'rope_theta': c.rope_theta},
        tie_word_embeddings=c.tie_word_embeddings, attn_implementation=attn_implementation, bos_token_id=None, eos_token_id=None)
    tensors = {name: weights[target][row:row + shape[0]] for name, (shape, target, row) in tensor_places(c).items()}
    with torch.device('meta'): model = LlamaForCausalLM(sizes)
    model.load_state_dict(tensors, strict=not c.tie_word_embeddings, assign=True)
    model.tie_weights()
    rotary = type(model.model.rotary_emb)(sizes)                     # its table is no weight, and so it is still on 'meta'
    model.model.rotary_emb = rotary.to(weights['norm'].device)
    return model.eval()

def build_runner(run, config, weights, num_blocks, block_size, max_model_len, sizes, sampler=None, num_host_blocks=0):
    "A runner over a new cache, with graphs for decodes of these `sizes` (none: without)."
    kv_cache = new_kv_cache(config, num_blocks, block_size, weights['norm'].dtype, run.device)
    model = Llama(config, weights, max_model_len)
    if sizes: model = DecodeGraphs(model, kv_cache, max_model_len, config.vocab_size, sizes, run.capture)
    return ModelRunner(model, kv_cache, sampler or Sampler(), num_host_blocks)

def serve(scheduler, runner, arrivals):
    "Turn the engine until every request of `arrivals`, (step, request) pairs in order, has ended; returns what happened."
    seen, step, due = Counter(), 0, list(arrivals)
    while due or scheduler.has_unfinished_requests():
        while due and due[0][0] <= step: scheduler.add_request(due.pop(0)[1])
        plan, step = scheduler.schedule(), step + 1
        seen += Counter({'steps': 1, 'preemptions': len(plan.preempted), 'chunks': sum(not s.is_sampled for s in plan.scheduled),
                         'mixed': int(len({s.num_scheduled_tokens == 1 for s in plan.scheduled}) == 2),
                         'hits': sum(s.num_cached_tokens > 0 for s in plan.scheduled), 'swapped blocks': len(plan.blocks_to_swap_in)})
        scheduler.update(plan, runner.execute(plan).token_ids)
    return seen

class Recorder(Sampler):
    "A sampler that keeps the logits of every row, by request and number of tokens before."
    def __init__(self):
        super().__init__()
        self.rows = {}

    def __call__(self, logits, requests):
        self.rows.update({(r.request_id, r.num_tokens): row.clone() for r, row in zip(requests, logits)})
        return super().__call__(logits, requests)

def traffic(config, num_reqs, shortest, longest, num_tokens):
    "Requests of random prompts that share what half of each begins with; one arrives at each step."
    random = torch.Generator().manual_seed(0)
    draw = lambda n: torch.randint(config.vocab_size, (n,), generator=random).tolist()
    common, lengths = draw(longest), torch.linspace(shortest, longest, num_reqs).long().tolist()
    return [(i, Request(str(i), common[:n // 2] + draw(n - n // 2), max_tokens=num_tokens, sampling_params=GREEDY))
            for i, n in enumerate(lengths)]

def count_replays(runner):
    "A counter of the decode graphs that the runner replays from now on."
    counter, replays = Counter(), runner.model.replays
    for size, replay in replays.items(): replays[size] = lambda replay=replay: (counter.update(['replays']), replay())
    return counter

def oracle_logits(run, oracle, request):
    "transformers' logits for every token of the request's output, given the request's tokens before it."
    tokens = torch.tensor([request.all_token_ids], device=run.device)
    with torch.inference_mode(): return oracle(tokens).logits[0, request.num_prompt_tokens - 1:-1].float()

def check_serving(run, name, config, weights, oracle, graphs, swap=False):
    """Traffic that chunks, hits, mixes and preempts, through the engine: every logit against transformers' after the same tokens.
    A token that is not transformers' own choice is then a tie: its logit is within twice the tolerance of the largest."""
    block_size, num_blocks, budget, longest, requests = 16, 56, 96, 240, (16, 20, 200, 32)
    if run.interpret: block_size, num_blocks, budget, longest, requests = 4, 7, 9, 24, (4, 8, 14, 5)
    mode = dict(preemption_mode='swap', num_host_blocks=4 * num_blocks) if swap else {}
    scheduler = Scheduler(SchedulerConfig(num_blocks, longest, block_size, max_num_seqs=8, max_num_batched_tokens=budget, **mode))
    recorder, arrivals, sizes = Recorder(), traffic(config, *requests), capture_sizes(8) if graphs else []
    runner = build_runner(run, config, weights, num_blocks, block_size, longest, sizes, recorder, scheduler.config.num_host_blocks)
    runner.kv_cache.fill_(torch.nan)                                 # what is not written must not be read
    replays = count_replays(runner) if graphs else Counter()
    seen = serve(scheduler, runner, arrivals) + replays
    got = torch.stack([recorder.rows[r.request_id, n] for _, r in arrivals for n in range(r.num_prompt_tokens, r.num_tokens)])
    want = torch.cat([oracle_logits(run, oracle, request) for _, request in arrivals])
    chosen = torch.tensor([token for _, request in arrivals for token in request.output_token_ids], device=run.device)
    missing = {'preemptions', 'hits', 'chunks', 'mixed', *(['replays'] * graphs), *(['swapped blocks'] * swap)} - seen.keys()
    if missing or not torch.equal(got.argmax(-1), chosen): raise AssertionError(f'never: {missing}, or not the largest logit')
    ties, dtype = int((want.argmax(-1) != chosen).sum()), weights['norm'].dtype
    detail = f'{len(chosen)} tokens, {ties} by a tie; ' + ', '.join(f'{n} {what}' for what, n in seen.items())
    case = f'{dtype}, {"graphs" if graphs else "no graphs"}{", swap" * swap}'
    run.compare(f'engine {name}', case, got, want, LOGIT_TOLERANCE[dtype], detail=detail)

def engine(run):
    "The whole engine against transformers, over the same random weights; of the large model two layers."
    for name, config in models(run).items():
        if config.num_layers > 30: config = replace(config, num_layers=2)
        rounded = random_weights(config, BF16, run.device)
        exact = {target: tensor.float() for target, tensor in rounded.items()}
        oracle = transformers_model(config, exact, 'eager')
        for weights in (exact, rounded):
            for graphs, swap in ((False, False), (True, False), (True, True)):
                case = f'{weights["norm"].dtype}, graphs {graphs}, swap {swap}'
                run.guarded(f'engine {name}', case, check_serving, name, config, weights, oracle, graphs, swap)
