-- The share of late MLPs at the last position in the effects of all MLPs (relative importance, RI,
-- of the mediation study). It is high if late MLPs write the result. The effect of a layer and
-- class of positions is ln(1 + mean effect), as log_effect in mediation_effects. Late layers are
-- the second half of the layers, including the middle one of an odd number. Where the result is
-- fixed, effects cannot be negative. Then even a model without effects has an interval, and only
-- log_effects shows that the share is a ratio of noise.
--
-- subject         VARCHAR  the model
-- task            VARCHAR  task of the pairs
-- condition       VARCHAR  what differs within a pair
-- operator        VARCHAR  operator of the clean prompt; all: all operators together, and tasks
--                          without operators
-- which           VARCHAR  pairs that count: all, or answered (the model answers the clean prompt
--                          correctly)
-- importance      DOUBLE   sum of the late MLPs' log effects / log_effects; outside 0 to 1 if some
--                          effects are negative; null unless log_effects is above 0
-- ci_low          DOUBLE   lower end of the bootstrap interval of importance, over pairs within
--                          template and operator; null if the interval of log_effects contains 0,
--                          or if an operator has a single pair
-- ci_high         DOUBLE   upper end of the bootstrap interval of importance
-- last_layer      DOUBLE   the last layer's part of importance
-- without_effect  DOUBLE   importance if all effects were equal, 0 to 1: late MLPs / all MLPs,
--                          counted by layer and class of positions; it is also `floored` for a
--                          model without any effect
-- floored         DOUBLE   importance as published: smaller log effects count as the floor
-- log_effects     DOUBLE   sum of all MLPs' log effects; null if a class of positions has none
-- negative        DOUBLE   sum of the log effects below 0
-- pairs           BIGINT   pairs
-- undefined       BIGINT   largest number of pairs without an effect, because a denominator is 0,
--                          over the means
with
    mlps as (
        select
            pair, layer, position_class, effect, correct,
            position_class = 'last' and layer >= layers // 2 as late,
            position_class = 'last' and layer = layers - 1 as last_layer
        from mediation_by_pair, architecture
        where component = 'mlp'
    ),
    wanted as (
        select distinct task, condition, operator, layer, position_class, late, last_layer
        from mlps join grouped_pairs() using (pair)
    ),
    -- every pair of the group, in the order of its weights; nulls if it has no such token or does
    -- not count
    each_pair as (
        select wanted.*, answered, members.pair, m.pair is not null as counts, m.effect
        from wanted
        join grouped_pairs() as members using (task, condition, operator)
        cross join (values (false), (true)) as which(answered)
        left join mlps as m
            on (m.layer, m.position_class, m.pair)
                = (wanted.layer, wanted.position_class, members.pair)
            and (m.correct or not answered)
    ),
    effects as (
        select
            task, condition, operator, answered, layer, position_class, late, last_layer,
            avg(effect) as effect,
            ln(nullif(1 + avg(effect), 0)) as log_effect,
            -- the log of an effect of -1 is -infinity, which log_effect has as null
            coalesce(larger(log_effect, $published_floor), $published_floor) as floored,
            count(effect) as defined,
            count(*) filter (counts) as counted,
            list(coalesce(effect, 0) order by pair) as each_effect,
            list((effect is not null)::double order by pair) as has_effect
        from each_pair
        group by all
    ),
    measured as (
        select
            task, condition, operator, answered,
            count(*) filter (late) / count(*) as without_effect,
            if(count(log_effect) = count(*), sum(log_effect), null) as log_effects,
            if(log_effects > 0, log_effects, null) as whole,
            sum(log_effect) filter (late) / whole as importance,
            sum(log_effect) filter (last_layer) / whole as last_layer,
            coalesce(sum(log_effect) filter (log_effect < 0), 0) as negative,
            if(count(effect) = count(*), sum(floored) filter (late) / sum(floored), null)
                as floored,
            max(counted) as pairs,
            max(counted - defined) as undefined
        from effects
        group by all
    ),
    replicates as (
        select
            task, condition, operator, answered, late, replicate,
            weighted_mean(each_effect, has_effect, defined, weights::double[])
                as mean_effect,
            ln(nullif(1 + mean_effect, 0)) as log_effect
        from effects join mediation_weights using (task, condition, operator)
    ),
    ratios as (
        select
            task, condition, operator, answered, replicate,
            if(count(log_effect) = count(*), sum(log_effect), 0) as log_effects,
            sum(log_effect) filter (late) as late
        from replicates
        group by task, condition, operator, answered, replicate
    ),
    intervals as (
        select
            task, condition, operator, answered,
            if(
                percentile_interval(log_effects, $confidence)[1] > 0,
                percentile_interval(late / if(log_effects > 0, log_effects, null), $confidence),
                null
            ) as ends
        from ratios
        group by task, condition, operator, answered
    )
select
    $subject as subject,
    task, condition, operator,
    if(answered, 'answered', 'all') as which,
    importance,
    ends[1] as ci_low,
    ends[2] as ci_high,
    last_layer, without_effect, floored, log_effects, negative, pairs, undefined
from measured
left join intervals using (task, condition, operator, answered)
order by task, condition, operator, answered
