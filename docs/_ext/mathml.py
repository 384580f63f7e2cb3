"""Mathematics as MathML, made at build time: browsers draw it without a script."""

import re

from docutils.nodes import SkipNode
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)


def _mathml(node, as_block):
    try:
        text = tex2mathml(node.astext(), as_block)
    except MathError as error:
        LOGGER.warning("%s in %r", error, node.astext(), location=node)
        return node.astext()
    # The bars of norms and moduli are operators by default: they would stretch, and have space on both sides.
    text = text.replace('<mo stretchy="false">|', "<mo>|")
    return re.sub(r"<mo>(?=[|‖])", '<mo stretchy="false" lspace="0" rspace="0">', text)


def _inline(translator, node):
    translator.body.append(_mathml(node, as_block=False))
    raise SkipNode


def _block(translator, node):
    translator.body.append(f'<div class="equation">{_mathml(node, as_block=True)}</div>')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
