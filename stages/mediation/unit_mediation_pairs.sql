-- The prompt pairs on which single neurons and coordinates are patched: of every kind of question so many of mediation_pairs, drawn
-- evenly from its templates and operators, and split into two halves that each have half of every operator's.
-- Only conditions in which the answers of both prompts differ.
--
-- subject                      VARCHAR                  the model
-- pair                         INTEGER                  as in mediation_pairs
-- question                     VARCHAR                  the task; of arithmetic, arithmetic_symbols (its last template) or arithmetic_words
-- half                         VARCHAR                  first or second
-- task                         VARCHAR                  as in mediation_pairs
-- condition                    VARCHAR                  result_varies, query_varies or entity_varies
-- template                     INTEGER                  as in mediation_pairs
-- operator                     VARCHAR                  of the clean prompt; null where there is none
-- tokens                       INTEGER[]                the clean prompt, as the subject reads it
-- answer_token                 INTEGER                  token of its answer
-- positions                    STRUCT("last" SMALLINT)  where the last token stands in tokens, from 0
-- counterfactual_tokens        INTEGER[]                the other prompt
-- counterfactual_answer_token  INTEGER                  token of its answer
-- counterfactual_positions     STRUCT("last" SMALLINT)  the same in counterfactual_tokens
with
    asked as (
        select
            *, lot($unit_seed, pair) as drawn,
            case
                when task <> 'arithmetic' then task
                when template = len($arithmetic) - 1 then 'arithmetic_symbols'
                else 'arithmetic_words'
            end as question
        from mediation_pairs
        where condition in ('result_varies', 'query_varies', 'entity_varies')
    ),
    turns as (
        select *, row_number() over (partition by question, template, operator order by drawn, pair) as turn from asked
    ),
    chosen as (
        select * from turns
        qualify row_number() over (partition by question order by turn, drawn, pair) <= $mediated_pairs
    )
select
    $subject as subject, pair, question,
    if(row_number() over (partition by question order by operator, template, turn) % 2 = 1, 'first', 'second') as half,
    task, condition, template, operator,
    tokens, answer_token, positions, counterfactual_tokens, counterfactual_answer_token, counterfactual_positions
from chosen
order by pair
