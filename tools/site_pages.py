"""The notebooks as a web site that needs neither a kernel nor the internet: `make site`.

    python tools/site_pages.py                            all notebooks into _site/
    python tools/site_pages.py --out DIR nbs/x.ipynb …    just these
    python -m http.server -d _site                  then open http://localhost:8000 (or _site/index.html as a file)

Outputs are the stored ones; nothing is run. Widgets live on from the state that is stored with their notebook (llm_infer/viz/static_model.js).
Formulas become MathML, which browsers draw themselves. Every page is one file, pictures included.
"""
import argparse, html, os, re, sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))
import latex2mathml.converter
import nbformat
from nbconvert.filters import ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbdev.config import get_config
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from llm_infer.viz.widget import page_state, widget_scripts

WIDGET_STATE, WIDGET_VIEW = 'application/vnd.jupyter.widget-state+json', 'application/vnd.jupyter.widget-view+json'
CHAPTERS = {'0': 'The package', '1': 'Text', '2': 'Scheduling and memory', '3': 'Kernels', '4': 'The model', '5': 'Sampling', '6': 'The engine',
            '7': 'See it', '8': 'Designs compared', '9': 'More machines, more users', 'appendix': 'Appendix', 'tests': 'The tests'}
APPENDIX = '97', '98', '99'     # numbers, words, proofs: to look something up
NAME = re.compile(r'(?<![\w./-])(?:tests/)?\d[\da-z]_[a-z]\w*')                     # of a notebook: 3a_c_kernels, tests/70_browser
NUMBER = re.compile(r'(?<![\w.])\d[\da-z](?!\w|[.,]\d|%)')                         # of one: 30, 3a
NUMBERS = rf'{NUMBER.pattern}(?:(?:,|,? and|,? or|,? to)\s{NUMBER.pattern})*'
NUMBERED = re.compile(rf'\b[Nn]otebooks?\s\(?{NUMBERS}')                            # notebook 30, notebooks 30 to 36, the notebook (3a)
LISTED = re.compile(rf'\({NUMBERS}\)')                                              # of more than one: sizes (01), the model (41)
FORMATTER = HtmlFormatter(cssclass='highlight')
STYLE = (Path(__file__).parent / 'site_pages.css').read_text() + (
    HtmlFormatter(style='default').get_style_defs('.highlight').replace('.highlight { background: #f8f8f8; }', '') +
    '\n@media (prefers-color-scheme: dark) {\n' + HtmlFormatter(style='github-dark').get_style_defs('.highlight').replace('background: #0d1117; ', '') + '\n}\n')


# ---- one notebook

def mathml(tex, display):
    "A formula as MathML. ValueError where it is not understood."
    tex = re.sub(r'\\text\{[^}]*\}', lambda m: m[0].replace('\\_', '_'), tex).replace('\\arg', '\\operatorname{arg}')
    try: made = latex2mathml.converter.convert(tex, display=display)
    except Exception as error: raise ValueError(f'the formula {tex!r} is not understood: {error or type(error).__name__}') from error
    if '\\' in made: raise ValueError(f'the formula {tex!r} has a command that is not understood')
    return made


class Renderer(IPythonRenderer):
    "Markdown to HTML: formulas as MathML, links between notebooks as links between their pages."
    def __init__(self, page, site):
        super().__init__(escape=False, anchor_link_text='#', embed_images=True, path=str(page.path.parent))
        self.page, self.site = page, site

    def inline_math(self, body): return mathml(body, 'inline')
    def block_math(self, body): return mathml(body, 'block')

    def heading(self, text, level, **attrs):
        "A heading, with `<math>` under its own name: what puts the anchor in would write it as `<ns0:math>`, which no browser draws."
        return super().heading(text.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', ''), level, **attrs)

    def link(self, text, url, title=None): return super().link(re.sub(r'</?a\b[^>]*>', '', text), url, title)

    def lead(self, made):
        "HTML with links to notebooks and files as links to pages and to the repository."
        return re.sub(r'(<a\b[^>]*?\bhref=")([^"]*)"', lambda m: f'{m[1]}{html.escape(self.site.link(self.page, html.unescape(m[2])))}"', made)

    def named(self, name, shown):
        "`shown` as a link to the notebook that `name` names, by its name or its number, if it names another one."
        page = self.site.named(name)
        return shown if page is None or page is self.page else f'<a href="{relative(self.page, page)}">{shown}</a>'

    def numbers(self, pattern, text): return pattern.sub(lambda m: NUMBER.sub(lambda n: self.named(n[0], n[0]), m[0]), text)
    def codespan(self, text): return super().codespan(text) if NUMBER.fullmatch(text) else self.named(text, super().codespan(text))
    def text(self, text): return self.numbers(NUMBERED, NAME.sub(lambda m: self.named(m[0], m[0]), super().text(text)))
    def paragraph(self, text): return super().paragraph(self.numbers(LISTED, text) if '<strong>You need:</strong>' in text else text)


def markdown(source, renderer):
    "Markdown as HTML, its links leading to pages."
    return renderer.lead(MarkdownWithMath(renderer=renderer).render(source))


def output_html(output, states, shown, renderer):
    "One stored output as HTML: a widget where its state is stored (then noted in `shown`), else the richest of HTML, picture and text."
    if output.output_type == 'stream': return f'<pre>{ansi2html(output.text)}</pre>'
    if output.output_type == 'error': return f'<pre>{ansi2html(chr(10).join(output.traceback))}</pre>'
    data = output.data
    text = f'<pre>{ansi2html(data.get("text/plain", ""))}</pre>'
    widget = data.get(WIDGET_VIEW, {}).get('model_id')
    if '_esm' in states.get(widget, {}).get('state', {}):
        shown[widget] = page_state(states[widget]['state'])
        return f'<div data-li-widget="{widget}">{text}</div>'
    if 'text/html' in data: return renderer.lead(data['text/html'])
    if 'image/svg+xml' in data: return data['image/svg+xml']
    for kind in ('image/png', 'image/jpeg'):
        if kind in data: return f'<img alt="{html.escape(data.get("text/plain", "picture"))}" src="data:{kind};base64,{data[kind].strip()}">'
    return markdown(data['text/markdown'], renderer) if 'text/markdown' in data else text


def solution_html(number, source, outputs, renderer):
    "A solution, closed: the comment it begins with as text, in which only `code` and notebooks are more than words, and the rest of its source below."
    words, code = re.fullmatch(r'((?:#[^\n]*\n?)*)(.*)', source, re.S).groups()
    words = re.sub(r'^# ?', '', words, flags=re.M).replace('\n', ' ').strip()
    told = ''.join(renderer.codespan(part) if i % 2 else renderer.text(part) for i, part in enumerate(re.split(r'`([^`]+)`', words)))
    shown = f'<div class="code">{highlight(code, PythonLexer(), FORMATTER)}</div>' if code.strip() else ''
    return f'<details class="solution"><summary>Solution {html.escape(number)}</summary><p>{told}</p>{shown}{outputs}</details>'


def cell_html(cell, renderer, states, shown):
    "A cell as HTML; nothing for one that is hidden (`#| hide`) or empty. Directives are told in a small label."
    if cell.cell_type == 'markdown': return f'<section class="prose">{markdown(cell.source, renderer)}</section>'
    if cell.cell_type != 'code': return ''
    flags = dict(re.findall(r'^#\|\s*(\w+)[ \t]*(.*)$', cell.source, re.M))
    source = re.sub(r'^#\|.*\n?', '', cell.source, flags=re.M).strip()
    if 'hide' in flags: source = ''
    labels = {'export': 'in the package', 'test': 'a test', 'slow': 'measured once', 'cuda': 'run on a GPU'}
    label = next((f'<span class="label">{text}</span>' for flag, text in labels.items() if flag in flags), '')
    code = f'<div class="code">{label}{highlight(source, PythonLexer(), FORMATTER)}</div>' if source else ''
    outputs = ''.join(f'<div class="output">{output_html(o, states, shown, renderer)}</div>' for o in cell.outputs)
    if 'solution' in flags: return solution_html(flags['solution'], source, outputs, renderer)
    return f'<section>{code}{outputs}</section>' if code or outputs else ''


# ---- the site

def relative(page, target):
    "The path from one page to another."
    return Path(os.path.relpath(target.html, page.html.parent)).as_posix()


class Page:
    "A notebook, and where its page stands. ValueError for one without a title, or that is no notebook; it names the file."
    def __init__(self, path):
        self.path, self.html = path, path.relative_to(root).with_suffix('.html')
        try: self.nb = nbformat.read(path, as_version=4)
        except (OSError, ValueError) as error: raise ValueError(f'{path.relative_to(root)}: not a notebook: {error!s:.200}') from error
        first = self.nb.cells[0].source if self.nb.cells else ''
        title = re.match(r'# +(\S.*)', first)
        if not title: raise ValueError(f'{path.relative_to(root)}: the first cell must begin with a title, "# …"; ' + (f'it is {first!r:.60}' if self.nb.cells else 'there are no cells'))
        self.title = title[1].replace('`', '')
        quote = re.search(r'^(?:> .*\n?)+', first, re.M)
        self.summary = re.sub(r'^> ', '', quote[0], flags=re.M).replace('\n', ' ').strip() if quote else ''
        self.number = path.stem.split('_')[0] if path.parent != root else ''
        own = 'appendix' if self.number in APPENDIX else path.stem[0]
        self.chapter = '' if path.parent == root else 'tests' if path.parent.name == 'tests' else own


class Site:
    "The pages in reading order. index.ipynb is the first; where it is not among them, the index is the contents alone."
    def __init__(self, paths):
        self.pages = [Page(p) for p in sorted(paths, key=lambda p: (p.parent != root, p.parent.name == 'tests', p.name))]
        self.by_name = {p.html.relative_to('nbs').with_suffix('').as_posix(): p for p in self.pages if p.chapter}
        self.by_number = {p.number: p for p in self.pages if p.chapter not in ('', 'tests')}
        self.by_path = {p.path: p for p in self.pages}
        cfg = get_config()
        self.title, self.source = cfg.title, f'{cfg.git_url}/blob/{cfg.branch}/'

    def named(self, name):
        "The page that is called so: '3a_c_kernels', 'nbs/3a_c_kernels.ipynb', '3a', 'tests/70_browser', '70_browser'; None for another name."
        name = name.removeprefix('nbs/').removesuffix('.ipynb')
        return self.by_number.get(name) or self.by_name.get(name) or self.by_name.get(f'tests/{name}')

    def link(self, page, url):
        "Where a link in a notebook leads to: to a page of the site, or to the file in the repository."
        target, _, anchor = url.partition('#')
        if not target or re.match(r'\w+:', target): return url
        path = (page.path.parent / target).resolve()
        if path in self.by_path: return relative(page, self.by_path[path]) + (f'#{anchor}' if anchor else '')
        return self.source + path.relative_to(root).as_posix() if path.exists() and path.is_relative_to(root) else url

    def contents(self):
        "All pages by chapter, with their summaries, as seen from the index."
        parts = []
        for key, name in CHAPTERS.items():
            pages = [p for p in self.pages if p.chapter == key]
            rows = ''.join(f'<li><span class="number">{p.number}</span><a href="{p.html.as_posix()}">{html.escape(p.title)}</a>'
                           f'<p>{self.inline(p)}</p></li>' for p in pages)
            if rows: parts.append(f'<h3 id="chapter-{key}">{name}</h3><ul>{rows}</ul>')
        return f'<nav class="contents" aria-label="Contents"><h2 id="contents">All notebooks</h2>{"".join(parts)}</nav>'

    def inline(self, page):
        made = MarkdownWithMath(renderer=IPythonRenderer(escape=False)).render(page.summary)
        return re.sub(r'</?p>', '', made).strip()

    def page(self, page):
        "The HTML of a page."
        states = page.nb.metadata.get('widgets', {}).get(WIDGET_STATE, {}).get('state', {})
        renderer, shown = Renderer(page, self), {}
        body = ''.join(cell_html(c, renderer, states, shown) for c in page.nb.cells)
        self.num_widgets += len(shown)
        i = self.pages.index(page)
        def step(j, way):
            if not 0 <= j < len(self.pages): return '<span></span>'
            title = html.escape(self.pages[j].title)
            return f'<a rel="{way}" href="{relative(page, self.pages[j])}">{f"← {title}" if way == "prev" else f"{title} →"}</a>'
        home = Path(os.path.relpath('index.html', page.html.parent)).as_posix()
        around = f'<nav class="around">{step(i - 1, "prev")}{step(i + 1, "next")}</nav>'
        chapter = f'<a href="{home}#chapter-{page.chapter}">{CHAPTERS.get(page.chapter, "")}</a>' if page.chapter else ''
        top = f'<nav class="top"><a href="{home}">{self.title}</a>{chapter}<a href="{home}#contents">Contents</a></nav>'
        if not page.chapter: body += self.contents()
        return self.shell(f'{page.title} · {self.title}' if page.chapter else self.title, f'{top}<main>{body}</main>{around}', shown)

    def shell(self, title, body, states=None):
        return (f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
                f'<link rel="icon" href="data:,">\n<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n<body>\n{body}\n'
                f'{widget_scripts(states) if states else ""}\n')

    def write(self, out):
        "Write all pages under `out`; returns how many widgets live in them."
        self.num_widgets = 0
        for page in self.pages:
            try: made = self.page(page)
            except Exception as error: raise ValueError(f'{page.path.relative_to(root)}: {error or type(error).__name__}') from error
            (out / page.html).parent.mkdir(parents=True, exist_ok=True)
            (out / page.html).write_text(made, encoding='utf-8')
        if self.pages[0].chapter:
            (out / 'index.html').write_text(self.shell(self.title, f'<main><section class="prose"><h1>{self.title}</h1></section>{self.contents()}</main>'))
        return self.num_widgets


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('notebooks', nargs='*', type=Path)
    parser.add_argument('--out', type=Path, default=root / '_site')
    args = parser.parse_args()
    paths = [p.resolve() for p in args.notebooks] or [p for p in (root / 'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts] + [root / 'index.ipynb']
    try:
        site = Site(paths)
        widgets = site.write(args.out)
    except ValueError as error: sys.exit(f'site_pages: {error}')
    print(f'{len(site.pages)} pages, {widgets} widgets that live without a kernel: python3 -m http.server -d {os.path.relpath(args.out)}')


if __name__ == '__main__': main()
