"""Run the notebooks of examples/ without Jupyter.

`python -m tests.notebooks` runs them in this project and keeps their outputs in the files. It adds
a model `mine` to params.yaml, so run it in a clone.
"""

import ast
import base64
import io
import json
import subprocess
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

from PIL import Image

from tests.micro import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
COLOURS = 64
Output = dict[str, Any]  # as a notebook has it
Shell = Callable[[str], str]  # runs a command, returns what it prints


def shell(command: str) -> str:
    done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    return done.stdout


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(file: Path, shell: Shell, **changes: str) -> tuple[dict, dict[str, Any]]:
    """Run a notebook's code in the working directory; return it with outputs, and its variables.

    changes: texts to replace in its code, and what by.
    """
    notebook, variables = json.loads(file.read_text()), {"_shell": shell}
    for number, cell in enumerate(code_cells(notebook), start=1):
        source = "".join(cell["source"])
        for before, after in changes.items():
            source = source.replace(before, after)
        cell["execution_count"] = number
        cell["outputs"] = _outputs(source, variables, number)
    return notebook, variables


def _outputs(source: str, variables: dict[str, Any], number: int) -> list[Output]:
    """Run a cell: lines that begin with ! in the shell, and show its last expression."""
    lines = []
    for line in source.splitlines():
        is_command = line.startswith("!")
        lines.append(f"print(_shell({line[1:]!r}), end='')" if is_command else line)
    tree = ast.parse("\n".join(lines))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), variables)
        if last:
            shown = eval(compile(ast.Expression(last.value), "cell", "eval"), variables)
    outputs: list[Output] = []
    if printed.getvalue():
        text = printed.getvalue()
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    if shown is not None:
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
        outputs.append(result | {"data": _data(shown)})
    return outputs


def _data(value: Any) -> dict[str, Any]:
    """Return the forms of a value that a notebook shows."""
    if hasattr(value, "_repr_png_"):
        # few colours, as Git keeps the file
        small, image = io.BytesIO(), Image.open(io.BytesIO(value._repr_png_())).convert("RGB")
        image.quantize(COLOURS).save(small, "png", optimize=True)
        png = base64.b64encode(small.getvalue()).decode()
        return {"image/png": png, "text/plain": ["a picture"]}
    data = {"text/plain": _lines(str(value))}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for file in NOTEBOOKS:
        with chdir(file.parent):
            notebook, _ = run(file, shell)
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
