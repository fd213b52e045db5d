"""Numbers of several tokens: every role and every asked token is what it says, whatever the tokenizer, or the prompt is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.core.slots import slots
from stages.store.pieces import Pieces, Reader, numbered
from stages.store.template import PromptError, Template
from tests import vocabularies

TEMPLATES = [
    "{op1}{symbol}{op2}=",
    "{op1} {symbol} {op2} =",
    "2+3=5\n4+11=15\n{op1}{symbol}{op2}=",
    "What is {op1} {symbol} {op2}? ",
]
OPERANDS = [0, 1, 3, 7, 9, 10, 12, 45, 99, 100, 107, 299, 700]


def read(
    own, template: str, answer_token: int, *, bos: bool, operands=OPERANDS
) -> tuple[Reader, Pieces, np.ndarray]:
    made = Template(own, template, "+", bos)
    results = np.add.outer(operands, operands)
    results[results % 5 == 4] = -1  # some prompts have no answer
    reader = Reader(made, answer_token)
    return reader, reader.square(operands, results, "test"), results


def assert_right(reader: Reader, found: Pieces, results: np.ndarray, operands=OPERANDS) -> None:
    """By decoding alone."""
    own, front = reader.template.tokenizer, len(reader.template.front)

    def said(tokens) -> str:
        return "".join(own.decode(list(tokens)).split())

    for place, tokens in enumerate(found.tokens):
        row, column = divmod(place, len(operands))
        at = {role: int(of[row, column]) for role, of in found.positions.items()}
        assert said(tokens[at["op1_first"] : at["op1"] + 1]) == str(operands[row])
        assert said(tokens[at["op2_first"] : at["op2"] + 1]) == str(operands[column])
        assert said([tokens[at["operator"]]]) == "+"
        assert at["last"] == len(tokens) - 1
        text = reader.template.text(operands[row], operands[column])
        answer = "" if results[row, column] < 0 else str(results[row, column])
        whole = own(text + answer, add_special_tokens=False)["input_ids"]
        assert tokens[:front] == reader.template.front
        assert tokens[front:] == whole[: len(tokens) - front]
        assert (
            said(tokens[front:])
            == "".join(text.split())
            + answer[: len(said(tokens[front:])) - len("".join(text.split()))]
        )
        number, behind = found.numbers[row, column], whole[len(tokens) - front :]
        known = own(text, add_special_tokens=False)["input_ids"]
        assert (number >= 0) == (bool(answer) and len(whole) - len(known) > reader.answer_token)
        if number >= 0:
            assert len(tokens) - front == len(known) + reader.answer_token
            assert int(said(behind[:1])) == number
            assert found.number_tokens[number] == behind[0]


@pytest.mark.parametrize("answer_token", [0, 1, 2])
@pytest.mark.parametrize("template", TEMPLATES[:2])
@pytest.mark.parametrize("kind", vocabularies.KINDS)
def test_the_usual_tokenizers_are_read_right(kind: str, template: str, answer_token: int):
    own = vocabularies.KINDS[kind]()
    reader, found, results = read(own, template, answer_token, bos=own.bos_token is not None)
    assert_right(reader, found, results)
    if kind in ("digits", "qwen", "llama-2"):
        assert (
            numbered(found.number_tokens)
            == own.convert_tokens_to_ids(list("0123456789"))[: len(found.number_tokens)]
        )
        widths = (found.positions["op1"] - found.positions["op1_first"])[:, 0] + 1
        assert widths.tolist() == [len(str(number)) for number in OPERANDS]


def test_a_token_is_asked_for_by_its_number():
    own = vocabularies.by_three_digits()
    _, found, results = read(own, TEMPLATES[0], 1, bos=True)
    assert found.numbers[results == 1400].tolist() == [0]
    assert (found.numbers[(results >= 0) & (results < 1000)] == -1).all()


@settings(max_examples=150)
@given(st.data())
def test_whatever_the_merges_a_role_decodes_to_what_it_says_or_is_refused(data: st.DataObject):
    pieces, merges = [*"0123456789+=", "\u0120"], []
    for _ in range(data.draw(st.integers(0, 12))):
        pair = data.draw(st.tuples(st.sampled_from(pieces), st.sampled_from(pieces)))
        if pair not in merges and len("".join(pair)) < 5:
            merges.append(pair)
            pieces.append("".join(pair))
    split = data.draw(
        st.sampled_from(
            [
                None,
                r"\p{N}",
                r"\p{N}{1,3}",
                r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
                r" ?[^\s\p{N}]+| ?\p{N}+",
            ]
        )
    )
    bos, answer_token = data.draw(st.booleans()), data.draw(st.integers(0, 2))
    operands = [0, 1, 4, 9, 10, 33, 120]
    try:
        reader, found, results = read(
            vocabularies.merged(merges, split, bos),
            data.draw(st.sampled_from(TEMPLATES)),
            answer_token,
            bos=bos,
            operands=operands,
        )
    except PromptError:
        return
    assert_right(reader, found, results, operands)


@pytest.mark.parametrize(
    ("merges", "template", "words"),
    [
        ([("=", "7")], TEMPLATES[0], r"'1\+1=' has other tokens than the beginning of '1\+1=7'"),
        ([("3", "+")], TEMPLATES[0], r"the tokens of op1 in '3\+0=' decode to '3\+', not '3'"),
        (
            [("\u0120", "3")],
            TEMPLATES[1],
            r"between the numbers has other tokens in '0 \+ 3 =' than in '0 \+ 0 ='",
        ),
        ([("1", "0"), ("0", "5")], TEMPLATES[0], "stands for 5, as elsewhere"),
    ],
)
def test_what_is_refused_names_the_texts_that_disagree(merges: list, template: str, words: str):
    own = vocabularies.merged(merges, None, bos=False)
    with pytest.raises(PromptError, match=words):
        read(own, template, 1 if merges[0] == ("1", "0") else 0, bos=False)


CHAT = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"


def test_a_chat_template_stands_around_the_prompt():
    own = vocabularies.by_three_digits()
    own.chat_template = CHAT
    made = Template(own, "{op1}{symbol}{op2}=", "+", True, True)
    assert made.text(12, 7) == "<|user|> 12+7= <|assistant|> "
    assert (
        made.tokens(made.text(12, 7))
        == own(f"<s>{made.text(12, 7)}", add_special_tokens=False)["input_ids"]
    )
    reader = Reader(made, 0)
    assert_right(
        reader,
        reader.square([1, 10], np.array([[2, 11], [11, 20]]), "test"),
        np.array([[2, 11], [11, 20]]),
        [1, 10],
    )


@pytest.mark.parametrize(
    ("chat", "bos", "words"),
    [
        (None, True, "has no chat template; set chat: false"),
        (CHAT, False, "begins with BOS, '<s>'; set bos: true"),
        (CHAT.replace("m.content", "m.content | upper"), True, "makes '<s><|user|> {OP1}"),
        (
            "{{ raise_exception('a system message is needed') }}",
            None,
            "fails on a user's message: a system message is needed; set chat",
        ),
        ("{{ messages[0].content.none.at_all }}", None, "fails on a user's message: "),
        ("{% for", None, "fails on a user's message: "),
    ],
)
def test_a_chat_template_that_is_not_there_or_changes_the_prompt_is_refused(
    chat: str | None, bos: bool, words: str
):
    own = vocabularies.by_three_digits()
    own.chat_template = chat
    with pytest.raises(PromptError) as error:
        Template(own, "{op1}{symbol}{op2}=", "+", bos, True)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("chat", "bos", "before"),
    [
        (CHAT, None, ["<s>"]),
        (CHAT.removeprefix("{{ bos_token }}"), None, []),
        (CHAT.removeprefix("{{ bos_token }}"), True, ["<s>"]),
        # SmolLM2 begins every message with its BOS
        (CHAT.replace("<|{{ m.role }}|>", "<s>{{ m.role }} "), None, ["<s>"]),
    ],
)
def test_a_chat_template_says_where_bos_stands(chat: str, bos: bool | None, before: list[str]):
    own = vocabularies.by_three_digits()
    own.chat_template = chat
    made = Template(own, "{op1}{symbol}{op2}=", "+", bos, True)
    assert own.convert_ids_to_tokens(made.front) == before
    whole = own.apply_chat_template(
        [{"role": "user", "content": "12+7="}], add_generation_prompt=True
    )["input_ids"]
    added = [own.bos_token_id] if bos else []
    assert made.tokens(made.text(12, 7)) == added + whole


def test_bos_is_not_said_twice():
    with pytest.raises(PromptError, match="holds the BOS '<s>'"):
        Template(vocabularies.by_digit(), "<s>{op1}{symbol}{op2}=", "+", True)


def test_slots_put_units_over_units():
    positions = {"op1_first": [1, 1], "op1": [1, 2], "op2_first": [3, 4], "op2": [5, 5]}
    found = slots(7, {role: np.array(at) for role, at in positions.items()}, {"op1": 2, "op2": 3})
    assert found.tolist() == [[0, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 5, 6, 7]]
