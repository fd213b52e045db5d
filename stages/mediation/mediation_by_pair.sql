-- What each component does to the answer of each pair of prompts, at each class of positions (causal mediation).
-- r' is the clean prompt's answer, r the counterfactual's; P are probabilities of the clean prompt, P* of the clean prompt patched.
-- A class of several tokens is patched one token at a time; its row is their mean.
--
-- subject         VARCHAR   the model
-- pair            INTEGER   as in mediation_pairs
-- component       VARCHAR   mlp, attention (a whole block) or head
-- layer           SMALLINT  decoder layer, from 0
-- head            SMALLINT  head of the layer, from 0; null but for a head
-- position_class  VARCHAR   early, op1, op2, op3, operator, middle, late, query, entity or last
-- tokens          INTEGER   tokens of either prompt in this class
-- effect          DOUBLE    ((P*(r) - P(r)) / P(r) + (P(r') - P*(r')) / P*(r')) / 2, from -1 up, or from 0 if r = r'; null: division by 0
-- logit_effect    DOUBLE    the same on logits: (rise of r's + fall of r''s) / 2; null where r = r', whose rise and fall cancel out
-- desired         DOUBLE    share of tokens whose patch makes the prediction r, which it was not; null where r = r'
-- undesired       DOUBLE    share of tokens whose patch turns the prediction from r' into neither
-- correct         BOOLEAN   whether the clean prompt is answered correctly
with
    patches as (
        select intervention, layer, if(component = 'mlp', -2, coalesce(units[1], -1))::smallint as unit, position::smallint as place
        from mediation_interventions where component <> 'none'
    ),
    placed as (
        select pair, unnest(classes) as position_class, unnest(range(len(classes)))::smallint as place from mediation_pairs
    ),
    classes as (
        select position_class, row_number() over (order by position_class) as class from (select distinct position_class from placed)
    ),
    tokens as (select pair, place, class from placed join classes using (position_class)),
    clean as (
        select
            pair, predicted, correct, answer_probability, counterfactual_probability, answer_logit, counterfactual_logit,
            answer_token, counterfactual_answer_token as other_token, answer_token <> other_token as differ
        from runs join mediation_pairs using (pair) where intervention = 0
    ),
    each_token as (  -- up to 3 million rows: numbers only, names come last
        select
            pair, layer, unit, class, c.correct, effect(p, c) as effect, if(differ, logit_effect(p, c), null) as logit_effect,
            if(differ, (p.predicted = other_token and c.predicted <> other_token)::integer, null) as desired,
            (c.correct and p.predicted not in (answer_token, other_token))::integer as undesired
        from runs as p
        join patches using (intervention)
        join clean as c using (pair)
        join tokens using (pair, place)
    ),
    each_pair as (
        select
            pair, layer, unit, class, count(*)::integer as tokens, if(count(effect) = count(*), avg(effect), null) as effect,
            avg(logit_effect) as logit_effect, avg(desired) as desired, avg(undesired) as undesired, any_value(correct) as correct
        from each_token group by pair, layer, unit, class
    )
select
    $subject as subject, pair, case unit when -2 then 'mlp' when -1 then 'attention' else 'head' end as component, layer,
    if(unit >= 0, unit, null) as head, position_class, tokens, effect, logit_effect, desired, undesired, correct
from each_pair
join classes using (class)
order by pair, layer, unit, class
