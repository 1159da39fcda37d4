"""What tools/gpu_check.py measures: the device's ceilings, kernels and engine against these, and the engine against transformers.

Each function takes a `Run` of gpu_check, which says where to compute, and to which the figures go.
"""
import math, statistics, time
from functools import partial

import torch
from gpu_correctness import BF16, GREEDY, build_runner, models, random_weights, serve, transformers_model
from llm_infer.config import SchedulerConfig
from llm_infer.core.request import Request
from llm_infer.core.scheduler import Scheduler
from llm_infer.engine.cuda_graphs import capture_sizes
from llm_infer.engine.step_batch import StepBatch
from llm_infer.kernels.attention import attention
from llm_infer.kernels.embedding import embedding
from llm_infer.kernels.flash_decoding import merge_splits, num_kv_splits
from llm_infer.kernels.kv_write import kv_write
from llm_infer.kernels.rms_norm import add_rms_norm, rms_norm
from llm_infer.kernels.rope import apply_rope, cos_sin_table, rope_inv_freq
from llm_infer.kernels.silu_and_mul import silu_and_mul
from llm_infer.kernels.triton_compat import gpu
from llm_infer.model.weights import fused_shapes, tensor_places

GOAL = {'decode step': .85, 'decode attention': .80, 'prefill attention': .60, 'prefill': .65, 'transformers': 3.}


# ---- part: ceilings

class HostEvent:
    "What stands for a CUDA event in the dry run."
    def record(self): self.at = time.perf_counter()
    def elapsed_time(self, end): return 1e3 * (end.at - self.at)

def timed(run, call, repeats=30):
    "Median milliseconds of a call, from cold caches, the clocks brought up before. In the dry run: of one call."
    event, repeats, warm = (HostEvent, 1, 0) if run.interpret else (partial(torch.cuda.Event, enable_timing=True), repeats, .1)
    pairs, until = [(event(), event()) for _ in range(repeats)], time.monotonic() + warm
    while time.monotonic() < until:
        call()
        run.cold.zero_()
        torch.cuda.synchronize()
    for start, end in pairs:
        run.cold.zero_()
        start.record()
        call()
        end.record()
    if not run.interpret: torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)

def ceilings(run):
    "How fast the device multiplies matrices of bf16, and copies memory."
    n, m = (64, 1 << 10) if run.interpret else (8192, 1 << 30)
    a, b, c = (torch.randn(n, n, device=run.device, dtype=BF16) for _ in range(3))
    ms = timed(run, partial(torch.matmul, a, b, out=c))
    run.add('matmul', f'{n} x {n} x {n}', ms=ms, value=2 * n ** 3 / ms / 1e9, unit='TFLOP/s')
    source = torch.randn(m, device=run.device, dtype=BF16)
    ms = timed(run, partial(torch.empty_like(source).copy_, source))
    run.add('copy', f'{source.nbytes:,} bytes', ms=ms, value=2 * source.nbytes / ms / 1e6, unit='GB/s')

def measured_ceilings(run):
    "TFLOP/s of 'matmul' and GB/s of 'copy', from the report; where they are not in it, this part measures them."
    known = run.report()['parts'].get('ceilings', {'rows': []})['rows']
    if len(known) < 2: ceilings(run)
    return {row['what']: row['value'] for row in (known if len(known) > 1 else run.part['rows'])}


# ---- part: speeds

def captured(run, call):
    "The call as a graph, which costs the CPU next to nothing to launch; with its operands, which a graph does not keep alive."
    replay, _ = run.capture(call, None)
    return lambda call=call: replay()

def memory_calls(run, config, num_tokens):
    "(op, call, bytes that it has to move) of the kernels that only move memory, at a model's sizes."
    c, random = config, lambda *shape: torch.randn(shape, dtype=BF16, device=run.device)
    x, residual, weight = random(num_tokens, c.hidden_size), random(num_tokens, c.hidden_size), random(c.hidden_size)
    yield 'rms_norm', partial(rms_norm, x, weight, 1e-5), 2 * x.nbytes
    yield 'add_rms_norm', partial(add_rms_norm, x, residual, weight, 1e-5), 4 * x.nbytes
    heads = c.num_heads, c.num_kv_heads, c.num_kv_heads
    q, k, v = random(num_tokens, sum(heads), c.head_dim).split(heads, 1)
    positions = torch.arange(num_tokens, device=run.device)
    table = cos_sin_table(rope_inv_freq(c.rotary_dim, c.rope_theta), num_tokens).to(run.device)
    yield 'rope', partial(apply_rope, q, k, positions, table), 2 * (q.nbytes + k.nbytes) + table.nbytes + positions.nbytes
    caches, slots = random(2, num_tokens // 16 + 1, 16, *k.shape[1:]), torch.randperm(num_tokens, device=run.device)
    yield 'kv_write', partial(kv_write, k, v, *caches, slots), 2 * (k.nbytes + v.nbytes) + slots.nbytes
    gate_up = random(num_tokens, 2 * c.intermediate_size)
    yield 'silu_and_mul', partial(silu_and_mul, gate_up), gate_up.nbytes * 3 // 2
    ids = torch.randint(c.vocab_size, (num_tokens,), device=run.device)
    yield 'embedding', partial(embedding, ids, random(c.vocab_size, c.hidden_size)), 2 * x.nbytes + ids.nbytes

def memory_speeds(run, name, config, ceilings, num_tokens):
    "The kernels that only move memory, one after another."
    for what, call, moved in memory_calls(run, config, num_tokens):
        run.speed(what, f'{name}, {num_tokens} tokens', timed(run, captured(run, call)), ceilings, num_bytes=moved)

def attention_batch(run, config, batch, query_len, context):
    "What attention takes for `batch` requests of `context` tokens each, the last `query_len` of them new; blocks are scattered."
    c, width = config, -(-context // 16)
    random = lambda *shape: torch.randn(shape, dtype=BF16, device=run.device)
    q = random(batch * query_len, c.num_heads + 2 * c.num_kv_heads, c.head_dim)[:, :c.num_heads]
    table = torch.randperm(batch * width, device=run.device).int().view(batch, width)
    cu_seqlens = torch.arange(batch + 1, dtype=torch.int32, device=run.device) * query_len
    seq_lens = torch.full((batch,), context, dtype=torch.int32, device=run.device)
    return q, *random(2, batch * width, 16, c.num_kv_heads, c.head_dim), table, cu_seqlens, seq_lens, c.head_dim ** -.5

def decode_attention_speed(run, name, config, ceilings, batch, context):
    "Decode attention, with the merge of its splits where it has any, against the copy bandwidth; and the merge alone."
    operands = attention_batch(run, config, batch, 1, context)
    q, table, kv_bytes = operands[0], operands[3], batch * context * config.kv_bytes_per_token(2) // config.num_layers
    splits = num_kv_splits(batch, batch, config.num_kv_heads, table.shape[1] * 16, gpu(q.device).num_sms)
    case = f'{name}, batch {batch}, context {context}, splits {splits}'
    ms = timed(run, captured(run, partial(attention, *operands)))
    run.speed('decode attention', case, ms, ceilings, num_bytes=kv_bytes + 2 * q.nbytes, goal=GOAL['decode attention'])
    if splits == 1: return
    parts, lse = (torch.randn(splits, *shape, device=run.device) for shape in (q.shape, q.shape[:2]))
    ms = timed(run, captured(run, partial(merge_splits, parts, lse, BF16)))
    run.speed('merge_splits', case, ms, ceilings, num_bytes=parts.nbytes + lse.nbytes + q.nbytes)

def prefill_attention_speed(run, name, config, ceilings, batch, query_len, context):
    "Attention of prompts, or of the last chunks of prompts, against the matmul peak."
    flops = 4 * config.q_size * batch * sum(range(context - query_len + 1, context + 1))   # 4 for a query and a key that it sees
    ms = timed(run, captured(run, partial(attention, *attention_batch(run, config, batch, query_len, context))))
    case = f'{name}, {batch} x {query_len} tokens of {context}'
    run.speed('prefill attention', case, ms, ceilings, flops=flops, goal=GOAL['prefill attention'])

def speeds(run):
    "Each kernel at the models' sizes, as a share of the copy bandwidth or of the matmul peak."
    found = measured_ceilings(run)
    tokens, decodes, prefills = ((5,),), ((2, 40), (1, 600)), ((1, 40, 40),)
    if not run.interpret:
        tokens, decodes = ((64,), (8192,)), ((1, 1024), (1, 8192), (8, 8192), (64, 1024), (64, 8192), (256, 1024))
        prefills = (1, 8192, 8192), (8, 1024, 1024), (1, 2048, 8192)
    for name, config in models(run).items():
        for what, measure, cases in (('memory', memory_speeds, tokens), ('decode attention', decode_attention_speed, decodes),
                                     ('prefill attention', prefill_attention_speed, prefills)):
            for case in cases: run.guarded(what, f'{name}, {case}', measure, name, config, found, *case)


# ---- part: serving

def weight_bytes(config):
    "Bytes of bf16 weights that a step reads: all but the embedding, of which it reads a few rows, unless that is the head too."
    sizes = {name: 2 * math.prod(shape) for name, shape in fused_shapes(tensor_places(config)).items()}
    return sum(sizes.values()) - (0 if config.tie_word_embeddings else sizes['embed_tokens'])

def prefill_flops(config, n):
    "For a prompt of `n` tokens, when the last layer computes K and V of all of them and everything else of the last one."
    c = config
    layer = 2 * c.hidden_size * (c.qkv_size + c.q_size + 3 * c.intermediate_size)
    return ((c.num_layers - 1) * (n * layer + 4 * c.q_size * n * (n + 1) // 2) + 4 * n * c.hidden_size * c.kv_size
            + layer + 4 * c.q_size * n + 2 * c.hidden_size * c.vocab_size)

def step_seconds(scheduler, runner):
    "Plan, lay out, run, sample, record. The sampled tokens come to the CPU, so at the end the device is done."
    start = time.perf_counter()
    plan = scheduler.schedule()
    scheduler.update(plan, runner.execute(plan).token_ids)
    return time.perf_counter() - start

def decode_speed(run, name, config, runner, ceilings, batch, context):
    """Decode steps of a full batch. The prompts count as computed without having been: the cache holds random numbers, and to the
    speed of a decode these are as good."""
    limits = dict(max_num_seqs=batch, max_num_batched_tokens=batch * context, enable_prefix_caching=False)
    scheduler = Scheduler(SchedulerConfig(runner.kv_cache.shape[2], runner.model.model.max_model_len, **limits))
    for i in range(batch): scheduler.add_request(Request(str(i), [i % 64] * context, max_tokens=64, sampling_params=GREEDY))
    plan = scheduler.schedule()
    assert len(plan.scheduled) == batch and all(s.is_sampled for s in plan.scheduled), 'a prompt did not fit'
    scheduler.update(plan, {str(i): [1] for i in range(batch)})
    plan, repeats = scheduler.schedule(), 1 if run.interpret else 24
    step = StepBatch.build(plan, 16, run.device)
    model_ms = timed(run, lambda: runner.model(step, runner.kv_cache), 10)
    scheduler.update(plan, runner.execute(plan).token_ids)
    ms = 1e3 * statistics.median(step_seconds(scheduler, runner) for _ in range(repeats))
    moved = weight_bytes(config) + batch * (context + repeats // 2) * config.kv_bytes_per_token(2)
    case, goal = f'{name}, batch {batch}, context {context}', GOAL['decode step'] if batch == 1 else None
    run.speed('decode step', case, ms, ceilings, num_bytes=moved, goal=goal)
    run.speed('decode step, the model alone', case, model_ms, ceilings, num_bytes=moved)

def prefill_speed(run, name, config, runner, ceilings, num_tokens):
    "The step that computes one prompt whole and samples its first token."
    longest, seconds = runner.model.model.max_model_len, []
    scheduler = Scheduler(SchedulerConfig(runner.kv_cache.shape[2], longest, max_num_batched_tokens=num_tokens))
    for i in range(1 if run.interpret else 12):
        prompt = torch.randint(config.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(i)).tolist()
        scheduler.add_request(Request(str(i), prompt, max_tokens=1, sampling_params=GREEDY))
        seconds.append(step_seconds(scheduler, runner))
    ms = 1e3 * statistics.median(seconds[len(seconds) // 3:])
    flops = prefill_flops(config, num_tokens)
    run.speed('prefill', f'{name}, {num_tokens} tokens', ms, ceilings, flops=flops, goal=GOAL['prefill'])

def room(run, config):
    "The tokens for which there is memory, with a margin."
    return 1 << 12 if run.interpret else int(.85 * torch.cuda.mem_get_info()[0]) // config.kv_bytes_per_token(2)

def serving(run):
    "Steps of the engine: decodes as a share of the bandwidth limit of weights and K/V, a prefill as a share of the matmul peak."
    found, long, spare = measured_ceilings(run), 40 if run.interpret else 8192, 64
    wanted = [(1, 8), (3, 20)] if run.interpret else [(batch, context) for context in (1024, 8192) for batch in (1, 8, 64, 256)]
    for name, config in models(run).items():
        weights = random_weights(config, BF16, run.device)
        blocks = {(batch, context): batch * -(-(context + spare) // 16) for batch, context in [*wanted, (1, long)]}
        fits = {case: n for case, n in blocks.items() if n * 16 <= room(run, config)}
        for batch, context in blocks:
            if (batch, context) not in fits: run.note(f'{name}, batch {batch}, context {context}: does not fit into memory')
        runner = build_runner(run, config, weights, max(fits.values()), 16, long + spare, sorted({batch for batch, _ in wanted}))
        for layer in runner.kv_cache: layer.normal_()
        for case in wanted:
            if case in fits: run.guarded('decode step', f'{name}, {case}', decode_speed, name, config, runner, found, *case)
        run.guarded('prefill', name, prefill_speed, name, config, runner, found, long)
        del runner, weights
        if not run.interpret: torch.cuda.empty_cache()


# ---- part: transformers

def ours(run, config, weights, rounds, num_tokens):
    "Serves the rounds of prompts with the engine, graphs recorded before; returns the seconds of the last one, and its outputs."
    longest, num_reqs = max(map(len, rounds[0])) + num_tokens + 1, len(rounds[0])
    runner = build_runner(run, config, weights, num_reqs * (longest // 16 + 1), 16, longest, capture_sizes(num_reqs))
    scheduler = Scheduler(SchedulerConfig(runner.kv_cache.shape[2], longest, max_num_seqs=num_reqs, max_num_batched_tokens=8192))
    for number, prompts in enumerate(rounds):
        requests = [Request(f'{number}/{i}', p, max_tokens=num_tokens, sampling_params=GREEDY) for i, p in enumerate(prompts)]
        start = time.perf_counter()
        serve(scheduler, runner, [(0, request) for request in requests])
        seconds = time.perf_counter() - start
    return seconds, [request.output_token_ids for request in requests]

def theirs(run, model, rounds, num_tokens):
    "The same by transformers' continuous batching, and the attention that it chose; TimeoutError where the part's time is up."
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig
    sizes = {'num_blocks': 8, 'max_batch_tokens': 64} if run.interpret else {'max_memory_percent': .7}
    limits = ContinuousBatchingConfig(**sizes)
    greedy = GenerationConfig(do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1, pad_token_id=0)
    with model.continuous_batching_context_manager(greedy, timeout=5, continuous_batching_config=limits) as manager:
        for prompts in rounds:
            start, done = time.perf_counter(), {}
            ids = manager.add_requests(prompts, max_new_tokens=num_tokens)
            while len(done) < len(prompts):
                output = manager.get_result(timeout=1)
                if output is not None and output.error: raise RuntimeError(output.error)
                if output is not None and output.is_finished(): done[output.request_id] = output.generated_tokens
                if output is None and not manager.is_running(): raise RuntimeError('its thread has ended')
                took = time.perf_counter() - start
                if run.time_left < 6: raise TimeoutError(f'{len(done)} of {len(prompts)} done in {took:.0f} s')
        return took, [done[i] for i in ids], model.config._attn_implementation

def race(run, name, config):
    "The same prompts through both, over the same memory: the second round of two is timed."
    num_reqs, shortest, longest, num_tokens = (3, 3, 9, 4) if run.interpret else (64, 128, 1024, 64)
    lengths, random = torch.linspace(shortest, longest, num_reqs).long().tolist(), torch.Generator().manual_seed(0)
    rounds = [[torch.randint(config.vocab_size, (n,), generator=random).tolist() for n in lengths] for _ in range(2)]
    weights = random_weights(config, BF16, run.device)
    our_seconds, our_tokens = ours(run, config, weights, rounds, num_tokens)
    case = f'{name}, {num_reqs} requests of {shortest} to {longest} tokens, {num_tokens} new ones each'
    run.note(f'{case}: {our_seconds:.3f} s')
    if not run.interpret: torch.cuda.empty_cache()
    their_seconds, their_tokens, attends = theirs(run, transformers_model(config, weights, 'sdpa'), rounds, num_tokens)
    same, ratio = sum(a == b for a, b in zip(our_tokens, their_tokens)), their_seconds / our_seconds
    run.note(f"transformers' continuous batching with {attends}: {their_seconds:.3f} s; {same} outputs are the same")
    what, goal = "speed over transformers' continuous batching", GOAL['transformers']
    run.add(what, case, value=ratio, unit='times', reached=ratio, goal=goal)

def transformers(run):
    "The engine's time for a batch of requests against that of transformers' continuous batching."
    for name, config in models(run).items(): run.guarded("transformers' continuous batching", name, race, name, config)
