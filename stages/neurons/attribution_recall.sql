-- How many of the neurons of largest effect attribution finds, exactly or estimated from a random sample.
-- A neuron counts if its logit effect is at least that of the k-th largest of all patched neurons, and
-- is found if it is among the top that attribution names. Where every neuron was patched, that is
-- attribution's own k, all others are known, and recall is exact: its interval has no width. Where not
-- (patched_neurons > 0), it is the patched_neurons of largest attribution, and the share of neurons
-- outside that count is estimated by that of the random sample (sampled_neurons) outside the top. Its
-- interval is Wilson's with continuity correction (Newcombe 1998, method 4), which covers rare shares
-- as well; it holds the truth at least as often as $normal standard errors of a normal distribution.
--
-- subject        VARCHAR   the model
-- operator       VARCHAR   add, subtract, multiply or divide
-- layer          SMALLINT  decoder layer, from 0; null: the late layers together
-- position       VARCHAR   token position of the neurons: op1, operator, op2 or last, which is that of the late layers
-- k              INTEGER   how many patched neurons of each layer have the effects that count; at most top
-- neurons        BIGINT    neurons
-- top            BIGINT    how many of them attribution names
-- inside         BIGINT    how many of these count
-- sampled        BIGINT    neurons outside the top whose effect is known: all of them, or those of the random sample
-- sampled_above  BIGINT    how many of these count
-- recall         DOUBLE    inside / (inside + neurons outside the top that count), 0 to 1; null without a sample
-- ci_low         DOUBLE    lower end of its interval; without a sample, the least possible recall
-- ci_high        DOUBLE    upper end; without a sample, 1
-- chance         DOUBLE    its expectation if attribution ranked at random: top / neurons
with
    sample as (
        select layer, position, units[1] as neuron from neuron_interventions where component = 'neuron' and operator is null
    ),
    widths as (select layer, position, count(distinct neuron) as neurons from neuron_effects group by all),
    measured as (
        select
            operator, layer, position, neuron, exact.logit_effect as effect, exact.rank_logit as place, estimated.rank as estimated_place,
            (layer, position, neuron) in (from sample) as is_sampled
        from neuron_effects as exact join neuron_effects as estimated using (operator, layer, position, neuron)
        where exact.method = 'exact' and estimated.method = 'attribution'
    ),
    sizes as (
        select layer, position, neurons, k, if($patched_neurons = 0, k, smaller($patched_neurons, neurons)) as top
        from widths cross join (select unnest($ks)::integer as k)
        where k <= top and k <= neurons
    ),
    thresholds as (
        select operator, layer, position, k, any_value(neurons) as neurons, any_value(top) as top, min(effect) as threshold
        from measured join sizes using (layer, position)
        where place <= k
        group by operator, layer, position, k
    ),
    layers as (
        select
            operator, layer, position, k, neurons, top,
            count(*) filter (estimated_place <= top and effect >= threshold) as inside,
            count(*) filter (estimated_place > top and is_sampled) as sampled,
            count(*) filter (estimated_place > top and is_sampled and effect >= threshold) as sampled_above
        from measured join thresholds using (operator, layer, position)
        group by all
    ),
    counted as (
        select
            operator, layer, position, k, sum(neurons)::bigint as neurons, sum(top)::bigint as top,
            sum(inside)::bigint as inside, sum(sampled)::bigint as sampled, sum(sampled_above)::bigint as sampled_above
        from layers
        group by grouping sets ((operator, layer, position, k), (operator, position, k))
        having layer is not null or position = 'last'
    ),
    shares as (
        select
            *, neurons - top as outside, sampled_above / nullif(sampled, 0) as share, $normal ** 2 as z2,
            2 * sampled_above + z2 as middle, 2 * (sampled + z2) as scale,
            z2 - 1 / nullif(sampled, 0) + 4 * sampled_above * (1 - share) as spread, 4 * share - 2 as skew,
            if(sampled_above = 0, 0, larger(0, (middle - 1 - $normal * sqrt(spread + skew)) / scale)) as least,
            if(sampled_above = sampled, 1, smaller(1, (middle + 1 + $normal * sqrt(spread - skew)) / scale)) as most
        from counted
    )
select
    $subject as subject, operator, layer, position, k, neurons, top, inside, sampled, sampled_above,
    inside / (inside + if(sampled = outside, sampled_above, outside * share)) as recall,
    inside / (inside + if(sampled = outside, sampled_above, outside * most)) as ci_low,
    inside / (inside + if(sampled = outside, sampled_above, outside * least)) as ci_high,
    top / neurons as chance
from shares
order by operator, position, layer nulls last, k
