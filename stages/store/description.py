"""Describe a model, and what the pipeline will do with it, without a long computation.

Sizes and parts come from config.json alone. Only a model with small weights is loaded, compared
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from stages.corpus.settings import Cells, Tasks
from stages.lib.core import environment
from stages.lib.core.settings import ParamsError, check, load
from stages.lib.core.vocabulary import Operator
from stages.lib.gguf import header
from stages.lib.gguf import source as gguf
from stages.lib.model import checkpoint, contents, tokenizer
from stages.lib.model.experts import Mixture
from stages.lib.model.folder import ModelError, weights
from stages.lib.subject import Sizes, SubjectSettings
from stages.store import budget, kernels, rates
from stages.store.answers import answers_on_grid
from stages.store.check_options import IN_ENTRY
from stages.store.costs import BYTES, CostRow, Costs, PromptLengths
from stages.store.pieces import NumberTokens, Reader, numbered
from stages.store.template import PromptError, Template

LOADED = 32 << 20  # bytes of weights up to which the model is loaded; more takes longer than 5 s
LONGEST = 3  # seconds of CPU time for a description or a tokenizer; published models take 1
SMALL = 1 << 30  # bytes of weights up to which float64 is proposed
ON_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(@.*)?")
Kind = Literal["folder", "gguf", "hub"]
TRIED_OPERANDS = 20  # about how many operands are tried in prompts of several tokens
GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Checked:
    """What a check reports about a model.

    settings: of the model's entry in params.yaml; sizes: of its entry in the section `sizes`.
    section: the section that the entry belongs to.
    lines: the description; problems: sentences, empty if the model can be added.
    rows: the costs of all stages, if they could be estimated.
    """

    settings: SubjectSettings
    sizes: Sizes
    section: str
    lines: list[str]
    problems: list[str]
    rows: list[CostRow] = field(default_factory=list)


@contextmanager
def _limited(source: str) -> Iterator[None]:
    """Raise ModelError if a check takes too long, whatever the reason.

    Only CPU time counts, so that a model is not refused because the machine is busy.
    """

    def end(*_: object) -> NoReturn:
        raise ModelError(
            f"{source}: describing it takes more than {LONGEST} s of CPU time; a number in "
            "config.json or the tokenizer is far too large: correct it, or download it again"
        )

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def checked(options: argparse.Namespace) -> Checked:
    """Describe a model of any source without a long computation.

    Raises ModelError if the source is not a model.
    """
    kind = source_kind(options.source)
    if kind == "folder":
        contents.check(Path(options.source), whole=False)
        size = sum(file.stat().st_size for file in weights(Path(options.source)))
        return _checked(options, options.source, size)
    if kind == "gguf":
        return _checked_gguf(options)
    from stages.lib import hub  # only now: its client is slow to import

    with tempfile.TemporaryDirectory() as small:
        size = hub.outline(hub.fixed(options.source), Path(small))
        report = _checked(options, small, size)
    settings = report.settings.model_copy(update={"revision": options.source})
    return replace(report, settings=settings)


def _checked_gguf(options: argparse.Namespace) -> Checked:
    """Describe a GGUF file, whose weights are not read."""
    file = Path(options.source)
    with tempfile.TemporaryDirectory() as temporary:
        small = Path(temporary) / file.stem
        small.mkdir()
        with _limited(options.source):
            outline = gguf.outline(file, small)
        usual = "float64" if outline.size <= SMALL else "float32"  # weights are float32
        with_dtype = argparse.Namespace(**{**vars(options), "dtype": options.dtype or usual})
        report = _checked(with_dtype, str(small), outline.size, outline.tokenizer)
    kinds = f"{_size(file.stat().st_size)} of {', '.join(outline.kinds)}"
    line = f"file          {kinds}; a stage converts it once, to float32"
    short = gguf.too_large(outline.size, Path())
    return replace(
        report,
        settings=report.settings.model_copy(update={"source": options.source}),
        lines=[line, *report.lines],
        problems=[*report.problems, *filter(None, [short])],
    )


def source_kind(source: str) -> Kind:
    """Return whether a source is a folder, a GGUF file or a model of the Hub.

    Raises ModelError if it is none of these.
    """
    path = Path(source)
    if path.is_dir():
        return "folder"
    if path.is_symlink() and not path.exists():
        target = path.readlink()
        raise ModelError(f"{source} is a link to {target}, which does not exist; correct the link")
    if header.is_gguf(path):
        if not path.is_file():
            raise ModelError(f"no GGUF file at {source}; correct the path")
        return "gguf"
    if path.exists():
        way_out = "config.json, *.safetensors and tokenizer.json"
        raise ModelError(f"{source} is a file; give the folder that contains it, with {way_out}")
    if "://" in source:
        raise ModelError(f"{source} is an address; write a model of the Hub as org/name@COMMIT")
    if ON_HUB.fullmatch(source) and not path.parent.is_dir():
        return "hub"
    raise ModelError(
        f"no model folder at {source}, and it does not name a model of the Hub; correct the path, "
        "or write org/name@COMMIT"
    )


def _settings(entry: dict[str, Any]) -> SubjectSettings:
    """Return the settings of a new entry. Raises ParamsError that names the option."""
    try:
        return check(SubjectSettings, entry, "subject")
    except ParamsError as error:
        _, _, lines = str(error).partition("\n")
        named = re.sub(r"subject\.(\w+)", lambda key: f"--{key[1].replace('_', '-')}", lines)
        raise ParamsError(named.strip()) from None


def _checked(
    options: argparse.Namespace,
    source: str,
    size: int,
    own: tokenizer.PreTrainedTokenizerBase | None = None,
) -> Checked:
    """Describe the model in a folder.

    source: the folder; size: bytes of the weights; own: the tokenizer, if it is loaded already.
    """
    folder = Path(source)
    of_options = {key: getattr(options, key) for key in IN_ENTRY}
    entry = {
        **of_options,
        "source": source,
        "revision": f"from {options.source}",
        "dtype": options.dtype or _usual_dtype(size),
    }
    settings = _settings(entry)
    allowed = budget.seconds(options.budget) if options.budget else None
    section = "stored" if options.store_only else "subjects"
    lines: list[str] = []
    problems: list[str] = []
    outline = speed = None
    try:
        with _limited(options.source):
            outline = checkpoint.outline(settings)
        lines += _parts(outline, size)
        if _without_heads(outline):
            section = "stored"
        line, speed = _loaded(folder, settings, size, options.measure)
        lines.append(line)
    except ModelError as error:
        problems.append(str(error))
    prompts = PromptLengths()
    try:
        with _limited(options.source):
            own = own or tokenizer.load(folder, largest=LOADED)
            settings = _with_answer_token(own, settings)
            lines += _numbers(own, settings)
            lines += _around(own, settings)
            prompts = _lengths(own, settings)
    except (ModelError, PromptError) as error:
        problems.append(str(error))
    if outline is None:
        return Checked(settings, Sizes(), section, lines, problems)
    costs = _costs(outline, settings, prompts, speed, section)
    limit = allowed or budget.USUAL
    sizes = options.sizes or budget.fitted(costs, section, limit)
    if sizes is None:
        sizes = budget.fewest(costs)
        if allowed:
            problems.append(budget.refusal(costs, section, options.budget))
    lines += _needs(costs)
    lines += _speeds(costs)
    if options.sizes:
        lines += _proposed(costs, section, sizes, f"as {options.entry} says")
    else:
        lines.append(_budget(costs, section, sizes, allowed))
        lines += _proposed(costs, section, sizes, "`bag add` writes it")
        lines += budget.savings(costs, section, limit)
    rows = costs.rows(sizes, section)
    lines += _table(rows)
    used = sizes if section == "subjects" else Sizes()
    return Checked(settings, used, section, lines, problems, rows)


def _loaded(
    folder: Path,
    settings: SubjectSettings,
    size: int,
    measure: bool,
) -> tuple[str, rates.Rates | None]:
    """Load and time the model if it is small or `measure` is set. Return a line, and its rates."""
    why = ""
    if not weights(folder):
        why = "the folder has no weights"
    elif size > LOADED and not measure:
        why = f"its weights exceed {_size(LOADED)}"
    elif _bytes(folder) > 2 * LOADED and not measure:
        why = "it has large files besides its weights"
    if why:
        later = "the first stage compares it with plain forward passes"
        return f"loaded        no, {why}; {later}", None
    begin = time.process_time()
    loaded = checkpoint.load(settings.source, settings.dtype, environment.device(), threads=1)
    start = time.process_time() - begin
    speed = rates.measured(loaded, rates.LONG if measure else rates.BRIEFLY, start)
    return "loaded        yes; its parts agree with plain forward passes", speed


def _lengths(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> PromptLengths:
    """Return the tokens of the longest prompt of the grid."""
    template = _template(own, settings, settings.operators[0])
    largest = settings.operands(load(Cells).largest_operand)[-1]
    length, base = len(template.tokens(template.text(largest, largest))), len(template.base)
    after = base - template.positions["op2_position"] + (length - base) // 2
    answer = len(template.tokens(f"{template.text(1, 1)}{2 * largest}")) - base
    in_prompt = settings.answer_token or 0  # tokens of the answer before the predicted one
    return PromptLengths(length + in_prompt, after + in_prompt, max(1, answer))


def _costs(
    outline: checkpoint.Checkpoint,
    settings: SubjectSettings,
    prompts: PromptLengths,
    speed: rates.Rates | None,
    section: str,
) -> Costs:
    size = _parameters(outline) * BYTES[settings.dtype]
    speed = speed or rates.assumed(outline.architecture, settings.dtype, size)
    side = len(settings.operands(load(Cells).largest_operand))
    if section == "subjects":
        operator = kernels.measured_operator(settings.operators)
        speed = replace(speed, kernels=kernels.times(side, operator))
    return Costs(outline.architecture, settings, side, size, speed, prompts)


def _parameters(outline: checkpoint.Checkpoint) -> int:
    return sum(parameter.numel() for parameter in outline.model.parameters())


def _without_heads(outline: checkpoint.Checkpoint) -> int:
    """Return how many layers have no attention heads."""
    return sum(layer.attention_out is None for layer in outline.architecture.layers)


def _bytes(folder: Path) -> int:
    """Return the bytes of a folder's files, which are read before a model is loaded."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _around(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> list[str]:
    """Return lines about the tokens before each prompt, and why they are there."""
    names = own.convert_ids_to_tokens(_template(own, settings, settings.operators[0]).front)
    before, after = map(own.convert_ids_to_tokens, tokenizer.around(own))
    opposite = "--no-bos" if names else "--bos"
    if settings.bos is None:
        source = "the chat template" if settings.chat else "the tokenizer itself"
        why = f"as {source} puts {'it' if names else 'nothing'} there; {opposite} changes that"
    else:
        why = f"as {'--bos' if settings.bos else '--no-bos'} says"
    lines = [f"BOS           {_joined(names)} before each prompt, {why}"]
    if settings.bos is not None and names != before:
        lines.append(f"              the tokenizer itself puts {_joined(before)} there")
    if after:
        added = f"the tokenizer itself adds {_joined(after)} after a text"
        lines.append(f"end           {added}; prompts do not get it, because the answer follows")
    return lines


def _joined(tokens: str | list[str]) -> str:
    return " ".join(tokens) or "nothing"


def _parts(outline: checkpoint.Checkpoint, size: int) -> list[str]:
    """Return lines about the model's architecture."""
    a, model = outline.architecture, outline.model
    parameters = f"{_parameters(outline):,}"
    if size:
        parameters += f", {_size(size)} of weights"
    each = f"{a.neurons:,} neurons and {a.heads} heads, width {a.width:,}"
    lines = [
        f"family        {model.config.model_type} ({type(model).__name__})",
        f"parameters    {parameters}",
        f"layers        {len(a.layers)}, each of {each}",
    ]
    if any(isinstance(layer.mlp_out, Mixture) for layer in a.layers):
        numbered_through = "neurons of all experts are numbered consecutively (docs/families.md)"
        lines.append(f"experts       a mixture; {numbered_through}")
    without = _without_heads(outline)
    if without:
        why = f"no interventions, because {without} layers have no heads"
        lines.append(f"works         the chapter store alone; {why}")
    return lines


def _numbers(own: tokenizer.PreTrainedTokenizerBase, settings: SubjectSettings) -> list[str]:
    """Return lines about the numbers that are one token.

    Raises PromptError if the settings' prompts cannot be encoded.
    """
    cells = load(Cells)
    operands = settings.operands(cells.largest_operand)
    if settings.answer_token is not None:
        return _numbers_of_several_tokens(own, settings, operands)
    templates = [_template(own, settings, operator) for operator in settings.operators]
    answers = min(len(template.answers(cells.largest_answer)) for template in templates)
    longest = max(len(template.base) for template in templates)
    contents.limits(settings.source).check_length(longest)
    for template in templates:
        template.square(operands)  # raises PromptError if an operand is not one token
    first = templates[0]
    return [
        f"prompt        {first.text(1, 1)!r}, read as: {_names(own, first.base)}",
        f"answers       0 to {answers - 1} are one token each",
        f"operands      0 to {operands[-1]} (cells.largest_operand) are one token each",
    ]


def _names(own: tokenizer.PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return " ".join(map(str, own.convert_ids_to_tokens(tokens)))


def _template(
    own: tokenizer.PreTrainedTokenizerBase,
    settings: SubjectSettings,
    operator: Operator,
) -> Template:
    symbol = load(Tasks).operators[operator].symbol
    return Template(own, settings.template, symbol, settings.bos, settings.chat)


def _with_answer_token(
    own: tokenizer.PreTrainedTokenizerBase,
    settings: SubjectSettings,
) -> SubjectSettings:
    """Set answer_token to 0 if operands have several tokens and it is not set."""
    if settings.answer_token is not None:
        return settings
    template = _template(own, settings, settings.operators[0])
    largest = settings.operands(load(Cells).largest_operand)[-1]
    if len(template.tokens(template.text(largest, largest))) <= len(template.base):
        return settings
    return settings.model_copy(update={"answer_token": 0})


def _numbers_of_several_tokens(
    own: tokenizer.PreTrainedTokenizerBase,
    settings: SubjectSettings,
    operands: range,
) -> list[str]:
    """Return lines about numbers of several tokens, from prompts sampled over the whole grid."""
    sample = operands[:: max(1, len(operands) // TRIED_OPERANDS)]
    tried, end = np.unique([*sample, operands[-1]]), operands[-1]
    answer_token = settings.answer_token or 0
    number_tokens: NumberTokens = {}
    longest_answer = 0
    for operator in settings.operators:
        reader = Reader(_template(own, settings, operator), answer_token)
        results = answers_on_grid(operator, tried, load(Cells).largest_answer)
        pieces = reader.square(tried.tolist(), results, f"check {operator}")
        number_tokens |= pieces.number_tokens
        largest = int(results.max())
        [(_, answer), (prompt, _)] = reader.wholes([(1, 1, largest), (end, end, 1)])
        contents.limits(settings.source).check_length(len(prompt) + len(answer) - 1)
        longest_answer = max(longest_answer, len(answer))
    last, numbers = longest_answer - 1, len(numbered(number_tokens))
    if not numbers:
        problem = f"no answer has a token {answer_token} that stands for 0"
        raise PromptError(f"{problem}; answers have tokens 0 to {last}")
    selected = f"answer_token selects which one is predicted, here {answer_token} of 0 to {last}"
    together = len(prompt) - len(reader.template.base) + 2
    text = reader.template.text(end, end)
    return [
        f"numbers       have several tokens; {selected}",
        f"prompt        {text!r}, read as: {_names(own, prompt)}",
        f"answers       token {answer_token} of each stands for a number from 0 to {numbers - 1}",
        f"operands      0 to {end}, of up to {together} tokens together",
    ]


def _needs(costs: Costs) -> Iterator[str]:
    free = _size(shutil.disk_usage(".").free)
    stored = np.dtype(costs.params["dump"]["store_dtype"]).itemsize * costs.maps * costs.cells
    yield f"disk          {_size(stored)} of activations; {free} are free on this disk"
    size = f"{_size(costs.weights)} of weights in {costs.settings.dtype}"
    yield f"memory        {size} for each of {environment.workers()} workers"


def _speeds(costs: Costs) -> Iterator[str]:
    """Yield where the times are from."""
    yield f"times         {costs.rates.source}"
    each = costs.rates.kernels
    if each:
        scores, draw = (f"{1e3 * seconds:.2g} ms" for seconds in (each.scores, each.draw))
        yield (
            f"              neurons' maps are measured on a random map of {each.cells:,} cells: "
            f"scores take {scores}, a relabelling {draw}"
        )


def _proposed(costs: Costs, section: str, sizes: Sizes, source: str) -> Iterator[str]:
    """Yield a model's sizes, and what they leave out. source: who says or writes them."""
    if sizes == Sizes() or section != "subjects":
        return
    values = [f"{key}: {json.dumps(value)}" for key, value in sizes if value is not None]
    yield f"proposed      {', '.join(values)}; {source}"
    yield f"given up      {'; '.join(budget.given_up(costs, sizes))}"
    usual = budget.spoken(budget.total(costs.rows(Sizes(), section)))
    yield f"              with the usual sizes, all stages take {usual}"


def _budget(costs: Costs, section: str, sizes: Sizes, allowed: float | None) -> str:
    """Return the line about the budget. allowed: its seconds, None for the default."""
    limit = allowed or budget.USUAL
    text = budget.spoken(limit)
    if not allowed:
        text += " (the default; for larger sizes, for example --budget 24h)"
    if budget.total(costs.rows(sizes, section)) > limit:
        return f"budget        {text}, which even the smallest sizes exceed"
    if sizes == Sizes():
        return f"budget        {text}; all stages fit it with the usual sizes"
    return f"budget        {text}; sizes are reduced to fit it"


def _table(rows: list[CostRow]) -> Iterator[str]:
    """Yield the costs of each stage, and those of all."""
    yield f"\n{'stage':36}{'counted':>28}{'time':>10}{'CPU':>10}{'memory':>10}{'disk':>10}"
    counted = [row for row in rows if not row.extra]
    yield from map(_row, counted)
    most = max(row.memory for row in counted)
    disk = sum(row.disk for row in counted)
    cpu = sum(row.cpu for row in counted)
    yield _columns("total", "", budget.total(rows), cpu, most, disk)
    for row in rows:
        if row.extra:
            yield f"{_row(row)}  not in the total: only `make study` runs it"
    if any(row.varies for row in rows):
        yield "\n≈ about: the count depends on how many neurons match a heuristic"
    guessed = [row.name for row in rows if row.guessed]
    if guessed:
        names = ", ".join(guessed)
        yield f"\nguessed, with one intervention for each layer: {names}"


def _row(row: CostRow) -> str:
    counted = f"{'≈ ' * row.varies}{row.count:,.0f} {row.counted}"
    return _columns(row.name, counted, row.wall, row.cpu, row.memory, row.disk)


def _columns(name: str, counted: str, wall: float, cpu: float, memory: float, disk: float) -> str:
    times = f"{budget.spoken(wall):>10}{budget.spoken(cpu):>10}"
    return f"{name:36}{counted:>28}{times}{_size(memory):>10}{_size(disk):>10}"


def _size(count: float) -> str:
    """Return a number of bytes as text."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def _usual_dtype(size: int) -> str:
    """Return float64 for small models, and for others bfloat16, in which most are published.

    A small model's bytes are then the same on every kind of processor.
    """
    return "float64" if size <= SMALL else "bfloat16"
