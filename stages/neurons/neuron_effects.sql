-- The effect of each neuron on the answer when it takes its counterfactual value (Sec. 3, Fig. 4a),
-- measured and estimated. The method exact patches the neuron. The method attribution multiplies a
-- gradient by the change of the activation, which to first order estimates either effect. All
-- neurons have an attribution. In a large model few are patched (neuron_interventions), and exact
-- ranks are ranks among these.
--
-- subject             VARCHAR   the model
-- operator            VARCHAR   add, subtract, multiply or divide
-- method              VARCHAR   exact or attribution
-- layer               SMALLINT  decoder layer, from 0
-- neuron              INTEGER   neuron of the layer's MLP, from 0
-- position            VARCHAR   role of the token at which the neuron is patched: op1, operator,
--                               op2 or last
-- effect              DOUBLE    mean over prompts of Eq. 1, the relative change of probabilities,
--                               at least -1; for attribution the estimate, in logits
-- effect_std          DOUBLE    standard deviation of effect over prompts
-- ci_low              DOUBLE    lower end of the bootstrap interval of effect, over seeds and
--                               prompts; null for the attribution of a neuron that is not patched
-- ci_high             DOUBLE    upper end of the bootstrap interval of effect
-- logit_effect        DOUBLE    mean effect on logits over prompts, in logits; for attribution the
--                               estimate
-- logit_effect_std    DOUBLE    standard deviation of logit_effect over prompts
-- prompts             BIGINT    prompts in these means
-- undefined           BIGINT    prompts left out, because a denominator of Eq. 1 is 0
-- rank                BIGINT    rank by effect, from 1, the largest, within operator, method, layer
--                               and position; equal effects by neuron
-- rank_mean_plus_std  BIGINT    rank by effect + effect_std, from 1, the largest, as the study's
--                               code ranks neurons
-- rank_logit          BIGINT    rank by logit_effect, from 1, the largest
with
    operators as (
        select operator, row_number() over (order by operator) as o
        from (select distinct operator from pairs)
    ),
    prompts as (
        select pair, o from pairs join operators using (operator) where split = 'discovery'
    ),
    patches as (
        select intervention, layer, units[1] as neuron, role
        from neuron_interventions join roles() using (position)
    ),
    patched as (  -- a neuron without operator is patched for all operators
        select layer, units[1] as neuron, role, o
        from neuron_interventions as i
        join roles() using (position)
        join operators on operators.operator = coalesce(i.operator, operators.operator)
    ),
    clean as (
        select
            o, pair, answer_logit, counterfactual_logit, answer_probability,
            counterfactual_probability
        from runs join prompts using (pair)
        where intervention = 0
    ),
    measured as (  -- 5 million rows for the model abacus: numbers only, names come last
        select
            0 as estimated, layer, neuron, role, o, pair,
            effect(p, c) as effect,
            logit_effect(p, c) as logit_effect,
            true as is_patched
        from runs as p join clean as c using (pair) join patches using (intervention)
        union all
        select
            1, layer, neuron, role, o, pair, attribution::double, attribution::double,
            (layer, neuron, role, o) in (from patched)
        from neuron_attributions join prompts using (pair) join roles() using (position)
    ),
    effects as (
        select
            estimated, layer, neuron, role, o,
            avg(effect) as effect,
            stddev_pop(effect) as effect_std,
            avg(logit_effect) as logit_effect,
            stddev_pop(logit_effect) as logit_effect_std,
            count(effect) as prompts,
            count(*) - count(effect) as undefined,
            list(coalesce(effect, 0) order by pair) filter (is_patched) as each_effect,
            list((effect is not null)::double order by pair) filter (is_patched) as is_defined
        from measured
        group by all
    ),
    weights as (
        select o, weights
        from bootstrap('discovery') join operators using (operator)
        where replicate < $neuron_replicates
    ),
    intervals as (
        select
            estimated, layer, neuron, role, effects.o,
            percentile_interval(
                weighted_mean(each_effect, is_defined, prompts, weights), $confidence
            ) as ends
        from effects
        -- `using (o)` copies all weights for every row, which takes three times as long
        join weights on effects.o - weights.o = 0
        where effects.prompts > 0 and each_effect is not null
        group by all
    )
select
    $subject as subject,
    operator,
    case estimated when 0 then 'exact' else 'attribution' end as method,
    layer, neuron, position, effect, effect_std,
    ends[1] as ci_low,
    ends[2] as ci_high,
    logit_effect, logit_effect_std, prompts, undefined,
    row_number() over (peers order by effect desc nulls last, neuron) as rank,
    row_number() over (peers order by effect + effect_std desc nulls last, neuron)
        as rank_mean_plus_std,
    row_number() over (peers order by logit_effect desc nulls last, neuron) as rank_logit
from effects
left join intervals using (estimated, layer, neuron, role, o)
join operators using (o)
join roles() using (role)
window peers as (partition by o, estimated, layer, role)
order by operator, estimated, role, layer, neuron
