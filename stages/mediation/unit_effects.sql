-- What each neuron of the late layers, and each coordinate of what their MLPs put out, does to the answer when it takes its
-- counterfactual value at the last position, by kind of question. The effects are those of mediation_by_pair.
--
-- subject           VARCHAR   the model
-- question          VARCHAR   as in unit_mediation_pairs
-- operator          VARCHAR   operator of the clean prompt, where the question is of one operator; all: every pair of the question
-- half              VARCHAR   pairs that count: first or second half, or both; of single operators both
-- component         VARCHAR   neuron or coordinate
-- layer             SMALLINT  decoder layer, from 0
-- unit              INTEGER   neuron of the layer's MLP, or coordinate of its output, from 0
-- effect            DOUBLE    mean indirect effect over pairs; null where no pair has one
-- effect_std        DOUBLE    its standard deviation over pairs
-- logit_effect      DOUBLE    mean over pairs of the same effect on logits
-- logit_effect_std  DOUBLE    its standard deviation over pairs
-- pairs             BIGINT    pairs that have an effect
-- undefined         BIGINT    pairs left out of effect: a probability that it divides by is 0
-- rank              BIGINT    1 for the largest effect of its question, operator, half, component and layer
-- rank_logit        BIGINT    the same by logit_effect
-- rank_size         BIGINT    the same by the size of logit_effect, whatever its sign
with
    members as (
        select
            pair, question,
            unnest(['all', 'all', if(task in ('arithmetic', 'number_words'), operator, null)]) as operator,
            unnest(['both', half, 'both']) as half
        from unit_mediation_pairs
    ),
    groups as (
        select question, operator, half, row_number() over (order by question, operator, half) as g
        from (select distinct question, operator, half from members where operator is not null)
    ),
    numbered as (select g, pair from members join groups using (question, operator, half)),
    clean as (select * from runs where intervention = 0),
    measured as (  -- numbers only, names come last
        select
            p.intervention, p.pair, effect(p, c) as effect, logit_effect(p, c) as logit_effect
        from runs as p join clean as c using (pair) where p.intervention > 0
    ),
    effects as (
        select
            g, intervention, avg(effect) as effect, stddev_pop(effect) as effect_std,
            avg(logit_effect) as logit_effect, stddev_pop(logit_effect) as logit_effect_std,
            count(effect) as pairs, count(*) - count(effect) as undefined
        from measured join numbered using (pair)
        group by g, intervention
    ),
    named as (  -- equal effects, such as those of dead neurons, are ranked in another order in every group: no overlap
        select *, units[1] as unit, lot(question, operator, half, units[1]) as lot
        from effects join groups using (g) join (select intervention, component, layer, units from unit_mediation_interventions)
            using (intervention)
    )
select
    $subject as subject, question, operator, half, component, layer, unit,
    effect, effect_std, logit_effect, logit_effect_std, pairs, undefined,
    row_number() over (peers order by effect desc nulls last, lot) as rank,
    row_number() over (peers order by logit_effect desc, lot) as rank_logit,
    row_number() over (peers order by abs(logit_effect) desc, lot) as rank_size
from named
window peers as (partition by g, component, layer)
order by g, component, layer, unit
