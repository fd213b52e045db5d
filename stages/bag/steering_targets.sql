-- The digits to which prompts are steered. For each place, an evaluation prompt gets
-- `steering_draws` random digits other than its own, and its own digit as a control, draw 0. For
-- carry there is one other digit.
--
-- subject  VARCHAR  the model
-- pair     INTEGER  number of the pair, whose clean prompt is steered
-- place    VARCHAR  what is steered: ones or tens (a digit of the result), asked (the digit that
--                   the model predicts, if it predicts one of several) or carry
-- draw     INTEGER  0 for the prompt's own digit, from 1 for random other digits
-- source   INTEGER  the prompt's own digit, 0 to 9; for carry 1 if its ones carry into the tens
--                   (add) or borrow from them (subtract), else 0
-- target   INTEGER  the digit that the prompt is steered to
-- wanted   INTEGER  token that the model predicts if it follows: of the result with the target
--                   digit; for carry of the result that is 10 larger or smaller. A target is left
--                   out if the model has no such token, or if it is the token of the result. So is
--                   a result with more or fewer digits if the prompt has the first digit already:
--                   105 for 95, if 9 is part of the prompt
with
    digits as (select distinct operator, place, digit from digit_means where cells > 0),
    answers as (  -- the token of a result, and what stands between op2 and this token
        select operator, number as result, token, null as before
        from numbers, (select distinct operator from digits)
        where not exists (from digits where place = 'asked')
        union all
        select operator, result, answer_token, any_value(tokens[op2_position + 2:])
        from prompts
        where exists (from digits where place = 'asked')
        group by operator, result, answer_token
    ),
    own as (
        select
            pair, operator, place, result, answer_token, tokens[positions.op2 + 2:] as before,
            case place
                when 'ones' then result % 10
                when 'tens' then result // 10 % 10
                when 'asked' then number
                else if(
                    operator = 'add', op1 % 10 + op2 % 10 >= 10, op1 % 10 < op2 % 10)::integer
            end as source
        from pairs
        join (select distinct operator, place from digits) using (operator)
        left join numbers on token = answer_token
        where split = 'evaluation' and (place <> 'tens' or result >= 10)
            and (operator, result, answer_token) in (select operator, result, token from answers)
    ),
    others as (
        select own.*, digit as target,
            coalesce(answers.token, numbers.token) as wanted,
            row_number() over (
                partition by pair, place
                order by lot($steering_seed, 'target', pair, place, digit), digit
            ) as draw
        from own join digits using (operator, place)
        left join answers on place <> 'asked' and answers.operator = own.operator
            and answers.result = own.result + (digit - source) * case
                when place = 'ones' then 1
                when place = 'carry' and own.operator = 'subtract' then -10
                else 10
            end
            and (
                answers.before is null or answers.before = own.before
                or len(answers.result::varchar) = len(own.result::varchar))
        left join numbers on place = 'asked' and numbers.number = digit
        where digit <> source and wanted <> answer_token
            and (place <> 'tens' or answers.result >= 10)
    )
select $subject as subject, pair, place, draw::integer as draw, source::integer as source,
    target::integer as target, wanted::integer as wanted
from (
    select pair, place, 0 as draw, source, source as target, answer_token as wanted from own
    union all
    select pair, place, draw, source, target, wanted from others where draw <= $steering_draws
)
order by pair, place, draw
