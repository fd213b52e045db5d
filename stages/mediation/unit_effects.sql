-- The effect of each unit of the late MLPs on the answer when it takes its counterfactual value at
-- the last position, by kind of question. Units are neurons, and coordinates of the MLP's output.
-- The effect of a pair is that of mediation_by_pair.
--
-- subject           VARCHAR   the model
-- question          VARCHAR   kind of question, as in unit_mediation_pairs
-- operator          VARCHAR   operator of the clean prompt; all: all pairs of the question
-- half              VARCHAR   pairs that count: first, second, or both halves; both for single
--                             operators
-- component         VARCHAR   neuron or coordinate
-- layer             SMALLINT  decoder layer, from 0
-- unit              INTEGER   neuron of the layer's MLP, or coordinate of its output, from 0
-- effect            DOUBLE    mean effect over pairs, at least -1; null if no pair has an effect
-- effect_std        DOUBLE    standard deviation of the effect over pairs
-- logit_effect      DOUBLE    mean logit effect over pairs, in logits
-- logit_effect_std  DOUBLE    standard deviation of the logit effect over pairs
-- pairs             BIGINT    pairs that have an effect
-- undefined         BIGINT    pairs without an effect, because a denominator is 0
-- rank              BIGINT    rank by effect, from 1, the largest, within question, operator, half,
--                             component and layer
-- rank_logit        BIGINT    rank by logit_effect, from 1, the largest
-- rank_size         BIGINT    rank by the absolute logit_effect, from 1, the largest
with
    members as (
        select
            pair, question,
            unnest(['all', 'all', if(task in ('arithmetic', 'number_words'), operator, null)])
                as operator,
            unnest(['both', half, 'both']) as half
        from unit_mediation_pairs
    ),
    groups as (
        select
            question, operator, half,
            row_number() over (order by question, operator, half) as g
        from (select distinct question, operator, half from members where operator is not null)
    ),
    numbered as (select g, pair from members join groups using (question, operator, half)),
    clean as (select * from runs where intervention = 0),
    measured as (  -- numbers only, names come last
        select
            p.intervention, p.pair,
            effect(p, c) as effect,
            logit_effect(p, c) as logit_effect
        from runs as p join clean as c using (pair)
        where p.intervention > 0
    ),
    effects as (
        select
            g, intervention,
            avg(effect) as effect,
            stddev_pop(effect) as effect_std,
            avg(logit_effect) as logit_effect,
            stddev_pop(logit_effect) as logit_effect_std,
            count(effect) as pairs,
            count(*) - count(effect) as undefined
        from measured join numbered using (pair)
        group by g, intervention
    ),
    -- Equal effects, such as those of dead neurons, have another order in every group. Otherwise
    -- they would count as overlap.
    named as (
        select *, units[1] as unit, lot(question, operator, half, units[1]) as lot
        from effects
        join groups using (g)
        join (select intervention, component, layer, units from unit_mediation_interventions)
            using (intervention)
    )
select
    $subject as subject,
    question, operator, half, component, layer, unit,
    effect, effect_std, logit_effect, logit_effect_std, pairs, undefined,
    row_number() over (peers order by effect desc nulls last, lot) as rank,
    row_number() over (peers order by logit_effect desc, lot) as rank_logit,
    row_number() over (peers order by abs(logit_effect) desc, lot) as rank_size
from named
window peers as (partition by g, component, layer)
order by g, component, layer, unit
