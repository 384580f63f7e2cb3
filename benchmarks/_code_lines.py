"""Count lines of code of files, or of single functions, classes and constants; no comments, no docstrings.

A place is the path of a file of the repository, or 'path:name' of something in it.  In Python, a name may be
'Class.method'.  In CUDA it is a function or a kernel.
"""

import ast
import functools
import io
import pathlib
import re
import tokenize

__all__ = ["count"]

ROOT = pathlib.Path(__file__).parents[1]
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count(places):
    """Return the number of lines of code in all places together; a line of two places counts once."""
    lines = set()
    for place in places:
        path, _, name = place.partition(":")
        find = _python if path.endswith(".py") else _cuda
        found = find(path, name)
        if not found:
            raise LookupError(f"there is no code in {place}")
        lines |= {(path, line) for line in found}
    return len(lines)


@functools.cache
def _python(path, name):
    """Return the numbers of the lines of code of a module, or of a definition in it."""
    text = (ROOT / path).read_text("utf-8")
    tree = ast.parse(text)
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            lines -= _lines_of(node.body[0])
    return lines & (_lines_of(_defined(tree, name)) if name else lines)


def _lines_of(node):
    decorators = [d.lineno for d in getattr(node, "decorator_list", ())]
    return {*range(min([node.lineno, *decorators]), node.end_lineno + 1)}


def _defined(tree, name):
    """Return the node that defines a name, such as 'Class.method'."""
    node = tree
    for part in name.split("."):
        node = next(x for x in node.body if part in _names(x))
    return node


def _names(node):
    """Return the names that a statement defines."""
    if isinstance(node, ast.Assign):
        return {
            x.id for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)
        }
    return {getattr(node, "name", None)}


@functools.cache
def _cuda(path, name):
    """Return the numbers of the lines of code of a CUDA source, or of all functions of a name in it."""
    text = (ROOT / path).read_text("utf-8")
    # Blanks in the place of comments, so that every line keeps its number.
    text = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    parts = _functions(text, name) if name else [(0, len(text))]
    lines = set()
    for start, stop in parts:
        first = text.count("\n", 0, start) + 1
        for number, line in enumerate(text[start:stop].split("\n"), first):
            if line.strip():
                lines.add(number)
    return lines


def _functions(text, name):
    """Yield (start, stop) of every definition of a function."""
    for match in re.finditer(rf"\b{name}\(", text):
        after = _closed(text, match.end() - 1, "()")
        body = re.compile(r"\s*\{").match(text, after)
        if body:
            before = max(text.rfind(end, 0, match.start()) for end in ("\n\n", "}\n", ";\n"))
            yield before + 2 if before >= 0 else 0, _closed(text, body.end() - 1, "{}")


def _closed(text, start, pair):
    """Return the position after the bracket that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == pair[0]) - (text[i] == pair[1])
        if depth == 0:
            return i + 1
    raise LookupError(f"a bracket at {start} is not closed")
