-- The mean effect of each component on the answer when it takes its counterfactual value, at each
-- class of positions (Fig. 3 of the mediation study). The effect of a pair is that of
-- mediation_by_pair. It is a ratio, so a few pairs with an improbable answer can dominate the mean.
--
-- subject         VARCHAR   the model
-- task            VARCHAR   task of the pairs
-- condition       VARCHAR   what differs within a pair
-- operator        VARCHAR   operator of the clean prompt; all: all operators together, and tasks
--                           without operators
-- which           VARCHAR   pairs that count: all, or answered (the model answers the clean prompt
--                           correctly)
-- component       VARCHAR   mlp, attention (all heads of the layer) or head
-- layer           SMALLINT  decoder layer, from 0
-- head            SMALLINT  head of the layer, from 0; null for mlp and attention
-- position_class  VARCHAR   early, op1, op2, op3, operator, middle, late, query, entity or last;
--                           only pairs with such tokens count
-- effect          DOUBLE    mean effect over pairs, at least -1; null if no pair has an effect
-- effect_std      DOUBLE    standard deviation of the effect over pairs
-- ci_low          DOUBLE    lower end of the bootstrap interval of effect, over pairs within
--                           template and operator; null if an operator has a single pair
-- ci_high         DOUBLE    upper end of the bootstrap interval of effect
-- log_effect      DOUBLE    ln(1 + effect), which the study draws and sums; null if effect is -1
-- median_effect   DOUBLE    median of the effect over pairs
-- logit_effect    DOUBLE    mean logit effect over pairs, in logits, including pairs without an
--                           effect; null if both prompts have the same answer
-- logit_ci_low    DOUBLE    lower end of the bootstrap interval of logit_effect
-- logit_ci_high   DOUBLE    upper end of the bootstrap interval of logit_effect
-- desired         DOUBLE    share of patches, 0 to 1, that change the prediction to the
--                           counterfactual answer; null if both prompts have the same answer
-- undesired       DOUBLE    share of patches, 0 to 1, that change a correct prediction to neither
--                           answer
-- correct         DOUBLE    share of pairs, 0 to 1, whose clean prompt the model answers correctly
-- pairs           BIGINT    pairs that have an effect
-- undefined       BIGINT    pairs without an effect, because a denominator is 0
with
    groups as (
        select
            task, condition, operator,
            row_number() over (order by task, condition, operator) as g
        from (select distinct task, condition, operator from grouped_pairs())
    ),
    numbered as (
        select g, pair from grouped_pairs() join groups using (task, condition, operator)
    ),
    sites as (
        select
            component, layer, head, position_class,
            row_number() over (order by layer, component, head, position_class) as site
        from (select distinct component, layer, head, position_class from mediation_by_pair)
    ),
    measured as (
        select site, pair, effect, logit_effect, desired, undesired, correct
        from mediation_by_pair as m
        join sites as s
            on (m.component, m.layer, m.position_class) = (s.component, s.layer, s.position_class)
            and m.head is not distinct from s.head
    ),
    wanted as (select distinct g, site from measured join numbered using (pair)),
    -- every pair of the group, in the order of its weights; nulls if it has no such token or does
    -- not count
    each_pair as (
        select
            g, wanted.site, answered, numbered.pair,
            m.pair is not null as counts,
            m.* exclude (site, pair)
        from wanted
        join numbered using (g)
        cross join (values (false), (true)) as which(answered)
        left join measured as m
            on (m.site, m.pair) = (wanted.site, numbered.pair) and (m.correct or not answered)
    ),
    effects as (
        select
            g, site, answered,
            avg(effect) as effect,
            stddev_pop(effect) as effect_std,
            median(effect) as median_effect,
            avg(logit_effect) as logit_effect,
            avg(desired) as desired,
            avg(undesired) as undesired,
            avg(correct::integer) as correct,
            count(effect) as pairs,
            count(*) filter (counts) - count(effect) as undefined,
            count(logit_effect) as logit_pairs,
            list(coalesce(effect, 0) order by pair) as each_effect,
            list((effect is not null)::double order by pair) as has_effect,
            list(coalesce(logit_effect, 0) order by pair) as each_logit,
            list((logit_effect is not null)::double order by pair) as has_logit
        from each_pair
        group by g, site, answered
    ),
    weights as (
        select g, weights::double[] as weights
        from mediation_weights join groups using (task, condition, operator)
    ),
    replicates as (
        select
            effects.g, site, answered,
            weighted_mean(each_effect, has_effect, pairs, weights) as effect,
            weighted_mean(each_logit, has_logit, logit_pairs, weights) as logit_effect
        from effects
        join weights on effects.g - weights.g = 0  -- `using (g)` copies all weights for every row
    ),
    intervals as (
        select
            g, site, answered,
            percentile_interval(effect, $confidence) as ends,
            percentile_interval(logit_effect, $confidence) as logit_ends
        from replicates
        group by g, site, answered
    )
select
    $subject as subject,
    task, condition, operator,
    if(answered, 'answered', 'all') as which,
    component, layer, head, position_class,
    effect, effect_std,
    ends[1] as ci_low,
    ends[2] as ci_high,
    ln(nullif(1 + effect, 0)) as log_effect,
    median_effect, logit_effect,
    logit_ends[1] as logit_ci_low,
    logit_ends[2] as logit_ci_high,
    desired, undesired, correct, pairs, undefined
from effects
join groups using (g)
join sites using (site)
left join intervals using (g, site, answered)
order by g, answered, site
