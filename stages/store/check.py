"""`bag check SOURCE`: what this pipeline will make of a model of one's own, in seconds and before anything is added or computed.

    bag check models/llama-3.1-8b
    bag check org/name@0123456789abcdef0123456789abcdef01234567 --template "Q: {op1}{symbol}{op2}= A:" --dtype float32

Sizes and parts come from config.json alone. Only a model whose weights are small is loaded, compared
with plain forward passes and timed; `--measure` does that with a model of any size.
"""

import argparse
import json
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from stages.corpus.settings import Cells, Tasks
from stages.lib.core import machine
from stages.lib.core.settings import ParamsError, check, load, sections_of
from stages.lib.core.words import OPERATORS, Operator
from stages.lib.gguf import header
from stages.lib.gguf import source as gguf
from stages.lib.model import checkpoint, contents, tokenizer
from stages.lib.model.experts import Mixture
from stages.lib.model.folder import ModelError, weights
from stages.lib.subject import Sizes, SubjectSettings
from stages.store import budget, rates
from stages.store.costs import BYTES, Costs, PromptLengths, Row
from stages.store.pieces import Reader, numbered
from stages.store.template import PromptError, Template

TEMPLATE = "{op1}{symbol}{op2}="
LOADED = 32 << 20  # bytes of weights up to which the model is loaded; more takes longer than 5 s
LONGEST = 3  # seconds of the processor for a description or a tokenizer; published models take 1
SMALL = 1 << 30  # bytes of weights up to which float64 is proposed
ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(@.*)?")
Kind = Literal["folder", "gguf", "hub"]
TRIED_OPERANDS = 20
IN_ENTRY = {
    "template",
    "dtype",
    "bos",
    "layers",
    "operators",
    "answer_token",
    "largest_operand",
    "chat",
}
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Checked:
    """What was found. settings: as an entry of params.yaml wants them; sizes: as its
    section `sizes` wants them; section: where the entry belongs; problems: sentences, none where
    the model can be added."""

    settings: SubjectSettings
    sizes: Sizes
    section: str
    lines: list[str]
    problems: list[str]


def parser(command: str) -> argparse.ArgumentParser:
    """What `bag check` and `bag add` ask for alike; `add` asks for a name, too."""
    result = argparse.ArgumentParser(prog=f"bag {command}")
    if command == "add":
        result.add_argument("name", help="what to call it: small letters, digits and hyphens")
    result.add_argument(
        "source",
        help="folder of a model, with config.json, *.safetensors and its tokenizer; a GGUF file; or org/name@commit on the Hub",
    )
    result.add_argument(
        "--template", default=TEMPLATE, help=f"how a question is put (default: {TEMPLATE})"
    )
    kinds = ["float64", "float32", "float16", "bfloat16"]
    result.add_argument(
        "--dtype",
        choices=kinds,
        help="what it is computed in (default: the widest in which it fits here)",
    )
    result.add_argument(
        "--store-only",
        action="store_true",
        help="compute the chapter store alone: activations, predictions, accuracies",
    )
    result.add_argument(
        "--bos",
        action=argparse.BooleanOptionalAction,
        help="whether BOS stands before each prompt (default: as the tokenizer itself does)",
    )
    result.add_argument(
        "--chat", action="store_true", help="ask as a user does in the tokenizer's chat template"
    )
    result.add_argument(
        "--answer-token",
        type=int,
        help="which of the answer's tokens is asked for, from 0, where numbers have several",
    )
    result.add_argument(
        "--largest-operand",
        type=int,
        help="the largest number asked about (default: cells.largest_operand)",
    )
    result.add_argument(
        "--budget",
        help="hours and minutes that all stages may take here, such as 5h or 1h30m (default: 24h where sizes allow it)",
    )
    result.add_argument(
        "--entry",
        type=Path,
        help="YAML file with keys of the model's entry and its sizes, such as examples/qwen/entry.yaml",
    )
    result.add_argument(
        "--measure",
        action="store_true",
        help="load the model, whatever its size, and time its forward passes for 3 s",
    )
    result.set_defaults(layers="all", operators=[*OPERATORS], sizes=None)
    return result


def parsed(command: str, arguments: list[str]) -> argparse.Namespace:
    """Return the options; those that arguments leave out are those of --entry's file.

    Raises ParamsError where that file is not an entry.
    """
    options = parser(command)
    file = options.parse_args(arguments).entry
    if file is None:
        return options.parse_args(arguments)
    if not file.is_file():
        raise ParamsError(f"no file {file} for --entry")
    entry = dict(sections_of(file, file.read_text(encoding="utf-8")))
    sizes = check(Sizes, entry.pop("sizes", {}), "sizes")
    if unknown := sorted(entry.keys() - IN_ENTRY):
        known = ", ".join(sorted(IN_ENTRY))
        raise ParamsError(f"{file} names {unknown[0]!r}; an entry's keys are {known} and sizes")
    options.set_defaults(**entry, sizes=sizes)
    result = options.parse_args(arguments)
    if result.budget and sizes != Sizes():
        raise ParamsError(f"{file} has sizes, which --budget would choose; leave one of them out")
    return result


def main(arguments: list[str]) -> None:
    options = parsed("check", arguments)
    found = checked(options)
    print("\n".join(found.lines))
    for problem in found.problems:
        print(f"But: {problem}")
    if not found.problems:
        print(f"It can be added: bag add NAME {options.source}")
    raise SystemExit(1 if found.problems else 0)


@contextmanager
def _limited(source: str) -> Iterator[None]:
    """End a check that takes too long, whatever the reason. Raises ModelError.

    Only the processor's time counts, so that a busy machine refuses no model.
    """

    def end(*_: object) -> NoReturn:
        raise ModelError(
            f"{source}: describing it takes more than {LONGEST} s of the processor; a number in "
            "config.json is far too large, or the tokenizer is: correct it, or download it again"
        )

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def checked(options: argparse.Namespace) -> Checked:
    """Everything that shows without computing for long, of any source. Raises ModelError where there is none."""
    kind = source_kind(options.source)
    if kind == "folder":
        contents.check(Path(options.source), whole=False)
        size = sum(file.stat().st_size for file in weights(Path(options.source)))
        return _checked(options, options.source, size)
    if kind == "gguf":
        return _of_gguf(options)
    from stages.lib import hub  # only here: its client is slow to import

    with tempfile.TemporaryDirectory() as small:
        size = hub.outline(hub.fixed(options.source), Path(small))
        found = _checked(options, small, size)
    return replace(found, settings=found.settings.model_copy(update={"revision": options.source}))


def _of_gguf(options: argparse.Namespace) -> Checked:
    """The same of a GGUF file, whose weights are not read."""
    file = Path(options.source)
    with tempfile.TemporaryDirectory() as temporary:
        small = Path(temporary) / file.stem
        small.mkdir()
        with _limited(options.source):
            outline = gguf.outline(file, small)
        usual = "float64" if outline.size <= SMALL else "float32"  # weights are float32
        dtype = options.dtype or usual
        outcome = _checked(
            argparse.Namespace(**{**vars(options), "dtype": dtype}),
            str(small),
            outline.size,
            outline.tokenizer,
        )
    line = f"file          {_size(file.stat().st_size)} of {', '.join(outline.kinds)}; a stage converts it once, to float32"
    short = gguf.too_large(outline.size, Path())
    return replace(
        outcome,
        settings=outcome.settings.model_copy(update={"source": options.source}),
        lines=[line, *outcome.lines],
        problems=[*outcome.problems, *([short] if short else [])],
    )


def source_kind(source: str) -> Kind:
    """What a source names: a folder, a GGUF file, or a model of the Hub. Raises ModelError where it is nothing of the kind."""
    path = Path(source)
    if path.is_dir():
        return "folder"
    if path.is_symlink() and not path.exists():
        raise ModelError(
            f"{source} is a link to {path.readlink()}, which does not exist; correct the link"
        )
    if header.is_gguf(path):
        if not path.is_file():
            raise ModelError(f"no GGUF file at {source}")
        return "gguf"
    if path.exists():
        raise ModelError(
            f"{source} is a file; give the folder that holds it, with config.json, *.safetensors and tokenizer.json"
        )
    if "://" in source:
        raise ModelError(f"{source} is an address; a model of the Hub is written org/name@COMMIT")
    if ON_HUB.fullmatch(source) and not path.parent.is_dir():
        return "hub"
    raise ModelError(
        f"no model folder at {source}, and it is no model of the Hub: that is written org/name@COMMIT"
    )


def _settings(entry: dict[str, Any]) -> SubjectSettings:
    """What the options say. Raises ParamsError naming the option, which stands in no file yet."""
    try:
        return check(SubjectSettings, entry, "subject")
    except ParamsError as error:
        _, _, lines = str(error).partition("\n")
        raise ParamsError(
            re.sub(r"subject\.(\w+)", lambda key: f"--{key[1].replace('_', '-')}", lines).strip()
        ) from None


def _checked(
    options: argparse.Namespace,
    source: str,
    size: int,
    own: tokenizer.PreTrainedTokenizerBase | None = None,
) -> Checked:
    """own: the tokenizer, where it is loaded already."""
    folder = Path(source)
    entry = {
        "source": source, "revision": f"from {options.source}",
        "dtype": options.dtype or _widest(size), "template": options.template,
        "bos": options.bos, "layers": options.layers, "operators": options.operators,
        "answer_token": options.answer_token, "largest_operand": options.largest_operand, "chat": options.chat,
    }  # fmt: skip
    settings = _settings(entry)
    allowed = budget.seconds(options.budget) if options.budget else None
    section, lines, problems = "stored" if options.store_only else "subjects", [], []
    sizes, outline, speed = Sizes(), None, None
    try:
        with _limited(options.source):
            outline = checkpoint.outline(settings)
        lines += _parts(outline, size)
        if any(layer.attention_out is None for layer in outline.architecture.layers):
            section = "stored"
        line, speed = _loaded(folder, settings, size, options.measure)
        lines.append(line)
    except ModelError as error:
        problems.append(str(error))
    prompts = PromptLengths()
    try:
        with _limited(options.source):
            own = own or tokenizer.load(folder, largest=LOADED)
            settings = _asked_by_token(own, settings)
            lines += _numbers(own, settings)
            lines += _around(own, settings)
            prompts = _lengths(own, settings)
    except (ModelError, PromptError) as error:
        problems.append(str(error))
    if outline is not None:
        costs = _costs(outline, settings, prompts, speed)
        fitting = options.sizes or budget.fitted(costs, section, allowed or budget.USUAL)
        if fitting is None and allowed:
            problems.append(budget.refusal(costs, section, options.budget))
        sizes = fitting or budget.fewest(costs)
        lines += _needs(costs)
        limit = f"{options.entry} says so" if options.sizes else allowed
        lines += _table(costs, section, sizes, limit)
    return Checked(settings, sizes if section == "subjects" else Sizes(), section, lines, problems)


def _loaded(
    folder: Path,
    settings: SubjectSettings,
    size: int,
    measure: bool,
) -> tuple[str, rates.Rates | None]:
    """Load a small model, or any where its times are to be measured, and say why not otherwise."""
    why = ""
    if not weights(folder):
        why = "no weights here"
    elif size > LOADED and not measure:
        why = f"more than {_size(LOADED)} of weights"
    elif _read_whole(folder) > 2 * LOADED and not measure:
        why = "large files beside its weights"
    if why:
        return (
            f"loaded        no, {why}: held against plain forward passes when the first stage starts",
            None,
        )
    begin = time.process_time()
    loaded = checkpoint.load(settings.source, settings.dtype, machine.device(), threads=1)
    start = time.process_time() - begin
    speed = rates.measured(loaded, rates.LONG if measure else rates.BRIEFLY, start)
    return (
        "loaded        yes: its parts are what they seem, held against plain forward passes",
        speed,
    )


def _lengths(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> PromptLengths:
    """Tokens of the longest prompt of the grid, which are what passes through the model."""
    template = _template(own, settings, settings.operators[0])
    largest = settings.operands(load(Cells).largest_operand)[-1]
    length, base = len(template.tokens(template.text(largest, largest))), len(template.base)
    after = base - template.positions["op2_position"] + (length - base) // 2
    answer = len(template.tokens(f"{template.text(1, 1)}{2 * largest}")) - base
    given = settings.answer_token or 0
    return PromptLengths(length + given, after + given, max(1, answer))


def _costs(
    outline: checkpoint.Checkpoint,
    settings: SubjectSettings,
    prompts: PromptLengths,
    speed: rates.Rates | None,
) -> Costs:
    wide = sum(p.numel() for p in outline.model.parameters()) * BYTES[settings.dtype]
    speed = speed or rates.assumed(outline.architecture, settings.dtype, wide)
    side = len(settings.operands(load(Cells).largest_operand))
    return Costs(outline.architecture, settings, side, wide, speed, prompts)


def _read_whole(folder: Path) -> int:
    """Bytes of the files that are compared with SHA256SUMS before a model is loaded."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _around(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> list[str]:
    """What stands before each prompt, and why."""
    names = own.convert_ids_to_tokens(_template(own, settings, settings.operators[0]).front)
    before, after = (own.convert_ids_to_tokens(tokens) for tokens in tokenizer.around(own))
    why = f"as --{'' if settings.bos else 'no-'}bos says"
    if settings.bos is None:
        source = "the chat template" if settings.chat else "the tokenizer itself"
        why = f"as {source} puts {'it there' if names else 'nothing there'}; --{'no-' if names else ''}bos changes that"
    lines = [f"BOS           {' '.join(names) or 'nothing'} before each prompt, {why}"]
    if settings.bos is not None and names != before:
        lines.append(
            f"              the tokenizer itself puts {' '.join(before) or 'nothing'} there"
        )
    if after:
        lines.append(
            f"end           the tokenizer itself adds {' '.join(after)} after a text; prompts do not get it, as they go on"
        )
    return lines


def _parts(outline: checkpoint.Checkpoint, size: int) -> list[str]:
    a, config = outline.architecture, outline.model.config
    without = sum(layer.attention_out is None for layer in a.layers)
    parameters = sum(p.numel() for p in outline.model.parameters())
    lines = [
        f"family        {config.model_type} ({type(outline.model).__name__})",
        f"parameters    {parameters:,}" + (f", {_size(size)} of weights" if size else ""),
        f"layers        {len(a.layers)}, each of {a.neurons:,} neurons and {a.heads} heads, width {a.width:,}",
    ]
    if any(isinstance(layer.mlp_out, Mixture) for layer in a.layers):
        lines.append(
            "experts       a mixture: neurons of all experts, numbered through (docs/families.md)"
        )
    if without:
        lines.append(
            f"works         the chapter store; no interventions, as {without} layers have no heads"
        )
    return lines


def _numbers(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> list[str]:
    """Which numbers are one token. Raises PromptError where prompts as the settings want them cannot be asked."""
    cells = load(Cells)
    operands = settings.operands(cells.largest_operand)
    if settings.answer_token is not None:
        return _several(own, settings, operands)
    largest = []
    for operator in settings.operators:
        template = _template(own, settings, operator)
        answers = template.answers(cells.largest_answer)
        largest.append((len(answers) - 1, template))
    template = largest[0][1]
    contents.limits(settings.source).check_length(max(len(each.base) for _, each in largest))
    names = " ".join(str(name) for name in own.convert_ids_to_tokens(template.base))
    lines = [
        f"prompt        {template.text(1, 1)!r}, read as: {names}",
        f"answers       0 to {min(number for number, _ in largest)} are one token",
    ]
    for _, each in largest:
        each.square(operands)
    lines.append(
        f"operands      0 to {operands[-1]}, all that are asked (cells.largest_operand), are one token each"
    )
    return lines


def _template(
    own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings, operator: Operator
) -> Template:
    return Template(
        own, settings.template, load(Tasks).operators[operator].symbol, settings.bos, settings.chat
    )


def _asked_by_token(
    own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings
) -> SubjectSettings:
    """The settings, with the first token of answers asked for where operands have several and the settings do not say which."""
    template, largest = (
        _template(own, settings, settings.operators[0]),
        settings.operands(load(Cells).largest_operand)[-1],
    )
    several = len(template.tokens(template.text(largest, largest))) > len(template.base)
    return (
        settings.model_copy(update={"answer_token": 0})
        if several and settings.answer_token is None
        else settings
    )


def _several(
    own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings, operands: range
) -> list[str]:
    """What there is to say of numbers of several tokens, by prompts from all over the grid."""
    some, asked, most = operands[:: max(1, len(operands) // TRIED_OPERANDS)], dict[int, int](), 0
    tried = np.unique([*some, operands[-1]])
    for operator in settings.operators:
        reader = Reader(_template(own, settings, operator), settings.answer_token or 0)
        a, b = np.meshgrid(tried, tried, indexing="ij")
        results = {
            "add": a + b,
            "subtract": a - b,
            "multiply": a * b,
            "divide": a // np.maximum(b, 1),
        }[operator]
        results[(results > load(Cells).largest_answer) | (results < 0)] = -1
        read = reader.square(tried.tolist(), results, f"check {operator}")
        asked |= read.asked
        end = int(tried[-1])
        [(_, answer), (prompt, _)] = reader.wholes([(1, 1, int(results.max())), (end, end, 1)])
        contents.limits(settings.source).check_length(len(prompt) + len(answer) - 1)
        most = max(most, len(answer))
    if not numbered(asked):
        raise PromptError(
            f"no answer has a token {settings.answer_token} that stands for 0; answers have tokens 0 to {most - 1}"
        )
    template = reader.template
    [(head, _)] = reader.wholes([(int(tried[-1]), int(tried[-1]), 1)])
    return [
        f"numbers       of several tokens: use answer_token, which of the answer's, here {settings.answer_token} of 0 to {most - 1}",
        f"prompt        {template.text(*tried[[-1, -1]])!r}, read as: {' '.join(map(str, own.convert_ids_to_tokens(head)))}",
        f"answers       token {settings.answer_token} of each stands for one of 0 to {len(numbered(asked)) - 1}",
        f"operands      0 to {operands[-1]}, of up to {len(head) - len(template.base) + 2} tokens together",
    ]


def _needs(costs: Costs) -> Iterator[str]:
    free = _size(shutil.disk_usage(".").free)
    stored = 2 * costs.maps * costs.cells
    yield f"disk          {_size(stored)} of activations, of {free} that are free here"
    wide = costs.weights
    weights = f"{_size(wide)} of weights in {costs.settings.dtype}"
    yield f"memory        {weights} for each of {machine.workers()} workers"


def _table(costs: Costs, section: str, sizes: Sizes, limit: float | str | None) -> Iterator[str]:
    """What each stage costs with these sizes, and what they give up.

    limit: seconds that all stages may take, or why the sizes are as they are.
    """
    whole, rows = costs.rows(Sizes(), section), costs.rows(sizes, section)
    yield f"times         {costs.rates.source}"
    if sizes != Sizes() and section == "subjects":
        values = [f"{key}: {json.dumps(value)}" for key, value in sizes if value is not None]
        proposal = f"{', '.join(values)}: so `bag add` writes it"
        yield f"proposed      {proposal}, {limit if isinstance(limit, str) else _fitting(rows, limit)}"
        yield f"given up      {'; '.join(budget.given_up(costs, sizes))}"
        yield f"              without that all stages take {budget.spoken(budget.total(whole))}"
    yield f"\n{'stage':36}{'counted':>28}{'time':>10}{'CPU':>10}{'memory':>10}{'disk':>10}"
    yield from map(_row, rows)
    most = max(row.memory for row in rows)
    disk = sum(row.disk for row in rows)
    cpu = sum(row.cpu for row in rows)
    yield _columns("in all", "", budget.total(rows), cpu, most, disk)
    if any(row.most for row in rows):
        yield "\n≤ at most: how many neurons stand for heuristics, or seem to, decides it"


def _fitting(rows: list[Row], allowed: float | None) -> str:
    limit = allowed or budget.USUAL
    fits = budget.total(rows) <= limit
    why = "to fit" if fits else "the smallest sizes, though they take more than"
    return f"{why} {budget.spoken(limit)}"


def _row(row: Row) -> str:
    counted = f"{'≤ ' * row.most}{row.count:,.0f} {row.counted}"
    return _columns(row.name, counted, row.wall, row.cpu, row.memory, row.disk)


def _columns(name: str, counted: str, wall: float, cpu: float, memory: float, disk: float) -> str:
    times = f"{budget.spoken(wall):>10}{budget.spoken(cpu):>10}"
    return f"{name:36}{counted:>28}{times}{_size(memory):>10}{_size(disk):>10}"


def _size(count: float) -> str:
    """A number of bytes, as it is said."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def _widest(size: int) -> str:
    """float64 for small models, whose bytes are then those of every kind of processor; else the type that most are published in."""
    return "float64" if size <= SMALL else "bfloat16"
