-- The prompt pairs on which single neurons and coordinates are patched: mediated_pairs of each kind
-- of question, drawn evenly from templates and operators of mediation_pairs. They are split into
-- two halves, each with half of every operator's pairs. Only conditions in which the answers differ
-- are used.
--
-- subject                      VARCHAR                  the model
-- pair                         INTEGER                  number of the pair, as in mediation_pairs
-- question                     VARCHAR                  kind of question: the task, or for the task
--                                                       arithmetic arithmetic_symbols (its last
--                                                       template) or arithmetic_words
-- half                         VARCHAR                  first or second
-- task                         VARCHAR                  task of the pair, as in mediation_pairs
-- condition                    VARCHAR                  what differs within the pair:
--                                                       result_varies, query_varies or
--                                                       entity_varies
-- template                     INTEGER                  number of the template, as in
--                                                       mediation_pairs
-- operator                     VARCHAR                  operator of the clean prompt; null for
--                                                       tasks without operators
-- tokens                       INTEGER[]                token ids of the clean prompt
-- answer_token                 INTEGER                  token id of the clean prompt's answer
-- positions                    STRUCT("last" SMALLINT)  position of the last token in tokens, from
--                                                       0
-- counterfactual_tokens        INTEGER[]                token ids of the counterfactual prompt
-- counterfactual_answer_token  INTEGER                  token id of the counterfactual prompt's
--                                                       answer
-- counterfactual_positions     STRUCT("last" SMALLINT)  position of the last token in
--                                                       counterfactual_tokens, from 0
with
    questions as (
        select
            *,
            lot($unit_seed, pair) as drawn,
            case
                when task <> 'arithmetic' then task
                when template = len($arithmetic) - 1 then 'arithmetic_symbols'
                else 'arithmetic_words'
            end as question
        from mediation_pairs
        where condition in ('result_varies', 'query_varies', 'entity_varies')
    ),
    turns as (
        select
            *,
            row_number() over (partition by question, template, operator order by drawn, pair)
                as turn
        from questions
    ),
    selected as (
        select *
        from turns
        qualify row_number() over (partition by question order by turn, drawn, pair)
            <= $mediated_pairs
    )
select
    $subject as subject,
    pair, question,
    if(
        row_number() over (partition by question order by operator, template, turn) % 2 = 1,
        'first', 'second'
    ) as half,
    task, condition, template, operator,
    tokens, answer_token, positions,
    counterfactual_tokens, counterfactual_answer_token, counterfactual_positions
from selected
order by pair
