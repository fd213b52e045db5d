-- How many of the neurons of largest effect attribution finds, exactly or estimated from a sample.
-- A neuron counts if its logit effect is at least that of the k-th largest of all patched neurons.
-- It is found if it is among the top that attribution names. Where every neuron was patched, the
-- top is attribution's own k, all others are known, and recall is exact: its interval has no width.
-- Where not (patched_neurons > 0), the top is the patched_neurons of largest attribution. The share
-- of neurons outside it that count is then that of the random sample (sampled_neurons) outside it.
-- The interval of this share is Wilson's with continuity correction (Newcombe 1998, method 4),
-- which also covers rare shares. Its confidence is that of $normal standard errors of a normal
-- distribution.
--
-- subject        VARCHAR   the model
-- operator       VARCHAR   add, subtract, multiply or divide
-- layer          SMALLINT  decoder layer, from 0; null: the late layers together
-- position       VARCHAR   token position of the neurons: op1, operator, op2, or last (late layers)
-- k              INTEGER   rank, of the layer's patched neurons, of the least effect that counts
-- neurons        BIGINT    neurons
-- top            BIGINT    how many of them attribution names
-- inside         BIGINT    how many of these count
-- sampled        BIGINT    neurons outside the top of known effect: all, or those of the sample
-- sampled_above  BIGINT    how many of these count
-- recall         DOUBLE    inside / (inside + neurons outside the top that count), 0 to 1; null
--                          without a sample
-- ci_low         DOUBLE    lower end of its interval; without a sample, the least possible recall
-- ci_high        DOUBLE    upper end; without a sample, 1
-- chance         DOUBLE    its expectation if attribution ranked at random: top / neurons
with
    sample as (
        select layer, position, units[1] as neuron
        from neuron_interventions where component = 'neuron' and operator is null
    ),
    measured as (
        select
            operator, layer, position, neuron, exact.logit_effect as effect,
            exact.rank_logit as place, estimated.rank as estimated_place,
            (layer, position, neuron) in (from sample) as is_sampled
        from neuron_effects as exact
        join neuron_effects as estimated using (operator, layer, position, neuron)
        where exact.method = 'exact' and estimated.method = 'attribution'
    ),
    widths as (
        select layer, position, count(distinct neuron) as neurons from neuron_effects group by all
    ),
    sizes as (
        select
            layer, position, neurons, k,
            if($patched_neurons = 0, k, smaller($patched_neurons, neurons)) as top
        from widths cross join (select unnest($ks)::integer as k)
        where k <= top and k <= neurons
    ),
    thresholds as (
        select
            operator, layer, position, k, min(effect) as threshold,
            any_value(neurons) as neurons, any_value(top) as top
        from measured join sizes using (layer, position)
        where place <= k
        group by operator, layer, position, k
    ),
    layers as (
        select
            operator, layer, position, k, neurons, top,
            count(*) filter (estimated_place <= top and effect >= threshold) as inside,
            count(*) filter (estimated_place > top and is_sampled) as sampled,
            count(*) filter (estimated_place > top and is_sampled and effect >= threshold)
                as sampled_above
        from measured join thresholds using (operator, layer, position)
        group by all
    ),
    counted as (
        select
            operator, layer, position, k, sum(neurons)::bigint as neurons, sum(top)::bigint as top,
            sum(inside)::bigint as inside, sum(sampled)::bigint as sampled,
            sum(sampled_above)::bigint as sampled_above
        from layers
        group by grouping sets ((operator, layer, position, k), (operator, position, k))
        having layer is not null or position = 'last'
    ),
    shares as (
        select
            *, neurons - top as outside, sampled_above / nullif(sampled, 0) as share,
            $normal ** 2 as z2, 2 * sampled_above + z2 as middle, 2 * (sampled + z2) as scale,
            z2 - 1 / nullif(sampled, 0) + 4 * sampled_above * (1 - share) as spread,
            4 * share - 2 as skew,
            (middle - 1 - $normal * sqrt(spread + skew)) / scale as low,
            (middle + 1 + $normal * sqrt(spread - skew)) / scale as high,
            if(sampled_above = 0, 0, larger(0, low)) as least,
            if(sampled_above = sampled, 1, smaller(1, high)) as most
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
