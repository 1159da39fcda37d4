// Steps over a recorded run of the scheduler, forward and back. What is drawn comes from the trace; nothing is decided here.
import {h, mount, transport, bindKeys, select, button, num, clamp, owner, color, onTheme, tip, settle} from './common.js';

const {floor, ceil, max, min} = Math;
const KEYFRAME = 32, SMALL = 128, WELL = 156;            // steps between snapshots; larger pools go on a canvas; the pool's height
const LETTER = {prefill: 'P', chunk: 'C', decode: 'D', verify: 'V'}, WORD = {P: 'prompt', C: 'chunk of a prompt', D: 'decode', V: 'drafts verified'};
const BLANK = {parts: [], by: new Map(), ...Object.fromEntries(['before', 'during', 'preempted', 'admitted', 'finished', 'running', 'waiting', 'blocks', 'free_tail', 'drafts', 'num_sampled'].map(k => [k, []])),
  num_tokens: 0, token_budget: 0, sentence: 'Nothing has run yet: add a prompt below, and run a step.'};
const box = (cls, ...kids) => h('div', {class: cls}, kids), bit = (cls, ...kids) => h('span', {class: cls}, kids);
const many = (n, word) => `${num(n)} ${word}${n === 1 ? '' : 's'}`, about = (list, i) => list.find(e => e.request === i), same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const visible = text => String(text ?? '?').replaceAll('\n', '↵').replace(/^ +| +$/g, x => '·'.repeat(x.length)) || '∅';
const set = (node, ...kids) => node.replaceChildren(...kids.flat().filter(k => k || k === 0));
const px = (node, w, tall) => Object.assign(node.style, {width: `${w}px`, height: `${tall}px`});
const soon = f => { let queued = false; return () => { if (!queued) { queued = true; requestAnimationFrame(() => { queued = false; f(); }); } }; };
const number = (label, more) => h('input', {type: 'number', min: 1, 'aria-label': label, ...more});
const BUDGET = 'max_num_scheduled_tokens', LIMITS = {[BUDGET]: `token budget (${BUDGET})`, max_num_seqs: 'seats (max_num_seqs)', num_blocks: 'blocks (num_blocks)'};
const limitName = by => LIMITS[by.includes('budget') ? BUDGET : by.replace('kv ', 'num_')] ?? by, ending = e => e.reason + ({length: ': max_tokens reached', stop: ': a stop token or string came'}[e.reason] ?? '');
const called = id => (/^\d+$/.test(id) ? `r${id}` : id);

function sheet(canvas, w, tall) {                        // an empty canvas of this size
  const ratio = devicePixelRatio || 1, g = canvas.getContext('2d');
  Object.assign(canvas, {width: w * ratio, height: tall * ratio});
  px(canvas, w, tall);
  g.scale(ratio, ratio);
  return g;
}

function palette(root, redraw) {                         // the theme's colours for a canvas, drawn again when the theme changes
  let inks = {};
  return {ink: name => (inks[name] ??= color(root, `--li-${name}`)), remove: onTheme(root, () => { inks = {}; redraw(); })};
}

// ---- the run: the state after planning any step, rebuilt from the deltas ----

const copyOf = o => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, k === 'tables' ? v.map(t => t.slice()) : Array.isArray(v) ? v.slice() : v]));

function advance(o, run) {
  const last = run.steps[o.at] ?? BLANK, step = run.steps[++o.at];
  const reset = (i, status) => { o.tables[i] = []; o.done[i] = 0; o.status[i] = status; };
  if (!last.cancelled) for (const p of last.parts) o.known[p.i] += p.sampled;
  for (const e of [...last.during, ...last.finished, ...step.before]) {
    if (e.what === 'add') { reset(e.request, 'waiting'); o.known[e.request] = run.requests[e.request].num_prompt_tokens; }
    if (e.what === 'end') { o.tables[e.request] = []; o.status[e.request] = e.reason; }
  }
  if (last.cancelled) for (const e of last.preempted) o.done[e.request] = 0;
  for (const i of step.waiting) {                        // one that waits keeps what host memory keeps
    const kept = o.status[i] === 'waiting' || about(step.preempted, i)?.swapped ? o.done[i] : 0;
    reset(i, 'waiting'); o.done[i] = kept;
  }
  for (const i of step.admitted) reset(i, 'running');
  for (const p of step.parts) {
    for (const b of p.blocks) { o.last[b] = [p.i, o.tables[p.i].length]; o.tables[p.i].push(b); }
    o.done[p.i] = p.start + p.count;
  }
  for (const [b, refs, hash] of step.blocks) { o.refs[b] = refs; o.hashes[b] = hash; }
  const tail = new Set(step.free_tail);
  o.free = [...o.free.filter(b => !o.refs[b] && !tail.has(b)), ...step.free_tail];
}

function makeRun(data) {
  const {requests, config, initial, token_texts: texts = {}} = data, n = config.num_blocks, all = value => new Array(n).fill(value), done = [];
  let now = {at: -1, refs: all(0), hashes: all(null), last: all(null), free: initial.free_queue ?? [...all(0).keys()], tables: [], done: [], known: [], status: []};
  let {running, waiting} = initial;
  for (const [b, refs, hash] of initial.blocks) { now.refs[b] = refs; now.hashes[b] = hash?.slice(0, 6); }
  for (const r of initial.requests) {
    now.tables[r.request] = [...r.block_ids]; now.done[r.request] = done[r.request] = r.num_computed_tokens; now.known[r.request] = r.num_known_tokens;
    now.status[r.request] = running.includes(r.request) ? 'running' : 'waiting';
  }
  const saved = [copyOf(now)], run = {requests, config, steps: [], size: config.block_size, name: i => called(requests[i].id), words, get hasText() { return Object.keys(texts).length > 0; }};
  run.grow = () => data.steps.slice(run.steps.length).forEach(short => {
    const step = {...BLANK, running, waiting, ...short}, sampled = new Map(step.num_sampled);
    ({running, waiting} = step);
    step.parts = (step.scheduled ?? []).map(p => {
      const {request: i, start = done[i], kind = 'decode', num_tokens: count = 1, num_cached: cached = 0, hit_blocks: hits = [], new_blocks: fresh = [], limited_by: limit, num_drafts: drafts = 0, is_sampled = true} = p.request === undefined ? {request: p} : p;
      const got = is_sampled && !about(step.during, i) ? sampled.get(i) ?? 1 : 0;
      done[i] = start + count - (drafts ? drafts + 1 - got : 0);
      return {i, start, count, cached, fresh, limit, kind: kind.replace('verify', 'decode'), letter: LETTER[kind], blocks: [...hits, ...fresh], sampled: got};
    });
    step.by = new Map(step.parts.map(p => [p.i, p]));
    run.steps.push(step);
  });
  run.at = at => {                                       // on from where we are, or from the last snapshot before
    const key = min(floor((at + 1) / KEYFRAME), saved.length - 1);
    if (now.at > at || now.at < saved[key].at) now = copyOf(saved[key]);
    while (now.at < at) {
      advance(now, run);
      if (now.at + 1 === saved.length * KEYFRAME) saved.push(copyOf(now));
    }
    return now;
  };
  run.ids = (i, from, to) => requests[i].token_ids.slice(from, to);
  run.text = (...of) => run.ids(...of).map(id => texts[id] ?? String(id));
  function words(at, i) {                                // what a step meant for a request
    const step = run.steps[at] ?? BLANK, p = step.by.get(i), lost = about(step.preempted, i), end = about(step.finished, i);
    return [lost && `preempted for ${run.name(lost.for)}`, p && `${WORD[p.letter]}, ${many(p.count, 'token')} at ${p.start}${p.count > 1 ? ` to ${p.start + p.count - 1}` : ''}`,
      p?.cached && `${p.cached} more from the prefix cache`, p?.limit && `cut by ${limitName(p.limit)}`, !lost && step.waiting.includes(i) && 'waits',
      step.stopped?.request === i && `kept out by ${limitName(step.stopped.by)}`, end && `ends after it, ${ending(end)}`].filter(Boolean).join('; ') || 'nothing';
  }
  run.grow();
  return run;
}

// ---- the timeline: a row for each request, a column for each step; only what is in sight is drawn ----

function makeTimeline(root, label, onPick, onHover) {
  const LEFT = 78, TOP = 15, ROW = 16, canvas = h('canvas'), inner = box('', canvas), el = h('div', {class: 'st-timeline', role: 'img', 'aria-label': label}, inner);
  const hint = tip(root), {ink: inkOf, remove} = palette(root, () => again());
  let run, g, at = 0, hot = null, zoom = 1, split = -1, cell = 20, length = 0, stay = false;
  const ink = name => { g.fillStyle = g.strokeStyle = inkOf(name); };
  const rect = (name, ...where) => { ink(name); g.fillRect(...where); };
  function follow() {                                    // keep the step, and those it serves, in sight
    cell = clamp(clamp((el.clientWidth - LEFT) / (length || 1), 13, 34) * zoom, 3, 60);
    px(inner, floor(LEFT + cell * length), TOP + ROW * run.requests.length + 2);
    const x = at * cell, room = el.clientWidth - LEFT, step = run.steps[at] ?? BLANK, rows = [...step.by.keys(), ...step.waiting.slice(0, 1)], low = min(...rows) * ROW;
    if (x < el.scrollLeft || x + cell > el.scrollLeft + room) el.scrollLeft = x - room / 2;
    if (rows.length && (low < el.scrollTop || max(...rows) * ROW + ROW > el.scrollTop + el.clientHeight - TOP)) el.scrollTop = low;
    stay = true;
  }
  function paintCell(x, y, step, i) {
    const p = step.by.get(i), w = max(cell - 1, 1), tall = ROW - 2, lost = !p && about(step.preempted, i), name = lost ? 'preempted' : p?.kind;
    if (name) {
      rect(name, x, y, w, tall);
      if (cell > 8) { ink(`${name}-ink`); g.fillText(lost ? '✕' : p.letter, x + w / 2, y + ROW / 2); }
    } else if (step.waiting.includes(i)) {
      ink('wait'); g.beginPath();
      for (let d = 2; d < w + tall; d += 5) { g.moveTo(x + min(d, w), y + max(0, d - w)); g.lineTo(x + max(0, d - tall), y + min(d, tall)); }
      g.stroke();
    } else if (step.running.includes(i)) rect('muted', x, y + tall / 2 - 1, w, 2);
    if (p?.cached) rect('cached', x, y + tall - 3, w, 3);
    if (about(step.finished, i)) { ink('fg'); g.beginPath(); g.arc(x + w - 3, y + 3, min(3, w / 2), 0, 7); g.fill(); }
  }
  const draw = soon(() => {
    if (!run) return;
    if (!stay) follow();
    const w = el.clientWidth, tall = el.clientHeight, left = el.scrollLeft, up = el.scrollTop, font = getComputedStyle(el).fontFamily;
    g = sheet(canvas, w, tall);
    Object.assign(g, {textBaseline: 'middle', textAlign: 'center'});
    const c0 = floor(left / cell), c1 = min(length, ceil((left + w) / cell)), r0 = floor(up / ROW), r1 = min(run.requests.length, ceil((up + tall) / ROW));
    const x = c => LEFT + c * cell - left, y = i => TOP + i * ROW - up, pen = (bold, size) => { g.font = `${bold ? 700 : 400} ${size}px ${font}`; };
    pen(true, 10);
    for (let i = r0; i < r1; i++) {
      g.globalAlpha = .2;
      if (hot?.has(i)) rect('accent', 0, y(i) - 1, w, ROW);
      for (let c = c0; c < c1; c++) { g.globalAlpha = c <= at ? 1 : .36; paintCell(x(c), y(i), run.steps[c], i); }
    }
    Object.assign(g, {globalAlpha: 1, lineWidth: 2, textAlign: 'left'});
    if (split >= 0) { ink('preempted'); g.setLineDash([4, 3]); g.strokeRect(x(split) - 1, TOP - 1, cell + 1, tall); g.setLineDash([]); }
    ink('fg'); if (length) g.strokeRect(x(at) - 1, TOP - 1, cell + 1, min(tall - TOP, run.requests.length * ROW - up + 1));
    g.clearRect(0, TOP, LEFT - 2, tall);
    for (let i = r0; i < r1; i++) {
      rect(`o${i % 8}`, 2, y(i), 5, ROW - 2);
      ink('fg'); pen(hot?.has(i), 11); g.fillText(run.name(i).slice(0, 11), 11, y(i) + ROW / 2 - 1, LEFT - 16);
    }
    g.clearRect(0, 0, w, TOP - 1); g.textAlign = 'center';
    const every = [1, 2, 5, 10, 20, 50, 100, 200].find(n => n * cell > 26) ?? 500;
    for (let c = c0; c < c1; c++) if (x(c) > LEFT - 8 && (c === at || (c + 1) % every === 0 && Math.abs(c - at) * cell > 18)) {
      ink(c === at ? 'fg' : 'muted'); pen(c === at, 10); g.fillText(c + 1, x(c) + cell / 2, TOP / 2);
    }
  });
  function under(e) {
    const b = el.getBoundingClientRect(), x = e.clientX - b.left, y = e.clientY - b.top, c = floor((x - LEFT + el.scrollLeft) / cell), i = floor((y - TOP + el.scrollTop) / ROW);
    return [x > LEFT && c < length ? c : null, y > TOP && i < run.requests.length ? i : null];
  }
  const over = e => {
    const [c, i] = e ? under(e) : [null, null];
    onHover?.(i);
    if (c === null || i === null) hint.hide(); else hint.show(e.clientX, e.clientY, `step ${c + 1}, ${run.name(i)}: ${run.words(c, i)}`);
  };
  for (const [name, f] of Object.entries({scroll: draw, pointermove: over, pointerleave: () => over(), click: e => onPick(...under(e))})) el.addEventListener(name, f);
  const again = () => { stay = false; draw(); }, watch = new ResizeObserver(again);
  watch.observe(el);
  return {el, show(newRun, k) { at = k; run = newRun; length = run.steps.length; again(); },
    light(set) { hot = set; draw(); }, split(c) { split = c; draw(); }, zoom(by) { zoom = clamp(zoom * by, .1, 4); again(); }, remove() { watch.disconnect(); remove(); }};
}

// ---- the widget ----

function render({model, el}) {
  const root = mount(el, 'stepper', 'Scheduler stepper'), name = i => run.name(i), runs = [makeRun(model.get('data'))], still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  let which = 0, run = runs[0], state, step = BLANK, at = 0, pin = null, over = null, hot = null, users = [], place = [], changed = new Set();
  const total = () => run.steps.length, paintOf = i => ({'--fill': owner(i).fill, '--ink': owner(i).ink});
  const hash = b => state.hashes[b], tag = (i, text = name(i)) => h('b', {class: 'st-tag', 'data-r': i, style: paintOf(i)}, text);
  const slotOf = (i, p) => { const b = state.tables[i]?.[floor(p / run.size)]; return b === undefined ? null : b * run.size + p % run.size; };

  // 1 and 2: the sentence; the transport, with a mark where something happened
  const sentence = h('p', {class: 'li-big st-sentence', 'aria-live': 'polite'}), badge = bit('li-badge');
  function say(node, text, k) {
    const who = new Map(run.requests.map((r, i) => [r.id, i])), words = text.replace(/^Step \d+( of \d+)?\. */, '').split(/\b(request \d+|[\w-]*\d[\w-]*)\b/i);    // names in their owners' colours
    set(node, h('b', {}, total() ? `Step ${k + 1} of ${total()}. ` : ''), words.map((w, k) => { const i = k % 2 ? who.get(w.replace(/^request /i, '')) : undefined; return i === undefined || /^\d+$/.test(w) ? w : tag(i, w); }));
  }
  function makeRoom() {                                  // for the longest sentence, at this width
    const trial = sentence.parentNode.appendChild(h('p', {class: 'li-big st-sentence', 'aria-hidden': true, style: {position: 'absolute', visibility: 'hidden', height: 'auto', width: `${sentence.clientWidth}px`}}));
    let tall = 44;
    for (const s of run.steps.toSorted((a, b) => b.sentence.length - a.sentence.length).slice(0, 8)) { say(trial, s.sentence, total() - 1); tall = max(tall, trial.offsetHeight); }
    trial.remove();
    sentence.style.height = `${tall}px`;
  }
  function drawSentence() {
    const {model: what, engine_version: version} = model.get('data'), idle = !total() && !model.get('live');
    say(sentence, idle ? 'Nothing has run yet: this engine needs a running kernel.' : step.sentence, at);
    badge.hidden = idle;
    badge.textContent = [which ? 'what if' : model.get('live') && model.get('engine') ? 'live' : 'recorded run', what ?? 'scheduler alone', version].filter(Boolean).join(' · ');
  }
  const ticks = () => run.steps.flatMap((s, k) => Object.entries({preempted: s.preempted, hit: s.parts.filter(p => p.cached), admitted: s.admitted, finished: s.finished}).filter(x => x[1].length).map(([kind, who]) => ({at: k, kind, title: `step ${k + 1}: ${who.map(e => name(e.request ?? e.i ?? e)).join(', ')} ${{hit: 'found in the cache', finished: 'ends'}[kind] ?? kind}`})));
  const save = settle(() => { if (!which) { model.set('at', at); model.save_changes(); } });
  const player = transport({count: total(), ticks: ticks(), onStep: k => { show(k); save(); }}), go = k => { player.stop(); player.set(k); };

  // 3: the timeline
  const time = makeTimeline(root, 'Timeline', (c, i) => { if (c !== null) go(c); else if (i !== null) choose({request: i}); }, i => preview(i === null ? null : {request: i}));
  const phase = kind => ({background: `var(--li-${kind})`, color: `var(--li-${kind}-ink)`}), key = (cls, words, text, kind) => bit('', h('i', {class: `st-key ${cls}`, style: kind ? phase(kind) : {}}, text), words), wider = () => time.zoom(1.5), narrower = () => time.zoom(1 / 1.5);
  const timeKey = box('st-legend', key('', 'prompt', 'P', 'prefill'), key('', 'chunk of a prompt', 'C', 'chunk'), key('', 'decode', 'D', 'decode'), key('', 'preempted', '✕', 'preempted'), key('st-waits', 'waits'),
    key('st-hit', 'cache hit'), bit('', 'slider: ▲ admitted ◆ cache hit ✕ preempted ● ends'), bit('st-zoom', button('+', wider, {title: 'Wider steps', key: 'Plus'}), button('−', narrower, {title: 'Narrower steps', key: '-'})));

  // 4: this step's decision: the budget, what limited it, the queues
  const spent = h('h4'), bar = box('li-bar st-bar'), reasons = box('st-reasons'), queues = ['waiting', 'running', 'finished'].map(q => [q, h('h4'), h('div', {class: 'st-cards', 'data-queue': q})]);
  function drawBudget() {
    const {token_budget: budget, num_tokens: n} = step, rest = budget - n, wide = bar.clientWidth / budget, fits = (words, w) => (words.length * 7 + 8 < w ? words : '');
    const label = p => `${name(p.i)} ${p.letter}${p.count > 1 ? ` ${p.count}` : ''}`;
    set(spent, budget && `This step: ${num(n)} of ${num(budget)} tokens `, step.parts.flatMap(p => [tag(p.i, label(p)), ' ']));
    set(bar, step.parts.map(p => h('span', {class: 'st-part', 'data-r': p.i, title: label(p), style: {...paintOf(p.i), ...phase(p.kind), flexBasis: `${100 * p.count / budget}%`}},
      fits(label(p), p.count * wide) || (p.count * wide > 11 ? p.letter : ''))), bit('st-rest', fits(`${num(rest)} unused`, rest * wide)));
    const over = total() && at === total() - 1 && !step.waiting.length && step.running.every(i => about(step.finished, i)), chips = [], chip = (kind, ...words) => chips.push(h('span', {class: 'st-chip', style: {'--edge': `var(--li-${kind})`}}, words)), s = step.stopped;
    for (const p of step.preempted) chip('preempted', tag(p.request), ' preempted for ', tag(p.for), `: ${many(p.needed, 'block')} needed, ${p.free} free${p.swapped ? `, ${p.swapped} of its own to host memory` : ''}`);
    if (s) chip('preempted', tag(s.request), ' kept waiting by ', h('b', {}, limitName(s.by)), s.needed ? `: needs ${s.needed}, ${s.free - s.promised} to be had` : '');
    for (const p of step.parts) if (p.limit) chip('chunk', tag(p.i), ' cut by ', 'the ', h('b', {}, limitName(p.limit).replace(/\)$/, ` ${num(step.token_budget)})`)));
    for (const p of step.parts) if (p.cached) chip('cached', tag(p.i), ` ${many(p.cached, 'token')} from the prefix cache`);
    for (const e of [...step.before, ...step.during]) if (e.what === 'end') chip('decode', tag(e.request), ` ends: ${ending(e)}`);
    for (const e of step.finished) chip('decode', tag(e.request), h('span', {title: ending(e)}, ` ends: ${many(e.blocks.length, 'block')} released after this step (${ending(e).split(': ').at(-1)})`));
    if (over) chip('decode', h('b', {}, 'All requests have ended: '), 'after this step every block is free.');
    for (const e of step.before) if (e.changes) chip('chunk', ...Object.entries(e.changes).map(([k, v]) => `${limitName(k)} is ${v} from here on`));
    set(reasons, chips.length || !total() ? chips : bit('li-muted', 'No limit was met.'));
  }
  function card(i, where) {
    const r = run.requests[i], known = state.known[i], want = max(r.num_prompt_tokens + r.max_tokens, known), all = known + (step.by.get(i)?.sampled ?? 0), end = about(step.finished, i), gap = run.hasText ? '' : ' ', next = run.text(i, known, all).join(gap);
    return h('div', {class: `st-card${about(step.preempted, i) ? ' st-loses' : ''}`, 'data-r': i, 'data-card': i, style: {...paintOf(i), '--done': `${100 * state.done[i] / want}%`, '--prompt': `${100 * r.num_prompt_tokens / want}%`}},
      box('st-line', h('b', {}, name(i)), bit('st-tail', run.text(i, max(0, known - 10), known).join(gap).replaceAll('\n', '↵'), next && h('em', {}, gap + next))),
      bit('st-meter'), h('div', {title: `of ${many(all, 'known token')}, ${state.done[i]} computed; at most ${want} can be`}, `${state.done[i]} of ${many(all, 'token')}`),
      about(step.preempted, i) ? 'preempted' : where === 'finished' ? h('div', {title: ending({reason: state.status[i]})}, `ended: ${state.status[i]}`) : end ? h('div', {title: ending(end)}, `ends: ${end.reason}`) : many(state.tables[i].length, 'block'));
  }
  function drawQueues() {
    const lists = {...step, finished: [...state.status.keys()].filter(i => state.status[i] && !step.waiting.includes(i) && !step.running.includes(i)).reverse()};
    const moved = still ? [] : queues.flatMap(([q, , cell]) => [...cell.querySelectorAll('[data-card]')].filter(c => !lists[q].includes(+c.dataset.card))).map(c => [c.dataset.card, c.getBoundingClientRect()]);
    for (const [q, title, cell] of queues) {
      const ids = lists[q];
      title.textContent = `${q} ${ids.length}`;
      set(cell, ids.slice(0, 16).map(i => card(i, q)), ids.length > 16 ? bit('li-muted', `and ${ids.length - 16} more`) : '');
    }
    for (const [i, from] of moved) {                     // from queue to queue
      const c = root.querySelector(`[data-card="${i}"]`), to = c?.getBoundingClientRect();
      c?.animate([{transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)`}, {}], {duration: 150, easing: 'ease-out'});
    }
  }

  // 5: the pool
  const poolTitle = h('h4', {title: 'Before those that end in this step release their blocks. Cached: free, and still found by its content'}), grid = box('st-pool'), big = h('canvas'), cells = [];
  const poolKey = box('st-legend', key('', 'owner', '', 'o0'), '▮▮▯ used', bit('', h('b', {}, '×2'), ' shared'), key('st-cached', 'cached'), bit('', h('b', {}, '#1'), ' next free'), key('st-now', 'changed'));
  let columns = 1, side = 8;
  function fit(n, w, most) {                             // the largest squares of which n have room
    for (side = most; side > 2 && floor(w / side) * floor(WELL / side) < n;) side -= .25;
    columns = floor(w / side);
  }
  function layPool() {
    const n = run.config.num_blocks;
    grid.hidden = n > SMALL; big.hidden = n <= SMALL; cells.length = 0;
    if (n > SMALL) return;
    fit(n, grid.parentNode.clientWidth - 16, 64);
    columns = ceil(n / ceil(n / columns));
    grid.style.setProperty('--cell', `${side - 3}px`);
    grid.style.gridTemplateColumns = `repeat(${columns}, var(--cell))`;
    for (let b = 0; b < n; b++) cells.push(h('button', {type: 'button', 'data-b': b, tabindex: '-1'}, h('i', {class: 'st-id'}, b), bit('st-who'), h('i', {class: 'st-more'}), h('u', {class: 'st-ticks'})));
    set(grid, cells);
  }
  function usedOf(b) {                                   // positions of block b that hold something, and those before this step
    const [i, j] = users[b]?.[0] ?? [], within = p => clamp(p - j * run.size, 0, run.size), part = step.by.get(i);
    return i === undefined ? [0, 0] : [within(state.done[i]), within(part?.start ?? state.done[i])];
  }
  function drawPool() {
    const n = run.config.num_blocks, free = state.free.length;
    users = []; place = [];
    for (const i of step.running) state.tables[i].forEach((b, j) => (users[b] ??= []).push([i, j]));
    state.free.forEach((b, k) => { place[b] = k + 1; });
    changed = new Set([...step.blocks.map(x => x[0]), ...step.parts.flatMap(p => p.blocks), ...step.preempted.flatMap(p => p.blocks)]);
    poolTitle.textContent = `Pool, planned: ${num(n - free)} of ${num(n)} blocks in use, ${num(state.free.filter(b => hash(b)).length)} cached`;
    cells.forEach((c, b) => {
      const own = users[b] ?? [], ghost = !own.length && hash(b) && state.last[b], [end, old] = usedOf(b), some = own.slice(0, 4), first = own.length ? owner(own[0][0]) : {};
      const vars = {fill: first.fill, ink: first.ink, mix: own.length > 1 ? `linear-gradient(120deg, ${some.map(([i], k) => `${owner(i).fill} ${100 * k / some.length}% ${100 * (k + 1) / some.length}%`)})` : '', ghost: ghost ? owner(ghost[0]).fill : '', n: run.size,
        used: `${100 * end / run.size}%`, old: `${100 * old / run.size}%`};
      for (const [name, value] of Object.entries(vars)) c.style.setProperty(`--${name}`, value ?? '');
      c.className = `st-block${own.length > 1 ? ' st-shared' : ''}${own.length ? ' st-used' : hash(b) ? ' st-ghost' : ''}${hash(b) ? ' st-cached' : ''}${changed.has(b) ? ' st-now' : ''}`;
      c.dataset.r = own.map(([i]) => i).join(' ');
      c.children[1].textContent = own.length ? own.slice(0, 2).map(([i]) => name(i)).join(' ') + (own.length > 2 ? ` +${own.length - 2}` : '') : `#${place[b]}`;
      c.children[2].textContent = state.refs[b] > 1 ? `×${state.refs[b]}` : '';
    });
  }
  const paintBig = soon(() => {
    if (big.hidden) return;
    const n = run.config.num_blocks, w = big.parentElement.clientWidth - 16, g = sheet(big, w, WELL), rect = (name, ...where) => { g.fillStyle = inks.ink(name); g.fillRect(...where); };
    fit(n, w, 40);
    const edge = side - (side > 4 ? 1 : .5);
    for (let b = 0; b < n; b++) {
      const x = b % columns * side, y = floor(b / columns) * side, own = users[b];
      g.globalAlpha = hot && !own?.some(([i]) => hot.has(i)) ? .3 : 1;
      if (changed.has(b)) rect('fg', x - 1, y - 1, edge + 2, edge + 2);
      rect(own ? `o${own[0][0] % 8}` : 'border', x, y, edge, edge);
      if (own?.length > 1) rect(`o${own[1][0] % 8}`, x + edge / 2, y, edge / 2, edge);
      if (!own && hash(b)) rect('cached', x, y, edge, edge / 3);
    }
  }), inks = palette(root, paintBig);
  // 6: the detail strip: the mapping of a request or block, and the step's flat arrays
  const head = box('st-head'), formula = box('st-formula'), [groups, arrays] = [['st-groups', 'Block table'], ['st-arrays', 'Input of the step']].map(([cls, label]) => h('div', {class: cls, tabindex: '0', 'aria-label': label}));
  const picker = select({label: 'show', options: [], onChange: v => choose(v === '' ? null : {request: +v})}), unpin = button('unpin', () => choose(null), {title: 'Show what changed', key: 'Escape'});
  const blockNumber = number('block', {min: 0, placeholder: 'block', onchange: () => choose({block: clamp(Math.round(+blockNumber.value), 0, run.config.num_blocks - 1)})});
  function changedRequest() {
    const {parts} = step, taker = step.preempted.map(p => step.by.get(p.for)).find(Boolean);
    return (taker ?? parts.find(p => p.cached) ?? parts.find(p => p.letter !== 'D') ?? parts.find(p => p.fresh.length) ?? parts[0])?.i ?? step.waiting[0];
  }
  function token(i, p, cls) {
    const slot = slotOf(i, p), where = slot === null ? 'no block yet' : `block ${floor(slot / run.size)} : offset ${p % run.size} → slot ${slot}`;
    return h('span', {class: `st-token ${cls}`, 'data-r': i, 'data-p': p, title: `${name(i)} position ${p} → ${where}`}, h('i', {}, p), visible(run.text(i, p, p + 1)[0]));
  }
  const isNow = (i, p) => { const part = step.by.get(i); return part && p >= part.start && p < part.start + part.count; };
  const group = (i, b, title, more, tokens) => groups.append(h('div', {class: 'st-group', style: i === null ? {} : paintOf(i)}, h('div', {class: 'st-ghead', 'data-b': b}, title, bit('li-muted', more)), box('st-tokens', tokens)));
  const slots = b => ` slots ${b * run.size} to ${b * run.size + run.size - 1}`;
  function drawRequest(i, pos) {
    const {size} = run, table = state.tables[i] ?? [], part = step.by.get(i), done = state.done[i] ?? 0, end = max(state.known[i] ?? 0, done), last = pos ?? (part ? part.start + part.count - 1 : done - 1);
    const slot = slotOf(i, last), b0 = floor(slot / size), n = ceil(max(table.length, end / size)), from = clamp(floor(max(last, 0) / size) - 5, 0, max(0, n - 8));
    set(head, tag(i), table.length ? ` block_table [${table.join(', ')}]` : state.status[i] === 'waiting' ? ' waits, and holds no block' : ' holds no block');
    set(formula, slot === null ? '' : `position ${last} → block_table[${last} // ${size}] = ${b0} → slot ${b0} × ${size} + ${last % size} = ${slot}`);
    set(groups);
    for (let j = from; j < min(n, from + 8); j++) {
      const b = table[j], tokens = [];
      for (let p = j * size; p < min((j + 1) * size, end); p++) tokens.push(token(i, p, p === pos ? 'st-lit' : isNow(i, p) ? 'st-write' : p < done ? '' : 'st-later'));
      if (b === undefined) group(null, b, `${j} → no block`, '', tokens);
      else group(i, b, `${j} → block ${b}`, `${slots(b)}${state.refs[b] > 1 ? `, shared ×${state.refs[b]}` : ''}${hash(b) ? `, cached ${hash(b)}` : ''}`, tokens);
    }
    requestAnimationFrame(() => {
      const focus = groups.querySelector(`[data-p="${last}"]`);
      groups.scrollLeft = focus ? focus.offsetLeft - groups.offsetLeft - groups.clientWidth * .6 : 0;
    });
  }
  function drawBlock(b) {
    const {size} = run, own = users[b] ?? [], [i, j] = own[0] ?? (hash(b) && state.last[b]) ?? [], end = own.length ? usedOf(b)[0] : i === undefined ? 0 : size;
    set(head, h('b', {}, `Block ${b}`), ' owner ', own.length ? own.flatMap(([o, k], n) => [n ? ', ' : '', tag(o), ` at ${k} of its table`]) : 'none');
    set(formula, `reference count ${state.refs[b]} · hash ${hash(b) ?? 'none'}`,
      place[b] ? ` · place ${place[b]} of ${state.free.length} in the free queue` : '', hash(b) && !own.length ? ', still found by its content' : '');
    set(groups);
    group(own.length ? i : null, b, end ? `${end} of ${size} positions hold tokens of ${name(i)}` : 'nothing to be found', slots(b), Array.from({length: end}, (_, k) => token(i, j * size + k, own.length && isNow(i, j * size + k) ? 'st-write' : '')));
  }
  function drawArrays() {
    const all = step.parts.flatMap(p => Array.from({length: min(p.count, 96)}, (_, k) => [p.i, p.start + k])).slice(0, 96), width = p => all.filter(c => c[0] === p.i).length, th = name => h('th', {scope: 'row'}, name);
    const row = (name, of) => h('tr', {}, th(name), all.map(c => h('td', {'data-r': c[0], 'data-p': c[1]}, of(...c))));
    set(arrays, h('table', {}, h('tr', {class: 'st-owners'}, th(`this step's input [${step.num_tokens}]`), step.parts.filter(width).map(p => h('td', {colspan: width(p), 'data-r': p.i, style: paintOf(p.i)}, name(p.i))), step.num_tokens > all.length ? th(`and ${num(step.num_tokens - all.length)} more`) : ''),
      run.hasText ? row('token', (i, p) => visible(run.text(i, p, p + 1)[0])) : '', row('input_ids', (i, p) => run.ids(i, p, p + 1)[0] ?? '?'), row('positions', (i, p) => p), row('slot_mapping', slotOf)));
  }
  function drawDetail() {
    const what = over ?? pin ?? {request: changedRequest()};
    if ('block' in what) drawBlock(what.block); else if (what.request !== undefined) drawRequest(what.request, what.pos);
    unpin.disabled = !pin;
  }

  // the same in words
  const words = box('st-text'), fold = h('details', {ontoggle: drawText}, h('summary', {}, 'The same as text'), words);
  function drawText() {
    if (!fold.open) return;
    const line = (cell, list) => h('tr', {}, list.map(x => h(cell, {}, x)));
    set(words, h('table', {class: 'li-table'}, line('th', ['request', 'state', 'this step', 'computed', 'known', 'block table']),
      [...state.status.keys()].filter(i => state.status[i]).map(i => line('td', [name(i), state.status[i], run.words(at, i), state.done[i], state.known[i], state.tables[i].join(', ')]))),
      h('p', {}, `Free queue, next first: ${state.free.slice(0, 64).join(', ')}${state.free.length > 64 ? ', …' : ''}. Changed: ${[...changed].join(', ')}.`));
  }

  // one owner, lit up everywhere; hovering shows, a click pins
  function light() {
    const what = over ?? pin;
    if (!what && !hot) return paintBig();
    hot = what && new Set('block' in what ? (users[what.block] ?? []).map(([i]) => i) : [what.request]);
    for (const c of root.querySelectorAll('[data-r], [data-b]')) {
      const {r, b, p} = c.dataset, mine = Boolean(hot && r) && r.split(' ').some(i => hot.has(+i));
      c.classList.toggle('st-lit', p === undefined ? mine || b !== undefined && b === String(what?.block) : mine && p === String(what.pos));
    }
    root.classList.toggle('st-dim', Boolean(hot?.size));
    time.light(hot);
    paintBig();
  }
  function preview(what, quiet) {
    if (same(what, over)) return;
    over = what;
    if (!quiet) drawDetail();
    light();
  }
  function choose(what) {
    pin = same(what, pin) ? null : what;
    over = null;
    picker.set(pin?.request ?? ''); blockNumber.value = pin?.block ?? '';
    drawDetail();
    light();
  }
  function target(e) {
    if (e.target === big) {
      const c = floor(e.offsetX / side), b = floor(e.offsetY / side) * columns + c;
      return c < columns && b < run.config.num_blocks ? {block: b} : null;
    }
    const {r, b, p} = e.target.closest('[data-p], [data-b], [data-r]')?.dataset ?? {};
    return p ? {request: +r, pos: +p} : b ? {block: +b} : r ? {request: +r} : null;
  }
  const screen = h('div', {class: 'st-screen', onpointermove: e => {
    if (e.pointerType === 'touch' || e.target.closest('.st-timeline')) return;
    preview(target(e), e.target.closest('.st-detail'));
  }, onpointerleave: () => preview(null), onclick: e => { const what = target(e); if (what) choose(what); }});

  function show(k) {
    at = k; state = run.at(at); step = run.steps[at] ?? BLANK; over = null;
    for (const draw of [drawSentence, drawBudget, drawQueues, drawPool, drawArrays, drawDetail, drawText, light]) draw();
    time.show(run, at);
    controls.moved();
    root.dataset.step = at + 1;
  }
  function use(k) {                                      // the recorded run, or the one of "what if"
    which = k; run = runs[k]; pin = null;
    layPool();
    blockNumber.max = run.config.num_blocks - 1;
    picker.setOptions([['', 'what changed'], ...run.requests.map((r, i) => [i, name(i)])]);
    picker.set('');
    player.setCount(total(), ticks());
    show(clamp(at, 0, total() - 1));
    makeRoom();
  }
  const controls = makeControls({model, root, runs, use, go, at: () => at, which: () => which});
  screen.append(box('st-top', sentence), player.el, box('st-time', time.el, timeKey), box('st-middle li-stack', h('section', {class: 'li-panel'}, spent, bar, reasons, box('st-queues', queues.map(q => box('', q[1], q[2])))), h('section', {class: 'li-panel'}, poolTitle, grid, big, poolKey)),
    h('section', {class: 'li-panel st-detail'}, box('st-dhead', head, bit('st-tools', picker.el, blockNumber, unpin)), formula, groups, arrays));
  root.append(screen, box('st-folds', controls.el, fold, badge));
  bindKeys(root, {...player.keys, '+': [wider, 'wider steps'], '-': [narrower, 'narrower steps'], Escape: [() => choose(null), 'unpin']});
  at = clamp(model.get('at'), 0, total() - 1);
  use(0);
  player.set(at);
  let width = root.clientWidth;
  const watch = new ResizeObserver(() => { if (root.clientWidth && root.clientWidth !== width) { width = root.clientWidth; layPool(); makeRoom(); show(at); } });
  watch.observe(root);
  const sync = () => { if (model.get('live')) model.send({do: 'sync', steps: runs[0].steps.length}); };       // has the engine run while nobody looked?
  const events = {'change:at': () => { if (!which && model.get('at') !== at) player.set(model.get('at')); }, 'change:data': () => { runs[0] = makeRun(model.get('data')); if (!which) use(0); }, 'change:live': () => show(at),
    'msg:custom': m => {
      const data = model.get('data'), end = at === total() - 1, {length} = data.steps;
      if (length === m.from) {                           // the engine went on: what is new, added to what is here
        for (const [i, r] of Object.entries(m.requests)) data.requests[i] = r;
        Object.assign(data.token_texts, m.token_texts);
        data.steps.push(...m.steps);
      }
      if (data.steps.length !== m.from + m.steps.length) sync();
      else {
        runs[0].grow();
        if (!which) { use(0); if (end || m.follow) go(total() - 1); }
      }
      controls.said(m);
    }};
  for (const [name, f] of Object.entries(events)) model.on(name, f);
  sync();
  return () => { player.stop(); watch.disconnect(); time.remove(); inks.remove(); controls.remove(); for (const [name, f] of Object.entries(events)) model.off(name, f); };
}

// ---- with a kernel: the engine runs on, or again with one thing changed ----

function makeControls({model, root, runs, use, go, at, which}) {
  const live = () => model.get('live'), note = h('p', {class: 'st-note', role: 'status'});
  const say = (text, bad) => { note.textContent = text; note.classList.toggle('st-bad', Boolean(bad)); }, ask = (what, more) => { say('The engine works …'); model.send({do: what, ...more}); };
  const prompt = h('input', {type: 'text', 'aria-label': 'prompt', placeholder: 'a prompt', onkeydown: e => { if (e.key === 'Enter') add(); }}), tokens = number('max_tokens', {value: 16}), value = number('new limit', {value: max(1, runs[0].steps.at(-1)?.token_budget >> 1)});
  const add = () => ask('add', {prompt: prompt.value, max_tokens: +tokens.value}), change = () => ({at: at() + 1, name: limit.value(), value: +value.value}), who = select({label: '', options: []});
  const present = (k, {steps, config} = runs[0]) => steps.slice(0, at() + 1).flatMap(s => s.before).findLast(e => e.changes?.[k])?.changes[k] ?? config[k] ?? config.max_num_batched_tokens;
  const limit = select({label: 'What if', value: BUDGET, options: Object.entries(LIMITS), onChange: k => { value.value = present(k); moved(); }}), here = bit('');
  const row1 = box('li-row', button('Run one step', () => ask('step')), button('Run to the end', () => ask('finish')), prompt, tokens, button('Add request', add), who.el, button('Abort', () => ask('abort', {request: +who.value()})));
  const later = button('Change it from now on', () => ask('limit', change())), row2 = box('li-row', limit.el, ' were ', value, here, button('Run it again', () => ask('branch', change())), later);
  const words = h('p'), names = ['as it ran', 'what if'].map((name, k) => button(name, () => use(k))), lines = names.map((b, k) => makeTimeline(root, `Timeline: ${b.textContent}`, c => { if (c !== null) { if (which() !== k) use(k); go(c); } }));
  const pair = box('', words, box('st-pair li-stack', names.map((b, k) => box('', b, lines[k].el)))), el = h('details', {class: 'st-controls'}, h('summary', {}, 'What if? Run on, or again'), row1, row2, note, pair);
  function refresh() {
    const last = runs[0].steps.at(-1) ?? BLANK, gone = last.finished.map(e => e.request);
    row1.hidden = later.hidden = !model.get('engine');
    for (const row of [row1, row2]) for (const c of row.querySelectorAll('button, input, select')) c.disabled = !live();
    who.setOptions([...last.running, ...last.waiting].filter(i => !gone.includes(i)).map(i => [i, runs[0].name(i)]));
    pair.hidden = !runs[1];
    if (!live()) say('This needs a running kernel.');
  }
  function compare() {
    const {data, first, words: said, title} = model.get('branch');
    runs.length = 1;
    if (data) { runs.push(makeRun(data)); words.textContent = said; names[1].textContent = names[1].ariaLabel = title; lines.forEach(l => l.split(first - 1)); }
    refresh();
    if (which()) use(data ? 1 : 0);
    moved();
  }
  function moved() {
    here.textContent = `(now ${present(limit.value())}) ` + (limit.value() === 'num_blocks' ? 'from the first step on' : `from step ${at() + 1} on`);
    names.forEach((b, k) => b.setAttribute('aria-pressed', String(which() === k)));
    if (runs[1]) lines.forEach((l, k) => l.show(runs[k], min(at(), runs[k].steps.length - 1)));
  }
  model.on('change:branch', compare); model.on('change:live', refresh);
  compare();
  el.open = live() && model.get('engine');
  return {el, moved, said(m) { if (m.text !== undefined) say(m.text, m.bad); refresh(); }, remove() { lines.forEach(l => l.remove()); model.off('change:branch', compare); model.off('change:live', refresh); }};
}

export default {render};
