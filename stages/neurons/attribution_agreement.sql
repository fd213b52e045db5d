-- How well attribution, which needs one gradient per prompt, finds the neurons that have the
-- largest effects when each is patched. If not every neuron was patched (patched_neurons above 0),
-- only the random sample is compared, because the other patched neurons were selected by
-- attribution. attribution_recall then estimates recall.
--
-- subject           VARCHAR   the model
-- operator          VARCHAR   add, subtract, multiply or divide
-- layer             SMALLINT  decoder layer, from 0
-- position          VARCHAR   role of the token: op1, operator, op2 or last
-- against           VARCHAR   effect of patching that attribution is compared with: effect or
--                             logit_effect
-- neurons           BIGINT    compared neurons, which have both effects: all neurons of the layer,
--                             or the random sample
-- rank_correlation  DOUBLE    Spearman's rank correlation over these neurons, -1 to 1; equal for
--                             every k
-- k                 INTEGER   number of neurons with the largest effects
-- recall            DOUBLE    share of the k neurons with the largest patched effects that are
--                             among the k with the largest attributions, 0 to 1; null if not every
--                             neuron was patched
-- chance            DOUBLE    expected recall of a random ranking: k / neurons; null if recall is
with
    sample as (  -- all neurons if all are patched
        select layer, position, units[1] as neuron
        from neuron_interventions
        where component = 'neuron' and operator is null
    ),
    exact as (
        select
            operator, layer, position, neuron,
            unnest(['effect', 'logit_effect']) as against,
            unnest([effect, logit_effect]) as patched
        from neuron_effects
        where method = 'exact' and (layer, position, neuron) in (from sample)
    ),
    compared as (
        select exact.*, attribution.effect as estimated
        from exact
        join neuron_effects as attribution using (operator, layer, position, neuron)
        where attribution.method = 'attribution' and attribution.effect is not null
            and patched is not null
    ),
    -- places are distinct, for the top k; ranks are equal for equal effects, for Spearman's
    -- correlation (mean rank - the middle rank)
    ranked as (
        select
            *,
            row_number() over (peers order by patched desc, neuron) as patched_place,
            row_number() over (peers order by estimated desc, neuron) as estimated_place,
            (rank() over (peers order by patched) - rank() over (peers order by patched desc)) / 2
                as patched_rank,
            (rank() over (peers order by estimated)
                - rank() over (peers order by estimated desc)) / 2 as estimated_rank
        from compared
        window peers as (partition by operator, layer, position, against)
    ),
    correlations as (
        select
            operator, layer, position, against,
            count(*) as neurons,
            corr(patched_rank, estimated_rank) as rank_correlation
        from ranked
        group by all
    )
select
    $subject as subject,
    operator, layer, position, against, neurons, rank_correlation, k,
    if(
        $patched_neurons = 0,
        count(*) filter (where patched_place <= k and estimated_place <= k) / k,
        null
    ) as recall,
    if($patched_neurons = 0, k / neurons, null) as chance
from ranked
join correlations using (operator, layer, position, against)
join (select unnest($ks)::integer as k) on k <= neurons
group by operator, layer, position, against, neurons, rank_correlation, k
order by operator, layer, position, against, k
