-- The share of the important neurons that attribution finds, exact or estimated from a sample. A
-- neuron is important if its logit effect is at least the k-th largest of all patched neurons. It
-- is found if it is among the top neurons by attribution. If every neuron was patched, the top has
-- k neurons, all other effects are known, and recall is exact: its interval has width 0. Otherwise
-- (patched_neurons above 0), the top has patched_neurons neurons. The share of important neurons
-- outside it is estimated from the random sample (sampled_neurons) outside it. The interval of this
-- share is Wilson's with continuity correction (Newcombe 1998, method 4), which also covers rare
-- shares. Its confidence is that of $normal standard errors of a normal distribution.
--
-- subject        VARCHAR   the model
-- operator       VARCHAR   add, subtract, multiply or divide
-- layer          SMALLINT  decoder layer, from 0; null: all late layers together
-- position       VARCHAR   role of the token: op1, operator, op2, or last (late layers)
-- k              INTEGER   rank of the smallest important effect among the layer's patched neurons
-- neurons        BIGINT    neurons of the layer, or of all late layers
-- top            BIGINT    neurons that are among the top by attribution
-- inside         BIGINT    important neurons within the top
-- sampled        BIGINT    neurons outside the top whose effect is known: all of them, or those of
--                          the sample
-- sampled_above  BIGINT    important neurons among sampled
-- recall         DOUBLE    inside / (inside + important neurons outside the top), 0 to 1; null
--                          without a sample
-- ci_low         DOUBLE    lower end of the interval of recall; without a sample, the smallest
--                          possible recall
-- ci_high        DOUBLE    upper end of the interval of recall; without a sample, 1
-- chance         DOUBLE    expected recall of a random ranking: top / neurons
with
    sample as (
        select layer, position, units[1] as neuron
        from neuron_interventions
        where component = 'neuron' and operator is null
    ),
    measured as (
        select
            operator, layer, position, neuron,
            exact.logit_effect as effect,
            exact.rank_logit as place,
            estimated.rank as estimated_place,
            (layer, position, neuron) in (from sample) as is_sampled
        from neuron_effects as exact
        join neuron_effects as estimated using (operator, layer, position, neuron)
        where exact.method = 'exact' and estimated.method = 'attribution'
    ),
    widths as (
        select layer, position, count(distinct neuron) as neurons
        from neuron_effects
        group by all
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
            operator, layer, position, k,
            min(effect) as threshold,
            any_value(neurons) as neurons,
            any_value(top) as top
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
            operator, layer, position, k,
            sum(neurons)::bigint as neurons,
            sum(top)::bigint as top,
            sum(inside)::bigint as inside,
            sum(sampled)::bigint as sampled,
            sum(sampled_above)::bigint as sampled_above
        from layers
        group by grouping sets ((operator, layer, position, k), (operator, position, k))
        having layer is not null or position = 'last'
    ),
    shares as (
        select
            *,
            neurons - top as outside,
            sampled_above / nullif(sampled, 0) as share,
            $normal ** 2 as z2,
            2 * sampled_above + z2 as middle,
            2 * (sampled + z2) as scale,
            z2 - 1 / nullif(sampled, 0) + 4 * sampled_above * (1 - share) as spread,
            4 * share - 2 as skew,
            (middle - 1 - $normal * sqrt(spread + skew)) / scale as low,
            (middle + 1 + $normal * sqrt(spread - skew)) / scale as high,
            if(sampled_above = 0, 0, larger(0, low)) as least,
            if(sampled_above = sampled, 1, smaller(1, high)) as most
        from counted
    )
select
    $subject as subject,
    operator, layer, position, k, neurons, top, inside, sampled, sampled_above,
    inside / (inside + if(sampled = outside, sampled_above, outside * share)) as recall,
    inside / (inside + if(sampled = outside, sampled_above, outside * most)) as ci_low,
    inside / (inside + if(sampled = outside, sampled_above, outside * least)) as ci_high,
    top / neurons as chance
from shares
order by operator, position, layer nulls last, k
