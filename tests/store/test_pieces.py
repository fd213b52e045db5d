"""In numbers of several tokens, every role and predicted token decodes to what it stands for."""

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


def assert_right(reader: Reader, pieces: Pieces, results: np.ndarray, operands=OPERANDS) -> None:
    """Verify prompts by decoding their tokens."""
    own, front = reader.template.tokenizer, len(reader.template.front)

    def decoded(tokens) -> str:
        return "".join(own.decode(list(tokens)).split())

    for index, tokens in enumerate(pieces.tokens):
        row, column = divmod(index, len(operands))
        at = {role: int(positions[row, column]) for role, positions in pieces.positions.items()}
        assert decoded(tokens[at["op1_first"] : at["op1"] + 1]) == str(operands[row])
        assert decoded(tokens[at["op2_first"] : at["op2"] + 1]) == str(operands[column])
        assert decoded([tokens[at["operator"]]]) == "+"
        assert at["last"] == len(tokens) - 1
        text = reader.template.text(operands[row], operands[column])
        answer = "" if results[row, column] < 0 else str(results[row, column])
        whole = own(text + answer, add_special_tokens=False)["input_ids"]
        assert tokens[:front] == reader.template.front
        assert tokens[front:] == whole[: len(tokens) - front]
        prompt = "".join(text.split())
        assert (prompt + answer).startswith(decoded(tokens[front:]))
        assert decoded(tokens[front:]).startswith(prompt)
        number, rest = pieces.numbers[row, column], whole[len(tokens) - front :]
        known = own(text, add_special_tokens=False)["input_ids"]
        assert (number >= 0) == (bool(answer) and len(whole) - len(known) > reader.answer_token)
        if number >= 0:
            assert len(tokens) - front == len(known) + reader.answer_token
            assert int(decoded(rest[:1])) == number
            assert pieces.number_tokens[number] == rest[0]


@pytest.mark.parametrize("answer_token", [0, 1, 2])
@pytest.mark.parametrize("template", TEMPLATES[:2])
@pytest.mark.parametrize("kind", vocabularies.KINDS)
def test_the_usual_tokenizers_are_read_right(kind: str, template: str, answer_token: int):
    own = vocabularies.KINDS[kind]()
    reader, pieces, results = read(own, template, answer_token, bos=own.bos_token is not None)
    assert_right(reader, pieces, results)
    if kind in ("digits", "qwen", "llama-2"):
        digits = own.convert_tokens_to_ids(list("0123456789"))
        assert numbered(pieces.number_tokens) == digits[: len(pieces.number_tokens)]
        widths = (pieces.positions["op1"] - pieces.positions["op1_first"])[:, 0] + 1
        assert widths.tolist() == [len(str(number)) for number in OPERANDS]


def test_the_predicted_token_stands_for_its_number():
    own = vocabularies.by_three_digits()
    _, pieces, results = read(own, TEMPLATES[0], 1, bos=True)
    assert pieces.numbers[results == 1400].tolist() == [0]
    assert (pieces.numbers[(results >= 0) & (results < 1000)] == -1).all()


@settings(max_examples=150)
@given(st.data())
def test_with_any_merges_a_role_decodes_to_its_text_or_is_refused(data: st.DataObject):
    tokens, merges = [*"0123456789+=", "\u0120"], []
    for _ in range(data.draw(st.integers(0, 12))):
        pair = data.draw(st.tuples(st.sampled_from(tokens), st.sampled_from(tokens)))
        if pair not in merges and len("".join(pair)) < 5:
            merges.append(pair)
            tokens.append("".join(pair))
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
        reader, pieces, results = read(
            vocabularies.merged(merges, split, bos),
            data.draw(st.sampled_from(TEMPLATES)),
            answer_token,
            bos=bos,
            operands=operands,
        )
    except PromptError:
        return
    assert_right(reader, pieces, results, operands)


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


CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def test_a_chat_template_stands_around_the_prompt():
    own = vocabularies.by_three_digits()
    own.chat_template = CHAT
    made = Template(own, "{op1}{symbol}{op2}=", "+", True, True)
    assert made.text(12, 7) == "<|user|> 12+7= <|assistant|> "
    whole = own(f"<s>{made.text(12, 7)}", add_special_tokens=False)["input_ids"]
    assert made.tokens(made.text(12, 7)) == whole
    reader, results = Reader(made, 0), np.array([[2, 11], [11, 20]])
    assert_right(reader, reader.square([1, 10], results, "test"), results, [1, 10])


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
    message = [{"role": "user", "content": "12+7="}]
    whole = own.apply_chat_template(message, add_generation_prompt=True)["input_ids"]
    added = [own.bos_token_id] if bos else []
    assert made.tokens(made.text(12, 7)) == added + whole


def test_bos_is_not_written_twice():
    with pytest.raises(PromptError, match="holds the BOS '<s>'"):
        Template(vocabularies.by_digit(), "<s>{op1}{symbol}{op2}=", "+", True)


def test_slots_align_the_last_tokens_of_operands():
    positions = {"op1_first": [1, 1], "op1": [1, 2], "op2_first": [3, 4], "op2": [5, 5]}
    arrays = {role: np.array(at) for role, at in positions.items()}
    assert slots(7, arrays, {"op1": 2, "op2": 3}).tolist() == [
        [0, 2, 3, 4, 5, 6, 7],
        [0, 1, 2, 3, 5, 6, 7],
    ]
