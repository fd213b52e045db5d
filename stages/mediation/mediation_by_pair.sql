-- What each component does to the answer of each pair of prompts, at each class of positions. r' is
-- the clean prompt's answer, r the counterfactual prompt's. P are probabilities in the clean run,
-- P* in the patched run. A class of several tokens is patched one token at a time; its row is the
-- mean over these tokens.
--
-- subject         VARCHAR   the model
-- pair            INTEGER   number of the pair, as in mediation_pairs
-- component       VARCHAR   mlp, attention (all heads of the layer) or head
-- layer           SMALLINT  decoder layer, from 0
-- head            SMALLINT  head of the layer, from 0; null for mlp and attention
-- position_class  VARCHAR   early, op1, op2, op3, operator, middle, late, query, entity or last
-- tokens          INTEGER   tokens of either prompt in this class
-- effect          DOUBLE    ((P*(r) - P(r)) / P(r) + (P(r') - P*(r')) / P*(r')) / 2, at least -1,
--                           or at least 0 if r = r'; null if a denominator is 0
-- logit_effect    DOUBLE    (rise of r's logit + fall of the logit of r') / 2, in logits; null if r
--                           = r', where rise and fall cancel
-- desired         DOUBLE    share of tokens, 0 to 1, whose patch changes the prediction to r; null
--                           if r = r'
-- undesired       DOUBLE    share of tokens, 0 to 1, whose patch changes the prediction from r' to
--                           neither answer
-- correct         BOOLEAN   whether the model answers the clean prompt correctly
with
    patches as (  -- unit: a head, -1 for all heads, -2 for the MLP
        select
            intervention, layer,
            if(component = 'mlp', -2, coalesce(units[1], -1))::smallint as unit,
            position::smallint as place
        from mediation_interventions
        where component <> 'none'
    ),
    placed as (
        select
            pair,
            unnest(classes) as position_class,
            unnest(range(len(classes)))::smallint as place
        from mediation_pairs
    ),
    classes as (
        select position_class, row_number() over (order by position_class) as class
        from (select distinct position_class from placed)
    ),
    tokens as (select pair, place, class from placed join classes using (position_class)),
    clean as (
        select
            pair, predicted, correct, answer_probability, counterfactual_probability,
            answer_logit, counterfactual_logit, answer_token,
            counterfactual_answer_token as other_token,
            answer_token <> other_token as differ
        from runs join mediation_pairs using (pair)
        where intervention = 0
    ),
    each_token as (  -- up to 3 million rows: numbers only, names come last
        select
            pair, layer, unit, class, c.correct,
            effect(p, c) as effect,
            if(differ, logit_effect(p, c), null) as logit_effect,
            if(differ, (p.predicted = other_token and c.predicted <> other_token)::integer, null)
                as desired,
            (c.correct and p.predicted not in (answer_token, other_token))::integer as undesired
        from runs as p
        join patches using (intervention)
        join clean as c using (pair)
        join tokens using (pair, place)
    ),
    each_pair as (
        select
            pair, layer, unit, class,
            count(*)::integer as tokens,
            if(count(effect) = count(*), avg(effect), null) as effect,
            avg(logit_effect) as logit_effect,
            avg(desired) as desired,
            avg(undesired) as undesired,
            any_value(correct) as correct
        from each_token
        group by pair, layer, unit, class
    )
select
    $subject as subject,
    pair,
    case unit when -2 then 'mlp' when -1 then 'attention' else 'head' end as component,
    layer,
    if(unit >= 0, unit, null) as head,
    position_class, tokens, effect, logit_effect, desired, undesired, correct
from each_pair
join classes using (class)
order by pair, layer, unit, class
