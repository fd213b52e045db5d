-- The operand grid: every (operator, op1, op2) whose answer is a whole number from 0 to
-- $largest_answer.
--
-- operator  VARCHAR  add, subtract, multiply or divide (integer division with operands from 1, as
--                    in the study)
-- op1       INTEGER  first operand
-- op2       INTEGER  second operand
-- result    INTEGER  the answer, 0 to $largest_answer
-- split     VARCHAR  train or held-out; our own models are never trained on held-out cells
with
    operands as (select unnest(range(0, $largest_operand + 1))::integer as operand),
    squares as (
        select operator, a.operand as op1, b.operand as op2
        from (values ('add'), ('subtract'), ('multiply'), ('divide')) as operators(operator),
            operands as a, operands as b
    ),
    answers as (
        select *, case operator
            when 'add' then op1 + op2
            when 'subtract' then op1 - op2
            when 'multiply' then op1 * op2
            when 'divide' then case when op1 > 0 and op2 > 0 then (op1 // op2)::integer end
        end as result
        from squares
    )
select
    operator, op1, op2, result,
    case when lot($seed, operator, op1, op2) % 100 < $held_out_percent
        then 'held-out' else 'train' end as split
from answers
where result between 0 and $largest_answer
order by operator, op1, op2
