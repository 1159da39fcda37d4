"""Every claim of this book about LLM inference, and the cells that prove it.

    python tools/claims.py            all claims with their proofs; 1 where a claim has none, or a cell names one that is not here
    python tools/claims.py B3 G8 …    just these, with the asserts
    python tools/claims.py --brief    only how many are proven, and what is wrong: a part of `make test`

A cell says what it proves in a comment, `# claim B3`. It does prove it if, from that comment on, it comes to an assert that can fail:
in the cell itself, or in a function of the notebook that is called there. A comment inside a function counts where the function is
called, or where pytest calls it (`test_…` in a `#| test` cell). Cells that `make test` does not run are listed and prove nothing: `#| slow`,
`#| cuda`, and in nbs/tests/ all that is not `#| test`. Nor does a string, code behind `if False:`, an assert of what is always so, or one that
the package makes of itself (`#| export`). Nothing is run: the cells are read (ast, tokenize).
"""
import argparse, ast, io, json, re, sys, tokenize
from collections.abc import Iterator
from configparser import ConfigParser
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

root = Path(__file__).resolve().parent.parent
CHAPTERS = {'A': 'Batching and scheduling', 'B': 'The paged KV cache', 'C': 'Text in', 'D': "Attention, the first half of a layer", 'E': 'The MLP, the second half',
            'F': 'The LM head', 'G': 'Sampling, in this order', 'H': 'The whole'}
CLAIMS = {
    'A1': 'A batch that starts and ends together leaves seats empty when answers differ in length; scheduling token by token fills them',
    'A2': 'Batching pays because one read of the weights serves many tokens, and little because of launches saved',
    'A3': 'The scheduler has no phases: computed tokens, prefix hits included, catch up with known tokens as far as the budget goes',
    'A4': 'Four limits bind a step: seats, the token budget, the longest sequence, free blocks',
    'A5': 'Requests that run are served before requests that wait',
    'A6': 'Out of blocks, the last of those running gives all of its own back and waits in front; read again later, it says the same',
    'A7': 'A step that preempted admits nobody, and whoever is admitted has blocks for all known tokens; without these two rules the same tokens are computed over and over',
    'A8': 'A waiting request that gets no blocks ends admission for this step and preempts nobody',
    'A9': "A long prompt read in chunks does not stall the others' next tokens",
    'A10': 'Under memory pressure, copying blocks out and back and computing them again have a crossing point that bytes and FLOPs give',
    'A11': 'Flattened requests have no padding: the input is `input_ids [num_sched_tokens]`',
    'B1': '`kv_cache` is `[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]`; a layer\'s keys are `[num_blocks, block_size, num_kv_heads, head_dim]`',
    'B2': "`block_table [max_num_reqs, max_num_blocks_per_req]` leads from a request's own blocks to blocks of the pool",
    'B3': '`slot = block_table[req, pos // block_size] * block_size + pos % block_size`',
    'B4': 'Tables and slots have no layer: a token has the same slot in all of them',
    'B5': '`slot_mapping` says where to write, `block_table` where to read',
    'B6': 'Paging wastes only the rest of each last block, which grows with the block; a reservation wastes most of the memory',
    'B7': 'Blocks are taken as tokens come, not for the longest possible answer',
    'B8': 'Full blocks are found again by chained hashes, shared by count, kept until evicted, oldest first and tails before heads; a last prompt token is always computed',
    'C1': 'BPE merges the most frequent pair, again and again, and encodes by the same merges',
    'C2': 'Embedding is a look-up: `[num_sched_tokens]` becomes `[num_sched_tokens, hidden_size]`',
    'D1': 'RMSNorm is LayerNorm without the centring',
    'D2': 'The residual add and the norm after it, in one kernel, move four tensors where two move five',
    'D3': 'Q, K and V are one matrix product with `(num_heads + 2*num_kv_heads) * head_dim` columns',
    'D4': 'RoPE turns pairs of numbers, so that a query and a key see only the distance between them',
    'D5': 'Its cosines and sines come from a table by position, computed once',
    'D6': 'In a layer: QKV, rotation of Q and K, K and V to their slots, attention through the block table',
    'D7': '`cu_seqlens` keeps requests apart: none can see another, to the bit',
    'D8': '`num_heads / num_kv_heads` query heads share one key head, and the cache is as many times smaller',
    'D9': 'Softmax with a running maximum and a running sum is exact, however the keys are cut into tiles',
    'D10': 'Tiled attention never writes the score matrix to memory',
    'D11': 'Prefill, decode, chunk and prefix hit differ only in query and sequence lengths: one call serves all four',
    'D12': 'Three designs of attention over a paged cache: the one that reads prompts without the cache can do neither prefix hits nor chunks',
    'D13': "A batch shares the weights and never the keys and values of its decodes; a prompt shares each key among its queries",
    'D14': "One decode's attention costs in proportion to the context",
    'D15': 'Keys can be split among programs and merged by the log of their sums: exact for every cut, and more programs for few requests',
    'D16': 'Blocks may lie anywhere if the tokens in a block lie together: reads stay whole sectors',
    'E1': 'Gate and up are one matrix product with `2*intermediate_size` columns',
    'E2': '`silu(gate) * up` in one kernel moves three tensors where two move five',
    'E3': 'Each half of a layer adds a correction to the stream that runs past it',
    'F1': 'Only the last token of each request goes through the LM head, but for drafts and prompt logprobs',
    'F2': 'In the last layer all tokens need K and V, and only sampled ones the rest',
    'G1': "Logprobs are the raw logits', whatever is done to them after; each with token, bytes, rank and the likeliest",
    'G2': 'Allow-lists: token ids, choices, and grammars that give a bitmask at each step',
    'G3': 'Deny-lists: bad words, also of several tokens',
    'G4': 'What can change the argmax (minimum length, bias) comes before greedy',
    'G5': 'The repetition penalty counts prompt and output, presence and frequency the output only',
    'G6': "Greedy's argmax is taken before the temperature, and an all-greedy batch is done there",
    'G7': 'Temperature divides the logits, and greedy rows are not divided by zero',
    'G8': 'min-p keeps p >= min_p * p_max, and always the argmax',
    'G9': 'Top-k keeps the k likeliest tokens, and those tied with the last',
    'G10': 'Top-p keeps the smallest head whose mass passes p, at least one token',
    'G11': '`argmax(probs / Exp(1))` draws from `probs`, with no prefix sum',
    'G12': 'Each row takes its greedy or its drawn token by its own temperature, step after step',
    'G13': 'A request with a seed says the same alone, in any batch, in chunks and after preemption',
    'H1': "Llama-3-8B: about 70% of parameters and FLOPs are the MLP's, about 17% of the parameters the attention projections'",
    'H2': "The model's configuration and every variable of a step, with shape and meaning, come from the running engine",
    'H3': 'A prompt is bound by arithmetic, a decode by memory, on this machine by its own two ceilings',
    'H4': 'Every stage of a real step has its shape, in names and in numbers'}
DIRECTIVE = re.compile(r'^[ \t]*#[ \t]*\|[ \t]*([\w:]+)[ \t]*(\S*)', re.M)
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class Proof(NamedTuple):
    "A comment `# claim …` in a cell: whether the cell runs by default, and the asserts that it comes to."
    claim: str
    notebook: str                # under nbs/, without the suffix
    heading: str                 # the nearest one above
    cell: int
    runs: bool
    asserts: tuple[str, ...]

    def __str__(self) -> str:
        note = '' if self.asserts else ' (no assert)' if self.runs else ' (not run by default)'
        return f'{self.notebook}: {self.heading}{note}'


# ---- what an assert is worth

def can_fail(test: ast.expr) -> bool:
    "False where an asserted expression is true by its form alone: a constant, a tuple of a test and its message, `x == x`, `… or True`."
    if isinstance(test, ast.NamedExpr): return can_fail(test.value)
    if isinstance(test, ast.IfExp): return can_fail(test.body) or can_fail(test.orelse)
    if isinstance(test, ast.BoolOp): return (all if isinstance(test.op, ast.Or) else any)(map(can_fail, test.values))
    if isinstance(test, (ast.Tuple, ast.List, ast.Set)): return not test.elts or all(isinstance(e, ast.Starred) for e in test.elts)
    if isinstance(test, (ast.Lambda, ast.GeneratorExp, ast.JoinedStr)): return False
    if isinstance(test, ast.Compare) and not any(isinstance(n, ast.Call) for n in ast.walk(test)):
        same = all(isinstance(op, (ast.Eq, ast.Is, ast.LtE, ast.GtE)) for op in test.ops)
        if same and len({ast.dump(side) for side in (test.left, *test.comparators)}) == 1: return False
    return any(isinstance(n, (ast.Name, ast.Attribute, ast.Call, ast.Await)) for n in ast.walk(test))


def outcome(test: ast.expr) -> bool | None:
    "What a condition comes to on a machine without a GPU, where its form alone says so; else None."
    if isinstance(test, ast.Constant): return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not): return None if (inner := outcome(test.operand)) is None else not inner
    return False if ast.unparse(test).endswith('cuda.is_available()') else None


def swallows(node: ast.Try | ast.With) -> bool:
    "Whether an assert that fails in this block is never heard of."
    if isinstance(node, ast.With): return any('suppress' in ast.unparse(item.context_expr) for item in node.items)
    catches = lambda handler: handler.type is None or re.search(r'\b(AssertionError|Exception|BaseException)\b', ast.unparse(handler.type))
    return any(catches(h) and not any(isinstance(n, ast.Raise) for n in ast.walk(h)) for h in node.handlers)


# ---- what runs

@cache
def named_calls(node: ast.AST) -> list[tuple[ast.Call, list[str]]]:
    "The calls in an expression, each with the names of what it calls and of what it hands over; those of methods begin with a dot."
    name_of = lambda n: n.id if isinstance(n, ast.Name) else f'.{n.attr}' if isinstance(n, ast.Attribute) else ''
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return [(call, list(map(name_of, (call.func, *call.args, *(k.value for k in call.keywords))))) for call in calls]

@dataclass
class Cell:
    "A code cell of a notebook; `index` counts the cells of text too."
    index: int
    heading: str
    source: str
    flags: dict[str, str]
    runs: bool
    tree: ast.Module


@dataclass
class Notebook:
    "A notebook's code, and which of its functions are called from the code that runs by default."
    name: str
    cells: list[Cell]
    functions: dict[str, list[tuple[int, ast.AST]]] = field(default_factory=dict)      # and classes, by name (methods: '.name'), with the cell's index
    called: set[int] = field(default_factory=set)                                      # ids of the nodes

    def __post_init__(self):
        running = [cell for cell in self.cells if cell.runs]
        for cell in running:
            if 'export' in cell.flags or not re.search(r'\b(def|class) ', cell.source): continue
            found = [n for n in ast.walk(cell.tree) if isinstance(n, (*FUNCTIONS, ast.ClassDef))]
            methods = {n for c in found if isinstance(c, ast.ClassDef) for n in c.body}
            for node in found: self.functions.setdefault('.' * (node in methods) + node.name, []).append((cell.index, node))
        for cell in running:
            list(self.asserts(cell.tree.body, cell.index, called=self.called))
            for node in cell.tree.body:
                if not (isinstance(node, FUNCTIONS) and 'test' in cell.flags and node.name.startswith('test_')): continue
                if not any(re.search('skip|xfail', ast.unparse(d)) for d in node.decorator_list): list(self.enter(node, cell.index, self.called))

    def enter(self, node: ast.AST, index: int, called: set[int]) -> Iterator[str]:
        "The asserts of a function that is called, each function once."
        if id(node) in called: return
        called.add(id(node))
        body = node.body
        if isinstance(node, ast.ClassDef):       # its special methods are called by whoever uses it
            for method in body:
                if isinstance(method, FUNCTIONS) and method.name.startswith('__'): yield from self.enter(method, index, called)
        else: yield from self.asserts(body, index, called=called)

    def follow(self, node: ast.AST, index: int, called: set[int]) -> Iterator[str]:
        "The asserts of the functions that an expression calls, or hands to someone who calls them."
        for call, names in named_calls(node):
            if names[0].lstrip('.').startswith('assert_'): yield ast.unparse(call)               # torch.testing.assert_close and the like
            for found in filter(None, map(self.functions.get, names)):
                for i, function in [f for f in found if f[0] <= index][-1:] or found[:1]: yield from self.enter(function, i, called)

    def asserts(self, block: list[ast.stmt], index: int, line: int = 0, called: set[int] | None = None) -> Iterator[str]:
        "The asserts that a block comes to, from a line on, as text; those of a function are taken up once for each set `called`."
        called = set() if called is None else called
        for node in block:
            if node.end_lineno >= line: yield from self.of_statement(node, index, line, called)
            if isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)): return       # what comes after is never reached

    def of_statement(self, node: ast.stmt, index: int, line: int, called: set[int]) -> Iterator[str]:
        "The asserts that one statement comes to: into its blocks, and into what its expressions call."
        within = lambda block: self.asserts(block, index, line, called)
        if isinstance(node, ast.Assert):
            if can_fail(node.test): yield ast.unparse(node)
            yield from self.follow(node, index, called)
        elif isinstance(node, FUNCTIONS): return
        elif isinstance(node, ast.ClassDef): yield from within(node.body)
        elif isinstance(node, (ast.If, ast.While)):
            if node.lineno >= line: yield from self.follow(node.test, index, called)
            if outcome(node.test) is not False: yield from within(node.body)
            if outcome(node.test) is not True: yield from within(node.orelse)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            if node.lineno >= line: yield from self.follow(node.iter, index, called)
            yield from within(node.body)
            yield from within(node.orelse)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if re.match(r'(pytest\.)?raises\(', ast.unparse(item.context_expr)): yield f'with {ast.unparse(item)}'
                elif node.lineno >= line: yield from self.follow(item, index, called)
            found = within(node.body)
            if not swallows(node): yield from found
        elif isinstance(node, ast.Try):
            found = within(node.body)
            if not swallows(node): yield from found
            yield from within(node.orelse)
            yield from within(node.finalbody)
        elif isinstance(node, ast.Match):
            for case in node.cases: yield from within(case.body)
        else: yield from self.follow(node, index, called)

    def scope(self, cell: Cell, line: int) -> tuple[list[ast.stmt], bool]:
        "The block that a line stands in, of the innermost function or of the cell; and whether it is run by default."
        inside = [n for n in ast.walk(cell.tree) if isinstance(n, FUNCTIONS) and n.lineno <= line <= n.end_lineno]
        if not inside: return cell.tree.body, cell.runs
        innermost = max(inside, key=lambda n: n.lineno)
        return innermost.body, cell.runs and id(innermost) in self.called

    def proofs(self) -> Iterator[Proof]:
        "All comments `# claim …` of the notebook."
        for cell in self.cells:
            if 'claim ' not in cell.source: continue
            for token in tokenize.generate_tokens(io.StringIO(cell.source).readline):
                if token.type != tokenize.COMMENT: continue
                for claim in re.findall(r'\bclaim ([A-Z]\d+)\b', token.string):
                    block, runs = self.scope(cell, token.start[0])
                    found = tuple(self.asserts(block, cell.index, token.start[0])) if runs else ()
                    yield Proof(claim, self.name, cell.heading, cell.index, cell.runs, found)


# ---- notebooks

def headings(markdown: str) -> list[str]:
    "The headings of a Markdown cell, without their marks."
    return re.findall(r'^#+ +(.*\S)', re.sub(r'^(```|~~~).*?^\1', '', markdown, flags=re.M | re.S), re.M)


def read_notebook(path: Path, name: str, skipped: frozenset[str]) -> Notebook:
    "The code of a notebook. Raises ValueError naming the cell that cannot be read."
    cells, heading, made = [], '', json.loads(path.read_text(encoding='utf-8'))['cells']
    if not any('claim ' in ''.join(cell['source']) for cell in made if cell['cell_type'] == 'code'): return Notebook(name, [])
    for index, cell in enumerate(made):
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'markdown': heading = (headings(source) or [heading])[-1]
        if cell['cell_type'] != 'code': continue
        flags = dict(DIRECTIVE.findall(source))
        runs = not skipped & flags.keys() and flags.get('eval:') != 'false' and (path.parent.name != 'tests' or 'test' in flags)
        try: tree = compile(source, str(path), 'exec', ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error: raise ValueError(f'{path}: cell {index}: {error}') from error
        cells.append(Cell(index, heading, source, flags, runs, tree))
    return Notebook(name, cells)


def find_proofs(folder: Path = root / 'nbs') -> list[Proof]:
    "The comments `# claim …` of all notebooks in a folder, book first, tests after. Raises ValueError for a notebook that cannot be read."
    config = ConfigParser(delimiters=['='])
    config.read(root / 'settings.ini', encoding='utf-8')
    skipped = frozenset(config['DEFAULT']['tst_flags'].split())
    paths = sorted((p for p in folder.rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts), key=lambda p: (p.parent != folder, p))
    return [proof for p in paths for proof in read_notebook(p, p.relative_to(folder).with_suffix('').as_posix(), skipped).proofs()]


def problems(proofs: list[Proof], claims: dict[str, str]) -> list[str]:
    "What is wrong: claims that no cell proves, claims that are not listed, cells that name a claim and assert nothing."
    found = []
    for claim in claims:
        mine = [p for p in proofs if p.claim == claim]
        if any(p.asserts for p in mine): continue
        where = ', '.join(f'{p.notebook} (cell {p.cell})' for p in mine)
        found.append(f'{claim}: no cell that runs by default asserts it' + (f'; it is named in {where}' if where else ', and none names it'))
    for p in proofs:
        place = f'{p.notebook}, cell {p.cell}, under "{p.heading}"'
        if p.claim not in claims: found.append(f'{place}: claim {p.claim} is not in the list of tools/claims.py')
        elif p.runs and not p.asserts: found.append(f'{place}: claim {p.claim} is named, and no assert that can fail is run for it')
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('claims', nargs='*', metavar='ID')
    parser.add_argument('--brief', action='store_true')
    parser.add_argument('--notebooks', type=Path, default=root / 'nbs', metavar='DIR')
    args = parser.parse_args(argv)
    if unknown := set(args.claims) - CLAIMS.keys(): parser.error(f'no such claim: {", ".join(sorted(unknown))}; there are {", ".join(CLAIMS)}')
    try: proofs = find_proofs(args.notebooks)
    except ValueError as error: sys.exit(f'claims: {error}')
    for claim, statement in () if args.brief else CLAIMS.items():
        if args.claims and claim not in args.claims: continue
        mine = [p for p in proofs if p.claim == claim]
        asserts = lambda p: [f'           {text}' for text in p.asserts] if args.claims else []
        print(f'{claim:4} {statement}', *dict.fromkeys(line for p in mine for line in (f'       {p}', *asserts(p))), sep='\n')
    wrong, good = problems(proofs, CLAIMS), [p for p in proofs if p.asserts and p.claim in CLAIMS]
    cells, notebooks = {(p.notebook, p.cell) for p in good}, {p.notebook for p in good}
    print(f'{len({p.claim for p in good})} of {len(CLAIMS)} claims proven, by {len(cells)} cells in {len(notebooks)} notebooks', *wrong, sep='\n')
    return 1 if wrong else 0


if __name__ == '__main__': sys.exit(main(sys.argv[1:]))
