-- The digits to which prompts are steered. For each place, an evaluation prompt gets
-- `steering_draws` random digits other than its own, and its own digit as a control, draw 0.
--
-- subject  VARCHAR  the model
-- pair     INTEGER  number of the pair, whose clean prompt is steered
-- place    VARCHAR  digit of the result that is steered: ones or tens
-- draw     INTEGER  0 for the prompt's own digit, from 1 for random other digits
-- source   INTEGER  the digit of the prompt's result, 0 to 9
-- target   INTEGER  the digit that the prompt is steered to, 0 to 9; only if the result with this
--                   digit is one of the model's numbers, and has such a place
with
    digits as (
        select distinct operator, place, digit, if(place = 'ones', 1, 10) as size
        from digit_means where cells > 0
    ),
    own as (
        select pair, operator, result, place, size, result // size % 10 as source
        from pairs
        join (select distinct operator, place, size from digits) using (operator)
        join (select number, token from numbers) as answers
            on answers.number = result and token = answer_token
        where split = 'evaluation' and (place = 'ones' or result >= 10)
    ),
    others as (
        select pair, place, source, digit as target,
            row_number() over (
                partition by pair, place
                order by lot($steering_seed, 'target', pair, place, digit), digit
            ) as draw
        from own join digits using (operator, place, size)
        where digit <> source
            and result + (digit - source) * size in (select number from numbers)
            and (place = 'ones' or result + (digit - source) * size >= 10)
    )
select $subject as subject, pair, place, draw::integer as draw, source::integer as source,
    target::integer as target
from (
    select pair, place, 0 as draw, source, source as target from own
    union all
    select pair, place, draw, source, target from others where draw <= $steering_draws
)
order by pair, place, draw
