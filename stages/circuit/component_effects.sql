-- How patching each component with its counterfactual value changes the answer, at each position
-- (Eq. 1, Fig. 2a).
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- component         VARCHAR   component that is patched: mlp or head
-- layer             SMALLINT  decoder layer, from 0
-- head              SMALLINT  attention head of the layer, from 0; null for an MLP
-- position          VARCHAR   token position of the patch: op1, operator, op2 or last
-- effect            DOUBLE    mean effect over prompts (Eq. 1, on probabilities), a ratio from -1
--                             up to very large values; Fig. 2a draws log(1 + effect)
-- effect_std        DOUBLE    standard deviation of the effect over prompts
-- ci_low            DOUBLE    lower end of the mean effect's bootstrap interval, over seeds and
--                             prompts
-- ci_high           DOUBLE    upper end of the mean effect's bootstrap interval
-- median_effect     DOUBLE    median effect over prompts; the mean depends on few prompts whose
--                             counterfactual answer is improbable
-- logit_effect      DOUBLE    mean over prompts of the same effect on logits; it includes prompts
--                             whose effect is undefined
-- logit_effect_std  DOUBLE    standard deviation of the logit effect over prompts, in logits
-- logit_ci_low      DOUBLE    lower end of the mean logit effect's bootstrap interval, in logits
-- logit_ci_high     DOUBLE    upper end of the mean logit effect's bootstrap interval, in logits
-- prompts           BIGINT    number of prompts with an effect
-- undefined         BIGINT    number of prompts left out of effect, because a probability that Eq.
--                             1 divides by is 0
with
    prompts as (select pair, operator from pairs where split = 'discovery'),
    each_prompt as (
        select
            patched.intervention, operator, pair, effect(patched, clean) as effect,
            logit_effect(patched, clean) as logit_effect
        from runs as patched
        join runs as clean using (pair)
        join prompts using (pair)
        where clean.intervention = 0 and patched.intervention > 0
    ),
    effects as (
        select
            intervention, operator,
            avg(effect) as effect, stddev_pop(effect) as effect_std,
            median(effect) as median_effect,
            avg(logit_effect) as logit_effect, stddev_pop(logit_effect) as logit_effect_std,
            count(effect) as prompts, count(*) - count(effect) as undefined,
            list(coalesce(effect, 0) order by pair) as each_effect,
            list((effect is not null)::double order by pair) as is_defined,
            list(logit_effect order by pair) as each_logit_effect
        from each_prompt group by intervention, operator
    ),
    replicates as (
        select
            intervention, operator,
            weighted_mean(each_effect, is_defined, prompts, weights) as effect,
            list_dot_product(each_logit_effect, weights) / len(weights) as logit_effect
        from effects join bootstrap('discovery') using (operator)
    ),
    intervals as (
        select
            intervention, operator,
            percentile_interval(effect, $confidence) as ends,
            percentile_interval(logit_effect, $confidence) as logit_ends
        from replicates group by intervention, operator
    )
select
    $subject as subject, effects.operator, component, layer, units[1]::smallint as head, position,
    effect, effect_std, if(prompts > 0, ends[1], null) as ci_low,
    if(prompts > 0, ends[2], null) as ci_high, median_effect,
    logit_effect, logit_effect_std, logit_ends[1] as logit_ci_low, logit_ends[2] as logit_ci_high,
    prompts, undefined
from effects
join component_interventions using (intervention)
left join intervals
    on (intervals.intervention, intervals.operator) = (effects.intervention, effects.operator)
order by effects.operator, intervention
