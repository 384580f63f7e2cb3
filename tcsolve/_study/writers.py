"""Tables of rows as CSV, Markdown, LaTeX and Parquet."""

import csv
import io
import json
import os

from tcsolve._errors import InputError

__all__ = ["WRITERS", "as_csv", "as_latex", "as_markdown", "check_form", "written"]

DASH = "–"
ESCAPED = {
    **{char: "\\" + char for char in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
}


def as_csv(rows, columns):
    """Return the rows as CSV with all digits; missing values are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_flat(row.get(name)) for name in columns])
    return text.getvalue()


def as_markdown(rows, columns, note=""):
    """Return the rows as a Markdown table, with two digits, and a note below it."""
    lines = [columns, ["---"] * len(columns)]
    lines += [[_short(row.get(name)).replace("|", "\\|") for name in columns] for row in rows]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return table + (f"\n{note}\n" if note else "")


def as_latex(rows, columns, note=""):
    """Return the rows as a LaTeX tabular with the rules of booktabs, and a note as its last line."""
    places = "".join("l" if _is_text(rows, name) else "r" for name in columns)
    lines = [rf"\begin{{tabular}}{{{places}}}", r"\toprule", _latex_line(columns), r"\midrule"]
    for row in rows:
        cells = (row.get(name) for name in columns)
        lines.append(_latex_line([_latex_number(cell) for cell in cells]))
    lines.append(r"\bottomrule")
    if note:
        text = "".join(_latex_text(note))
        lines.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{{text}}} \\")
    return "\n".join([*lines, r"\end{tabular}", ""])


WRITERS = {"markdown": as_markdown, "csv": as_csv, "latex": as_latex}
FORMS = {".csv": "csv", ".md": "markdown", ".tex": "latex"}


def check_form(path):
    """Raise an InputError unless the suffix of a path is that of a form of tables."""
    if path.suffix != ".parquet" and path.suffix not in FORMS:
        raise InputError(
            f"study: {path} must end in one of .parquet, {', '.join(FORMS)}; the suffix selects the form"
        )


def written(path, table, columns):
    """Write a `StudyTable` to a file, completely or not at all; the suffix selects the form."""
    check_form(path)
    temporary = path.with_name(path.name + ".part")
    try:
        if path.suffix == ".parquet":
            _write_parquet(temporary, table, columns)
        else:
            text = table.text(FORMS[path.suffix], columns)
            # Names of files may have bytes that are not UTF-8.
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(path, table, columns):
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("study: .parquet needs pyarrow: pip install 'tcsolve[parquet]'") from error
    columns = table.columns if columns is None else columns
    data = {name: [_flat(row.get(name)) for row in table.rows] for name in columns}
    parquet.write_table(pyarrow.table(data), path)


def _flat(value):
    """Return a value for one cell: lists and dicts as JSON text."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _short(value):
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2g}" if isinstance(value, float) else _on_one_line(str(_flat(value)))


def _on_one_line(text):
    r"""Return a text without line ends and other characters that cannot be printed; a name may have a \n."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _is_text(rows, name):
    return any(isinstance(row.get(name), str) for row in rows)


class _Formula(str):
    """LaTeX text, in which no character has to be escaped."""


def _latex_line(cells):
    return " & ".join("".join(_latex_text(cell)) for cell in cells) + r" \\"


def _latex_text(cell):
    """Return the characters of a cell, escaped; a `_Formula` stays as it is."""
    if isinstance(cell, _Formula):
        return cell
    return (ESCAPED.get(char, char) for char in cell)


def _latex_number(value):
    text = _short(value)
    if text == DASH:
        return "--"
    mantissa, e, exponent = text.partition("e")
    if isinstance(value, float) and e:
        return _Formula(rf"${mantissa} \times 10^{{{int(exponent)}}}$")
    return text
